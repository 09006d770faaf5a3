//! Allocates, without locks, the slots in which spans are stored and the lanes (tracks) on which spans are shown, and
//! counts the references to each span.
//!
//! Free slots form a Treiber stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", 1986). The head of
//! the stack contains a count of its changes, because of the ABA problem: a compare-and-swap with an old head fails,
//! whatever slots were popped and pushed meanwhile. The state of a slot contains the generation of its span (a number
//! that changes with each span in the slot), so that the id of a closed span is recognised as invalid. No thread waits.
//!
//! This file has no statics, and takes its atomics from `crate::sync`. So the loom model `crates/models/tests/slots.rs`
//! can run this file in every order of the model's threads with at most three preemptions.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

const NO_SLOT: u32 = u32::MAX;
/// The maximum generation, which fits in the id of a span.
const GENERATIONS: u32 = 0x3fff_ffff;

pub(crate) const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

pub(crate) const fn high(pair: u64) -> u32 {
    (pair >> 32) as u32
}

pub(crate) const fn low(pair: u64) -> u32 {
    pair as u32
}

/// The link of a free slot in the stack: the index of the next free slot.
pub(crate) struct Link(AtomicU32);

impl Link {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NO_SLOT))
    }
}

/// The stack of free slots: the count of its changes, and the index of its top slot.
pub(crate) struct Free(AtomicU64);

/// The initial value of a [`Free`]: an empty stack.
pub(crate) const NONE_FREE: u64 = NO_SLOT as u64;

impl Free {
    pub(crate) const fn new(head: AtomicU64) -> Self {
        Self(head)
    }

    /// Takes the slot that was freed last, and returns its index. `link` returns the link of a slot. The caller sees
    /// all data that was written to the slot before it was freed.
    pub(crate) fn take<'a>(&self, link: impl Fn(u32) -> Option<&'a Link>) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let Link(next) = link(low(head)).filter(|_| low(head) != NO_SLOT)?;
            let new = pair(high(head).wrapping_add(1), next.load(Ordering::Relaxed));
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(low(head)),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a slot back on the stack of free slots.
    pub(crate) fn put_back(&self, index: u32, Link(next): &Link) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            next.store(low(head), Ordering::Relaxed);
            let new = pair(high(head).wrapping_add(1), index);
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// The generation of the span in a slot, and the number of the span's holders (references that keep it open). The
/// generation changes when the span closes.
pub(crate) struct Life(AtomicU64);

impl Life {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Begins a span with one holder, and returns its generation. The caller must have taken the slot.
    pub(crate) fn begin(&self) -> u32 {
        let generation = high(self.0.load(Ordering::Relaxed));
        self.0.store(pair(generation, 1), Ordering::Release);
        generation
    }

    /// Returns whether the span with this generation is alive. If it is, the caller sees all data that was stored
    /// before the span began.
    #[inline]
    pub(crate) fn is_of(&self, generation: u32) -> bool {
        Self::is_alive(self.0.load(Ordering::Acquire), generation)
    }

    #[inline]
    fn is_alive(life: u64, generation: u32) -> bool {
        high(life) == generation && low(life) > 0
    }

    /// Adds a holder to the span if the span is alive. Returns whether a holder was added.
    #[inline]
    pub(crate) fn hold(&self, generation: u32) -> bool {
        let more = |life| (Self::is_alive(life, generation) && low(life) < u32::MAX).then(|| life + 1);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    /// Removes a holder. Returns true if this was the last holder. In that case the span is closed, the slot belongs
    /// to the caller, and the caller sees all data that the holders have written.
    #[inline(always)]
    pub(crate) fn release(&self, generation: u32) -> bool {
        let less = |life| {
            Self::is_alive(life, generation).then(|| match low(life) {
                1 => pair((high(life) + 1) & GENERATIONS, 0),
                _ => life - 1,
            })
        };
        match self.0.fetch_update(Ordering::Release, Ordering::Relaxed, less) {
            Ok(life) if low(life) == 1 => {
                fence(Ordering::Acquire);
                true
            }
            _ => false,
        }
    }
}

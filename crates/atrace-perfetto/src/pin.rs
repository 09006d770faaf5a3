//! Determines which thread may use a writer (the state with which a thread writes for a session). For this purpose,
//! each thread slot has a *pin*, and each session slot an *epoch*.
//!
//! # The problem
//!
//! A writer belongs to a thread and a session. Normally the writer's thread uses the writer, at every event, without a
//! lock. When the session has ended, the socket thread (for a recording, the recording's thread) has to take the
//! writer's unfinished chunk away, although the writer's thread may be in any state: asleep, in the middle of an event,
//! or gone.
//!
//! # The protocol
//!
//! A thread is *pinned* ([`Pin`]) while it writes an event, as in crossbeam-epoch. A session is open while its
//! [`Epoch`] is odd. A thread writes for a session only if it is pinned and has seen the odd epoch after it was pinned.
//! The socket thread first makes the epoch even, and then takes the chunk of each thread that is not pinned. If a
//! thread is pinned, the socket thread checks again later. The writer's thread never waits in this protocol.
//!
//! Each of the two threads stores a word of its own and then loads the other thread's word. At least one of the two
//! threads must see the other's store. This is the core of Dekker's algorithm for mutual exclusion, which needs a
//! store-load fence on both sides. Such a fence would cost an event more than all of its other instructions. So the
//! fences are asymmetric. The event has only a *light* fence: if the kernel offers `membarrier(2)`, this is a compiler
//! barrier. The socket thread, which rarely closes a session, has the *heavy* fence: it makes the kernel run a full
//! fence on every CPU that runs a thread of this process. See `atrace_sys::fence`, and "asymmetric fences" in WG21
//! paper P1202.
//!
//! # Other orders
//!
//! - [`Pin::unpin`] is a release and [`Pin::is_pinned`] an acquire: the socket thread sees all data that
//!   the writer's thread has written.
//! - [`Epoch::open`] is a release and [`Epoch::now`] an acquire: a thread that sees the epoch sees the session's
//!   other words.
//! - A signal handler that interrupts a pinned thread must not write an event. In such a handler, [`Pin::pin`] returns
//!   [`PinResult::Nested`].

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{heavy_fence, light_fence};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const PINNED: u32 = 2;

/// The state of a thread slot: free (0), taken by a thread, or taken by a thread that is pinned (in the middle of an
/// event).
#[derive(Debug, Default)]
pub(crate) struct Pin(pub(crate) AtomicU32);

/// The result of [`Pin::pin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinResult {
    /// The thread is pinned now.
    Pinned,
    /// The thread was already pinned: the caller is a signal handler in the middle of an event, or the thread has left
    /// an event by `longjmp`.
    Nested,
    /// The slot is free, so it does not belong to the caller. This happens in a forked child, which has freed
    /// its parent's slots.
    Lost,
}

impl Pin {
    /// Takes the slot. Returns false if the slot is not free.
    pub(crate) fn claim(&self) -> bool {
        self.0.load(Ordering::Relaxed) == FREE
            && self.0.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Pins the thread.
    #[inline(always)]
    pub(crate) fn pin(&self) -> PinResult {
        match self.0.load(Ordering::Relaxed) {
            TAKEN => {
                self.0.store(PINNED, Ordering::Relaxed);
                light_fence();
                PinResult::Pinned
            }
            PINNED => PinResult::Nested,
            _ => PinResult::Lost,
        }
    }

    /// Unpins the thread.
    #[inline(always)]
    pub(crate) fn unpin(&self) {
        self.0.store(TAKEN, Ordering::Release);
    }

    /// Frees the slot. The caller must have pinned or just claimed the slot, or the slot's thread must no longer exist.
    #[inline]
    pub(crate) fn free(&self) {
        self.0.store(FREE, Ordering::Release);
    }

    /// Returns whether the thread is pinned. If it is not pinned, all data that it wrote is visible to
    /// the caller.
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.0.load(Ordering::Acquire) == PINNED
    }
}

/// The epoch of a session slot: a number that is initially 0, and is odd while a session in the slot is open. No two
/// sessions in the same slot have the same epoch.
///
/// The first word is the present epoch. The second word is the session's first epoch, which identifies the session.
#[derive(Debug, Default)]
pub(crate) struct Epoch(pub(crate) AtomicU32, pub(crate) AtomicU32);

impl Epoch {
    /// Returns the present epoch.
    #[inline(always)]
    pub(crate) fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Returns whether the epoch `number` is the epoch of an open session.
    #[inline(always)]
    pub(crate) const fn is_open(number: u32) -> bool {
        number & 1 == 1
    }

    /// Opens a session. A thread that sees the new epoch also sees all data that was stored before this
    /// call.
    ///
    /// No thread may still have a chunk of the slot's previous session.
    ///
    /// In a forked child, the epochs were wiped (set to 0). So the first epoch of a slot is computed from `generation`,
    /// which identifies the process. Each process has 65,536 epochs of its own, so the sessions of a child have other
    /// epochs than the sessions of its parent.
    pub(crate) fn open(&self, generation: u64) {
        let now = match self.0.load(Ordering::Relaxed) {
            0 => (generation as u32) << 16,
            now => now,
        };
        let first = now.wrapping_add(1) | 1;
        self.1.store(first, Ordering::Relaxed);
        self.0.store(first, Ordering::Release);
    }

    /// Returns the first epoch of the open session or, if no session is open, of the session that was closed last.
    ///
    /// A thread that has seen any epoch of a session gets the first epoch of this session here.
    pub(crate) fn first(&self) -> u32 {
        self.1.load(Ordering::Relaxed)
    }

    /// Gives the open session another epoch. Each thread notices this at its next event, and then sees all data
    /// that the caller stored before.
    pub(crate) fn advance(&self) {
        let now = self.0.load(Ordering::Relaxed);
        if Self::is_open(now) {
            self.0.store(now.wrapping_add(2), Ordering::Release);
        }
    }

    /// Closes the session. If a thread is found not pinned after this call, it does not write for the session any more.
    pub(crate) fn close(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(1) & !1, Ordering::Release);
        heavy_fence();
    }
}

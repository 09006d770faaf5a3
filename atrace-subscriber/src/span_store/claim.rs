//! Decides which thread begins a span's life, and tells the others where the life is.
//!
//! One compare-and-swap is the claim. It is tagged with the span's generation, so that a thread that is late does not claim the
//! life of the slot's next span. A thread that claims holds the span meanwhile; so the thread that closes the span sees
//! the whole begin.
//!
//! This file has no statics and shares data through `sync`, so that `crates/models/tests/lives.rs` can run it in every order of its
//! threads.

use crate::slots::{high, low, pair};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The span's generation and, below it, [`UNBEGUN`], [`BEGINS`], or the number of the lane with two more bits: [`ON_LANE`] and
/// [`IS_NESTED`].
pub(crate) struct Claim(AtomicU64);

const UNBEGUN: u32 = 0;
const BEGINS: u32 = 1;
const ON_LANE: u32 = 1 << 31;
const IS_NESTED: u32 = 1 << 30;

/// Where a life is: the number of its lane, and whether it is nested there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    pub(crate) lane: u32,
    pub(crate) is_nested: bool,
}

impl Claim {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Notes that the life of the slot's new span has not begun. The caller has not shown the span to others.
    #[inline(always)]
    pub(crate) fn reset(&self, generation: u32) {
        self.0.store(pair(generation, UNBEGUN), Ordering::Relaxed);
    }

    /// Returns the generation of the span if its life has not begun.
    #[inline(always)]
    pub(crate) fn unbegun(&self) -> Option<u32> {
        let state = self.0.load(Ordering::Relaxed);
        (low(state) == UNBEGUN).then(|| high(state))
    }

    #[inline(always)]
    pub(crate) fn is_unbegun(&self, generation: u32) -> bool {
        self.0.load(Ordering::Relaxed) == pair(generation, UNBEGUN)
    }

    /// Returns true for the one thread that begins the life, which holds the span or has closed it.
    pub(crate) fn take(&self, generation: u32) -> bool {
        let (from, to) = (pair(generation, UNBEGUN), pair(generation, BEGINS));
        self.0.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Notes that the life has begun, or, if that failed, that another thread may claim it.
    pub(crate) fn set(&self, generation: u32, begun: Option<Begun>) {
        let nested = |begun: Begun| if begun.is_nested { IS_NESTED } else { 0 };
        let state = begun.map_or(UNBEGUN, |begun| ON_LANE | nested(begun) | begun.lane);
        self.0.store(pair(generation, state), Ordering::Release);
    }

    /// Returns where the life is, if it has begun. The caller sees what was written before.
    pub(crate) fn begun(&self, generation: u32) -> Option<Begun> {
        let state = self.0.load(Ordering::Acquire);
        let (of, state) = (high(state), low(state));
        let begun = || Begun { lane: state & !(ON_LANE | IS_NESTED), is_nested: state & IS_NESTED != 0 };
        (of == generation && state & ON_LANE != 0).then(begun)
    }
}

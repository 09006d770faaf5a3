//! Decides which thread begins the life of a span (its slice from the creation until it closes), and records
//! on which lane the life is.
//!
//! A thread claims the life by a compare-and-swap. The claim contains the generation of the span, so that a thread that
//! is late can't claim the life of the slot's next span. A thread that begins the life is a holder of the span (it
//! keeps the span open), unless it has closed the span itself. So the thread that closes the span sees all data that
//! was stored while the life was begun.
//!
//! This file has no statics, and takes its atomics from `crate::sync`. So the loom model `crates/models/tests/lives.rs`
//! can run this file in every order of two threads, and in every order of three threads with at most two preemptions.

use crate::slots::{high, low, pair};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The state of a life. The upper bits are the generation of the span. The lower bits are [`UNBEGUN`], [`BEGINS`], or
/// the number of the lane together with the bit [`ON_LANE`] and, if the life is nested, the bit [`IS_NESTED`].
pub(crate) struct Claim(AtomicU64);

const UNBEGUN: u32 = 0;
const BEGINS: u32 = 1;
const ON_LANE: u32 = 1 << 31;
const IS_NESTED: u32 = 1 << 30;

/// Where a life has begun: the number of its lane, and whether the life is nested in another life on the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LifeLane {
    pub(crate) lane: u32,
    pub(crate) is_nested: bool,
}

impl Claim {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Records that the life of the slot's new span has not begun. If `is_taken` is true, the caller has claimed the life
    /// and begins it at once. No other thread may have access to the span yet.
    #[inline(always)]
    pub(crate) fn reset(&self, generation: u32, is_taken: bool) {
        self.0.store(pair(generation, if is_taken { BEGINS } else { UNBEGUN }), Ordering::Relaxed);
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

    /// Claims the life. Returns true for only one thread. That thread must then begin the life. The caller must be a
    /// holder of the span, or must have closed it.
    pub(crate) fn take(&self, generation: u32) -> bool {
        let (from, to) = (pair(generation, UNBEGUN), pair(generation, BEGINS));
        self.0.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Records that the life has begun, on the lane in `begun`. If `begun` is `None`, records that the life could not
    /// be begun and may be claimed again.
    pub(crate) fn set(&self, generation: u32, begun: Option<LifeLane>) {
        let nested = |begun: LifeLane| if begun.is_nested { IS_NESTED } else { 0 };
        let state = begun.map_or(UNBEGUN, |begun| ON_LANE | nested(begun) | begun.lane);
        self.0.store(pair(generation, state), Ordering::Release);
    }

    /// Returns the lane of the life and whether the life is nested, if the life has begun. The caller then sees all
    /// data that was stored before [`set`](Self::set) was called.
    pub(crate) fn begun(&self, generation: u32) -> Option<LifeLane> {
        let state = self.0.load(Ordering::Acquire);
        let (of, state) = (high(state), low(state));
        let begun = || LifeLane { lane: state & !(ON_LANE | IS_NESTED), is_nested: state & IS_NESTED != 0 };
        (of == generation && state & ON_LANE != 0).then(begun)
    }
}

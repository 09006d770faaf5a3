//! The occupancy of one lane (a track that shows lives): the innermost *life* on the lane (a slice that shows a span
//! from its creation until it closes), and the time of the lane's last event.
//!
//! A life is nested in its parent's life by one compare-and-swap, which replaces the number of the parent's life by the
//! number of the nested life. So if threads try to nest several children in a life at once, only one of them succeeds.
//! After the swap, the thread checks the time of the lane's last event a second time, because another child may have
//! been nested and removed since the first check. (The first check only avoids swaps that would have to be undone.)
//!
//! This file has no statics, and takes its atomics from `crate::sync`. So the loom model `crates/models/tests/lanes.rs`
//! can run this file in every order of the model's threads.

use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Occupancy {
    /// The number of the innermost life on the lane, or 0 if the lane is free.
    top: AtomicU64,
    /// The time of the lane's last event, in nanoseconds.
    last: AtomicU64,
}

impl Occupancy {
    pub(crate) fn new() -> Self {
        Self { top: AtomicU64::new(0), last: AtomicU64::new(0) }
    }

    /// Returns whether the lane had no event since `time`.
    pub(crate) fn is_silent_since(&self, time: u64) -> bool {
        self.last.load(Ordering::Acquire) < time
    }

    /// Puts a life that began at `time` on this lane, which was free until the caller took it.
    pub(crate) fn take(&self, life: u64, time: u64) {
        self.last.store(time, Ordering::Relaxed);
        self.top.store(life, Ordering::Release);
    }

    /// Puts a life that began at `time` into its parent's life. Returns false if the life does not fit there.
    pub(crate) fn nest(&self, parent: u64, life: u64, time: u64) -> bool {
        if !self.is_silent_since(time)
            || self.top.compare_exchange(parent, life, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // Another child may have been nested and removed since the first check.
        let still_fits = self.is_silent_since(time);
        if still_fits {
            self.last.store(time, Ordering::Release);
        } else {
            self.top.store(parent, Ordering::Release);
        }
        still_fits
    }

    /// Removes the innermost life, which ends at `now`, from the lane. Calls `end` with the time of the end, so that
    /// `end` writes the end. Afterwards, the life with the number `below` is the innermost life; if `below` is 0, the
    /// lane is free.
    ///
    /// Threads may read the clock in one order and call this function in another order. So the end gets a time that is
    /// later than the lane's last event, even if `now` is not.
    pub(crate) fn leave(&self, below: u64, now: u64, end: impl FnOnce(u64)) {
        let time = now.max(self.last.load(Ordering::Acquire) + 1);
        self.last.store(time, Ordering::Release);
        end(time);
        self.top.store(below, Ordering::Release);
    }
}

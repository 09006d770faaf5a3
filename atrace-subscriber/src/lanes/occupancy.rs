//! The lives on one lane: the innermost of them, and the time of the lane's last event.
//!
//! A life nests by one compare-and-swap from its parent to itself, so of several children one nests. The swap also shows the
//! time of the last event of an earlier child, which may have come and gone since the thread first looked. (The first look
//! only spares other children a swap that is taken back.)
//!
//! This file has no statics and shares data through `sync`, so that `crates/models/tests/lanes.rs` can run it in every order of
//! its threads.

use crate::sync::atomic::{AtomicU64, Ordering};

pub(crate) struct Occupancy {
    /// The number of the innermost life, or 0 if the lane is free.
    top: AtomicU64,
    /// The time of the last event.
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

    /// Puts the first life, which began at `time`, on a free lane. The caller has taken the lane.
    pub(crate) fn take(&self, life: u64, time: u64) {
        self.last.store(time, Ordering::Relaxed);
        self.top.store(life, Ordering::Release);
    }

    /// Puts a life that began at `time` into its parent's life. Returns false if it does not fit there.
    pub(crate) fn nest(&self, parent: u64, life: u64, time: u64) -> bool {
        if !self.is_silent_since(time)
            || self.top.compare_exchange(parent, life, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // Another child may have come and gone since the first look.
        let still_fits = self.is_silent_since(time);
        if still_fits {
            self.last.store(time, Ordering::Release);
        } else {
            self.top.store(parent, Ordering::Release);
        }
        still_fits
    }

    /// Takes the innermost life from the lane, which ends at `now`. `end` gets the time of the end, and writes the end. Then
    /// `below` is the innermost life; 0: the lane is free.
    ///
    /// Threads read the clock in one order, but may arrive here in another. An end is always later than the events
    /// before it on the lane.
    pub(crate) fn leave(&self, below: u64, now: u64, end: impl FnOnce(u64)) {
        let time = now.max(self.last.load(Ordering::Acquire) + 1);
        self.last.store(time, Ordering::Release);
        end(time);
        self.top.store(below, Ordering::Release);
    }
}

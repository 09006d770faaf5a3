//! Counts allocations exactly.
//!
//! A bench binary installs [`Counting`] as its global allocator. [`Counting`] counts the allocations of all threads,
//! but only while [`count`] runs. At any other time, it adds only a relaxed load and a branch to an allocation, so it
//! hardly affects measured times.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: atrace_benches::instruments::alloc::Counting = atrace_benches::instruments::alloc::Counting;
//!
//! let (counts, boxed) = atrace_benches::instruments::alloc::count(|| Box::new(7_u64));
//! let counts = counts.expect("Counting is installed");
//! assert_eq!((counts.allocs, counts.bytes, counts.frees, counts.peak), (1, 8, 0, 8));
//! # drop(boxed);
//! ```
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait; every call goes to System unchanged")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

static ON: AtomicBool = AtomicBool::new(false);
/// Four counts: allocations, allocated bytes, frees, and freed bytes.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Two numbers: the bytes allocated minus the bytes freed since counting began, and the maximum of this difference. The
/// difference is negative if more bytes were freed than allocated since counting began.
static LIVE: [AtomicI64; 2] = [const { AtomicI64::new(0) }; 2];

/// The system's allocator, which counts the allocations while [`count`] runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

impl Counting {
    #[inline]
    fn allocated(size: usize) {
        if ON.load(Relaxed) {
            COUNTS[0].fetch_add(1, Relaxed);
            COUNTS[1].fetch_add(size as u64, Relaxed);
            let size = size.cast_signed() as i64;
            LIVE[1].fetch_max(LIVE[0].fetch_add(size, Relaxed) + size, Relaxed);
        }
    }

    #[inline]
    fn freed(size: usize) {
        if ON.load(Relaxed) {
            COUNTS[2].fetch_add(1, Relaxed);
            COUNTS[3].fetch_add(size as u64, Relaxed);
            LIVE[0].fetch_sub(size.cast_signed() as i64, Relaxed);
        }
    }
}

// SAFETY: every method passes its arguments to `System` unchanged and returns the result of `System`; the counters are
// atomics, which neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: `System` has the same contract as this method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: `System` has the same contract as this method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::allocated(new_size);
        Self::freed(layout.size());
        // SAFETY: `System` has the same contract as this method, and `ptr` came from `System`.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        Self::freed(layout.size());
        // SAFETY: `System` has the same contract as this method, and `ptr` came from `System`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Counts of the requests to the allocator. A `realloc` counts as an allocation of the new size, and as a free of the
/// old block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The number of allocations.
    pub allocs: u64,
    /// The number of requested bytes.
    pub bytes: u64,
    /// The number of freed blocks.
    pub frees: u64,
    /// The number of bytes of the freed blocks.
    pub freed: u64,
    /// The maximum of the bytes in use (allocated and not yet freed), minus the bytes in use when counting began. An
    /// allocation in another thread at the moment when counting ends may be missed. During a `realloc`, the old and the
    /// new block both count.
    pub peak: u64,
}

/// Runs `f`, and counts the allocations of all threads of the process while `f` runs.
///
/// The returned counts are `None` if [`Counting`] is not installed, so that a missing count is not taken for zero. Only
/// one caller counts at a time: other callers wait before they run their `f`.
pub fn count<R>(f: impl FnOnce() -> R) -> (Option<Counts>, R) {
    static TURN: Mutex<()> = Mutex::new(());

    /// Stops counting when it is dropped, even if the counted function unwinds.
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ON.store(false, Relaxed);
        }
    }

    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let off = Off;
    COUNTS[0].store(0, Relaxed);
    ON.store(true, Relaxed);
    drop(black_box(Box::new(black_box(0_u8))));
    let installed = COUNTS[0].load(Relaxed) > 0;
    COUNTS.iter().for_each(|counter| counter.store(0, Relaxed));
    LIVE.iter().for_each(|counter| counter.store(0, Relaxed));
    let result = f();
    let [allocs, bytes, frees, freed] = COUNTS.each_ref().map(|counter| counter.load(Relaxed));
    // The maximum starts at 0, so it is never negative.
    let counts = Counts { allocs, bytes, frees, freed, peak: LIVE[1].load(Relaxed).unsigned_abs() };
    drop(off);
    (installed.then_some(counts), result)
}

/// The allocator calls of one operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerOp {
    /// The number of allocations of one operation.
    pub allocs: f64,
    /// The number of bytes that one operation allocates.
    pub bytes: f64,
    /// The exact counts for all counted operations together.
    pub total: Counts,
}

/// Counts the allocations of exactly `ops` operations of `f`. One operation runs before the counting begins, so that
/// allocations of only the first operation are not counted.
///
/// Returns `None` if [`Counting`] is not installed.
///
/// # Panics
///
/// Panics if `ops` is 0.
pub fn per_op(ops: u64, mut f: impl FnMut(u64)) -> Option<PerOp> {
    assert!(ops > 0, "no operations allocate nothing");
    f(1);
    let (total, ()) = count(|| f(ops));
    let total = total?;
    let [allocs, bytes] = [total.allocs, total.bytes].map(|n| n as f64 / ops as f64);
    Some(PerOp { allocs, bytes, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_allocator_there_is_no_count() {
        // This test binary does not install the counting allocator. The test `tests/alloc.rs` installs it.
        assert_eq!(count(|| vec![1, 2, 3].len()), (None, 3));
        assert_eq!(per_op(10, |_| ()), None);
    }
}

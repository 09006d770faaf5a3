//! Counts allocations, exactly.
//!
//! A bench binary installs [`Counting`] as its global allocator. It counts for the whole process,
//! all threads, and only while [`count`] runs: at any other time an allocation costs one relaxed
//! load and a branch more than it would, so that timing is not disturbed.
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
static ALLOCS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);
static FREES: AtomicU64 = AtomicU64::new(0);
static FREED: AtomicU64 = AtomicU64::new(0);
/// Bytes allocated and not freed since counting began. Below zero while what was allocated before is freed.
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, counting while [`count`] runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

impl Counting {
    #[inline]
    fn allocated(size: usize) {
        if ON.load(Relaxed) {
            ALLOCS.fetch_add(1, Relaxed);
            BYTES.fetch_add(size as u64, Relaxed);
            let size = size.cast_signed() as i64;
            PEAK.fetch_max(LIVE.fetch_add(size, Relaxed) + size, Relaxed);
        }
    }

    #[inline]
    fn freed(size: usize) {
        if ON.load(Relaxed) {
            FREES.fetch_add(1, Relaxed);
            FREED.fetch_add(size as u64, Relaxed);
            LIVE.fetch_sub(size.cast_signed() as i64, Relaxed);
        }
    }
}

// SAFETY: every method passes its arguments to `System` unchanged and returns what that returned;
// the counters are atomics that neither allocate nor unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::allocated(layout.size());
        // SAFETY: the caller's promises are those of `System`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        Self::allocated(new_size);
        Self::freed(layout.size());
        // SAFETY: the caller's promises are those of `System`, where `ptr` came from.
        unsafe { System.realloc(ptr, layout, new_size) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        Self::freed(layout.size());
        // SAFETY: the caller's promises are those of `System`, where `ptr` came from.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// What was asked of the allocator. A `realloc` is an allocation of the new size and a free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Allocations.
    pub allocs: u64,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Blocks that were given back.
    pub frees: u64,
    /// Bytes of those blocks.
    pub freed: u64,
    /// The most bytes that were allocated and not yet given back at any time, above what was there before. With
    /// several threads, to within what they allocate at the same moment. A `realloc` is both blocks for a moment.
    pub peak: u64,
}

/// Runs `f` and counts what the whole process allocates meanwhile.
///
/// The counts are `None` where [`Counting`] is not installed: that nothing was counted must never
/// be taken for nothing was allocated. One caller at a time counts; others wait.
pub fn count<R>(f: impl FnOnce() -> R) -> (Option<Counts>, R) {
    static TURN: Mutex<()> = Mutex::new(());

    /// Stops counting also when `f` unwinds.
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            ON.store(false, Relaxed);
        }
    }

    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let off = Off;
    ALLOCS.store(0, Relaxed);
    ON.store(true, Relaxed);
    drop(black_box(Box::new(black_box(0_u8))));
    let installed = ALLOCS.load(Relaxed) > 0;
    for counter in [&ALLOCS, &BYTES, &FREES, &FREED] {
        counter.store(0, Relaxed);
    }
    for counter in [&LIVE, &PEAK] {
        counter.store(0, Relaxed);
    }
    let result = f();
    let counts = Counts {
        allocs: ALLOCS.load(Relaxed),
        bytes: BYTES.load(Relaxed),
        frees: FREES.load(Relaxed),
        freed: FREED.load(Relaxed),
        // Never below zero: it began there.
        peak: PEAK.load(Relaxed).unsigned_abs(),
    };
    drop(off);
    (installed.then_some(counts), result)
}

/// What one operation asks of the allocator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerOp {
    /// Allocations of one operation.
    pub allocs: f64,
    /// Bytes of one operation.
    pub bytes: f64,
    /// Frees of one operation.
    pub frees: f64,
    /// Bytes given back by one operation.
    pub freed: f64,
    /// The counts of all operations, exactly.
    pub total: Counts,
}

/// Counts the allocations of exactly `ops` operations of `f`, after one operation that is not
/// counted (it may set up what is set up once).
///
/// `None` where [`Counting`] is not installed.
///
/// # Panics
///
/// For no operations.
pub fn per_op(ops: u64, mut f: impl FnMut(u64)) -> Option<PerOp> {
    assert!(ops > 0, "no operations allocate nothing");
    f(1);
    let (total, ()) = count(|| f(ops));
    let total = total?;
    let per = |n: u64| n as f64 / ops as f64;
    Some(PerOp {
        allocs: per(total.allocs),
        bytes: per(total.bytes),
        frees: per(total.frees),
        freed: per(total.freed),
        total,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_allocator_there_is_no_count() {
        // This binary has not installed it; `tests/alloc.rs` has.
        assert_eq!(count(|| vec![1, 2, 3].len()), (None, 3));
        assert_eq!(per_op(10, |_| ()), None);
    }
}

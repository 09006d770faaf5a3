//! Tasks in C++23 (C++20 for an older compiler), each of which computes a Fibonacci number recursively in floating point.
//!
//! `cxx` cannot bridge coroutines, so a plain C++ function runs a whole batch and reports the durations of its parts.
//! The parts of a single task would be shorter than a reading of the clock.

pub use ffi::Batch;

// What the macro makes is public whether or not its module is.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[allow(missing_docs, reason = "the functions are not public, and what is has its own")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    /// The durations of a batch of tasks in nanoseconds, and its results.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Batch {
        /// The creation of all tasks: threads or coroutines, which then wait.
        creation: u64,
        /// The execution of all tasks, including joining the threads.
        resume: u64,
        /// The destruction of all tasks.
        destruction: u64,
        /// The sum of their results.
        sum: f64,
        /// How many coroutines have ended, or how often the single coroutine was resumed.
        resumes: u64,
        /// How many coroutine frames were allocated on the heap; 0 if the compiler has elided the allocations.
        news: u64,
        /// The bytes of these frames.
        frame_bytes: u64,
        /// How many frames were freed.
        deletes: u64,
        /// The bytes of the freed frames.
        freed_bytes: u64,
    }

    unsafe extern "C++" {
        // SAFETY: cxx has the C++ compiler compare each signature with the header's; what is not `unsafe` takes no raw pointer.
        include!("cc-bench/src/coroutines.h");

        fn tasks_sequential(fibonacci: u32, tasks: u64) -> Batch;
        fn tasks_threads(fibonacci: u32, tasks: u64) -> Result<Batch>;
        fn tasks_coroutines(fibonacci: u32, tasks: u64) -> Batch;
        fn tasks_co_yield(fibonacci: u32, tasks: u64) -> Batch;
    }
}

impl Batch {
    /// Returns the bytes of a frame, or `None` if no frame was allocated, in which case the size is unknown.
    pub fn frame(&self) -> Option<f64> {
        (self.news > 0).then(|| self.frame_bytes as f64 / self.news as f64)
    }
}

/// An argument that makes tasks compute nothing, so that only the cost of running a task remains.
pub const NOTHING: u32 = u32::MAX;

/// Computes the number `tasks` times in a loop.
pub fn sequential(fibonacci: u32, tasks: u64) -> Batch {
    ffi::tasks_sequential(fibonacci, tasks)
}

/// Computes each number in a `std::thread`. All threads are created, and sleep, before the first thread may compute.
///
/// # Errors
///
/// The error of C++ if not all threads could be started.
pub fn threads(fibonacci: u32, tasks: u64) -> std::io::Result<Batch> {
    ffi::tasks_threads(fibonacci, tasks).map_err(std::io::Error::other)
}

/// Computes each number in a coroutine. All coroutines are created before the first is resumed, and destroyed after the
/// last has run.
pub fn coroutines(fibonacci: u32, tasks: u64) -> Batch {
    ffi::tasks_coroutines(fibonacci, tasks)
}

/// Computes all numbers in one coroutine, which yields each number (`co_yield`).
pub fn co_yield(fibonacci: u32, tasks: u64) -> Batch {
    ffi::tasks_co_yield(fibonacci, tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_compute_the_same() {
        for (fibonacci, number) in [(0, 0.0), (1, 1.0), (5, 5.0), (15, 610.0), (NOTHING, 0.0)] {
            let sum = number * 100.0;
            assert_eq!(sequential(fibonacci, 100).sum, sum);
            assert_eq!(threads(fibonacci, 100).unwrap().sum, sum);
            assert_eq!(coroutines(fibonacci, 100).sum, sum);
            assert_eq!(co_yield(fibonacci, 100).sum, sum);
        }
        assert_eq!(threads(5, 0).unwrap().sum, 0.0);
    }

    #[test]
    fn coroutines_say_what_they_take() {
        let many = coroutines(5, 1000);
        assert_eq!(many.resumes, 1000);
        // A compiler may elide the allocation of a frame, but then of all frames.
        assert!([0, 1000].contains(&many.news), "{many:?}");
        assert_eq!(many.frame_bytes % 1000, 0);
        assert!(many.frame().is_none_or(|frame| (24.0..1024.0).contains(&frame)), "{many:?}");
        // The compiler passes the size to both `new` and `delete`.
        assert_eq!((many.deletes, many.freed_bytes), (many.news, many.frame_bytes));
        assert!(many.creation > 0 && many.resume > 0 && many.destruction > 0, "{many:?}");
        let one = co_yield(5, 1000);
        assert_eq!(one.resumes, 1000);
        assert!(one.news <= 1, "{one:?}");
        assert_eq!((one.deletes, one.freed_bytes), (one.news, one.frame_bytes));
    }
}

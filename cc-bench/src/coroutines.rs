//! Tasks in C++20: each computes a Fibonacci number, recursively and in floating point.
//!
//! `cxx` bridges no coroutines: a whole batch runs in C++ behind a plain function, and says how long its
//! parts took together. Parts of single tasks would be shorter than it takes to read the clock.

pub use ffi::Batch;

// What the macro makes is public whether or not its module is.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[allow(missing_docs, reason = "the functions are not public, and what is has its own")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    /// What a batch of tasks took, in nanoseconds, and what came of it.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Batch {
        /// To create all of them: threads or coroutines, which then wait.
        creation: u64,
        /// To run all of them, and to join threads.
        resume: u64,
        /// To destroy all of them.
        destruction: u64,
        /// The sum of their results.
        sum: f64,
        /// How many coroutines have ended, or how often the one was resumed.
        resumes: u64,
        /// How many times a coroutine's frame was taken from the heap; 0 where the compiler has elided it.
        news: u64,
        /// The bytes of all those frames.
        frame_bytes: u64,
        /// How many were given back.
        deletes: u64,
        /// The bytes of those.
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
    /// Returns the bytes of a frame; `None` where none was taken from the heap: how large it would be nobody knows.
    pub fn frame(&self) -> Option<f64> {
        (self.news > 0).then(|| self.frame_bytes as f64 / self.news as f64)
    }
}

/// In the place of a number: compute nothing. A task then is what it takes to run one.
pub const NOTHING: u32 = u32::MAX;

/// Computes the number `tasks` times in a loop.
pub fn sequential(fibonacci: u32, tasks: u64) -> Batch {
    ffi::tasks_sequential(fibonacci, tasks)
}

/// Computes each in a `std::thread`. All are created before the first may compute, and sleep until then.
///
/// # Errors
///
/// What C++ said when it could not start that many.
pub fn threads(fibonacci: u32, tasks: u64) -> std::io::Result<Batch> {
    ffi::tasks_threads(fibonacci, tasks).map_err(std::io::Error::other)
}

/// Computes each in a coroutine. All are created before the first is resumed, and destroyed after the last.
pub fn coroutines(fibonacci: u32, tasks: u64) -> Batch {
    ffi::tasks_coroutines(fibonacci, tasks)
}

/// Computes all in one coroutine, that yields each (`co_yield`).
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
        // A compiler may put a frame elsewhere, but then all of them.
        assert!([0, 1000].contains(&many.news), "{many:?}");
        assert_eq!(many.frame_bytes % 1000, 0);
        assert!(many.frame().is_none_or(|frame| (24.0..1024.0).contains(&frame)), "{many:?}");
        // The compiler says both sizes.
        assert_eq!((many.deletes, many.freed_bytes), (many.news, many.frame_bytes));
        assert!(many.creation > 0 && many.resume > 0 && many.destruction > 0, "{many:?}");
        let one = co_yield(5, 1000);
        assert_eq!(one.resumes, 1000);
        assert!(one.news <= 1, "{one:?}");
        assert_eq!((one.deletes, one.freed_bytes), (one.news, one.frame_bytes));
    }
}

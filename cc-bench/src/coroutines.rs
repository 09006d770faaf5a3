//! Tasks in C++23 (C++20 for an older compiler), each of which computes a Fibonacci number recursively in floating
//! point. If both g++ and clang++ are installed, each of them compiles these tasks (except in a cross-compilation),
//! because the two compilers make different coroutines.
//!
//! `cxx` cannot bridge coroutines, so a plain C++ function runs a whole batch and reports the durations of its parts.

use std::sync::{Mutex, PoisonError};

pub use ffi::{Batch, Compiler};

// The macro generates public items, even in a private module.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[allow(missing_docs, reason = "the functions are not public; the public items have documentation")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    /// A compiler of the tasks.
    #[derive(Debug)]
    enum Compiler {
        /// The compiler g++ of GNU.
        Gcc,
        /// The compiler clang++ of LLVM.
        Clang,
    }

    /// The implementations of the tasks.
    #[derive(Debug)]
    enum Kind {
        Sequential,
        Threads,
        Coroutines,
        CoYield,
    }

    /// The durations of a batch of tasks in nanoseconds, and its results. `creation`, `resume` and `destruction` are
    /// each the time between two readings of the clock, and include one reading. These three periods follow each other;
    /// `total` is the time from the first reading to the last.
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Batch {
        /// The time of the whole batch.
        total: u64,
        /// The time of creating all tasks: threads or coroutines, which then wait.
        creation: u64,
        /// The time of executing all tasks, including joining the threads.
        resume: u64,
        /// The part of `resume` that the computations took, which includes one reading of the clock for each task. It
        /// is 0 if the tasks were not timed from within.
        compute: u64,
        /// The time from directly before each task is resumed to the beginning of its computation, and from the end of
        /// the computation until the task has returned. It includes two readings of the clock for each task. It is 0 if
        /// the tasks were not timed from within. The rest of `resume` is one reading of the clock for each task, one
        /// further reading, and the work of the loop between two tasks.
        switches: u64,
        /// The time of destroying all tasks.
        destruction: u64,
        /// The sum of the tasks' results.
        sum: f64,
        /// The number of coroutines that have ended, or how many times the single coroutine was resumed.
        resumes: u64,
        /// The number of coroutine frames that were allocated on the heap. It is 0 if the compiler has elided
        /// the allocations.
        news: u64,
        /// The total size of the coroutine frames that were allocated on the heap, in bytes.
        frame_bytes: u64,
        /// The number of coroutine frames that were freed.
        deletes: u64,
        /// The total size of the coroutine frames that were freed, in bytes.
        freed_bytes: u64,
    }

    unsafe extern "C++" {
        // SAFETY: cxx makes the C++ compiler compare each signature with the header. Functions without `unsafe` take no
        // raw pointer.
        include!("cc-bench/src/coroutines.h");

        fn run(compiler: Compiler, kind: Kind, fibonacci: u32, tasks: u64, inside: bool) -> Result<Batch>;
        fn version(compiler: Compiler) -> String;
    }
}

impl Batch {
    /// Returns the size of a coroutine frame in bytes. If no frame was allocated, the size is unknown, and this returns
    /// `None`.
    pub fn frame(&self) -> Option<f64> {
        (self.news > 0).then(|| self.frame_bytes as f64 / self.news as f64)
    }
}

impl Compiler {
    /// Both compilers.
    pub const ALL: [Self; 2] = [Self::Gcc, Self::Clang];

    /// Returns the version of the compiler, or `None` if it was not installed when this crate was built.
    pub fn version(self) -> Option<String> {
        Some(ffi::version(self)).filter(|version| !version.is_empty())
    }

    /// Computes the Fibonacci number `tasks` times in a loop.
    ///
    /// # Errors
    ///
    /// Returns an error if the compiler [was not installed](Self::version).
    pub fn sequential(self, fibonacci: u32, tasks: u64) -> std::io::Result<Batch> {
        self.run(ffi::Kind::Sequential, fibonacci, tasks, false)
    }

    /// Computes the Fibonacci number in `tasks` threads (`std::thread`). All threads are created, and sleep, before the
    /// first thread may compute.
    ///
    /// # Errors
    ///
    /// Returns the error of C++ if not all threads could be started, or an error if the compiler was
    /// not installed.
    pub fn threads(self, fibonacci: u32, tasks: u64) -> std::io::Result<Batch> {
        self.run(ffi::Kind::Threads, fibonacci, tasks, false)
    }

    /// Computes the Fibonacci number in `tasks` coroutines. All coroutines are created before the first one is resumed,
    /// and destroyed after the last one has run. If `inside` is set, the time of each computation is measured from
    /// within the coroutine, too.
    ///
    /// # Errors
    ///
    /// Returns an error if the compiler was not installed.
    pub fn coroutines(self, fibonacci: u32, tasks: u64, inside: bool) -> std::io::Result<Batch> {
        self.run(ffi::Kind::Coroutines, fibonacci, tasks, inside)
    }

    /// Computes the Fibonacci number `tasks` times in one coroutine, which yields each result (`co_yield`). If `inside`
    /// is set, the time of each computation is measured from within the coroutine, too.
    ///
    /// # Errors
    ///
    /// Returns an error if the compiler was not installed.
    pub fn co_yield(self, fibonacci: u32, tasks: u64, inside: bool) -> std::io::Result<Batch> {
        self.run(ffi::Kind::CoYield, fibonacci, tasks, inside)
    }

    fn run(self, kind: ffi::Kind, fibonacci: u32, tasks: u64, inside: bool) -> std::io::Result<Batch> {
        // The whole process shares the counters of frames, so only one batch may run at a time.
        static TURN: Mutex<()> = Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        ffi::run(self, kind, fibonacci, tasks, inside).map_err(std::io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed() -> impl Iterator<Item = Compiler> {
        Compiler::ALL.into_iter().filter(|compiler| compiler.version().is_some())
    }

    #[test]
    fn all_kinds_compute_the_same() {
        assert!(installed().count() > 0);
        for compiler in installed() {
            for (fibonacci, number) in [(0, 0.0), (1, 1.0), (5, 5.0), (15, 610.0)] {
                let sum = number * 100.0;
                assert_eq!(compiler.sequential(fibonacci, 100).unwrap().sum, sum);
                assert_eq!(compiler.threads(fibonacci, 100).unwrap().sum, sum);
                for inside in [false, true] {
                    assert_eq!(compiler.coroutines(fibonacci, 100, inside).unwrap().sum, sum);
                    assert_eq!(compiler.co_yield(fibonacci, 100, inside).unwrap().sum, sum);
                }
            }
            assert_eq!(compiler.threads(5, 0).unwrap().sum, 0.0);
        }
    }

    #[test]
    fn a_compiler_that_is_not_installed_is_an_error() {
        for compiler in Compiler::ALL {
            assert_eq!(compiler.sequential(5, 1).is_ok(), compiler.version().is_some(), "{compiler:?}");
        }
    }

    #[test]
    fn coroutines_say_what_they_take() {
        for compiler in installed() {
            let many = compiler.coroutines(5, 1000, false).unwrap();
            assert_eq!(many.resumes, 1000);
            // A compiler may elide the allocation of a frame, but then of all frames.
            assert!([0, 1000].contains(&many.news), "{many:?}");
            assert_eq!(many.frame_bytes % 1000, 0);
            assert!(many.frame().is_none_or(|frame| (24.0..1024.0).contains(&frame)), "{many:?}");
            // The compiler passes the size to both `new` and `delete`.
            assert_eq!((many.deletes, many.freed_bytes), (many.news, many.frame_bytes));
            assert!(many.creation > 0 && many.resume > 0 && many.destruction > 0, "{many:?}");
            let one = compiler.co_yield(5, 1000, false).unwrap();
            assert_eq!(one.resumes, 1000);
            assert!(one.news <= 1, "{one:?}");
            assert_eq!((one.deletes, one.freed_bytes), (one.news, one.frame_bytes));
        }
    }

    /// Tests that the times of the parts add up to the time of the whole batch, and to what the same tasks take if they
    /// are not timed from within.
    #[test]
    fn the_parts_make_up_the_whole() {
        let same = |parts: u64, whole: u64| (parts as f64 / whole as f64 - 1.0).abs() < 0.02;
        for compiler in installed() {
            for run in [Compiler::coroutines, Compiler::co_yield] {
                // The shortest batch of each kind: on a busy machine, a thread often loses its processor.
                let (mut timed, mut untimed) = (run(compiler, 20, 20, true).unwrap(), u64::MAX);
                let mut agree = || {
                    let batch = run(compiler, 20, 20, true).unwrap();
                    let without = run(compiler, 20, 20, false).unwrap();
                    assert_eq!(batch.creation + batch.resume + batch.destruction, batch.total);
                    assert_eq!((without.compute, without.switches), (0, 0));
                    assert!(batch.compute > 0 && batch.switches > 0, "{batch:?}");
                    timed = if batch.resume < timed.resume { batch } else { timed };
                    untimed = untimed.min(without.resume);
                    let parts = timed.compute + timed.switches;
                    same(parts, timed.resume) && same(parts, untimed)
                };
                (0..20).for_each(|_| _ = agree());
                assert!((0..5000).any(|_| agree()), "{compiler:?}: {timed:?}, untimed {untimed}");
            }
        }
    }
}

//! Measures what tracing costs a program with many small tasks, for several implementations of a task.
//!
//! The workload comes from a C++ benchmark with a thousand tasks. Each task computes a Fibonacci number recursively in
//! floating point. The tasks run one after the other; or each task has a thread or a coroutine of its own; or one
//! coroutine runs all tasks and yields after each of them. The C++ cases, which are not traced, are in the crate
//! `cc-bench`, which compiles them with each of g++ and clang++ that is installed. The Rust cases, which are traced,
//! are a loop, `std::thread`, boxed futures polled by hand, a future that yields, and tokio tasks. All cases compute
//! the Fibonacci numbers with the indices 5, 15 and 25, on all cores and on one core.
//!
//! - The parts of a task (creation, resume, destruction) are timed for batches of a thousand tasks, as in the original,
//!   because one clock reading takes as long as one part. A Rust case runs in six modes. If the case would take more
//!   than ten seconds in batches of a thousand tasks, as for the index 25, its batches have thirty tasks. With
//!   `ATRACE_BENCH_ORIGINAL=1`, all batches have a thousand tasks. The count `at_once` of a row is the size of its
//!   batch.
//! - If a reading of the clock takes less than 1 % of the time of a task, as for the index 25, each task of a coroutine
//!   or future is also timed from within. `resume/compute` is the time of the computation itself. `resume/switch` is
//!   the time from directly before the resume until the computation begins, and from the end of the computation until
//!   the task has returned. The clock is read separately for these parts and for `resume`, which also includes the loop
//!   around the tasks. It is a promise that the means of `resume/compute` and `resume/switch`, over all slices, together
//!   differ from the mean of `resume` by at most 2 %.
//! - The time of the clock readings within a part is subtracted from the time of the part. The count `clock_ns` is the
//!   duration of a reading in nanoseconds, and `clock_readings` is the number of readings for a task.
//! - A thread sleeps until all threads are created. The threads of the original benchmark waited actively (they spun),
//!   which slowed down the creation of the other threads. The original measured creation only after a coroutine's frame
//!   was allocated; here, the measurement includes the allocation.
//!
//! When traced, each task has a span; the tasks of a batch in one future share a span. A thread or a loop iteration
//! enters the span around its computation. A future is instrumented with `.instrument`, so each resume enters and
//! leaves the span, and so does dropping the future.

use std::io;
use std::process::ExitCode;

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Fixture, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use cc_bench::coroutines::Compiler;

mod tasks;
mod tests;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Coroutines>()
}

/// The indices of the Fibonacci numbers.
const FIBONACCI: [u32; 3] = [5, 15, 25];

/// An implementation of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Cc(Compiler, Kind),
    Sequential,
    Thread,
    Future,
    Yield,
    Tokio,
}

/// The implementations of a task in C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sequential,
    Thread,
    Coroutine,
    Yield,
}

impl Runner {
    /// Returns all runners. There are C++ runners of each kind for each C++ compiler that was installed.
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [Kind::Sequential, Kind::Thread, Kind::Coroutine, Kind::Yield];
        let installed = Compiler::ALL.into_iter().filter(|compiler| compiler.version().is_some());
        let cc = installed.flat_map(move |compiler| kinds.map(|kind| Self::Cc(compiler, kind)));
        cc.chain([Self::Sequential, Self::Thread, Self::Future, Self::Yield, Self::Tokio])
    }

    /// Returns the prefix of the runner's ids.
    fn id(self) -> String {
        match self {
            Self::Cc(compiler, kind) => {
                let compiler = if compiler == Compiler::Gcc { "gcc" } else { "clang" };
                let kind = ["sequential", "thread", "coroutine", "co_yield"][kind as usize];
                format!("cc/{compiler}/{kind}")
            }
            other => format!("rust/{other:?}").to_lowercase(),
        }
    }

    /// Returns whether a task is created first and resumed later.
    fn is_created(self) -> bool {
        !matches!(self, Self::Cc(_, Kind::Sequential) | Self::Sequential)
    }

    /// Returns whether a task is destroyed in a separate step after it was resumed.
    fn is_destroyed(self) -> bool {
        matches!(self, Self::Cc(_, Kind::Coroutine | Kind::Yield) | Self::Future | Self::Yield)
    }

    /// Returns whether a single coroutine or future runs all tasks of a batch.
    fn is_one_for_all(self) -> bool {
        matches!(self, Self::Cc(_, Kind::Yield) | Self::Yield)
    }
}

/// The index of the Fibonacci number, and the cores on which the tasks run.
#[derive(Clone, Copy, Debug)]
struct Place {
    fibonacci: u32,
    one_core: bool,
}

impl Place {
    /// Returns all combinations of an index and cores.
    fn all() -> impl Iterator<Item = Self> {
        let of = |one_core| FIBONACCI.map(|fibonacci| Self { fibonacci, one_core });
        of(false).into_iter().chain(of(true))
    }

    fn id(self, runner: Runner) -> String {
        let cores = if self.one_core { "one_core" } else { "all_cores" };
        format!("{}/fib_{}/{cores}", runner.id(), self.fibonacci)
    }

    /// Returns the number of tasks in a batch.
    fn batch(self, runner: Runner) -> u64 {
        match runner {
            Runner::Cc(..) => 1000,
            _ if self.is_long() && !is_original() => 30,
            _ => 1000,
        }
    }

    /// Returns whether a task takes longer than a hundred clock readings, on any processor whose clock can be read
    /// without a system call.
    fn is_long(self) -> bool {
        self.fibonacci >= 25
    }

    /// Checks the sum of the tasks' results.
    fn check(self, sum: f64, tasks: u64) -> Result<(), Wrong> {
        let (number, _) = (0..self.fibonacci).fold((0_u64, 1_u64), |(a, b), _| (b, a + b));
        // The sum is exact in any order, because all terms are whole numbers far below 2^53.
        let expected = (number * tasks) as f64;
        if sum == expected {
            Ok(())
        } else {
            Err(format!("the sum of {tasks} tasks is {sum}, not {expected}"))
        }
    }
}

/// Returns whether all batches are as large as those of the original benchmark.
fn is_original() -> bool {
    std::env::var_os("ATRACE_BENCH_ORIGINAL").is_some_and(|value| value == "1")
}

struct Coroutines;

impl Workload for Coroutines {
    const NAME: &'static str = "coroutines";

    fn cases<T: Tracing>() -> Vec<Case> {
        Place::all()
            .flat_map(|place| Runner::all().map(move |runner| tasks::case::<T>(runner, place)))
            .collect()
    }

    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default().with_room(16))
    }

    fn seconds() -> u64 {
        85
    }

    fn prove() -> Result<(), Wrong> {
        tests::prove();
        Ok(())
    }

    fn bars(results: &Results) -> Vec<Judged> {
        let frames = |runner| Place::all().filter_map(move |place| frame(results, runner, place));
        Runner::all().filter(|runner| runner.is_destroyed()).flat_map(frames).collect()
    }
}

/// Judges whether a task allocates exactly its frame, and whether the frame of a boxed future is as large as tokio's.
/// Returns `None` if the case has not run, or if the compiler has elided the frame.
fn frame(results: &Results, runner: Runner, place: Place) -> Option<Judged> {
    let row = |runner: Runner| results.row(&place.id(runner), "none");
    let bytes_of = |runner: Runner| Some(*row(runner)?.counts.get("frame_bytes")?);
    let (of, bytes) = (row(runner)?, bytes_of(runner)?);
    let tasks = if runner.is_one_for_all() { place.batch(runner) as f64 } else { 1.0 };
    // The count of C++ includes only frames.
    let of_cc = of.counts.get("new").map(|news| (*news, news * bytes));
    let (blocks, taken) = of_cc.or(of.allocs.zip(of.bytes))?;
    let (blocks, taken) = (blocks * tasks, taken * tasks);
    let is_same = runner != Runner::Future || bytes_of(Runner::Tokio).is_none_or(|other| other == bytes);
    let kept = (blocks - 1.0).abs() < 1e-6 && (taken - bytes).abs() < 1e-6 && is_same;
    let (what, measured) = ("a task takes its frame from the heap", format!("{blocks} of {taken} B"));
    let asked = format!("1 of {bytes} B");
    Some(Judged::new(what, place.id(runner), measured, asked, Verdict::kept_if(kept)).exact())
}

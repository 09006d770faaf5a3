//! Measures what tracing costs a program with many small tasks, for several implementations of a task.
//!
//! The workload comes from a C++ benchmark with a thousand tasks. Each task computes a Fibonacci number recursively in
//! floating point. There are several implementations: a loop runs the tasks one after the other; each task has a thread
//! or a coroutine of its own; or one coroutine runs all tasks and yields after each task. The C++ implementations,
//! which are not traced, are in the crate `cc-bench`, which compiles them with g++ and with clang++, if these are
//! installed. The Rust implementations, which can be traced, are a loop, `std::thread`, boxed futures that are polled
//! by hand, a future that yields, and tokio tasks. All cases compute the Fibonacci numbers with the indices 5, 15 and
//! 25, on all cores and on one core.
//!
//! - The parts of a task (creation, resume, destruction) are timed for batches of a thousand tasks, as in the original
//!   benchmark, because one clock reading takes as long as one part. But the Rust cases with the index 25 have batches
//!   of thirty tasks: they run in six modes (configurations of tracing), which would take more than ten seconds with
//!   batches of a thousand tasks. With the environment variable `ATRACE_BENCH_ORIGINAL=1`, all batches have a thousand
//!   tasks. The count `at_once` of a row (result) is the size of the batches.
//! - If a reading of the clock takes less than 1 % of the time of a task, as for the index 25, parts of each task are
//!   also timed, if the task is a coroutine or a future. `resume/compute` is the time of the computation itself.
//!   `resume/switch` is the time from directly before the resume until the computation begins, plus the time from the
//!   end of the computation until the resume has returned. The clock is read separately for these parts and for
//!   `resume`, which also includes the loop around the tasks. There is a promise that the mean times of
//!   `resume/compute` and `resume/switch`, over all measurements, add up to the mean time of `resume` to within 2 %.
//! - The time of the clock readings within a part is subtracted from the time of the part. The count `clock_ns` is the
//!   duration of a clock reading in nanoseconds, and `clock_readings` is the number of readings for a task.
//! - There are two differences from the original benchmark. Its threads spun until all threads were created, which
//!   slowed down the creation of the other threads; here, they sleep. Its measurement of the creation of a coroutine
//!   began after the coroutine's frame was allocated; here, it includes the allocation.
//!
//! With instrumentation, each task has a span. If one future runs all tasks of a batch, they share a span. A thread or
//! a loop iteration enters the span before its computation, and leaves it afterwards. A future is instrumented with
//! `.instrument`, so each resume enters and leaves the span, and dropping the future also enters and leaves it.

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

/// The indices of the Fibonacci numbers that the tasks compute.
const FIBONACCI: [u32; 3] = [5, 15, 25];

/// A runner: an implementation of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runner {
    Cc(Compiler, Kind),
    Sequential,
    Thread,
    Future,
    Yield,
    Tokio,
}

/// The implementations of the tasks in C++.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sequential,
    Thread,
    Coroutine,
    Yield,
}

impl Runner {
    /// Returns all runners (implementations of the tasks). There is a C++ runner of each kind for each C++ compiler
    /// that was installed when the bench was built.
    fn all() -> impl Iterator<Item = Self> {
        let kinds = [Kind::Sequential, Kind::Thread, Kind::Coroutine, Kind::Yield];
        let installed = Compiler::ALL.into_iter().filter(|compiler| compiler.version().is_some());
        let cc = installed.flat_map(move |compiler| kinds.map(|kind| Self::Cc(compiler, kind)));
        cc.chain([Self::Sequential, Self::Thread, Self::Future, Self::Yield, Self::Tokio])
    }

    /// Returns the prefix of the ids of this runner's cases.
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

    /// Returns whether the creation of a task is a separate step, before the task is resumed.
    fn is_created(self) -> bool {
        !matches!(self, Self::Cc(_, Kind::Sequential) | Self::Sequential)
    }

    /// Returns whether the destruction of a task is a separate step, after the task was resumed.
    fn is_destroyed(self) -> bool {
        matches!(self, Self::Cc(_, Kind::Coroutine | Kind::Yield) | Self::Future | Self::Yield)
    }

    /// Returns whether a single coroutine or future runs all tasks of a batch.
    fn is_one_for_all(self) -> bool {
        matches!(self, Self::Cc(_, Kind::Yield) | Self::Yield)
    }
}

/// The parameters of a case: the index of the Fibonacci number, and whether the tasks run on one core or on all cores.
#[derive(Clone, Copy, Debug)]
struct Place {
    fibonacci: u32,
    one_core: bool,
}

impl Place {
    /// Returns all combinations of the parameters.
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

    /// Returns whether a task takes longer than a hundred readings of the clock, if the clock can be read without a
    /// system call.
    fn is_long(self) -> bool {
        self.fibonacci >= 25
    }

    /// Returns an error if `sum` is not the sum of the results of `tasks` tasks.
    fn check(self, sum: f64, tasks: u64) -> Result<(), Wrong> {
        let (number, _) = (0..self.fibonacci).fold((0_u64, 1_u64), |(a, b), _| (b, a + b));
        // The sum is exact in any order of the tasks, because all terms are whole numbers far below 2^53.
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

/// Judges the promise that a task allocates its frame and nothing else, and that the frame of a boxed future has the
/// size of a frame of a tokio task. Returns `None` if the case has not run, or if the compiler has elided the
/// allocation of the frame.
fn frame(results: &Results, runner: Runner, place: Place) -> Option<Judged> {
    let row = |runner: Runner| results.row(&place.id(runner), "none");
    let bytes_of = |runner: Runner| Some(*row(runner)?.counts.get("frame_bytes")?);
    let (of, bytes) = (row(runner)?, bytes_of(runner)?);
    let tasks = if runner.is_one_for_all() { place.batch(runner) as f64 } else { 1.0 };
    // The count of allocations in C++ includes only allocations of frames.
    let of_cc = of.counts.get("new").map(|news| (*news, news * bytes));
    let (blocks, taken) = of_cc.or(of.allocs.zip(of.bytes))?;
    let (blocks, taken) = (blocks * tasks, taken * tasks);
    let is_same = runner != Runner::Future || bytes_of(Runner::Tokio).is_none_or(|other| other == bytes);
    let kept = (blocks - 1.0).abs() < 1e-6 && (taken - bytes).abs() < 1e-6 && is_same;
    let (what, measured) = ("a task takes its frame from the heap", format!("{blocks} of {taken} B"));
    let asked = format!("1 of {bytes} B");
    Some(Judged::new(what, place.id(runner), measured, asked, Verdict::kept_if(kept)).exact())
}

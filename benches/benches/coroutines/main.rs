//! Measures what tracing costs a program of many small tasks, for several implementations of a task.
//!
//! The workload is a C++ benchmark of a thousand tasks. Each task computes a Fibonacci number recursively in floating
//! point. The tasks run one after the other, in a thread each, in a coroutine each, or in one coroutine that yields
//! after each task. The C++ cases are in `cc-bench` (untraced). The Rust cases (traced) are a loop, `std::thread`,
//! boxed futures polled by hand, a future that yields, and tokio tasks. All cases run for Fibonacci 5, 15 and 25, on
//! all cores and on one core.
//!
//! - The parts of a task (creation, resume, destruction) are timed for batches of a thousand tasks, because a reading
//!   of the clock takes as long as a part. Slow tasks have smaller batches: a hundred threads, and thirty tasks for
//!   Fibonacci 25. With `ATRACE_BENCH_ORIGINAL=1`, all batches have a thousand tasks, like the original.
//! - Tasks that compute nothing run in the same turn. The time of their resume is the `switch`. The `compute` time is
//!   the time that the resume of a computing task takes above it.
//! - A thread sleeps until all threads are created. The threads of the original spun, which slowed down the creation of
//!   the others. The original measured creation only after a coroutine's frame was allocated; here, the measurement
//!   includes the allocation.
//!
//! When traced, a task has a span. A thread or a loop iteration enters the span around its computation. Futures use
//! `.instrument`, so each resume enters and leaves the span, and dropping the future does so, too.

use std::io;
use std::process::ExitCode;

use atrace_benches::harness::args::Args;
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Fixture, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};

mod tasks;

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
    CcSequential,
    CcThread,
    CcCoroutine,
    CcYield,
    Sequential,
    Thread,
    Future,
    Yield,
    Tokio,
}

impl Runner {
    /// All runners, with the prefixes of their ids.
    const ALL: [(Self, &'static str); 9] = [
        (Self::CcSequential, "cc/sequential"),
        (Self::CcThread, "cc/thread"),
        (Self::CcCoroutine, "cc/coroutine"),
        (Self::CcYield, "cc/co_yield"),
        (Self::Sequential, "rust/sequential"),
        (Self::Thread, "rust/thread"),
        (Self::Future, "rust/future"),
        (Self::Yield, "rust/yield"),
        (Self::Tokio, "rust/tokio"),
    ];

    fn id(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Tells whether a task is first created and later resumed.
    fn is_created(self) -> bool {
        !matches!(self, Self::CcSequential | Self::Sequential)
    }

    /// Tells whether a task is destroyed in a separate step after it was resumed.
    fn is_destroyed(self) -> bool {
        matches!(self, Self::CcCoroutine | Self::CcYield | Self::Future | Self::Yield)
    }

    /// Tells whether a single coroutine or future runs all tasks of a batch.
    fn is_one_for_all(self) -> bool {
        matches!(self, Self::CcYield | Self::Yield)
    }
}

/// The cores that the tasks run on, and the index of the Fibonacci number, if any.
#[derive(Clone, Copy, Debug)]
struct Place {
    fibonacci: Option<u32>,
    one_core: bool,
}

impl Place {
    /// Returns all places whose tasks compute a number.
    fn all() -> impl Iterator<Item = Self> {
        let of = |one_core| FIBONACCI.map(|fibonacci| Self { fibonacci: Some(fibonacci), one_core });
        of(false).into_iter().chain(of(true))
    }

    fn id(self, runner: Runner) -> String {
        let what = self.fibonacci.map_or_else(|| "nothing".to_owned(), |number| format!("fib_{number}"));
        format!("{}/{what}/{}", runner.id(), self.cores())
    }

    fn cores(self) -> &'static str {
        if self.one_core { "one_core" } else { "all_cores" }
    }

    /// Returns the number of tasks that exist at once.
    fn batch(self, runner: Runner) -> u64 {
        match runner {
            _ if self.fibonacci.is_some_and(|number| number >= 25) && !is_original() => 30,
            Runner::CcThread | Runner::Thread if !is_original() => 100,
            _ => 1000,
        }
    }

    /// Checks the sum of the tasks' results.
    fn check(self, sum: f64, tasks: u64) -> Result<(), Wrong> {
        let (number, _) = (0..self.fibonacci.unwrap_or(0)).fold((0_u64, 1_u64), |(a, b), _| (b, a + b));
        // The sum is exact in any order, because all terms are whole numbers far below 2^53.
        let expected = (number * tasks) as f64;
        if sum == expected {
            Ok(())
        } else {
            Err(format!("the sum of {tasks} tasks is {sum}, not {expected}"))
        }
    }
}

/// Tells whether batches are as large as the original's.
fn is_original() -> bool {
    std::env::var_os("ATRACE_BENCH_ORIGINAL").is_some_and(|value| value == "1")
}

struct Coroutines;

impl Workload for Coroutines {
    const NAME: &'static str = "coroutines";

    fn cases<T: Tracing>() -> Vec<Case> {
        let nothing = [false, true].map(|one_core| Place { fibonacci: None, one_core });
        let places = Place::all().chain(nothing);
        places.flat_map(|place| Runner::ALL.map(|(runner, _)| tasks::case::<T>(runner, place))).collect()
    }

    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default().with_room(16))
    }

    fn seconds() -> u64 {
        80
    }

    fn profile(_: &mut Results, args: &Args) -> io::Result<()> {
        if args.test {
            tasks::prove();
        }
        Ok(())
    }

    fn derive(results: &mut Results) {
        for runner in [Runner::CcCoroutine, Runner::CcYield] {
            for place in Place::all() {
                let resume = |place: Place| format!("{}/resume", place.id(runner));
                let nothing = Place { fibonacci: None, ..place };
                let id = format!("{}/compute", place.id(runner));
                results.add_difference(id, (&resume(place), "none"), (&resume(nothing), "none"));
            }
        }
    }

    fn bars(results: &Results) -> Vec<Judged> {
        let all = [Runner::CcCoroutine, Runner::CcYield, Runner::Future, Runner::Yield];
        let frames = |runner| Place::all().filter_map(move |place| frame(results, runner, place));
        all.into_iter().flat_map(frames).collect()
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

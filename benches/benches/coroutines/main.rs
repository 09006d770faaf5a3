//! What tracing costs a program of many small tasks, whatever a task is.
//!
//! The workload is a C++ benchmark of a thousand tasks that each compute a Fibonacci number, recursively and
//! in floating point: one after the other, in a thread each, in a coroutine each, or all in a coroutine that
//! yields. Here they are in C++ (`cc-bench`, untraced) and in Rust (traced): a loop, `std::thread`, boxed
//! futures polled by hand, one future that yields, and tokio's tasks. Each for Fibonacci 5, 15 and 25, on all
//! cores and on one.
//!
//! - Parts of tasks are timed in batches of a thousand, as the clock takes as long to read as they do. What takes long
//!   beside that has smaller ones: threads a hundred, and Fibonacci 25 thirty, or as in the original a thousand with
//!   `ATRACE_BENCH_ORIGINAL=1`.
//! - In the same turn run tasks that compute nothing: what resuming those takes is the `switch`, and what a resume takes
//!   more than that is the `compute`.
//! - A thread sleeps until all are created (the original's spun, in the way of those that were to be created). The
//!   original's creation time began after a coroutine's frame was allocated; here it is all of it.
//!
//! Traced, a task has a span: entered around what a thread or the loop computes; with `.instrument` for
//! futures, so that each resume enters and leaves it, and so does dropping it.

use std::io;
use std::process::ExitCode;

use atrace_benches::harness::args::Args;
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Fixture, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use cc_bench::coroutines::NOTHING;

mod gate;
mod tasks;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Coroutines>()
}

/// Which numbers are computed.
const FIBONACCI: [u32; 3] = [5, 15, 25];

/// What runs a task.
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
    const ALL: [Self; 9] = [
        Self::CcSequential,
        Self::CcThread,
        Self::CcCoroutine,
        Self::CcYield,
        Self::Sequential,
        Self::Thread,
        Self::Future,
        Self::Yield,
        Self::Tokio,
    ];

    fn id(self) -> &'static str {
        const IDS: [&str; 9] = [
            "cc/sequential",
            "cc/thread",
            "cc/coroutine",
            "cc/co_yield",
            "rust/sequential",
            "rust/thread",
            "rust/future",
            "rust/yield",
            "rust/tokio",
        ];
        IDS[self as usize]
    }

    /// Whether tasks are created, and then resumed.
    fn is_created(self) -> bool {
        !matches!(self, Self::CcSequential | Self::Sequential)
    }

    /// Whether tasks are destroyed after they were resumed, and not by that.
    fn is_destroyed(self) -> bool {
        matches!(self, Self::CcCoroutine | Self::CcYield | Self::Future | Self::Yield)
    }

    /// Whether one of it runs all tasks of a batch.
    fn is_one_for_all(self) -> bool {
        matches!(self, Self::CcYield | Self::Yield)
    }
}

/// Where the tasks run, and which number they compute, if any.
#[derive(Clone, Copy, Debug)]
struct Place {
    fibonacci: Option<u32>,
    one_core: bool,
}

impl Place {
    /// Those that compute something.
    fn all() -> impl Iterator<Item = Self> {
        let of = |one_core| FIBONACCI.map(|fibonacci| Self { fibonacci: Some(fibonacci), one_core });
        of(false).into_iter().chain(of(true))
    }

    /// The same, where nothing is computed.
    fn with_nothing(self) -> Self {
        Self { fibonacci: None, ..self }
    }

    fn id(self, runner: Runner) -> String {
        let what = self.fibonacci.map_or_else(|| "nothing".to_owned(), |number| format!("fib_{number}"));
        format!("{}/{what}/{}", runner.id(), self.cores())
    }

    fn cores(self) -> &'static str {
        if self.one_core { "one_core" } else { "all_cores" }
    }

    /// What the tasks are told to compute.
    fn number(self) -> u32 {
        self.fibonacci.unwrap_or(NOTHING)
    }

    /// How many tasks there are at once.
    fn batch(self, runner: Runner) -> u64 {
        match runner {
            _ if self.fibonacci.is_some_and(|number| number >= 25) && !is_original() => 30,
            Runner::CcThread | Runner::Thread if !is_original() => 100,
            _ => 1000,
        }
    }

    /// Whether the tasks computed what they should have.
    fn check(self, sum: f64, tasks: u64) -> Result<(), Wrong> {
        let (number, _) = (0..self.fibonacci.unwrap_or(0)).fold((0_u64, 1_u64), |(a, b), _| (b, a + b));
        // Whole numbers far below 2^53: exact in any order.
        let expected = (number * tasks) as f64;
        if sum == expected {
            Ok(())
        } else {
            Err(format!("the sum of {tasks} tasks is {sum}, not {expected}"))
        }
    }
}

/// Whether batches are as large as the original's.
fn is_original() -> bool {
    std::env::var_os("ATRACE_BENCH_ORIGINAL").is_some_and(|value| value == "1")
}

struct Coroutines;

impl Workload for Coroutines {
    const NAME: &'static str = "coroutines";

    fn cases<T: Tracing>() -> Vec<Case> {
        let nothing = [false, true].map(|one_core| Place { fibonacci: None, one_core });
        let places = Place::all().chain(nothing);
        places.flat_map(|place| Runner::ALL.map(|runner| tasks::case::<T>(runner, place))).collect()
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
        for (runner, place) in [Runner::CcCoroutine, Runner::CcYield]
            .into_iter()
            .flat_map(|runner| Place::all().map(move |place| (runner, place)))
        {
            let resume = |place: Place| format!("{}/resume", place.id(runner));
            let id = format!("{}/compute", place.id(runner));
            results.add_difference(id, (&resume(place), "none"), (&resume(place.with_nothing()), "none"));
        }
    }

    fn bars(results: &Results) -> Vec<Judged> {
        let all = [Runner::CcCoroutine, Runner::CcYield, Runner::Future, Runner::Yield];
        all.into_iter()
            .flat_map(|runner| Place::all().filter_map(move |place| frame(results, runner, place)))
            .collect()
    }
}

/// Whether all that a task takes from the heap is its frame, and tokio's is the same. `None`: it has not run, or the compiler has
/// put it elsewhere.
fn frame(results: &Results, runner: Runner, place: Place) -> Option<Judged> {
    let row = |runner: Runner| results.row(&place.id(runner), "none");
    let bytes_of = |runner: Runner| Some(*row(runner)?.counts.get("frame_bytes")?);
    let (of, bytes) = (row(runner)?, bytes_of(runner)?);
    let tasks = if runner.is_one_for_all() { place.batch(runner) as f64 } else { 1.0 };
    // Of C++ only frames are counted.
    let of_cc = of.counts.get("new").map(|news| (*news, news * bytes));
    let (blocks, taken) = of_cc.or(of.allocs.zip(of.bytes))?;
    let (blocks, taken) = (blocks * tasks, taken * tasks);
    let is_same = runner != Runner::Future || bytes_of(Runner::Tokio).is_none_or(|other| other == bytes);
    let kept = (blocks - 1.0).abs() < 1e-6 && (taken - bytes).abs() < 1e-6 && is_same;
    let measured = format!("{blocks} of {taken} B");
    let asked = format!("1 of {bytes} B");
    Some(
        Judged::new(
            "a task takes its frame from the heap",
            place.id(runner),
            measured,
            asked,
            Verdict::kept_if(kept),
        )
        .exact(),
    )
}

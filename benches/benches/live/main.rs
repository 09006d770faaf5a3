//! Measures what it costs to track the living spans of a program, and the places where the spans were created.
//!
//! The workload is a Rust version of a benchmark of Kotlin's `DebugProbes` (stack traces of the creation of coroutines,
//! and dumps of the living coroutines). `runBlocking {}`, `runBlocking { launch {} }` and `launch {}` with empty bodies
//! become `block_on` of a current-thread runtime, `block_on` with a `spawn` in it, and `spawn` alone. A coroutine
//! becomes a future in a span, and a layer of `atrace_subscriber::live` tracks the spans. The bench has the nine modes
//! (configurations) of the original benchmark: no tracking (`none`), the layer without options (`DEFAULT`), and
//! combinations of the options C (backtraces of creations), S (sanitised backtraces) and L (symbols only on request).
//! Without C, the options S and L have no effect and must cost nothing.
//!
//! Backtraces are made by unwinding. If the program has frame pointers (`RUSTFLAGS="-C force-frame-pointers=yes"`),
//! there are also variants of the modes C_L and C_S_L that use the frame pointers. The mode `bare` captures the same
//! backtraces as C_L, and discards them.
//!
//! Unlike the original benchmark, this bench makes a dump only when the expected number of spans is alive.

mod alive;
mod modes;
mod tests;

use std::cell::RefCell;
use std::hint::black_box;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{
    self, Case, Done, Fixture, Info, Mode, Results, Tracing, Workload, Wrong,
};
use atrace_benches::promise::Judged;
use atrace_subscriber::live;
use tokio::runtime::{Builder, Runtime};
use tracing::info_span;

use self::alive::{Alive, Kind, Team, team, together};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Live>()
}

struct Live;

/// A function that runs an operation a given number of times in a runtime. It returns how many times the innermost body
/// (an empty future) ran.
type Body = fn(&Runtime, u64) -> u64;

/// An operation that creates spans. `spans` and `messages` are the numbers of spans and messages of one operation while
/// tracing is on: each future in a span writes two messages for each poll, and two when it is dropped.
struct Creation {
    name: &'static str,
    body: Body,
    spans: u64,
    messages: u64,
}

fn creations<T: Tracing>() -> [Creation; 3] {
    [
        Creation { name: "run_blocking", body: run_blocking::<T>, spans: 1, messages: 4 },
        Creation { name: "run_blocking_launch", body: run_blocking_launch::<T>, spans: 2, messages: 10 },
        Creation { name: "launch", body: launch::<T>, spans: 1, messages: 4 },
    ]
}

fn run_blocking<T: Tracing>(runtime: &Runtime, n: u64) -> u64 {
    (0..n).map(|_| runtime.block_on(T::spanned(empty(), || info_span!("run_blocking")))).sum()
}

fn run_blocking_launch<T: Tracing>(runtime: &Runtime, n: u64) -> u64 {
    let both = || async { tokio::spawn(T::spanned(empty(), || info_span!("launch"))).await.unwrap_or(0) };
    (0..n).map(|_| runtime.block_on(T::spanned(both(), || info_span!("run_blocking")))).sum()
}

fn launch<T: Tracing>(runtime: &Runtime, n: u64) -> u64 {
    runtime.block_on(async {
        let mut ran = 0;
        for _ in 0..n {
            ran += tokio::spawn(T::spanned(empty(), || info_span!("launch"))).await.unwrap_or(0);
        }
        ran
    })
}

/// An empty body, the innermost future of an operation. Its result is 1, so that the sum of the results counts the
/// runs.
async fn empty() -> u64 {
    black_box(1)
}

/// Makes a runtime without drivers. A runtime with drivers would poll them in each iteration of its loop, which takes
/// time.
fn runtime() -> Result<Runtime, Wrong> {
    Builder::new_current_thread().build().map_err(|e| e.to_string())
}

/// The number of nested function calls between the closure of the case `creation` and the creation of its spans.
const DEEP: u32 = 10;

#[inline(never)]
fn deep(calls: u32, last: &mut dyn FnMut()) {
    match calls {
        0 => last(),
        _ => deep(calls - 1, last),
    }
    // Code after the call prevents a tail call.
    black_box(());
}

/// The threads that run beside the measuring thread. Only one kind of threads exists at a time, and only while a case
/// needs these threads: an additional thread makes system calls more expensive, and a thousand additional spans fill
/// the caches.
enum Beside {
    Nothing,
    Team(Team),
    Alive(Alive),
}

impl Beside {
    /// Ends the threads. Returns whether a thread kept tasks alive, because such tasks write messages when they end.
    fn nothing(&mut self) -> bool {
        matches!(std::mem::replace(self, Self::Nothing), Self::Alive(_))
    }

    fn team(&mut self) -> (&Team, bool) {
        let mut ended = false;
        if !matches!(self, Self::Team(_)) {
            ended = self.nothing();
            *self = Self::Team(team(runtime));
        }
        match self {
            Self::Team(team) => (team, ended),
            _ => unreachable!("it was made just now"),
        }
    }

    fn alive<T: Tracing>(&mut self, kind: Kind) -> Result<(), Wrong> {
        if !matches!(self, Self::Alive(alive) if alive.kind == kind) {
            self.nothing();
            *self = Self::Alive(Alive::new::<T>(kind)?);
        }
        Ok(())
    }
}

impl Workload for Live {
    const NAME: &'static str = "live";

    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default().with_room(16))
    }

    fn cases<T: Tracing>() -> Vec<Case> {
        let beside = Rc::new(RefCell::new(Beside::Nothing));
        let mut cases = Vec::new();
        // The allocation counts of most cases are not exact: a registry occasionally allocates memory for more spans of
        // a thread, and the queues of runtimes can grow at any time.
        let inexact = |id| Info { counted_over: 1000, exact: false, ..Info::of(id) };
        let done = |n: u64, [spans, messages]: [u64; 2], ended: bool, (ran, took): (u64, Duration)| {
            check("bodies", ran, n)?;
            let (messages, lives, took) = (messages * n, [spans * n; 2], Some(took));
            Ok(Done { messages, lives, others_wrote: ended, took, ..Done::new() })
        };
        for Creation { name, body, spans, messages } in creations::<T>() {
            let beside = Rc::clone(&beside);
            let info = Info { not_in: &modes::BARE, ..inexact(format!("rust/{name}")) };
            cases.push(Case::afresh(info, move || {
                let (beside, mut kept) = (Rc::clone(&beside), None);
                move |n| {
                    let ended = beside.borrow_mut().nothing();
                    let runtime = match &mut kept {
                        Some(runtime) => runtime,
                        none => none.insert(runtime()?),
                    };
                    let start = Instant::now();
                    let ran = body(runtime, n);
                    done(n, [spans, messages], ended, (ran, start.elapsed()))
                }
            }));
        }
        for Creation { name, body, spans, messages } in creations::<T>() {
            let beside = Rc::clone(&beside);
            let info = inexact(format!("rust/{name}/2_threads"));
            let info = Info { threads: alive::THREADS, not_in: &modes::BARE, ..info };
            cases.push(Case::afresh(info, move || {
                beside.borrow_mut().nothing();
                let beside = Rc::clone(&beside);
                move |n| {
                    let mut beside = beside.borrow_mut();
                    let (team, ended) = beside.team();
                    done(n, [spans, messages], ended, together(team, body, n)?)
                }
            }));
        }
        let beside_creation = Rc::clone(&beside);
        cases.push(Case::new(inexact("rust/creation".to_owned()), move |n| {
            let ended = beside_creation.borrow_mut().nothing();
            let start = Instant::now();
            deep(DEEP, &mut || (0..n).for_each(|_| drop(black_box(T::span(|| info_span!("created"))))));
            let took = start.elapsed();
            Ok(Done { others_wrote: ended, took: Some(took), ..Done::new() })
        }));
        let dumped = |kind: Kind| [(kind, false), (kind, true)];
        for (kind, fetch) in Kind::ALL.into_iter().flat_map(dumped) {
            let beside = Rc::clone(&beside);
            // The counts are not exact for `Delays`: if a task is inside its span during the dump, the dump also has
            // the name of the task's thread.
            let info =
                Info { exact: kind != Kind::Delays, not_in: &modes::EMPTY, ..Info::of(kind.id(fetch)) };
            let case = Case::afresh(info, move || {
                beside.borrow_mut().nothing();
                let beside = Rc::clone(&beside);
                move |n| {
                    let mut beside = beside.borrow_mut();
                    beside.alive::<T>(kind)?;
                    let done = dumps(kind, n, fetch);
                    if kind == Kind::Delays {
                        // Otherwise the delays would continue while the processes of other modes measure.
                        beside.nothing();
                    }
                    done
                }
            });
            let frames = move || if fetch { kind.frames().get().copied().unwrap_or(0) } else { 0 };
            cases.push(case.has("frames", move || frames() as f64));
        }
        cases
    }

    fn modes() -> Vec<Mode> {
        modes::all()
    }

    fn seconds() -> u64 {
        62
    }

    fn prove() -> Result<(), Wrong> {
        tests::prove();
        Ok(())
    }

    fn bars(results: &Results) -> Vec<Judged> {
        modes::bars(results)
    }
}

fn check(what: &str, got: u64, expected: u64) -> Result<(), Wrong> {
    if got == expected { Ok(()) } else { Err(format!("{expected} {what} expected, {got} found")) }
}

/// Makes `n` dumps of the living spans. If `fetch` is true, also gets the frames of each span's backtrace, which show
/// where the span was created.
fn dumps(kind: Kind, n: u64, fetch: bool) -> Result<Done, Wrong> {
    let expected = modes::expected(kind.tasks());
    let mut frames = 0;
    let start = Instant::now();
    for _ in 0..n {
        let dump = live::dump();
        check("spans", dump.spans().len() as u64, expected.spans)?;
        if fetch {
            for span in dump.spans() {
                let has_backtrace = !span.addresses().is_empty();
                if has_backtrace != expected.backtraces {
                    return Err(format!("a span with a backtrace: {has_backtrace}"));
                }
                frames += black_box(span.frames()).len() as u64;
            }
        }
        black_box(dump);
    }
    let took = start.elapsed();
    if fetch {
        let of_one =
            *kind.frames().get_or_init(|| live::dump().spans().map(|span| span.frames().len() as u64).sum());
        if (of_one == 0) == expected.backtraces {
            return Err(format!("{of_one} frames found, backtraces expected: {}", expected.backtraces));
        }
        check("frames", frames, n * of_one)?;
    }
    // The tasks may have started during this measurement, and may be running, so the number of messages is unknown.
    Ok(Done { others_wrote: true, took: Some(took), ..Done::new() }.count("frames", frames))
}

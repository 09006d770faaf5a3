//! What it costs to know the spans that are alive, and where each was made.
//!
//! The workload is that of a benchmark of Kotlin's `DebugProbes` (coroutines' creation stack traces, and dumps
//! of the coroutines alive), in Rust: `runBlocking {}`, `runBlocking { launch {} }` and `launch {}` with empty bodies
//! are `block_on` of a current-thread runtime, with a `spawn` in it, and `spawn` alone; a coroutine is a
//! future in a span, and what knows them is `atrace_subscriber::live`. Its nine modes are kept: nothing
//! (`none`), the layer alone (`DEFAULT`), and what C (backtraces of creations), S (sanitised) and L (symbols when asked) add.
//! S, L and S_L without C change nothing, and must cost nothing.
//!
//! Backtraces are by unwinding. Where this program has frame pointers (`RUSTFLAGS="-C force-frame-pointers=yes"`), C_L and C_S_L
//! are there once more by them.
//! `bare` captures what C_L does, and throws it away.
//!
//! Unlike the original, a dump waits until as many are alive as it is to find.

mod alive;
mod modes;
mod report;
mod team;

use std::cell::RefCell;
use std::hint::black_box;
use std::io;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Instant;

use atrace_benches::harness::args::Args;
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Done, Fixture, Mode, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::Judged;
use atrace_subscriber::live;
use tokio::runtime::{Builder, Runtime};
use tracing::info_span;

use self::alive::{Alive, Kind};
use self::team::Team;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Live>()
}

struct Live;

/// Runs an operation this often in a runtime, and returns how often its innermost body ran.
type Body = fn(&Runtime, u64) -> u64;

/// A body, and the messages of one operation while tracing is on: two a poll, and two as a future in a span is
/// dropped.
struct Creation {
    name: &'static str,
    body: Body,
    messages: u64,
}

fn creations<T: Tracing>() -> [Creation; 3] {
    [
        Creation { name: "run_blocking", body: run_blocking::<T>, messages: 4 },
        Creation { name: "run_blocking_launch", body: run_blocking_launch::<T>, messages: 10 },
        Creation { name: "launch", body: launch::<T>, messages: 4 },
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

/// An empty body that says it ran.
async fn empty() -> u64 {
    black_box(1)
}

/// Without drivers, which would be asked at each turn.
fn runtime() -> Result<Runtime, Wrong> {
    Builder::new_current_thread().build().map_err(|e| e.to_string())
}

/// How deep below `main` the spans of the case `creation` are made, beside what calls the case.
const DEEP: u32 = 10;

#[inline(never)]
fn deep(calls: u32, last: &mut dyn FnMut()) {
    match calls {
        0 => last(),
        _ => deep(calls - 1, last),
    }
    // What comes after a call keeps it from being a jump.
    black_box(());
}

/// What there is beside the thread that measures: only one of them, and only while it is needed. Another
/// thread makes system calls dearer, and another thousand spans fill the caches.
enum Beside<T: Tracing> {
    Nothing,
    Team(Team),
    Alive(Alive<T>),
}

impl<T: Tracing> Beside<T> {
    /// Ends what there is; tells whether that were tasks, which write as they end.
    fn nothing(&mut self) -> bool {
        matches!(std::mem::replace(self, Self::Nothing), Self::Alive(_))
    }

    fn team(&mut self) -> (&Team, bool) {
        let mut ended = false;
        if !matches!(self, Self::Team(_)) {
            ended = self.nothing();
            *self = Self::Team(Team::new(runtime));
        }
        match self {
            Self::Team(team) => (team, ended),
            _ => unreachable!("it was made just now"),
        }
    }

    fn alive(&mut self, kind: Kind) -> Result<(), Wrong> {
        if !matches!(self, Self::Alive(alive) if alive.kind() == kind) {
            self.nothing();
            *self = Self::Alive(Alive::new(kind)?);
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
        let beside = Rc::new(RefCell::new(Beside::<T>::Nothing));
        let mut cases = Vec::new();
        for Creation { name, body, messages } in creations::<T>() {
            let beside = Rc::clone(&beside);
            let case = Case::afresh(format!("rust/{name}"), move || {
                let (beside, mut kept) = (Rc::clone(&beside), None);
                move |n| {
                    let ended = beside.borrow_mut().nothing();
                    let runtime = match &mut kept {
                        Some(runtime) => runtime,
                        none => none.insert(runtime()?),
                    };
                    let start = Instant::now();
                    let ran = body(runtime, n);
                    let took = start.elapsed();
                    check("bodies", ran, n)?;
                    Ok(Done::new().messages(messages * n).others_wrote(ended).took(took))
                }
            });
            // A registry takes memory for more spans of a thread now and then.
            cases.push(case.counted_over(1000).inexact().not_in(&modes::BARE));
        }
        for Creation { name, body, messages } in creations::<T>() {
            let beside = Rc::clone(&beside);
            let case = Case::afresh(format!("rust/{name}/2_threads"), move || {
                beside.borrow_mut().nothing();
                let beside = Rc::clone(&beside);
                move |n| {
                    let mut beside = beside.borrow_mut();
                    let (team, ended) = beside.team();
                    let (ran, took) = team.run(body, n)?;
                    check("bodies", ran, n)?;
                    Ok(Done::new().messages(messages * n).others_wrote(ended).took(took))
                }
            });
            // The runtimes' queues grow when they please.
            cases.push(case.by_threads(team::THREADS).counted_over(1000).inexact().not_in(&modes::BARE));
        }
        let beside_creation = Rc::clone(&beside);
        let case = Case::new("rust/creation", move |n| {
            let ended = beside_creation.borrow_mut().nothing();
            let start = Instant::now();
            deep(DEEP, &mut || (0..n).for_each(|_| drop(black_box(T::span(|| info_span!("created"))))));
            let took = start.elapsed();
            Ok(Done::new().others_wrote(ended).took(took))
        });
        cases.push(case.counted_over(1000).inexact());
        let dumped = |kind: Kind| [(kind, false), (kind, true)];
        for (kind, fetch) in Kind::ALL.into_iter().flat_map(dumped) {
            let beside = Rc::clone(&beside);
            let case = Case::afresh(kind.id(fetch), move || {
                beside.borrow_mut().nothing();
                let beside = Rc::clone(&beside);
                move |n| {
                    let mut beside = beside.borrow_mut();
                    beside.alive(kind)?;
                    let done = dumps(kind, n, fetch);
                    if kind == Kind::Delays {
                        // They would go on while other modes have their turn.
                        beside.nothing();
                    }
                    done
                }
            });
            let frames = move || if fetch { kind.frames().get().copied().unwrap_or(0) } else { 0 };
            let case = case.has("frames", move || frames() as f64).not_in(&modes::EMPTY);
            // A task that is inside its span at that moment has a thread to be told.
            cases.push(if kind == Kind::Delays { case.inexact() } else { case });
        }
        cases
    }

    fn modes() -> Vec<Mode> {
        modes::all()
    }

    fn seconds() -> u64 {
        62
    }

    fn profile(_: &mut Results, args: &Args) -> io::Result<()> {
        if args.test {
            team::prove(runtime);
        }
        Ok(())
    }

    fn bars(results: &Results) -> Vec<Judged> {
        report::bars(results)
    }
}

fn check(what: &str, got: u64, expected: u64) -> Result<(), Wrong> {
    if got == expected { Ok(()) } else { Err(format!("{expected} {what} expected, {got} found")) }
}

/// Dumps `n` times, with the frames of each span's creation if they are to be fetched, too.
fn dumps(kind: Kind, n: u64, fetch: bool) -> Result<Done, Wrong> {
    let expected = modes::expected(kind.tasks());
    let mut frames = 0;
    let start = Instant::now();
    for _ in 0..n {
        let dump = live::dump();
        check("spans", dump.len() as u64, expected.spans)?;
        if fetch {
            for span in dump.spans() {
                let backtrace = span.backtrace();
                if backtrace.is_some() != expected.backtraces {
                    return Err(format!("a span with a backtrace: {}", backtrace.is_some()));
                }
                frames += backtrace.map_or(0, |backtrace| black_box(backtrace.frames()).len() as u64);
            }
        }
        black_box(dump);
    }
    let took = start.elapsed();
    if fetch {
        let of_one = *kind.frames().get_or_init(|| {
            let dump = live::dump();
            dump.spans()
                .filter_map(|span| span.backtrace())
                .map(|backtrace| backtrace.frames().len() as u64)
                .sum()
        });
        if (of_one == 0) == expected.backtraces {
            return Err(format!("{of_one} frames found, backtraces expected: {}", expected.backtraces));
        }
        check("frames", frames, n * of_one)?;
    }
    // The tasks may have been started here, and may be at work.
    Ok(Done::new().others_wrote(true).took(took).count("frames", frames))
}

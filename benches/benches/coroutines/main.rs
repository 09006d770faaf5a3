//! What tracing costs a program of many small tasks, whatever a task is.
//!
//! The workload is a C++ benchmark of a thousand tasks that each compute a Fibonacci number, recursively and
//! in floating point: one after the other, in a thread each, in a coroutine each, or all in a coroutine that
//! yields. Here they are in C++ (`cc-bench`, untraced) and in Rust (traced): a loop, `std::thread`, boxed
//! futures polled by hand, one future that yields, and tokio's tasks. Each for Fibonacci 5, 15 and 25, on all
//! cores and on one.
//!
//! Parts of tasks are timed in batches of a thousand, as the clock takes as long to read as they do. What
//! takes long beside that has smaller ones: threads a hundred, and Fibonacci 25 thirty. A thread sleeps until
//! all are created (the original's spun, in the way of those that were to be created). The original's
//! creation time began after a coroutine's frame was allocated; here it is all of it.
//!
//! Traced, a task has a span: entered around what a thread or the loop computes; with `.instrument` for
//! futures, so that each resume enters and leaves it, and so does dropping it.
//!
//! tokio's runtime has no drivers: `new_multi_thread()` with a worker a core, on one core
//! `new_current_thread()`.

use std::fmt::Write as _;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::instruments::clock::timer_floor;
use atrace_benches::measure::workload::{self, Case, Done, Results, Tracing, Workload, Wrong};
use cc_bench::coroutines::{self as cc, Batch};
use tracing::info_span;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Coroutines>()
}

/// Which numbers are computed.
const FIBONACCI: [u32; 3] = [5, 15, 25];

/// What runs a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
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

const KINDS: [Kind; 9] = [
    Kind::CcSequential,
    Kind::CcThread,
    Kind::CcCoroutine,
    Kind::CcYield,
    Kind::Sequential,
    Kind::Thread,
    Kind::Future,
    Kind::Yield,
    Kind::Tokio,
];

impl Kind {
    fn id(self) -> &'static str {
        match self {
            Self::CcSequential => "cc/sequential",
            Self::CcThread => "cc/thread",
            Self::CcCoroutine => "cc/coroutine",
            Self::CcYield => "cc/co_yield",
            Self::Sequential => "rust/sequential",
            Self::Thread => "rust/thread",
            Self::Future => "rust/future",
            Self::Yield => "rust/yield",
            Self::Tokio => "rust/tokio",
        }
    }

    /// What computes the same without any switch.
    fn bare(self) -> Self {
        match self {
            Self::CcSequential | Self::CcThread | Self::CcCoroutine | Self::CcYield => Self::CcSequential,
            _ => Self::Sequential,
        }
    }
}

/// Where the tasks run, and what they compute.
#[derive(Clone, Copy, Debug)]
struct Place {
    fibonacci: u32,
    one_core: bool,
}

impl Place {
    fn all() -> impl Iterator<Item = Self> {
        let of = |one_core| FIBONACCI.map(|fibonacci| Self { fibonacci, one_core });
        of(false).into_iter().chain(of(true))
    }

    fn cores(self) -> &'static str {
        if self.one_core { "one_core" } else { "all_cores" }
    }

    fn id(self, kind: Kind) -> String {
        format!("{}/fib_{}/{}", kind.id(), self.fibonacci, self.cores())
    }

    /// How many tasks there are at once.
    fn batch(self, kind: Kind) -> u64 {
        match kind {
            _ if self.fibonacci >= 25 => 30,
            Kind::CcThread | Kind::Thread => 100,
            _ => 1000,
        }
    }

    /// Whether the tasks computed what they should have.
    fn check(self, sum: f64, tasks: u64) -> Result<(), Wrong> {
        let (number, _) = (0..self.fibonacci).fold((0_u64, 1_u64), |(a, b), _| (b, a + b));
        // Whole numbers far below 2^53: exact in any order.
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let expected = (number * tasks) as f64;
        if sum == expected {
            Ok(())
        } else {
            Err(format!("the sum of {tasks} tasks is {sum}, not {expected}"))
        }
    }
}

struct Coroutines;

impl Workload for Coroutines {
    const NAME: &'static str = "coroutines";

    fn cases<T: Tracing>() -> Vec<Case> {
        Place::all().flat_map(|place| KINDS.map(|kind| case::<T>(kind, place))).collect()
    }

    fn seconds() -> u64 {
        127
    }

    fn report(results: &Results) -> String {
        report(results)
    }
}

fn case<T: Tracing>(kind: Kind, place: Place) -> Case {
    let case = match kind {
        Kind::CcSequential => cc(kind, place, |fibonacci, tasks| Ok(cc::sequential(fibonacci, tasks))),
        Kind::CcThread => cc(kind, place, |fibonacci, tasks| {
            cc::threads(fibonacci, tasks).map_err(|e| format!("not as many threads can be started: {e}"))
        }),
        Kind::CcCoroutine => cc(kind, place, |fibonacci, tasks| Ok(cc::coroutines(fibonacci, tasks))),
        Kind::CcYield => cc(kind, place, |fibonacci, tasks| Ok(cc::co_yield(fibonacci, tasks))),
        Kind::Sequential => sequential::<T>(place),
        Kind::Thread => thread::<T>(place),
        Kind::Future => future::<T>(place),
        Kind::Yield => yielding::<T>(place),
        Kind::Tokio => tokio::<T>(place),
    };
    let case = case.batch(place.batch(kind)).counted_over(place.batch(kind));
    if place.one_core { case.one_core() } else { case }
}

/// A case in C++, which takes its own times.
fn cc(kind: Kind, place: Place, run: impl Fn(u32, u64) -> Result<Batch, Wrong> + 'static) -> Case {
    let batch = place.batch(kind);
    let case = Case::new(place.id(kind), move |n| {
        let mut total = Parts::default();
        let (mut resumes, mut news, mut bytes) = (0, 0, 0);
        for _ in 0..n / batch {
            let done = run(place.fibonacci, batch)?;
            place.check(done.sum, batch)?;
            total.creation += Duration::from_nanos(done.creation);
            total.resume += Duration::from_nanos(done.resume);
            total.destruction += Duration::from_nanos(done.destruction);
            (resumes, news, bytes) = (resumes + done.resumes, news + done.news, bytes + done.frame_bytes);
        }
        let coroutines = match kind {
            Kind::CcCoroutine => n,
            Kind::CcYield => n / batch,
            _ => return Ok(total.done(n, kind)),
        };
        if resumes != n {
            return Err(format!("{resumes} resumes instead of {n}"));
        }
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let per = |count: u64| count as f64 / coroutines as f64;
        let frame = if news == 0 { 0.0 } else { bytes as f64 / news as f64 };
        Ok(total.done(n, kind).count("resumes", resumes).gauge("new", per(news)).gauge("frame_bytes", frame))
    });
    case.untraced()
}

/// How long the parts of batches took.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    creation: Duration,
    resume: Duration,
    destruction: Duration,
}

impl Parts {
    /// What `n` tasks of this kind have done, in all these times.
    fn done(self, n: u64, kind: Kind) -> Done {
        let done = Done::new().took(self.creation + self.resume + self.destruction);
        match kind {
            Kind::CcSequential | Kind::Sequential => done,
            // One for a whole batch: too short to be timed.
            Kind::CcYield | Kind::Yield => done.part("resume", self.resume, n),
            Kind::CcThread | Kind::Thread | Kind::Tokio => {
                done.part("creation", self.creation, n).part("resume", self.resume, n)
            }
            Kind::CcCoroutine | Kind::Future => done
                .part("creation", self.creation, n)
                .part("resume", self.resume, n)
                .part("destruction", self.destruction, n),
        }
    }
}

/// Adds how long `f` takes.
fn timed<R>(to: &mut Duration, f: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = f();
    *to += start.elapsed();
    result
}

/// Not inlined: every kind of task then calls the same code.
#[inline(never)]
fn fibonacci_of(n: u32) -> f64 {
    if n < 2 { f64::from(n) } else { fibonacci_of(n - 1) + fibonacci_of(n - 2) }
}

/// A pure function of what is known would be computed once, or never.
#[inline(always)]
fn compute(fibonacci: u32) -> f64 {
    black_box(fibonacci_of(black_box(fibonacci)))
}

fn sequential<T: Tracing>(place: Place) -> Case {
    Case::new(place.id(Kind::Sequential), move |n| {
        let (mut total, mut sum) = (Parts::default(), 0.0);
        timed(&mut total.resume, || {
            for _ in 0..n {
                let span = T::span(|| info_span!("task"));
                sum += T::within(&span, || compute(place.fibonacci));
            }
        });
        place.check(sum, n)?;
        Ok(total.done(n, Kind::Sequential).messages(2 * n))
    })
}

/// Lets threads go on, all at once, that sleep until then.
#[derive(Default)]
struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    open: bool,
    /// How many have gone through.
    passed: u64,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let mut state = self.state();
        while !state.open {
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.passed += u64::from(state.open);
    }

    fn open(&self) {
        self.state().open = true;
        self.opened.notify_all();
    }

    /// Begins again; returns how many had gone through.
    fn close(&self) -> u64 {
        std::mem::take(&mut *self.state()).passed
    }
}

fn thread<T: Tracing>(place: Place) -> Case {
    let gate = Arc::new(Gate::default());
    let batch = place.batch(Kind::Thread);
    let mut threads = Vec::new();
    let case = Case::new(place.id(Kind::Thread), move |n| {
        let (mut total, mut sum, mut passed) = (Parts::default(), 0.0, 0);
        for _ in 0..n / batch {
            let created: std::io::Result<()> = timed(&mut total.creation, || {
                for _ in 0..batch {
                    let (gate, span) = (Arc::clone(&gate), T::span(|| info_span!("task")));
                    let task = move || {
                        gate.wait();
                        T::within(&span, || compute(place.fibonacci))
                    };
                    threads.push(std::thread::Builder::new().spawn(task)?);
                }
                Ok(())
            });
            sum += timed(&mut total.resume, || {
                gate.open();
                threads.drain(..).map(|thread| thread.join().expect("no task panics")).sum::<f64>()
            });
            passed += gate.close();
            created.map_err(|e| format!("not as many threads can be started: {e}"))?;
        }
        if passed != n {
            return Err(format!("{passed} of {n} threads waited until all were created"));
        }
        place.check(sum, n)?;
        Ok(total.done(n, Kind::Thread).messages(2 * n))
    });
    // std keeps the threads that are alive in a map, whose nodes are as many as the order of their ends has
    // it.
    case.inexact()
}

/// A future that is resumed as a coroutine's handle is: through a pointer.
type Task = Pin<Box<dyn Future<Output = f64> + Send>>;

fn future<T: Tracing>(place: Place) -> Case {
    let batch = place.batch(Kind::Future);
    let mut tasks: Vec<Task> = Vec::new();
    Case::new(place.id(Kind::Future), move |n| {
        let mut context = Context::from_waker(Waker::noop());
        let (mut total, mut sum, mut polls) = (Parts::default(), 0.0, 0);
        for _ in 0..n / batch {
            timed(&mut total.creation, || {
                for _ in 0..batch {
                    let task = T::spanned(async move { compute(place.fibonacci) }, || info_span!("task"));
                    tasks.push(Box::pin(task));
                }
            });
            timed(&mut total.resume, || {
                for task in &mut tasks {
                    if let Poll::Ready(number) = task.as_mut().poll(&mut context) {
                        sum += number;
                        polls += 1;
                    }
                }
            });
            timed(&mut total.destruction, || tasks.clear());
        }
        if polls != n {
            return Err(format!("{polls} of {n} tasks were done when they were resumed"));
        }
        place.check(sum, n)?;
        let one = T::spanned(async move { compute(place.fibonacci) }, tracing::Span::none);
        #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
        let frame = size_of_val(&one) as f64;
        // Each is within its span when it is polled, and when it is dropped.
        let done = total.done(n, Kind::Future).messages(2 * (polls + n));
        Ok(done.count("resumes", polls).gauge("frame_bytes", frame))
    })
}

/// Is pending once.
fn yield_once() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    poll_fn(move |_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending })
}

fn yielding<T: Tracing>(place: Place) -> Case {
    let batch = place.batch(Kind::Yield);
    Case::new(place.id(Kind::Yield), move |n| {
        let mut context = Context::from_waker(Waker::noop());
        let (mut total, mut sum, mut yields) = (Parts::default(), 0.0, 0);
        for _ in 0..n / batch {
            let numbers = async move {
                let mut sum = 0.0;
                for _ in 0..batch {
                    sum += compute(place.fibonacci);
                    yield_once().await;
                }
                sum
            };
            let mut task: Task = timed(&mut total.creation, || {
                let numbers: Task = Box::pin(T::spanned(numbers, || info_span!("task")));
                numbers
            });
            sum += timed(&mut total.resume, || {
                loop {
                    match task.as_mut().poll(&mut context) {
                        Poll::Pending => yields += 1,
                        Poll::Ready(sum) => break sum,
                    }
                }
            });
            timed(&mut total.destruction, || drop(task));
        }
        if yields != n {
            return Err(format!("{yields} resumes instead of {n}"));
        }
        place.check(sum, n)?;
        // A batch is one task: it is also resumed to end, and dropped.
        let done = total.done(n, Kind::Yield).messages(2 * (yields + 2 * (n / batch)));
        Ok(done.count("resumes", yields))
    })
}

fn tokio<T: Tracing>(place: Place) -> Case {
    let case = Case::afresh(place.id(Kind::Tokio), move || tokio_runs::<T>(place));
    // Its workers allocate when they run out of something.
    if place.one_core { case } else { case.inexact() }
}

fn tokio_runs<T: Tracing>(place: Place) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let mut builder = match place.one_core {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let batch = place.batch(Kind::Tokio);
    let mut runtime = None;
    let mut tasks = Vec::new();
    move |n| {
        // When it first runs: its workers are not to be in the way of other cases before.
        let runtime = runtime.get_or_insert_with(|| builder.build().expect("a runtime without drivers"));
        let (mut total, mut sum) = (Parts::default(), 0.0);
        for _ in 0..n / batch {
            timed(&mut total.creation, || {
                for _ in 0..batch {
                    let task = T::spanned(async move { compute(place.fibonacci) }, || info_span!("task"));
                    tasks.push(runtime.spawn(task));
                }
            });
            sum += timed(&mut total.resume, || {
                runtime.block_on(async {
                    let mut sum = 0.0;
                    for task in tasks.drain(..) {
                        sum += task.await.expect("no task panics");
                    }
                    sum
                })
            });
        }
        place.check(sum, n)?;
        // Polled once and dropped.
        Ok(total.done(n, Kind::Tokio).messages(4 * n))
    }
}

/// The lines of the original, as columns.
fn report(results: &Results) -> String {
    let mut text = String::new();
    let floor = timer_floor().as_nanos();
    let _ =
        writeln!(text, "without instrumentation; ns of one task (a reading of the timer takes {floor} ns)");
    for place in Place::all() {
        let cores =
            if place.one_core { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
        let _ = writeln!(
            text,
            "\n{:16}{:>6}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>12}{:>8}{:>7}",
            format!("fib {}, {cores} core{}", place.fibonacci, if cores == 1 { "" } else { "s" }),
            "tasks",
            "total",
            "create",
            "resume",
            "compute",
            "switch",
            "destroy",
            "tasks/s",
            "allocs",
            "frame"
        );
        for kind in KINDS {
            line(&mut text, results, kind, place);
        }
    }
    todo(&mut text, results);
    text
}

/// One kind of task at one place.
fn line(text: &mut String, results: &Results, kind: Kind, place: Place) {
    let id = place.id(kind);
    let Some(total) = results.row(&id, "none") else { return };
    let number = |ns: f64| if ns.abs() < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") };
    let part = |name: &str| results.part(&id, name, "none").map_or("-".to_owned(), |row| number(row.median));
    let compute = results.row(&place.id(kind.bare()), "none").map(|row| row.median);
    // What a resume takes beside what it computes; threads compute beside each other.
    let resume = (format!("{id}/resume"), place.id(kind.bare()));
    let switch = match kind {
        Kind::CcThread | Kind::Thread | Kind::Tokio | Kind::CcSequential | Kind::Sequential => None,
        _ => results.difference((&resume.0, "none"), (&resume.1, "none")),
    };
    let count = |name: &str| total.counts.get(name).copied();
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let allocs = count("new").or(if kind.id().starts_with("rust/") { total.allocs } else { None });
    let _ = writeln!(
        text,
        "{:16}{:>6}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>12.0}{:>8}{:>7}",
        kind.id(),
        place.batch(kind),
        number(total.median),
        part("creation"),
        part("resume"),
        dash(compute.map(number)),
        dash(switch.map(|switch| number(switch.median))),
        part("destruction"),
        1e9 / total.median,
        dash(allocs.map(|allocs| format!("{allocs:.2}"))),
        dash(count("frame_bytes").map(|bytes| format!("{bytes:.0}"))),
    );
}

/// What the original left open.
fn todo(text: &mut String, results: &Results) {
    let place = Place { fibonacci: 5, one_core: true };
    let id = place.id(Kind::CcCoroutine);
    let part = |name: &str| results.part(&id, name, "none").map(|row| row.median);
    let (Some(creation), Some(destruction), Some(row)) =
        (part("creation"), part("destruction"), results.row(&id, "none"))
    else {
        return;
    };
    let count = |name: &str| row.counts.get(name).copied().unwrap_or_default();
    let _ = writeln!(
        text,
        "\nThe original asks whether its 18 ns to create a coroutine and 31 to destroy one are right. It read the \
         clock\naround each, and began after the frame was allocated. In batches of {} it takes {creation:.1} and \
         {destruction:.1} ns, with\n{:.2} `new` of {:.0} bytes (0: the compiler has elided it); two readings of \
         the clock take {} ns here.",
        place.batch(Kind::CcCoroutine),
        count("new"),
        count("frame_bytes"),
        2 * timer_floor().as_nanos()
    );
}

//! The tasks of each runner (implementation of tasks). Each task of a batch computes the same Fibonacci number.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atrace_benches::instruments::clock;
use atrace_benches::measure::workload::{Case, Done, Info, Tracing, Wrong};
use cc_bench::coroutines as cc;
use tracing::info_span;

use crate::{Kind, Place, Runner};

/// The times and counts of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    /// The time of the whole batch.
    pub(super) total: Duration,
    pub(super) creation: Duration,
    pub(super) resume: Duration,
    /// The sum of the times of the computations, and the sum of the times of the switches to and from the computations.
    /// `None` if the parts of a task were not timed.
    pub(super) inside: Option<[Duration; 2]>,
    pub(super) destruction: Duration,
    pub(super) sum: f64,
    /// How many times tasks were resumed, if the runner counts resumes.
    pub(super) resumes: Option<u64>,
    /// The size of a task's frame in bytes, if it is known.
    pub(super) frame: Option<f64>,
    /// How many times C++ allocated a frame, if the tasks are C++ coroutines.
    pub(super) news: Option<u64>,
}

/// Makes the case of a runner (an implementation of the tasks) with the parameters `place`: the Fibonacci number, and
/// one core or all cores.
pub(crate) fn case<T: Tracing>(runner: Runner, place: Place) -> Case {
    let (batch, inside, one_core) = (place.batch(runner), place.is_long(), place.one_core);
    let is_cc = matches!(runner, Runner::Cc(..));
    let info = Info {
        batch,
        // Two batches show that counts add up. The count of threads is a median, so it need not.
        counted_over: if runner == Runner::Thread { batch } else { 2 * batch },
        one_core,
        // The allocation counts of threads are not exact: std keeps the living threads in a map, and the number of the
        // map's nodes depends on the order in which the threads end. The counts of tokio with several workers are not
        // exact either: a worker allocates when one of its buffers is used up.
        exact: runner != Runner::Thread && (runner != Runner::Tokio || one_core),
        traced: !is_cc,
        counted: !is_cc,
        ..Info::of(place.id(runner))
    };
    let case = match runner {
        Runner::Cc(compiler, kind) => {
            let run = move |number, tasks| match kind {
                Kind::Sequential => compiler.sequential(number, tasks),
                Kind::Thread => compiler.threads(number, tasks),
                Kind::Coroutine => compiler.coroutines(number, tasks, inside),
                Kind::Yield => compiler.co_yield(number, tasks, inside),
            };
            let has_frames = matches!(kind, Kind::Coroutine | Kind::Yield);
            let run = move |number, tasks| Ok(of_cc(&run(number, tasks).map_err(not_started)?, has_frames));
            Case::new(info, batches(runner, place, |_| Done::new(), run))
        }
        Runner::Sequential => Case::new(info, batches(runner, place, entered, sequential::<T>)),
        Runner::Thread => Case::new(info, batches(runner, place, awaited, threads::<T>())),
        // A future's span is entered when the future is polled, and when it is dropped.
        Runner::Future => Case::new(info, batches(runner, place, polled, futures::<T>(inside))),
        // A batch is a single future, which is resumed once for each task, once more at its end, and then dropped.
        Runner::Yield => {
            let written = move |n| {
                let tasks = n / batch;
                Done { messages: 2 * (n + 2 * tasks), lives: [tasks; 2], ..Done::new() }
            };
            Case::new(info, batches(runner, place, written, yielding::<T>(inside)))
        }
        Runner::Tokio => Case::afresh(info, move || batches(runner, place, polled, tokio::<T>(one_core))),
    };
    match runner {
        Runner::Cc(compiler, Kind::Coroutine) => {
            // A compiler elides either the allocations of all frames or none of them, so one task shows the expected
            // count.
            let news = compiler.coroutines(1, 1, inside).map_or(0.0, |batch| batch.news as f64);
            case.has("resumes", || 1.0).has("new", move || news)
        }
        Runner::Cc(_, Kind::Sequential | Kind::Thread) | Runner::Sequential | Runner::Tokio => case,
        _ => case.has("resumes", || 1.0),
    }
}

/// Returns the report of `n` tasks, each with a span that is entered once. The report has the number of messages that
/// the tasks write.
fn entered(n: u64) -> Done {
    Done { messages: 2 * n, ..Done::new() }
}

/// Returns the report of `n` tasks, each with a span that is entered once, perhaps long after its creation. Such a span
/// may have a life (a slice from its creation until it closes), which takes further messages.
fn awaited(n: u64) -> Done {
    Done { lives: [0, n], ..entered(n) }
}

/// Returns the report of `n` futures, each within its own span, which are polled once and dropped. Each future writes
/// four messages and a life (a slice from the creation of the span until it closes).
fn polled(n: u64) -> Done {
    Done { messages: 4 * n, lives: [n; 2], ..Done::new() }
}

/// Makes a closure that runs batches of tasks and returns their report. `run` runs one batch. `written` returns the
/// report with the number of messages that a number of tasks write.
fn batches(
    runner: Runner,
    place: Place,
    written: impl Fn(u64) -> Done + 'static,
    mut run: impl FnMut(u32, u64) -> Result<Batch, Wrong> + 'static,
) -> impl FnMut(u64) -> Result<Done, Wrong> + 'static {
    let batch = place.batch(runner);
    let clock = clock::reading();
    move |n| {
        let mut total = Batch::default();
        for _ in 0..n / batch {
            let done = run(place.fibonacci, batch)?;
            place.check(done.sum, batch)?;
            if let Some(resumes) = done.resumes.filter(|&resumes| resumes != batch) {
                return Err(format!("{resumes} of {batch} tasks ran"));
            }
            // Every part takes time. But a part of a single coroutine may be so short that both clock readings are
            // equal.
            let is_lost = |has: bool, took: Duration| has && took.is_zero() && !runner.is_one_for_all();
            if is_lost(runner.is_created(), done.creation)
                || is_lost(true, done.resume)
                || is_lost(runner.is_destroyed(), done.destruction)
            {
                return Err(format!("it took no time: {done:?}"));
            }
            total.resumes = done.resumes.map(|resumes| resumes + total.resumes.unwrap_or(0));
            total.total += done.total;
            total.creation += done.creation;
            total.resume += done.resume;
            if let Some(inside) = done.inside {
                let [compute, switch] = total.inside.unwrap_or_default();
                total.inside = Some([compute + inside[0], switch + inside[1]]);
            }
            total.destruction += done.destruction;
            total.frame = done.frame;
            total.news = done.news.map(|news| news + total.news.unwrap_or(0));
        }
        Ok(total.done(written(n), runner, n, batch, clock))
    }
}

impl Batch {
    /// Adds the times and counts of `n` tasks, which ran in batches of `batch` tasks, to the report `done`. A reading
    /// of the clock takes `clock` nanoseconds, which are subtracted from each time: a time is the difference between
    /// two clock readings, so it includes the duration of one reading.
    pub(super) fn done(&self, done: Done, runner: Runner, n: u64, batch: u64, clock: f64) -> Done {
        let without = |time: Duration, readings: u64| {
            time.saturating_sub(Duration::from_secs_f64(clock * readings as f64 / 1e9))
        };
        let batches = n / batch;
        let parts = 1 + u64::from(runner.is_created()) + u64::from(runner.is_destroyed());
        let inside = batches + if self.inside.is_some() { 4 * n } else { 0 };
        let readings = inside + (parts - 1) * batches;
        let [creation, destruction] = [self.creation, self.destruction].map(|part| without(part, batches));
        let resume = without(self.resume, inside);
        // A part that is shorter than its clock readings becomes zero, and not negative. So the corrected total could
        // be less than the sum of the corrected parts, and is then set to this sum.
        let sum: Duration = if runner.is_created() { creation + resume + destruction } else { resume };
        let took = without(self.total, readings).max(sum);
        let mut done = Done { took: Some(took), ..done }.gauge("clock_ns", clock);
        done = done.gauge("clock_readings", readings as f64 / n as f64);
        if let Some(resumes) = self.resumes {
            done = done.count("resumes", resumes);
        }
        // A single coroutine for all tasks is created and destroyed once per batch.
        let whole = if runner.is_one_for_all() { batches } else { n };
        if runner.is_created() {
            done = done.part("creation", creation, whole).part("resume", resume, n);
        }
        if let Some([compute, switch]) = self.inside {
            done = done.part("resume/compute", without(compute, n), n);
            done = done.part("resume/switch", without(switch, 2 * n), n);
        }
        if runner.is_destroyed() {
            done = done.part("destruction", destruction, whole);
        }
        if let Some(frame) = self.frame {
            done = done.gauge("frame_bytes", frame);
        }
        if let Some(news) = self.news {
            done = done.count("new", news);
        }
        done
    }
}

/// Converts the results of a batch in C++, where the times are measured by the C++ code.
fn of_cc(done: &cc::Batch, has_frames: bool) -> Batch {
    let nanos = Duration::from_nanos;
    Batch {
        total: nanos(done.total),
        creation: nanos(done.creation),
        resume: nanos(done.resume),
        inside: (done.compute > 0).then(|| [nanos(done.compute), nanos(done.switches)]),
        destruction: nanos(done.destruction),
        sum: done.sum,
        resumes: has_frames.then_some(done.resumes),
        // This is `None` if the compiler has elided the frame, because its size is then unknown.
        frame: done.frame(),
        news: has_frames.then_some(done.news),
    }
}

/// A stopwatch for the parts of a batch. The clock is read once at the end of each part, where the next part begins.
struct Laps {
    start: Instant,
    last: Instant,
}

impl Laps {
    fn start() -> Self {
        let start = Instant::now();
        Self { start, last: start }
    }

    /// Returns the time since the previous part ended.
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        let lap = now - self.last;
        self.last = now;
        lap
    }

    /// Returns the sum of the times that [`lap`](Self::lap) has returned so far.
    fn total(&self) -> Duration {
        self.last - self.start
    }
}

thread_local! {
    /// The times at which the last computation on this thread began and ended.
    static COMPUTED: Cell<Option<[Instant; 2]>> = const { Cell::new(None) };
}

/// Resumes a task by calling `task`. If `times` is given ([`Batch::inside`]), adds to it the time of the computation,
/// and the time of the switches: from directly before the resume to the computation, and from the end of the
/// computation until the resume has returned. This takes four readings of the clock, two of which [`compute_inside`]
/// makes.
#[inline(always)]
fn resume<R>(times: &mut Option<[Duration; 2]>, task: impl FnOnce() -> R) -> R {
    let Some([compute, switch]) = times else { return task() };
    let before = Instant::now();
    let result = task();
    let after = Instant::now();
    let [began, ended] = COMPUTED.get().unwrap_or([after; 2]);
    *compute += ended - began;
    *switch += (began - before) + (after - ended);
    result
}

fn not_started(e: std::io::Error) -> Wrong {
    format!("not as many threads can be started: {e}")
}

/// Computes a Fibonacci number. This function is not inlined, so that every kind of task calls the same code.
#[inline(never)]
fn fibonacci_of(n: u32) -> f64 {
    if n < 2 { f64::from(n) } else { fibonacci_of(n - 1) + fibonacci_of(n - 2) }
}

/// Computes a Fibonacci number. `black_box` hides the argument and the result from the compiler, which could
/// otherwise move the call out of the loop or remove it.
#[inline(always)]
fn compute(number: u32) -> f64 {
    black_box(fibonacci_of(black_box(number)))
}

/// Computes a Fibonacci number. If `inside` is true, reads the clock before and after the computation.
#[inline(always)]
fn compute_inside(number: u32, inside: bool) -> f64 {
    if !inside {
        return compute(number);
    }
    let began = Instant::now();
    let result = compute(number);
    COMPUTED.set(Some([began, Instant::now()]));
    result
}

fn sequential<T: Tracing>(number: u32, tasks: u64) -> Result<Batch, Wrong> {
    let mut laps = Laps::start();
    let task = |_| {
        let span = T::span(|| info_span!("task"));
        T::within(&span, || compute(number))
    };
    let sum = (0..tasks).map(task).sum();
    let resume = laps.lap();
    Ok(Batch { sum, resume, total: laps.total(), ..Batch::default() })
}

fn threads<T: Tracing>() -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    // The lock at which threads sleep until all threads are created, and the number of threads that have passed it.
    let gate = Arc::new((RwLock::new(()), AtomicU64::new(0)));
    let mut threads = Vec::new();
    move |number, tasks| {
        let mut batch = Batch::default();
        let closed = gate.0.write().unwrap_or_else(PoisonError::into_inner);
        let mut laps = Laps::start();
        let created = (0..tasks).try_for_each(|_| {
            let (gate, span) = (Arc::clone(&gate), T::span(|| info_span!("task")));
            let task = move || {
                drop(gate.0.read());
                gate.1.fetch_add(1, Relaxed);
                T::within(&span, || compute(number))
            };
            threads.push(std::thread::Builder::new().spawn(task)?);
            Ok(())
        });
        batch.creation = laps.lap();
        drop(closed);
        batch.sum = threads.drain(..).map(|thread| thread.join().expect("no task panics")).sum::<f64>();
        batch.resume = laps.lap();
        batch.total = laps.total();
        batch.resumes = Some(gate.1.swap(0, Relaxed));
        created.map_err(not_started)?;
        Ok(batch)
    }
}

/// A boxed future, which is a pointer, like the handle of a C++ coroutine.
type Task = Pin<Box<dyn Future<Output = f64> + Send>>;

fn boxed(future: impl Future<Output = f64> + Send + 'static) -> (Task, f64) {
    let frame = size_of_val(&future) as f64;
    (Box::pin(future), frame)
}

fn futures<T: Tracing>(inside: bool) -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    let mut all: Vec<Task> = Vec::new();
    move |number, tasks| {
        let mut context = Context::from_waker(Waker::noop());
        let (mut batch, mut resumes) = (Batch::default(), 0);
        let mut laps = Laps::start();
        for _ in 0..tasks {
            let task = async move { compute_inside(number, inside) };
            let (task, frame) = boxed(T::spanned(task, || info_span!("task")));
            batch.frame = Some(frame);
            all.push(task);
        }
        batch.creation = laps.lap();
        batch.inside = inside.then_some([Duration::ZERO; 2]);
        for task in &mut all {
            if let Poll::Ready(number) = resume(&mut batch.inside, || task.as_mut().poll(&mut context)) {
                batch.sum += number;
                resumes += 1;
            }
        }
        batch.resume = laps.lap();
        batch.resumes = Some(resumes);
        all.clear();
        batch.destruction = laps.lap();
        batch.total = laps.total();
        Ok(batch)
    }
}

/// Returns a future that is pending at its first poll and ready at the second.
fn yield_once() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    poll_fn(move |_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending })
}

fn yielding<T: Tracing>(inside: bool) -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    move |number, tasks| {
        let mut context = Context::from_waker(Waker::noop());
        let (mut batch, mut resumes) = (Batch::default(), 0);
        let numbers = async move {
            let mut sum = 0.0;
            for _ in 0..tasks {
                sum += compute_inside(number, inside);
                yield_once().await;
            }
            sum
        };
        let mut laps = Laps::start();
        let (mut task, frame) = boxed(T::spanned(numbers, || info_span!("task")));
        batch.frame = Some(frame);
        batch.creation = laps.lap();
        batch.inside = inside.then_some([Duration::ZERO; 2]);
        for _ in 0..tasks {
            let is_pending = resume(&mut batch.inside, || task.as_mut().poll(&mut context).is_pending());
            resumes += u64::from(is_pending);
        }
        // In its last resume, the future ends without a further computation.
        match task.as_mut().poll(&mut context) {
            Poll::Ready(sum) => batch.sum = sum,
            Poll::Pending => return Err("the tasks have not ended".to_owned()),
        }
        batch.resume = laps.lap();
        batch.resumes = Some(resumes);
        drop(task);
        batch.destruction = laps.lap();
        batch.total = laps.total();
        Ok(batch)
    }
}

/// Makes a closure that runs the tasks on a tokio runtime without drivers. On all cores, the runtime has a worker for
/// each core. On one core, it uses only the calling thread.
fn tokio<T: Tracing>(one_core: bool) -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    let mut builder = match one_core {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let mut runtime = None;
    let (mut all, inside) = (Vec::new(), false);
    move |number, tasks| {
        // The runtime starts in the first run of its case, so that its workers do not disturb earlier cases.
        let runtime = runtime.get_or_insert_with(|| builder.build().expect("a runtime without drivers"));
        let mut batch = Batch::default();
        let mut laps = Laps::start();
        for _ in 0..tasks {
            // This is the code that `futures` also has, so that the frames of both have the same size.
            let task = async move { compute_inside(number, inside) };
            let task = T::spanned(task, || info_span!("task"));
            batch.frame = Some(size_of_val(&task) as f64);
            all.push(runtime.spawn(task));
        }
        batch.creation = laps.lap();
        batch.sum = runtime.block_on(async {
            let mut sum = 0.0;
            for task in all.drain(..) {
                sum += task.await.expect("no task panics");
            }
            sum
        });
        batch.resume = laps.lap();
        batch.total = laps.total();
        Ok(batch)
    }
}

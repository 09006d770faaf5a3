//! The tasks of each runner: a batch computes a number per task, or nothing.

use std::future::{Future, poll_fn};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atrace_benches::measure::workload::{Case, Done, Tracing, Wrong};
use cc_bench::coroutines::{self as cc, NOTHING};
use tracing::info_span;

use crate::{Place, Runner};

/// The times and counts of a batch.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    creation: Duration,
    resume: Duration,
    destruction: Duration,
    sum: f64,
    /// How often tasks were resumed, if the runner counts resumes.
    resumes: Option<u64>,
    /// The size of a task's frame in bytes.
    frame: Option<f64>,
    /// How often C++ allocated a frame.
    news: Option<u64>,
}

/// Makes the case of a runner in a place.
pub(crate) fn case<T: Tracing>(runner: Runner, place: Place) -> Case {
    let id = place.id(runner);
    let batch = place.batch(runner);
    let case = match runner {
        Runner::CcSequential => cc(runner, place, |number, tasks| Ok(cc::sequential(number, tasks))),
        Runner::CcThread => {
            cc(runner, place, |number, tasks| cc::threads(number, tasks).map_err(not_started))
        }
        Runner::CcCoroutine => {
            // The compiler elides the allocation of all frames or of none.
            let news = cc::coroutines(NOTHING, 1).news as f64;
            cc(runner, place, |number, tasks| Ok(cc::coroutines(number, tasks))).has("new", move || news)
        }
        Runner::CcYield => cc(runner, place, |number, tasks| Ok(cc::co_yield(number, tasks))),
        Runner::Sequential => Case::new(id, batches(runner, place, |n| 2 * n, sequential::<T>)),
        // std keeps living threads in a map. The number of its nodes depends on the order in which the threads end.
        Runner::Thread => Case::new(id, batches(runner, place, |n| 2 * n, threads::<T>())).inexact(),
        // A future is within its span when it is polled and when it is dropped.
        Runner::Future => Case::new(id, batches(runner, place, |n| 4 * n, futures::<T>())),
        // A batch is one task, which has an additional resume to its end, and is dropped.
        Runner::Yield => {
            Case::new(id, batches(runner, place, move |n| 2 * (n + 2 * (n / batch)), yielding::<T>))
        }
        Runner::Tokio => {
            let runs = move || batches(runner, place, |n| 4 * n, tokio::<T>(place.one_core));
            let case = Case::afresh(id, runs);
            // The workers of the runtime allocate when one of their buffers is used up.
            if place.one_core { case } else { case.inexact() }
        }
    };
    let case = match runner {
        Runner::CcSequential | Runner::CcThread | Runner::Sequential | Runner::Tokio => case,
        _ => case.has("resumes", || 1.0),
    };
    let case = case.batch(batch).counted_over(2 * batch);
    let case = case.beside(format!("{} on {}", runner.id(), place.cores()));
    // Cases that compute nothing only give the `switch` time of the untraced program.
    let traced: &[&str] = &["nosub", "filtered", "off", "on", "perfetto"];
    let case = if place.fibonacci.is_none() { case.not_in(traced) } else { case };
    if place.one_core { case.one_core() } else { case }
}

/// Makes a closure that runs batches. `messages` returns the number of messages of `n` tasks.
fn batches(
    runner: Runner,
    place: Place,
    messages: impl Fn(u64) -> u64 + 'static,
    mut run: impl FnMut(u32, u64) -> Result<Batch, Wrong> + 'static,
) -> impl FnMut(u64) -> Result<Done, Wrong> + 'static {
    let batch = place.batch(runner);
    move |n| {
        let mut total = Batch::default();
        for _ in 0..n / batch {
            let done = run(place.fibonacci.unwrap_or(NOTHING), batch)?;
            place.check(done.sum, batch)?;
            if let Some(resumes) = done.resumes.filter(|&resumes| resumes != batch) {
                return Err(format!("{resumes} of {batch} tasks ran"));
            }
            // For a runner with a single coroutine, a part may be so short that both readings of the clock are equal.
            let is_lost = |has: bool, took: Duration| has && took.is_zero() && !runner.is_one_for_all();
            if is_lost(runner.is_created(), done.creation)
                || is_lost(true, done.resume)
                || is_lost(runner.is_destroyed(), done.destruction)
            {
                return Err(format!("it took no time: {done:?}"));
            }
            total.resumes = done.resumes.map(|resumes| resumes + total.resumes.unwrap_or(0));
            total.creation += done.creation;
            total.resume += done.resume;
            total.destruction += done.destruction;
            total.frame = done.frame;
            total.news = done.news.map(|news| news + total.news.unwrap_or(0));
        }
        Ok(total.done(runner, n, batch).messages(messages(n)))
    }
}

impl Batch {
    /// Makes the report of `n` tasks in batches of `batch`.
    fn done(&self, runner: Runner, n: u64, batch: u64) -> Done {
        let mut done = Done::new().took(self.creation + self.resume + self.destruction);
        if let Some(resumes) = self.resumes {
            done = done.count("resumes", resumes);
        }
        // A single coroutine is created and destroyed once per batch.
        let whole = if runner.is_one_for_all() { n / batch } else { n };
        if runner.is_created() {
            done = done.part("creation", self.creation, whole).part("resume", self.resume, n);
        }
        if runner.is_destroyed() {
            done = done.part("destruction", self.destruction, whole);
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

/// Checks the report of 60 tasks in two batches against known values.
pub(crate) fn prove() {
    let nanos = Duration::from_nanos;
    let (creation, resume, destruction) = (nanos(600), nanos(6000), nanos(60));
    let (resumes, frame, news) = (Some(60), Some(8.0), Some(60));
    let batch = Batch { creation, resume, destruction, sum: 0.0, resumes, frame, news };
    for (runner, makings) in [(Runner::CcCoroutine, 60), (Runner::CcYield, 2)] {
        let expected = Done::new()
            .took(nanos(6660))
            .count("resumes", 60)
            .part("creation", creation, makings)
            .part("resume", resume, 60)
            .part("destruction", destruction, makings)
            .gauge("frame_bytes", 8.0)
            .count("new", 60);
        assert_eq!(batch.done(runner, 60, 30), expected);
    }
}

/// Makes a C++ case. The C++ code measures its own times.
fn cc(runner: Runner, place: Place, run: impl Fn(u32, u64) -> Result<cc::Batch, Wrong> + 'static) -> Case {
    let nanos = Duration::from_nanos;
    let run = move |number, tasks| {
        let done = run(number, tasks)?;
        let of_coroutines = matches!(runner, Runner::CcCoroutine | Runner::CcYield);
        Ok(Batch {
            creation: nanos(done.creation),
            resume: nanos(done.resume),
            destruction: nanos(done.destruction),
            sum: done.sum,
            resumes: of_coroutines.then_some(done.resumes),
            // The size of an elided frame is unknown.
            frame: done.frame(),
            news: of_coroutines.then_some(done.news),
        })
    };
    Case::new(place.id(runner), batches(runner, place, |_| 0, run)).untraced().uncounted()
}

/// Runs `f`, and adds its duration to `to`.
fn timed<R>(to: &mut Duration, f: impl FnOnce() -> R) -> R {
    let start = Instant::now();
    let result = f();
    *to += start.elapsed();
    result
}

fn not_started(e: std::io::Error) -> Wrong {
    format!("not as many threads can be started: {e}")
}

/// Not inlined, so that every kind of task calls the same code.
#[inline(never)]
fn fibonacci_of(n: u32) -> f64 {
    if n < 2 { f64::from(n) } else { fibonacci_of(n - 1) + fibonacci_of(n - 2) }
}

/// `black_box` hides the argument and the result from the compiler, which could otherwise hoist the call out of the
/// loop or remove it.
#[inline(always)]
fn compute(number: u32) -> f64 {
    black_box(match black_box(number) {
        NOTHING => 0.0,
        number => fibonacci_of(number),
    })
}

fn sequential<T: Tracing>(number: u32, tasks: u64) -> Result<Batch, Wrong> {
    let mut batch = Batch::default();
    batch.sum = timed(&mut batch.resume, || {
        let task = |_| {
            let span = T::span(|| info_span!("task"));
            T::within(&span, || compute(number))
        };
        (0..tasks).map(task).sum()
    });
    Ok(batch)
}

fn threads<T: Tracing>() -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    // Threads sleep until the write lock is released, and the threads that have started are counted.
    let gate = Arc::new((RwLock::new(()), AtomicU64::new(0)));
    let mut threads = Vec::new();
    move |number, tasks| {
        let mut batch = Batch::default();
        let closed = gate.0.write().unwrap_or_else(PoisonError::into_inner);
        let created: std::io::Result<()> = timed(&mut batch.creation, || {
            for _ in 0..tasks {
                let (gate, span) = (Arc::clone(&gate), T::span(|| info_span!("task")));
                let task = move || {
                    drop(gate.0.read());
                    gate.1.fetch_add(1, Relaxed);
                    T::within(&span, || compute(number))
                };
                threads.push(std::thread::Builder::new().spawn(task)?);
            }
            Ok(())
        });
        batch.sum = timed(&mut batch.resume, || {
            drop(closed);
            threads.drain(..).map(|thread| thread.join().expect("no task panics")).sum::<f64>()
        });
        batch.resumes = Some(gate.1.swap(0, Relaxed));
        created.map_err(not_started)?;
        Ok(batch)
    }
}

/// A future behind a pointer, as a coroutine's handle is.
type Task = Pin<Box<dyn Future<Output = f64> + Send>>;

fn boxed(future: impl Future<Output = f64> + Send + 'static) -> (Task, f64) {
    let frame = size_of_val(&future) as f64;
    (Box::pin(future), frame)
}

fn futures<T: Tracing>() -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    let mut all: Vec<Task> = Vec::new();
    move |number, tasks| {
        let mut context = Context::from_waker(Waker::noop());
        let (mut batch, mut resumes) = (Batch::default(), 0);
        timed(&mut batch.creation, || {
            for _ in 0..tasks {
                let (task, frame) = boxed(T::spanned(async move { compute(number) }, || info_span!("task")));
                batch.frame = Some(frame);
                all.push(task);
            }
        });
        timed(&mut batch.resume, || {
            for task in &mut all {
                if let Poll::Ready(number) = task.as_mut().poll(&mut context) {
                    batch.sum += number;
                    resumes += 1;
                }
            }
        });
        batch.resumes = Some(resumes);
        timed(&mut batch.destruction, || all.clear());
        Ok(batch)
    }
}

/// Returns a future that is pending once.
fn yield_once() -> impl Future<Output = ()> + Send {
    let mut yielded = false;
    poll_fn(move |_| if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending })
}

fn yielding<T: Tracing>(number: u32, tasks: u64) -> Result<Batch, Wrong> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut batch, mut resumes) = (Batch::default(), 0);
    let numbers = async move {
        let mut sum = 0.0;
        for _ in 0..tasks {
            sum += compute(number);
            yield_once().await;
        }
        sum
    };
    let (mut task, frame) = timed(&mut batch.creation, || boxed(T::spanned(numbers, || info_span!("task"))));
    batch.frame = Some(frame);
    batch.sum = timed(&mut batch.resume, || {
        loop {
            match task.as_mut().poll(&mut context) {
                Poll::Pending => resumes += 1,
                Poll::Ready(sum) => break sum,
            }
        }
    });
    batch.resumes = Some(resumes);
    timed(&mut batch.destruction, || drop(task));
    Ok(batch)
}

/// Uses a runtime without drivers: with a worker for each core, or on the calling thread.
fn tokio<T: Tracing>(one_core: bool) -> impl FnMut(u32, u64) -> Result<Batch, Wrong> {
    let mut builder = match one_core {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    let mut runtime = None;
    let mut all = Vec::new();
    move |number, tasks| {
        // The runtime starts in the first run, so that its workers do not disturb the cases before.
        let runtime = runtime.get_or_insert_with(|| builder.build().expect("a runtime without drivers"));
        let mut batch = Batch::default();
        timed(&mut batch.creation, || {
            for _ in 0..tasks {
                let task = T::spanned(async move { compute(number) }, || info_span!("task"));
                batch.frame = Some(size_of_val(&task) as f64);
                all.push(runtime.spawn(task));
            }
        });
        batch.sum = timed(&mut batch.resume, || {
            runtime.block_on(async {
                let mut sum = 0.0;
                for task in all.drain(..) {
                    sum += task.await.expect("no task panics");
                }
                sum
            })
        });
        Ok(batch)
    }
}

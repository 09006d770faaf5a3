//! What tracing costs a program whose tasks wait for each other.
//!
//! The workloads of kotlinx.coroutines' change that saves an allocation for each cancellation handler, under
//! their names. All of it happens on one thread, so that what is counted is the same in each run:
//!
//! - `SequentialSemaphoreAsMutex`: one permit, and every acquire of it suspends: it is polled, the permit is
//!   released, it is polled again. What has to happen if it is dropped meanwhile, its cancellation handler,
//!   is kept in the future (`inline`) or, as a boxed closure, on the heap (`boxed`). Traced, each acquire has
//!   a span.
//! - `ChannelSink`: 10,000 boxed numbers through a channel, a task that keeps every fourth, another channel
//!   and a sum. Traced, the two tasks are within 0, 1 or 2 spans (`.instrument`), in the place of Kotlin's
//!   thread-local context elements: both act at each resume. The channels hold nothing (rendezvous), 1, 8 or
//!   32 elements.
//! - `ChannelSinkNoAllocations`: 100,000 units through one channel; traced, the sender is within a span.
//!
//! The runtime is `tokio::runtime::Builder::new_current_thread()` with neither driver; the channels are
//! flume's, also where tokio has one, so that only the capacity changes. The semaphore is tokio's, polled by
//! hand.
//!
//! An instrumented future enters its span for each poll and once more when it is dropped.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Done, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::row::Row;
use atrace_benches::table::{Cell, Table};
use tokio::sync::Semaphore;
use tracing::info_span;

mod acquire;

use self::acquire::{Acquire, Boxed, Handler, Inline, Permit, Slots};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Suspension>()
}

/// How many elements go through the pipeline.
const ELEMENTS: u64 = 10_000;
/// One in so many is kept.
const KEEP: u64 = 4;
/// How many units go through a channel.
const UNITS: u64 = 100_000;
/// The capacities of channels: 0 is a rendezvous.
const CAPACITIES: [usize; 4] = [0, 1, 8, 32];
/// How many spans a task of the pipeline is within.
const SPANS: [usize; 3] = [0, 1, 2];
/// How many acquires an operation of the original has, and allocations are counted over.
const ACQUIRES: u64 = 1_000_000;

struct Suspension;

impl Workload for Suspension {
    const NAME: &'static str = "suspension";

    fn cases<T: Tracing>() -> Vec<Case> {
        let mut cases = vec![semaphore::<T, Inline>(), semaphore::<T, Boxed>()];
        for capacity in CAPACITIES {
            cases.push(pipeline::<T, 0>(capacity));
            cases.push(pipeline::<T, 1>(capacity));
            cases.push(pipeline::<T, 2>(capacity));
        }
        cases.extend(CAPACITIES.map(units::<T>));
        cases
    }

    fn tables(results: &Results) -> Vec<Table> {
        tables(results)
    }

    fn bars(results: &Results) -> Vec<Judged> {
        bars(results)
    }
}

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicU64);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// The permit goes from one acquire, which had to wait for it, to the next.
fn semaphore<T: Tracing, H: Handler>() -> Case {
    let afresh = || {
        // A hundred bytes a slice.
        let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
        acquires::<T, H, _>(semaphore, move || semaphore.acquire())
    };
    Case::afresh(semaphore_id(H::NAME), afresh).counted_over(ACQUIRES).one_core().beside("semaphore")
}

/// The same, with a name for the type of tokio's future.
fn acquires<T: Tracing, H: Handler, F: Future<Output = Permit> + Send + 'static>(
    semaphore: &'static Semaphore,
    acquire: impl Fn() -> F + 'static,
) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let slots: &'static Slots<F> = Box::leak(Box::new(Slots::new(2)));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut cancelled = false;
    move |n| {
        if !cancelled {
            // Once, as what is boxed for it would be counted.
            acquire::cancel::<H, F>(semaphore, slots, &acquire)?;
            cancelled = true;
        }
        let mut context = Context::from_waker(&waker);
        let woken_before = woken.0.load(Relaxed);
        let mut polls = 0;
        let mut held = semaphore.try_acquire().map_err(|e| format!("the permit is not there: {e}"))?;
        for _ in 0..n {
            let acquire = Acquire::<H, F>::new(acquire(), slots);
            let mut acquire = pin!(T::spanned(acquire, || info_span!("acquire")));
            polls += 1;
            if acquire.as_mut().poll(&mut context).is_ready() {
                return Err("an acquire did not suspend".to_owned());
            }
            drop(held);
            polls += 1;
            let Poll::Ready(Ok(permit)) = acquire.as_mut().poll(&mut context) else {
                return Err("an acquire did not get the permit".to_owned());
            };
            held = permit;
        }
        drop(held);
        let woken = woken.0.load(Relaxed) - woken_before;
        if woken != n || semaphore.available_permits() != 1 || slots.taken() != 0 {
            let (permits, left) = (semaphore.available_permits(), slots.taken());
            return Err(format!("{woken} of {n} were woken; {permits} permits and {left} waiters are left"));
        }
        Ok(Done::new().messages(messages(1, polls, n)).count("polls", polls))
    }
}

fn semaphore_id(handler: &str) -> String {
    format!("rust/semaphore_as_mutex/{handler}")
}

/// A runtime with one thread, the caller's, and no drivers.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers needs nothing")
}

/// Counts how often a future is polled, in whichever mode.
async fn counted<F: Future>(polls: Arc<AtomicU64>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        // Of one thread at a time: no need for a locked instruction.
        polls.store(polls.load(Relaxed) + 1, Relaxed);
        future.as_mut().poll(context)
    })
    .await
}

/// Spawns a task within so many spans; it says nothing.
fn spawn<T: Tracing, const SPANS: usize>(
    future: impl Future<Output = ()> + Send + 'static,
    polls: &Arc<AtomicU64>,
) -> tokio::task::JoinHandle<()> {
    let future = counted(Arc::clone(polls), future);
    match SPANS {
        0 => tokio::spawn(future),
        1 => tokio::spawn(T::spanned(future, || info_span!("element 1"))),
        2 => tokio::spawn(T::spanned(T::spanned(future, || info_span!("element 2")), || {
            info_span!("element 1")
        })),
        _ => unreachable!("there are at most two"),
    }
}

/// The spans of a task are entered for each of its polls and when it is dropped.
fn messages(spans: usize, polls: u64, tasks: u64) -> u64 {
    2 * spans as u64 * (polls + tasks)
}

/// 10,000 → filter → fold.
fn pipeline<T: Tracing, const SPANS: usize>(capacity: usize) -> Case {
    let afresh = move || pipelines::<T, SPANS>(capacity);
    Case::afresh(pipeline_id(capacity, SPANS), afresh).counted_over(5).per("polls").one_core()
}

fn pipelines<T: Tracing, const SPANS: usize>(capacity: usize) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let runtime = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    move |n| {
        polls.store(0, Relaxed);
        for _ in 0..n {
            let (kept, sum) = runtime.block_on(async {
                let (to_filter, from_range) = flume::bounded::<Box<u64>>(capacity);
                let (to_fold, from_filter) = flume::bounded::<Box<u64>>(capacity);
                let range = spawn::<T, SPANS>(
                    async move {
                        for i in 1..=ELEMENTS {
                            to_filter.send_async(Box::new(i)).await.expect("the filter listens");
                        }
                    },
                    &polls,
                );
                let filter = spawn::<T, SPANS>(
                    async move {
                        while let Ok(element) = from_range.recv_async().await {
                            if element.is_multiple_of(KEEP) {
                                to_fold.send_async(element).await.expect("the fold listens");
                            }
                        }
                    },
                    &polls,
                );
                let (mut kept, mut sum) = (0_u64, 0_u64);
                while let Ok(element) = from_filter.recv_async().await {
                    kept += 1;
                    sum += *element;
                }
                range.await.and(filter.await).expect("no task panics");
                (kept, sum)
            });
            let expected = (ELEMENTS / KEEP, (1..=ELEMENTS).filter(|i| i.is_multiple_of(KEEP)).sum());
            if (kept, sum) != expected {
                return Err(format!("{kept} survivors, their sum {sum}: they should be {expected:?}"));
            }
        }
        let polls = polls.load(Relaxed);
        Ok(Done::new().messages(messages(SPANS, polls, 2 * n)).count("polls", polls))
    }
}

fn capacity_name(capacity: usize) -> String {
    if capacity == 0 { "rendezvous".to_owned() } else { capacity.to_string() }
}

fn pipeline_id(capacity: usize, spans: usize) -> String {
    format!("rust/channel_sink/{}/{spans}_spans", capacity_name(capacity))
}

/// 100,000 units, that nothing is allocated for.
fn units<T: Tracing>(capacity: usize) -> Case {
    let afresh = move || channels::<T>(capacity);
    Case::afresh(units_id(capacity), afresh).counted_over(5).per("polls").one_core()
}

fn channels<T: Tracing>(capacity: usize) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let runtime = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    move |n| {
        polls.store(0, Relaxed);
        for _ in 0..n {
            let received = runtime.block_on(async {
                let (sender, receiver) = flume::bounded::<()>(capacity);
                let range = spawn::<T, 1>(
                    async move {
                        for _ in 0..UNITS {
                            sender.send_async(()).await.expect("somebody listens");
                        }
                    },
                    &polls,
                );
                let mut received = 0_u64;
                while receiver.recv_async().await == Ok(()) {
                    received += 1;
                }
                range.await.expect("no task panics");
                received
            });
            if received != UNITS {
                return Err(format!("{received} of {UNITS} units arrived"));
            }
        }
        let polls = polls.load(Relaxed);
        Ok(Done::new().messages(messages(1, polls, n)).count("polls", polls))
    }
}

fn units_id(capacity: usize) -> String {
    format!("rust/channel_sink_no_allocations/{}", capacity_name(capacity))
}

/// The tables of the original, as it is without instrumentation, and what spans add.
fn tables(results: &Results) -> Vec<Table> {
    let mut all = vec![originals(results)];
    let mut add = |capacity, spans, id: String| {
        let columns = ["", "mode", "ms/op (95 %)", "allocs/op", "B/op", "polls/op"];
        if all.len() == 1 {
            all.push(Table::new("by the spans that a task is within", columns));
        }
        for mode in ["none", "nosub", "filtered", "off", "on"] {
            let Some(row) = results.row(&id, mode) else { continue };
            all[1].push([
                Cell::name(format!("{}, {}", capacity_name(capacity), spans)),
                Cell::text(mode),
                score(row, 1, 1e6),
                per_op(row.allocs, 1),
                per_op(row.bytes, 1),
                per_op(row.counts.get("polls").copied(), 1),
            ]);
        }
    };
    for capacity in CAPACITIES {
        for spans in SPANS {
            let name = format!("{spans} span{}", if spans == 1 { "" } else { "s" });
            add(capacity, name, pipeline_id(capacity, spans));
        }
        add(capacity, "units, 1 span".to_owned(), units_id(capacity));
    }
    all
}

fn originals(results: &Results) -> Table {
    let columns =
        ["Benchmark", "Mode", "Cnt", "Score (95 %)", "Units", "alloc MB/s", "allocs/op", "B/op", "polls/op"];
    let mut table = Table::new("without instrumentation", columns);
    let mut line = |name: String, row: Option<&Row>, times: u64, unit: &str, divisor: f64| {
        let Some(row) = row else { return };
        table.push([
            Cell::name(name),
            Cell::text(if unit == "s/op" { "ss" } else { "avgt" }),
            Cell::count(row.rounds.as_ref().map(|rounds| rounds.n as f64)).or_not_measured(),
            score(row, times, divisor),
            Cell::text(unit),
            Cell::number(row.bytes.map(|bytes| bytes / row.median * 1e3), 1).or_not_measured(),
            per_op(row.allocs, times),
            per_op(row.bytes, times),
            per_op(row.counts.get("polls").copied(), times),
        ]);
    };
    for handler in [Boxed::NAME, Inline::NAME] {
        let name = format!("SequentialSemaphoreAsMutex, {ACQUIRES} acquires, {handler}");
        line(name, results.row(&semaphore_id(handler), "none"), ACQUIRES, "s/op", 1e9);
    }
    for capacity in CAPACITIES {
        let name = format!("ChannelSink, {ELEMENTS} elements, capacity {}", capacity_name(capacity));
        line(name, results.row(&pipeline_id(capacity, 0), "none"), 1, "ms/op", 1e6);
    }
    for capacity in CAPACITIES {
        let name = format!("ChannelSinkNoAllocations, {UNITS} units, capacity {}", capacity_name(capacity));
        line(name, results.row(&units_id(capacity), "none"), 1, "ms/op", 1e6);
    }
    let [boxed, inline] = [Boxed::NAME, Inline::NAME].map(semaphore_id);
    match results.difference((&boxed, "none"), (&inline, "none")) {
        Some(more) => table.with_note(format!(
            "A boxed handler takes {:+.1} ns ({:.1} to {:.1}) an acquire.",
            more.median, more.low, more.high
        )),
        None => table,
    }
}

/// What so many operations take, and how sure that is.
fn score(row: &Row, times: u64, divisor: f64) -> Cell {
    let [score, error] = [row.median, row.interval().half_width()].map(|ns| ns * times as f64 / divisor);
    Cell::Number(format!("{score:.3} ± {error:.3}"))
}

fn per_op(count: Option<f64>, times: u64) -> Cell {
    Cell::number(count.map(|count| count * times as f64), 0).or_not_measured()
}

/// What the original found, to the byte; and what a poll may cost.
fn bars(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for mode in results.modes() {
        let of = |handler| results.allocated(&semaphore_id(handler), mode.name());
        let (Some((boxed, n)), Some((inline, same))) = (of(Boxed::NAME), of(Inline::NAME)) else { continue };
        let (allocs, bytes) =
            (boxed.allocs.wrapping_sub(inline.allocs), boxed.bytes.wrapping_sub(inline.bytes));
        let per = |total: u64| total.cast_signed() as f64 / n as f64;
        let bar = Judged::new(
            "a boxed handler, above an inline one",
            mode.name(),
            format!("{:+.3} allocs, {:+.1} B an acquire", per(allocs), per(bytes)),
            "1.000 allocs, 24.0 B",
            Verdict::kept_if(n == same && allocs == n && bytes == 24 * n),
        );
        bars.push(bar.exact());
    }
    let pipelines = CAPACITIES.into_iter().flat_map(|c| [1, 2].map(|spans| (pipeline_id(c, spans), spans)));
    let units = CAPACITIES.into_iter().map(|capacity| (units_id(capacity), 1));
    for (id, spans) in pipelines.chain(units) {
        let Some(row) = results.row(&id, "on") else { continue };
        let Some((above, raw)) = row.above.get("nosub").and_then(|above| Some((above, above.raw_writes?)))
        else {
            continue;
        };
        let resumes = row.counts.get("polls").copied().unwrap_or_default() * spans as f64;
        let judged = Judged::new(
            "a poll and span that are traced, of two raw writes",
            &id,
            format!("{:.2}", raw.ratio),
            "≤ 1.05",
            Verdict::at_most(1.05, raw),
        );
        let more = format!("{:.2} – {:.2}; {:.0} ns", raw.low, raw.high, above.ns / resumes);
        bars.push(judged.more(more));
    }
    bars
}

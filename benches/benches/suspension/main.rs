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
//! - Both again through a rendezvous of ours, whose ends keep their handlers `inline` or `boxed`, as the crate's leaves no
//!   choice.
//!
//! The runtime is `tokio::runtime::Builder::new_current_thread()` with neither driver; the channels are
//! flume's, also where tokio has one, so that only the capacity changes. The semaphore is tokio's, polled by
//! hand.
//!
//! An instrumented future enters its span for each poll and once more when it is dropped.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Done, Fixture, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::row::Row;
use atrace_benches::stats::Interval;
use atrace_benches::subjects::waiting::{
    Acquire, Boxed, HANDLER, Handler, Inline, Slots, prove_acquire, prove_channel,
};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tracing::info_span;

mod ends;

use self::ends::{Ends, Flume, Own};

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
/// The name of how often an end of a channel has waited.
const WAITS: &str = "waits";
/// How many acquires allocations are counted over, as an operation of the original has.
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
        cases.extend(own::<T, Inline>());
        cases.extend(own::<T, Boxed>());
        cases
    }

    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default().with_room(16))
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
    let case = Case::afresh(semaphore_id(H::NAME), afresh).counted_over(ACQUIRES).one_core();
    case.has("polls", || 2.0).beside("semaphore")
}

/// What an acquire ends with.
type Permit = Result<SemaphorePermit<'static>, AcquireError>;

/// The same, with a name for the type of tokio's future.
fn acquires<T: Tracing, H: Handler, F: Future<Output = Permit> + Send + 'static>(
    semaphore: &'static Semaphore,
    acquire: impl Fn() -> F + 'static,
) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let slots: &'static Slots<F> = Box::leak(Box::new(Slots::new(2)));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut proved = false;
    move |n| {
        if !proved {
            // Once, as what is boxed for it would be counted.
            let held = semaphore.try_acquire().map_err(|e| format!("the permit is not there: {e}"))?;
            prove_acquire::<H, F>(held, slots, &acquire)?;
            proved = true;
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
fn spawn<T: Tracing, const SPANS: usize, R: Send + 'static>(
    future: impl Future<Output = R> + Send + 'static,
    polls: &Arc<AtomicU64>,
) -> tokio::task::JoinHandle<R> {
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
    let afresh = move || pipelines::<T, Flume, SPANS>(capacity);
    Case::afresh(pipeline_id(&capacity_name(capacity), SPANS), afresh).counted_over(5).per("polls").one_core()
}

fn pipelines<T: Tracing, E: Ends, const SPANS: usize>(
    capacity: usize,
) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let runtime = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    move |n| {
        polls.store(0, Relaxed);
        let mut waits = Some(0);
        for _ in 0..n {
            let (kept, sum) = runtime.block_on(async {
                let (mut to_filter, mut from_range) = E::bounded::<Box<u64>>(capacity);
                let (mut to_fold, mut from_filter) = E::bounded::<Box<u64>>(capacity);
                let range = spawn::<T, SPANS, _>(
                    async move {
                        for i in 1..=ELEMENTS {
                            assert!(E::send(&mut to_filter, Box::new(i)).await, "the filter listens");
                        }
                    },
                    &polls,
                );
                let filter = spawn::<T, SPANS, _>(
                    async move {
                        while let Some(element) = E::receive(&mut from_range).await {
                            if element.is_multiple_of(KEEP) {
                                assert!(E::send(&mut to_fold, element).await, "the fold listens");
                            }
                        }
                        E::waits(&from_range)
                    },
                    &polls,
                );
                let (mut kept, mut sum) = (0_u64, 0_u64);
                while let Some(element) = E::receive(&mut from_filter).await {
                    kept += 1;
                    sum += *element;
                }
                range.await.expect("no task panics");
                let waited = filter.await.expect("no task panics");
                waits = total(waits, [waited, E::waits(&from_filter)]);
                (kept, sum)
            });
            let expected = (ELEMENTS / KEEP, (1..=ELEMENTS).filter(|i| i.is_multiple_of(KEEP)).sum());
            if (kept, sum) != expected {
                return Err(format!("{kept} survivors, their sum {sum}: they should be {expected:?}"));
            }
        }
        Ok(done(&polls, waits, (SPANS, 2 * n)))
    }
}

/// Adds what is known, if all of it is.
fn total<const N: usize>(sum: Option<u64>, more: [Option<u64>; N]) -> Option<u64> {
    more.into_iter().try_fold(sum?, |sum, more| Some(sum + more?))
}

/// What pipelines have done whose tasks, so many, are within so many spans each.
fn done(polls: &AtomicU64, waits: Option<u64>, (spans, tasks): (usize, u64)) -> Done {
    let polls = polls.load(Relaxed);
    let done = Done::new().messages(messages(spans, polls, tasks)).count("polls", polls);
    waits.into_iter().fold(done, |done, waits| done.count(WAITS, waits))
}

fn capacity_name(capacity: usize) -> String {
    if capacity == 0 { "rendezvous".to_owned() } else { capacity.to_string() }
}

/// The id of a case through channels of this name.
fn pipeline_id(channel: &str, spans: usize) -> String {
    format!("rust/channel_sink/{channel}/{spans}_spans")
}

/// 100,000 units, that nothing is allocated for.
fn units<T: Tracing>(capacity: usize) -> Case {
    let afresh = move || channels::<T, Flume>(capacity);
    Case::afresh(units_id(&capacity_name(capacity)), afresh).counted_over(5).per("polls").one_core()
}

fn channels<T: Tracing, E: Ends>(capacity: usize) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let runtime = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    move |n| {
        polls.store(0, Relaxed);
        let mut waits = Some(0);
        for _ in 0..n {
            let received = runtime.block_on(async {
                let (mut sender, mut receiver) = E::bounded::<()>(capacity);
                let range = spawn::<T, 1, _>(
                    async move {
                        for _ in 0..UNITS {
                            assert!(E::send(&mut sender, ()).await, "somebody listens");
                        }
                    },
                    &polls,
                );
                let mut received = 0_u64;
                while E::receive(&mut receiver).await.is_some() {
                    received += 1;
                }
                range.await.expect("no task panics");
                waits = total(waits, [E::waits(&receiver)]);
                received
            });
            if received != UNITS {
                return Err(format!("{received} of {UNITS} units arrived"));
            }
        }
        Ok(done(&polls, waits, (1, n)))
    }
}

fn units_id(channel: &str) -> String {
    format!("rust/channel_sink_no_allocations/{channel}")
}

fn own_name(handler: &str) -> String {
    format!("own_{handler}")
}

/// Both through a rendezvous of ours, with this handler, in the modes that the original's numbers are beside.
fn own<T: Tracing, H: Handler>() -> [Case; 4] {
    [
        own_case::<H, _>(pipeline_id(&own_name(H::NAME), 0), pipelines::<T, Own<H>, 0>).not_in(&BUT_NONE),
        own_case::<H, _>(pipeline_id(&own_name(H::NAME), 1), pipelines::<T, Own<H>, 1>),
        own_case::<H, _>(pipeline_id(&own_name(H::NAME), 2), pipelines::<T, Own<H>, 2>),
        // The sender is polled for each unit that it waits with, and to end.
        own_case::<H, _>(units_id(&own_name(H::NAME)), channels::<T, Own<H>>)
            .has("polls", || 50_001.0)
            .not_in(&BUT_NONE),
    ]
}

const BUT_NONE: [&str; 5] = ["nosub", "filtered", "off", "perfetto", "on"];

fn own_case<H: Handler, R: FnMut(u64) -> Result<Done, Wrong> + 'static>(
    id: String,
    run: impl Fn(usize) -> R + 'static,
) -> Case {
    if let Err(wrong) = prove_channel::<H>() {
        panic!("{wrong}");
    }
    let group = id.replace(H::NAME, "");
    let case = Case::afresh(id, move || run(0)).counted_over(5).per("polls").one_core();
    case.beside(group).not_in(&BUT_NONE[..4])
}

/// The id of a case with such a handler.
type IdOf = fn(&str) -> String;

/// What has a handler for each of something, and the id of the case with such a handler.
const HANDLERS: [(&str, IdOf); 3] = [
    ("an acquire", semaphore_id),
    ("a wait of ChannelSink", |handler| pipeline_id(&own_name(handler), 0)),
    ("a wait of ChannelSinkNoAllocations", |handler| units_id(&own_name(handler))),
];

/// How many nanoseconds more a boxed handler takes than an inline one.
fn boxed_above(results: &Results, id: IdOf) -> Option<Interval> {
    let [boxed, inline] = [Boxed::NAME, Inline::NAME].map(id);
    let more = results.difference((&boxed, "none"), (&inline, "none"))?;
    let handlers = handlers(results.row(&boxed, "none")?);
    let [median, low, high] = [more.median, more.low, more.high].map(|ns| ns / handlers);
    Some(Interval { median, low, high, ..more })
}

/// How many handlers an operation has: an acquire has one.
fn handlers(row: &Row) -> f64 {
    row.counts.get(WAITS).copied().unwrap_or(1.0)
}

/// What the original found, to the byte; and what a poll may cost.
fn bars(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for ((what, id), mode) in
        HANDLERS.iter().flat_map(|each| results.modes().iter().map(move |mode| (each, mode)))
    {
        let of = |handler| {
            let (counts, n) = results.allocated(&id(handler), mode.name)?;
            Some((counts, n as f64 * handlers(results.row(&id(handler), mode.name)?)))
        };
        let (Some((boxed, n)), Some((inline, same))) = (of(Boxed::NAME), of(Inline::NAME)) else { continue };
        let more = |boxed: u64, inline: u64| boxed.wrapping_sub(inline).cast_signed() as f64 / n;
        let (allocs, bytes) = (more(boxed.allocs, inline.allocs), more(boxed.bytes, inline.bytes));
        let bar = Judged::new(
            "a boxed handler, above an inline one",
            format!("{what}, {}", mode.name),
            format!("{allocs:+.3} allocs, {bytes:+.1} B"),
            "1.000 allocs, 24.0 B",
            Verdict::kept_if(n == same && allocs == 1.0 && bytes == HANDLER as f64),
        );
        let took = Some(*id).filter(|_| mode.name == "none").and_then(|id| boxed_above(results, id));
        let took = took.map(|more| format!("{:+.1} ns ({:+.1} to {:+.1})", more.median, more.low, more.high));
        bars.push(bar.exact().more(took.unwrap_or_default()));
    }
    let names = || CAPACITIES.into_iter().map(capacity_name);
    let pipelines = names().flat_map(|name| [1, 2].map(|spans| (pipeline_id(&name, spans), spans)));
    let units = names().map(|name| (units_id(&name), 1));
    for (id, spans) in pipelines.chain(units) {
        if let Some(added) = results.added(&id, "perfetto", "on", "nosub") {
            const NAME: &str = "what a poll takes that is traced by Perfetto, of one traced by the marker";
            bars.push(Judged::at_most(NAME, &id, added, 0.25, (2, "")));
        }
        let Some(row) = results.row(&id, "on") else { continue };
        let Some((above, raw)) = row.above.get("nosub").and_then(|above| Some((above, above.raw_writes?)))
        else {
            continue;
        };
        let resumes = row.counts.get("polls").copied().unwrap_or_default() * spans as f64;
        let judged =
            Judged::at_most("a poll and span that are traced, of two raw writes", &id, raw, 1.05, (2, ""));
        let more = format!("{}; {:.0} ns", judged.more, above.ns / resumes);
        bars.push(judged.more(more));
    }
    bars
}

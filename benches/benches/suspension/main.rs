//! Measures what tracing costs a program in which tasks wait for each other.
//!
//! The workloads, and their names, come from the benchmarks of a change to kotlinx.coroutines. The change saves an
//! allocation for each cancellation handler. All cases run on one thread, so that the counts of allocations and polls
//! are equal in each run:
//!
//! - `SequentialSemaphoreAsMutex`: a semaphore has one permit, and every acquire has to wait. The acquire is polled,
//!   the permit is released, and the acquire is polled again. An acquire has a cancellation handler, which runs if the
//!   acquire is dropped while it waits. The handler is stored in the future (`inline`) or as a boxed closure on the
//!   heap (`boxed`). With instrumentation, each acquire has a span.
//! - `ChannelSink`: a task sends 10,000 boxed numbers into a channel, a second task passes every fourth number on to
//!   another channel, and the numbers from this channel are added up. With instrumentation, each of the two tasks is
//!   within 0, 1 or 2 spans (`.instrument`). The capacity of the channels is 0 (rendezvous), 1, 8 or 32 elements.
//! - `ChannelSinkNoAllocations`: 100,000 units (values of the type `()`) pass through one channel. With
//!   instrumentation, the sender is within a span.
//! - `ChannelSink` and `ChannelSinkNoAllocations` also run with a rendezvous channel of this crate, whose ends store
//!   their cancellation handlers `inline` or `boxed`. The channels of flume have no such choice. With this channel, the
//!   two tasks of `ChannelSink` also run with 1 or 2 task-local values (`LocalKey::scope`) instead of spans. A
//!   task-local value does the same as Kotlin's thread-local context element: it is set before each resume, and the
//!   earlier value is put back after it.
//!
//! The runtime is `tokio::runtime::Builder::new_current_thread()` without drivers. Tokio has channels for some of the
//! capacities, but the channels are flume's for all capacities, so that cases with different capacities differ in
//! nothing else. The semaphore is tokio's, and the bench polls its futures by hand.
//!
//! An instrumented future enters its span for each poll, and once more when it is dropped.

use std::future::{Future, poll_fn};
use std::io;
use std::marker::PhantomData;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};

use atrace_benches::instruments::alloc::Counting;
use atrace_benches::measure::workload::{self, Case, Done, Fixture, Info, Results, Tracing, Workload, Wrong};
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::row::Row;
use atrace_benches::stats::Interval;
use atrace_benches::subjects::waiting::{
    self, Boxed, HANDLER, Handler, Inline, Receiver, Sender, Slots, channel,
};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};
use tracing::info_span;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    workload::run::<Suspension>()
}

/// The number of elements that pass through the channels of `ChannelSink`.
const ELEMENTS: u64 = 10_000;
/// `ChannelSink` keeps one of every `KEEP` elements.
const KEEP: u64 = 4;
/// The number of units that pass through the channel of `ChannelSinkNoAllocations`.
const UNITS: u64 = 100_000;
/// The capacities of the flume channels. A channel of capacity 0 is a rendezvous channel.
const CAPACITIES: [usize; 4] = [0, 1, 8, 32];
/// The name of a count: how many times the two ends of a channel have waited.
const WAITS: &str = "waits";
/// The number of acquires over which allocations are counted. It is the number of acquires in an operation of the
/// original benchmark.
const ACQUIRES: u64 = 1_000_000;

struct Suspension;

impl Workload for Suspension {
    const NAME: &'static str = "suspension";

    fn cases<T: Tracing>() -> Vec<Case> {
        let mut cases = vec![semaphore::<T, Inline>(), semaphore::<T, Boxed>()];
        for capacity in CAPACITIES {
            let id = |spans| Info::of(pipeline_id(&capacity_name(capacity), spans));
            cases.push(through(id(0), move || pipelines::<T, Flume, 0, 0>(capacity)));
            cases.push(through(id(1), move || pipelines::<T, Flume, 1, 0>(capacity)));
            cases.push(through(id(2), move || pipelines::<T, Flume, 2, 0>(capacity)));
        }
        for capacity in CAPACITIES {
            let id = Info::of(units_id(&capacity_name(capacity)));
            cases.push(through(id, move || channels::<T, Flume>(capacity)));
        }
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

/// A waker that counts its wake-ups.
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

/// Makes the case `SequentialSemaphoreAsMutex`, in which the permit passes from one waiting acquire to the next.
fn semaphore<T: Tracing, H: Handler>() -> Case {
    let afresh = || {
        // The leaked memory is about a hundred bytes for each measurement.
        let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
        acquires::<T, H, _>(semaphore, move || semaphore.acquire())
    };
    let beside = Some("semaphore".to_owned());
    let info = Info { counted_over: ACQUIRES, one_core: true, beside, ..Info::of(semaphore_id(H::NAME)) };
    Case::afresh(info, afresh).has("polls", || 2.0)
}

/// The result of waiting for a permit.
type Permit = Result<SemaphorePermit<'static>, AcquireError>;

/// Makes the closure that runs the acquires. This is a separate function so that the type of tokio's future has a name,
/// the parameter `F`.
fn acquires<T: Tracing, H: Handler, F: Future<Output = Permit> + Send + 'static>(
    semaphore: &'static Semaphore,
    acquire: impl Fn() -> F + 'static,
) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let slots: &'static Slots<F> = Box::leak(Box::new(Slots::new(2)));
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    move |n| {
        let mut context = Context::from_waker(&waker);
        let woken_before = woken.0.load(Relaxed);
        let mut polls = 0;
        let mut held = semaphore.try_acquire().map_err(|e| format!("the permit is not there: {e}"))?;
        for _ in 0..n {
            let acquire = waiting::acquire::<H, F>(acquire(), slots);
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
        Ok(Done { messages: messages(1, polls, n), lives: [n; 2], ..Done::new() }.count("polls", polls))
    }
}

fn semaphore_id(handler: &str) -> String {
    format!("rust/semaphore_as_mutex/{handler}")
}

/// Makes a runtime without drivers, which runs on the calling thread.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers needs nothing")
}

/// Counts how many times a future is polled. Polls are counted in every mode (configuration of tracing), so that the
/// counting changes no comparison.
async fn counted<F: Future>(polls: Arc<AtomicU64>, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| {
        // All futures are polled by one thread, so an atomic addition is not needed.
        polls.store(polls.load(Relaxed) + 1, Relaxed);
        future.as_mut().poll(context)
    })
    .await
}

tokio::task_local! {
    static ELEMENT_1: u64;
    static ELEMENT_2: u64;
}

/// Awaits the future, and then checks that the task-local values are those that were set for the future's task.
async fn with_elements<F: Future>(future: F, expected: [Option<u64>; 2]) -> F::Output {
    let output = future.await;
    let values = [&ELEMENT_1, &ELEMENT_2].map(|element| element.try_with(|value| *value).ok());
    assert_eq!(values, expected, "the task-local values");
    output
}

/// Spawns a task within `SPANS` spans, or with `LOCALS` task-local values.
fn spawn<T: Tracing, const SPANS: usize, const LOCALS: usize, R: Send + 'static>(
    future: impl Future<Output = R> + Send + 'static,
    polls: &Arc<AtomicU64>,
) -> tokio::task::JoinHandle<R> {
    let future = counted(Arc::clone(polls), future);
    match (SPANS, LOCALS) {
        (0, 0) => tokio::spawn(future),
        (1, 0) => tokio::spawn(T::spanned(future, || info_span!("element 1"))),
        (2, 0) => tokio::spawn(T::spanned(T::spanned(future, || info_span!("element 2")), || {
            info_span!("element 1")
        })),
        (0, 1) => tokio::spawn(ELEMENT_1.scope(1, with_elements(future, [Some(1), None]))),
        (0, 2) => {
            let future = ELEMENT_2.scope(2, with_elements(future, [Some(1), Some(2)]));
            tokio::spawn(ELEMENT_1.scope(1, future))
        }
        _ => unreachable!("there are at most two"),
    }
}

/// Returns the number of messages that `tasks` tasks write. Each span of a task is entered for each poll, and once more
/// when the task is dropped.
fn messages(spans: usize, polls: u64, tasks: u64) -> u64 {
    2 * spans as u64 * (polls + tasks)
}

/// Makes a case with channels, which runs on one thread.
fn through<R: FnMut(u64) -> Result<Done, Wrong> + 'static>(
    info: Info,
    run: impl Fn() -> R + 'static,
) -> Case {
    Case::afresh(Info { counted_over: 2, per: Some("polls"), one_core: true, ..info }, run)
}

/// Makes the closure of the case `ChannelSink`: sends 10,000 elements through a filter, and adds up the elements that
/// the filter passes on.
fn pipelines<T: Tracing, E: Ends, const SPANS: usize, const LOCALS: usize>(
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
                let range = async move {
                    for i in 1..=ELEMENTS {
                        assert!(E::send(&mut to_filter, Box::new(i)).await, "the filter listens");
                    }
                };
                let filter = async move {
                    while let Some(element) = E::receive(&mut from_range).await {
                        if element.is_multiple_of(KEEP) {
                            assert!(E::send(&mut to_fold, element).await, "the fold listens");
                        }
                    }
                    E::waits(&from_range)
                };
                let range = spawn::<T, SPANS, LOCALS, _>(range, &polls);
                let filter = spawn::<T, SPANS, LOCALS, _>(filter, &polls);
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

/// Adds up counts, or returns `None` if any count is missing.
fn total<const N: usize>(sum: Option<u64>, more: [Option<u64>; N]) -> Option<u64> {
    more.into_iter().try_fold(sum?, |sum, more| Some(sum + more?))
}

/// Makes the report of a run with `tasks` tasks, each of which is within `spans` spans.
fn done(polls: &AtomicU64, waits: Option<u64>, (spans, tasks): (usize, u64)) -> Done {
    let polls = polls.load(Relaxed);
    let lives = spans as u64 * tasks;
    let written = Done { messages: messages(spans, polls, tasks), lives: [lives; 2], ..Done::new() };
    let done = written.count("polls", polls);
    waits.into_iter().fold(done, |done, waits| done.count(WAITS, waits))
}

fn capacity_name(capacity: usize) -> String {
    if capacity == 0 { "rendezvous".to_owned() } else { capacity.to_string() }
}

/// Returns the id of the case `ChannelSink` with this kind of channel and this number of spans.
fn pipeline_id(channel: &str, spans: usize) -> String {
    format!("rust/channel_sink/{channel}/{spans}_spans")
}

/// Makes the closure of the case `ChannelSinkNoAllocations`: sends 100,000 units, which need no allocation.
fn channels<T: Tracing, E: Ends>(capacity: usize) -> impl FnMut(u64) -> Result<Done, Wrong> {
    let runtime = runtime();
    let polls = Arc::new(AtomicU64::new(0));
    move |n| {
        polls.store(0, Relaxed);
        let mut waits = Some(0);
        for _ in 0..n {
            let received = runtime.block_on(async {
                let (mut sender, mut receiver) = E::bounded::<()>(capacity);
                let range = async move {
                    for _ in 0..UNITS {
                        assert!(E::send(&mut sender, ()).await, "somebody listens");
                    }
                };
                let range = spawn::<T, 1, 0, _>(range, &polls);
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

/// Makes the cases with this crate's rendezvous channel, whose cancellation handlers are stored as `H` says. The cases
/// run only in the modes (configurations of tracing) in which the original benchmark's numbers have a counterpart.
fn own<T: Tracing, H: Handler>() -> [Case; 6] {
    let own = own_name(H::NAME);
    let locals = |n| format!("rust/channel_sink/{own}/{n}_locals");
    [
        own_case::<H, _>(pipeline_id(&own, 0), &BUT_NONE, pipelines::<T, Own<H>, 0, 0>),
        own_case::<H, _>(pipeline_id(&own, 1), &BUT_NONE[..4], pipelines::<T, Own<H>, 1, 0>),
        own_case::<H, _>(pipeline_id(&own, 2), &BUT_NONE[..4], pipelines::<T, Own<H>, 2, 0>),
        own_case::<H, _>(locals(1), &BUT_NONE, pipelines::<T, Own<H>, 0, 1>),
        own_case::<H, _>(locals(2), &BUT_NONE, pipelines::<T, Own<H>, 0, 2>),
        // The sender is polled once for each unit with which it waits, and once at the end.
        own_case::<H, _>(units_id(&own), &BUT_NONE, channels::<T, Own<H>>).has("polls", || 50_001.0),
    ]
}

const BUT_NONE: [&str; 5] = ["nosub", "filtered", "off", "perfetto", "on"];

fn own_case<H: Handler, R: FnMut(u64) -> Result<Done, Wrong> + 'static>(
    id: String,
    not_in: &'static [&'static str],
    run: impl Fn(usize) -> R + 'static,
) -> Case {
    let beside = Some(id.replace(H::NAME, ""));
    through(Info { beside, not_in, ..Info::of(id) }, move || run(0))
}

/// A function that returns the id of a case from the name of its handler's storage, `inline` or `boxed`.
type IdOf = fn(&str) -> String;

/// The cases that have cancellation handlers. Each entry has the name of the operation that has a handler, and the
/// function that makes the ids of the cases with this operation.
const HANDLERS: [(&str, IdOf); 3] = [
    ("an acquire", semaphore_id),
    ("a wait of ChannelSink", |handler| pipeline_id(&own_name(handler), 0)),
    ("a wait of ChannelSinkNoAllocations", |handler| units_id(&own_name(handler))),
];

/// Returns how many nanoseconds longer a wait takes if its cancellation handler is boxed instead of inline.
fn boxed_above(results: &Results, id: IdOf) -> Option<Interval> {
    let [boxed, inline] = [Boxed::NAME, Inline::NAME].map(id);
    let more = results.difference((&boxed, "none"), (&inline, "none"))?;
    let handlers = handlers(results.row(&boxed, "none")?);
    Some(more.map(|ns| ns / handlers))
}

/// Returns the number of cancellation handlers per operation of a row. Each wait has one handler, so this is the row's
/// count of waits. The rows of the semaphore have no such count: an operation is an acquire, which waits once.
fn handlers(row: &Row) -> f64 {
    row.counts.get(WAITS).copied().unwrap_or(1.0)
}

/// Judges the promises about three numbers: the exact numbers of allocations and bytes that an inline handler saves
/// (with the saved time as a detail); the cost of a poll that Perfetto records, compared with a poll that is written to
/// the marker; and the cost of a traced poll, compared with raw writes (writes of the same messages without this
/// library).
fn bars(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for ((what, id), mode) in
        HANDLERS.iter().flat_map(|each| results.modes.iter().map(move |mode| (each, mode)))
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
        let Some(row) = results.row(&id, "on") else { continue };
        if results.row(&id, "perfetto").is_some() {
            const NAME: &str = "a poll traced by Perfetto, compared with one traced by the marker";
            bars.push(match results.added(&id, "perfetto", "on", "nosub") {
                Some(added) => Judged::at_most(NAME, &id, added, 0.25, (2, "")),
                None => Judged::new(NAME, &id, "lost in the noise", "≤ 0.25", Verdict::Open),
            });
        }
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

/// A kind of channel, which has one sender and one receiver.
pub(crate) trait Ends: 'static {
    type Sender<V: Send + 'static>: Send + 'static;
    type Receiver<V: Send + 'static>: Send + 'static;

    /// Makes a channel with the capacity `capacity`.
    fn bounded<V: Send + 'static>(capacity: usize) -> (Self::Sender<V>, Self::Receiver<V>);

    /// Sends an element. Returns false if the receiver does not exist anymore.
    fn send<V: Send + 'static>(sender: &mut Self::Sender<V>, element: V)
    -> impl Future<Output = bool> + Send;

    /// Receives an element. Returns `None` when no more elements will come.
    fn receive<V: Send + 'static>(receiver: &mut Self::Receiver<V>)
    -> impl Future<Output = Option<V>> + Send;

    /// Returns how many times the two ends of the channel have waited, or `None` if the channel does not count its
    /// waits.
    fn waits<V: Send + 'static>(receiver: &Self::Receiver<V>) -> Option<u64>;
}

/// The channel of the crate flume, which allocates for each wait.
pub(crate) enum Flume {}

impl Ends for Flume {
    type Sender<V: Send + 'static> = flume::Sender<V>;
    type Receiver<V: Send + 'static> = flume::Receiver<V>;

    fn bounded<V: Send + 'static>(capacity: usize) -> (flume::Sender<V>, flume::Receiver<V>) {
        flume::bounded(capacity)
    }

    async fn send<V: Send + 'static>(sender: &mut flume::Sender<V>, element: V) -> bool {
        sender.send_async(element).await.is_ok()
    }

    async fn receive<V: Send + 'static>(receiver: &mut flume::Receiver<V>) -> Option<V> {
        receiver.recv_async().await.ok()
    }

    fn waits<V: Send + 'static>(_: &flume::Receiver<V>) -> Option<u64> {
        None
    }
}

/// The rendezvous channel of this crate. `H` decides how the channel stores its cancellation handlers.
pub(crate) struct Own<H>(PhantomData<H>);

impl<H: Handler> Ends for Own<H> {
    type Sender<V: Send + 'static> = Sender<V, H>;
    type Receiver<V: Send + 'static> = Receiver<V, H>;

    fn bounded<V: Send + 'static>(capacity: usize) -> (Sender<V, H>, Receiver<V, H>) {
        channel(capacity)
    }

    async fn send<V: Send + 'static>(sender: &mut Sender<V, H>, element: V) -> bool {
        sender.send(element).await.is_ok()
    }

    async fn receive<V: Send + 'static>(receiver: &mut Receiver<V, H>) -> Option<V> {
        receiver.receive().await
    }

    fn waits<V: Send + 'static>(receiver: &Receiver<V, H>) -> Option<u64> {
        Some(receiver.waits())
    }
}

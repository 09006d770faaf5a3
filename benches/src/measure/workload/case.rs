//! The operations of a workload, the reports of these operations, and the protocol between the bench and the processes
//! of its modes: a request is a line of JSON, and so is the reply to it.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::instruments::alloc::Counts;
use crate::measure::paired::nanos;
use crate::stats::sample::Sample;

/// The reason why the result of a case is wrong.
pub type Wrong = String;

/// A closure that runs an operation the given number of times.
type Run = Box<dyn FnMut(u64) -> Result<Done, Wrong>>;

/// A closure that returns the expected value of a count for one operation.
type PerOperation = Box<dyn Fn() -> f64>;

/// A case: an operation of a workload, which is measured in several modes (configurations of instrumentation and
/// tracing).
pub struct Case {
    pub(super) info: Info,
    pub(super) run: Run,
    make: Option<Box<dyn FnMut() -> Run>>,
    has: Vec<(&'static str, PerOperation)>,
}

/// The properties of a case.
#[derive(Clone, Debug)]
pub struct Info {
    /// The id of the case, usually `<who>/<name>`, where `<who>` is `rust` or `cc`. [`Names`](super::Names) makes the
    /// ids of rows (results) from this id.
    pub id: String,
    /// The number of operations over which the allocations are counted, by default 100. With `--quick`, a tenth of the
    /// operations is counted, but at least 100. If the bench runs as a test, at most 100 operations or two batches are
    /// counted, whichever is more. After a batch that is not counted, the operations are counted twice, and both counts
    /// must be equal (unless they are not [exact](Self::exact)). Allocations of `run` itself are counted, too, so store
    /// long-lived state in the closure.
    pub counted_over: u64,
    /// The approximate duration of a slice (one measurement), if it is not a millisecond. Use this for an operation
    /// that itself takes about a millisecond or longer, and for operations of several threads, because the threads do
    /// not start and end at exactly the same time.
    pub slice: Option<Duration>,
    /// Whether an operation mostly waits for a delay or for another machine, and not for the processor. The time of
    /// such an operation is not converted to the reference speed of the processor.
    pub waits: bool,
    /// The number of operations in a batch. Short parts of the operations, such as the creation of a coroutine, are
    /// timed once for all operations of a batch. `run` is only called with a multiple of the batch, even if fewer
    /// operations were requested.
    pub batch: u64,
    /// The name of a [count](Done::count), such as polls, if the cost is best expressed per unit of this count. Rows
    /// show the cost per operation, but promises are about the cost per unit of this count, such as the cost per poll.
    pub per: Option<&'static str>,
    /// The name of a group of cases. The cases of a group run in the same turn (directly one after the other), so that
    /// they can be [compared](super::Results::difference).
    pub beside: Option<String>,
    /// The number of threads that run the operation at the same time. The reported time is the sum of the times of
    /// these threads, so it may be longer than the elapsed time by this factor.
    pub threads: u32,
    /// Whether allocations are counted. The counter does not see allocations of C++.
    pub counted: bool,
    /// Whether the counts of allocations are the same in each run. If other threads allocate at any time, they are not;
    /// the result is then the median of seven counts.
    pub exact: bool,
    /// Whether the thread that calls `run`, and the threads that `run` starts, are pinned to one core, which is the same
    /// in every mode.
    pub one_core: bool,
    /// The modes in which the case does not run.
    pub not_in: &'static [&'static str],
    /// Whether the case has instrumentation. A case without instrumentation, such as C++, only runs in modes without
    /// instrumentation, and its row ids have no mode.
    pub traced: bool,
    /// Whether the closure `run` is made anew for each measurement; see [`Case::afresh`].
    pub afresh: bool,
    /// Whether the command line selects the case.
    pub selected: bool,
    /// The names of the [parts](Done::part) that the case has reported, in the order of the reports.
    pub parts: Vec<String>,
}

impl Info {
    /// Makes the properties of a case that has instrumentation and runs on one thread.
    pub fn of(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            counted_over: 100,
            slice: None,
            waits: false,
            batch: 1,
            per: None,
            beside: None,
            threads: 1,
            counted: true,
            exact: true,
            one_core: false,
            not_in: &[],
            traced: true,
            afresh: false,
            selected: true,
            parts: Vec::new(),
        }
    }
}

impl Case {
    /// Makes a case. `run(n)` runs the operation `n` times.
    pub fn new(info: Info, run: impl FnMut(u64) -> Result<Done, Wrong> + 'static) -> Self {
        Self { info, run: Box::new(run), make: None, has: Vec::new() }
    }

    /// Makes a case whose `run` is made anew for each slice (measurement), so that the state of `run`, such as a
    /// runtime, has other addresses each time. A runtime whose queues are placed badly is slower by up to a sixth for
    /// its whole life. If the case has [batches](Info::batch), an untimed batch precedes each slice.
    pub fn afresh<R>(info: Info, mut make: impl FnMut() -> R + 'static) -> Self
    where
        R: FnMut(u64) -> Result<Done, Wrong> + 'static,
    {
        let mut case = Self::new(Info { afresh: true, ..info }, make());
        case.make = Some(Box::new(move || Box::new(make())));
        case
    }

    /// Drops the closure `run` and its state, if the case makes `run` anew for each slice (measurement).
    pub(crate) fn forget(&mut self) {
        if self.make.is_some() {
            self.run = Box::new(|_| Err("it was not made anew".to_owned()));
        }
    }

    /// Makes the closure `run` anew, if the case was made by [`afresh`](Self::afresh).
    pub(crate) fn renew(&mut self) {
        if let Some(make) = &mut self.make {
            self.run = make();
        }
    }

    /// Sets the expected value of a [count](Done::count) for one operation. `per_operation` returns this value, and is
    /// called after the run. The bench fails if the reported count differs.
    pub fn has(mut self, count: &'static str, per_operation: impl Fn() -> f64 + 'static) -> Self {
        self.has.push((count, Box::new(per_operation)));
        self
    }

    /// Returns an error if the report of `n` operations does not match the expected counts or the elapsed time.
    pub(crate) fn check(&self, done: &Done, n: u64, elapsed: Duration) -> Result<(), Wrong> {
        let took = done.took.unwrap_or(elapsed);
        let parts = done.parts.iter().filter(|(name, _)| !name.contains('/'));
        let parts: Duration = parts.map(|(_, (took, _))| *took).sum();
        if took.is_zero() || took > elapsed * self.info.threads || parts > took {
            return Err(format!("in {elapsed:?} it took {took:?}, and its parts {parts:?}"));
        }
        for (name, per_operation) in &self.has {
            let counted = done.counts.iter().find(|(count, _)| count == name).map(|(_, counted)| *counted);
            let expected = per_operation() * n as f64;
            if counted.map(|counted| counted as f64) != Some(expected) {
                return Err(format!("{n} operations have counted {counted:?} {name}, there are {expected}"));
            }
        }
        Ok(())
    }
}

/// Pairs of a name and a value. Up to eight pairs are stored without an allocation, because reports are made while
/// allocations are counted.
type Named<T> = SmallVec<[(Cow<'static, str>, T); 8]>;

/// The report of the closure `run(n)` of a case: the sums over all `n` operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The number of messages that the operations write while tracing is on: two for each time that a span is entered,
    /// and one for each event. The sink must receive this number of messages, or no message in a mode that does not
    /// write.
    pub messages: u64,
    /// The lowest and the highest number of spans that are asynchronous. In the Perfetto backend, each of them has a
    /// life (a slice from its creation until it closes), which takes two more messages.
    pub lives: [u64; 2],
    /// Whether other threads wrote messages during the operations, for example because a runtime was started, stopped
    /// or at work. If so, the number of received messages is not checked, except in modes that do not write.
    pub others_wrote: bool,
    /// The number of events that were lost during the measurement, or `None` if no Perfetto session records.
    pub lost: Option<u64>,
    /// The duration of the operations, if it is not the time between the call of `run` and its return.
    pub took: Option<Duration>,
    /// The [parts](Self::part), each with its time and its number of operations.
    pub parts: Named<(Duration, u64)>,
    /// The [counts](Self::count), such as the number of polls, for all operations together.
    pub counts: Named<u64>,
    /// The [values](Self::gauge) that are not per operation, such as the number of living threads.
    pub gauges: Named<f64>,
    /// For each [rate](Self::rate), the number of occurrences and the time in which they occurred.
    pub rates: Named<(f64, Duration)>,
}

impl Done {
    /// Makes an empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the lowest and the highest number of messages that a Perfetto session receives for this report.
    pub(crate) fn by_perfetto(&self) -> [u64; 2] {
        self.lives.map(|lives| self.messages + 2 * lives)
    }

    /// Adds a part of the operation, which gets its own row: `operations` operations of the part took the time `took`
    /// in total. Time thousands of operations at once, because a reading of the clock can take as long as an operation.
    /// Report the same parts in the same order each time. Parts named `name/…` belong to the part `name`. There is a
    /// promise that the mean times of these parts, over all measurements, add up to the mean time of the part `name` to
    /// within 2 %.
    pub fn part(mut self, name: &'static str, took: Duration, operations: u64) -> Self {
        self.parts.push((name.into(), (took, operations)));
        self
    }

    /// Adds a count with this name, such as the number of polls, for all operations of the report. The row has the
    /// count per operation.
    pub fn count(mut self, name: &'static str, total: u64) -> Self {
        self.counts.push((name.into(), total));
        self
    }

    /// Adds the number of occurrences of an event, and the time in which they occurred. The row has the occurrences per
    /// second: the sum of the occurrences of all measurements, divided by the sum of their times. The interval of this
    /// rate is computed from the rates of the generations (sets of processes).
    pub fn rate(mut self, name: &'static str, occurrences: f64, time: Duration) -> Self {
        self.rates.push((name.into(), (occurrences, time)));
        self
    }

    /// Adds a value that is not per operation, such as the number of living threads. The row has the median of the
    /// values of all reports.
    pub fn gauge(mut self, name: &'static str, value: f64) -> Self {
        self.gauges.push((name.into(), value));
        self
    }
}

/// The prefix of a reply. A process writes its replies to stdout, where other lines may be printed, too.
pub(super) const REPLY: &str = "atrace-benches reply: ";

/// The maximum number of messages of a case that are stored for raw writes (writes of the same bytes without this
/// library).
pub(super) const KEPT: usize = 64;

/// A request to the process of a mode. `case` is the index of a case.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// A request to run `warm_up` operations, and then `n` operations that are timed and checked. They begin to run on
    /// the CPU with index `place`. The reply is a [`Slice`].
    Slice { case: usize, place: usize, warm_up: u64, n: u64 },
    /// A request to count the allocations of `n` operations. The operations run and are counted `times` times. The
    /// reply is [`Counted`].
    Count { case: usize, n: u64, times: usize },
    /// A request to run one batch of operations. The reply has the first messages that the batch has written, at most
    /// [`KEPT`] messages.
    Capture { case: usize },
    /// A request to wait until the Perfetto consumer has received all written events. The reply is empty.
    Settle,
    /// A request to write messages repeatedly for the duration `slice`, without this library: with the inlined system
    /// call if `inlined` is true, otherwise with `write()`. If `messages` is `None`, the messages are those of an
    /// earlier request. The reply is the [`Sample`] of one message.
    Raw { case: usize, messages: Option<Vec<Vec<u8>>>, slice: Duration, inlined: bool },
}

/// A reply to a request: the result, or the error as text.
pub(super) type Reply<T> = Result<T, String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slice {
    /// The time of the operations, from which the time of the row is computed.
    pub(super) took: Duration,
    /// The elapsed time, including the time that the case excludes from `took`.
    pub(super) elapsed: Duration,
    /// The durations of the reference chain, which measures the processor's speed, before and after the operations.
    pub(super) chain: [f64; 2],
    pub(super) done: Done,
}

impl Slice {
    /// Makes the sample of `n` operations of this slice (measurement), which took the time `took`. The time may be that
    /// of a part of the operations. If `waits` is true, the case mostly waits: its time does not depend on the
    /// processor's speed, and is not converted to the reference speed.
    pub(super) fn sample(&self, took: Duration, n: u64, waits: bool) -> Sample {
        let ns = nanos(took, n);
        if waits { Sample::of_wait(ns) } else { Sample { ns, chain: self.chain } }
    }
}

/// The allocations of several runs of the same operations, or `None` if the program has no counting allocator.
pub(super) type Counted = Option<Vec<Counts>>;

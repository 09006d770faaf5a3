//! The operations of a workload, their reports, and the protocol between the bench and the processes of its
//! modes: a line of JSON for a request, and a line of JSON for its reply.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::instruments::alloc::Counts;
use crate::measure::paired::nanos;
use crate::stats::sample::Sample;

/// The reason why the result of a case is wrong.
pub type Wrong = String;

/// Runs the operation the given number of times.
type Run = Box<dyn FnMut(u64) -> Result<Done, Wrong>>;

/// A function that returns the expected value of a count for one operation.
type PerOperation = Box<dyn Fn() -> f64>;

/// An operation of a workload.
pub struct Case {
    pub(super) info: Info,
    pub(super) run: Run,
    make: Option<Box<dyn FnMut() -> Run>>,
    has: Vec<(&'static str, PerOperation)>,
}

/// The properties of a case.
#[derive(Clone, Debug)]
pub struct Info {
    /// The id, usually `<who>/<name>`, where `<who>` is `rust` or `cc`. [`Names`](super::Names) makes the row ids from
    /// it.
    pub id: String,
    /// The number of operations over which the allocations are counted: by default 100, with `--quick` a tenth but at
    /// least 100, and as a test at most 100 operations or two batches, whichever is more. After a batch that is not
    /// counted, the operations are counted twice, and both counts must be equal (unless they are not
    /// [exact](Self::exact)). Allocations of `run` itself are included, so store long-lived state in the closure.
    pub counted_over: u64,
    /// The approximate duration of a slice, instead of a millisecond. Use this for an operation that itself takes about
    /// a millisecond or longer, and for operations of several threads, which do not start and end at exactly the same
    /// time.
    pub slice: Option<Duration>,
    /// Whether an operation mostly waits for a time or for another machine, and not for the processor. Its time is then
    /// not converted to the reference speed of the processor.
    pub waits: bool,
    /// The number of operations in a batch, so that the parts of an operation can be timed. `run` is only called with a
    /// multiple of the batch, even if fewer operations were requested.
    pub batch: u64,
    /// The [count](Done::count) per which the cost is best expressed, such as each poll instead of the whole pipeline.
    /// Rows show the cost per operation, but promises are about the cost per unit of this count.
    pub per: Option<&'static str>,
    /// The group of cases with which the case runs in the same turn, so that they can be
    /// [compared](super::Results::difference).
    pub beside: Option<String>,
    /// The number of threads that run the operation at once. The reported time is the sum of their times, which may
    /// exceed the elapsed time by this factor.
    pub threads: u32,
    /// Whether allocations are counted. The counter does not see those of C++.
    pub counted: bool,
    /// Whether the allocation counts are equal in each run. They are not if other threads allocate at any time; the
    /// result is then the median of seven counts.
    pub exact: bool,
    /// Whether the thread that calls `run`, and the threads that `run` starts, are pinned to one core, which is the same
    /// in every mode.
    pub one_core: bool,
    /// The modes in which the case does not run.
    pub not_in: &'static [&'static str],
    /// Whether the case has instrumentation. A case without it, such as C++, only runs in the mode `none`, and its row
    /// ids have no mode.
    pub traced: bool,
    /// Whether the closure `run` is made anew for each slice; see [`Case::afresh`].
    pub afresh: bool,
    /// Whether the command line selects the case.
    pub selected: bool,
    /// The parts that the case has reported, in order.
    pub parts: Vec<String>,
}

impl Info {
    /// Makes the properties of a traced case of one thread.
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

    /// Makes a case whose `run` is made anew for each slice, so that the state of `run` (a runtime) has other addresses
    /// each time: a runtime whose queues are placed badly is slower by up to a sixth for its whole life. If the case
    /// has [batches](Info::batch), an untimed batch precedes each slice.
    pub fn afresh<R>(info: Info, mut make: impl FnMut() -> R + 'static) -> Self
    where
        R: FnMut(u64) -> Result<Done, Wrong> + 'static,
    {
        let mut case = Self::new(Info { afresh: true, ..info }, make());
        case.make = Some(Box::new(move || Box::new(make())));
        case
    }

    /// Drops the state of `run` if `run` is made anew for each slice.
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

    /// Sets the expected value of a [count](Done::count) per operation; `per_operation` is called after the run. The
    /// bench fails if the count differs.
    pub fn has(mut self, count: &'static str, per_operation: impl Fn() -> f64 + 'static) -> Self {
        self.has.push((count, Box::new(per_operation)));
        self
    }

    /// Compares the report of `n` operations with the expected counts and the elapsed time.
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

/// Names with values. Up to eight are stored without an allocation, because the harness must not add to the
/// counted allocations.
type Named<T> = SmallVec<[(Cow<'static, str>, T); 8]>;

/// The report of `run(n)`: the sums over all `n` operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// The number of messages that are written while tracing is on: two for each time that a span is entered, and one
    /// for each event. The sink must receive this number, or none in a mode that does not write.
    pub messages: u64,
    /// The lowest and the highest number of spans that are asynchronous. In the Perfetto backend, each of them has a
    /// life (a slice from its creation until it closes), which takes two more messages.
    pub lives: [u64; 2],
    /// Whether other threads wrote messages meanwhile, for example because a runtime was started, stopped or at work.
    /// The number of received messages is then not checked, except in modes that do not write.
    pub others_wrote: bool,
    /// The number of events that were lost during the slice, or `None` if no Perfetto session records.
    pub lost: Option<u64>,
    /// The duration, if it differs from the time between call and return.
    pub took: Option<Duration>,
    /// The [parts](Self::part), each with its time and its number of operations.
    pub parts: Named<(Duration, u64)>,
    /// The [counts](Self::count).
    pub counts: Named<u64>,
    /// The [values](Self::gauge) that are not per operation.
    pub gauges: Named<f64>,
    /// For each [rate](Self::rate), the number of occurrences and the time in which they occurred.
    pub rates: Named<(f64, Duration)>,
}

impl Done {
    /// Makes an empty report.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the lowest and the highest number of messages that a Perfetto session gets.
    pub(crate) fn by_perfetto(&self) -> [u64; 2] {
        self.lives.map(|lives| self.messages + 2 * lives)
    }

    /// Adds a part with its own row: `operations` operations of the part took this time in total. Time thousands of
    /// operations at once, because a reading of the clock can take as long as an operation. Report the same parts in
    /// the same order each time. Parts named `name/…` belong to the part `name`: it is a promise that their
    /// means, over all slices, add up to that part's mean to within 2 %.
    pub fn part(mut self, name: &'static str, took: Duration, operations: u64) -> Self {
        self.parts.push((name.into(), (took, operations)));
        self
    }

    /// Adds a count with this name, such as the number of polls. The row has the count per operation.
    pub fn count(mut self, name: &'static str, total: u64) -> Self {
        self.counts.push((name.into(), total));
        self
    }

    /// Adds the number of occurrences of an event, and the time in which they occurred. The row has the occurrences per
    /// second: the sum of all slices' occurrences divided by the sum of their times, with an interval over the
    /// generations (sets of processes).
    pub fn rate(mut self, name: &'static str, occurrences: f64, time: Duration) -> Self {
        self.rates.push((name.into(), (occurrences, time)));
        self
    }

    /// Adds a value that is not per operation, such as the number of living threads. The row has the median
    /// of these values.
    pub fn gauge(mut self, name: &'static str, value: f64) -> Self {
        self.gauges.push((name.into(), value));
        self
    }
}

/// The prefix of a line of stdout that is a reply.
pub(super) const REPLY: &str = "atrace-benches reply: ";

/// The maximum number of messages of a case that are stored for raw writes (writes of the same bytes without this
/// library).
pub(super) const KEPT: usize = 64;

/// A request to the process of a mode. Cases are numbered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    /// A request to run `warm_up` operations, then `n` operations that are timed and checked. The slice begins on the
    /// CPU with index `place`. The reply is a [`Slice`].
    Slice { case: usize, place: usize, warm_up: u64, n: u64 },
    /// A request to count the allocations of `n` operations, `times` times. The reply is [`Counted`].
    Count { case: usize, n: u64, times: usize },
    /// A request to run one batch of operations. The reply has the first messages of the batch, at most [`KEPT`].
    Capture { case: usize },
    /// A request to wait until the Perfetto consumer has received all written events. The reply is empty.
    Settle,
    /// A request to write messages repeatedly for the duration `slice`, with the inlined system call or with
    /// `write()`. The messages are part of the request, or stored from an earlier request. The reply is the
    /// [`Sample`] of one message.
    Raw { case: usize, messages: Option<Vec<Vec<u8>>>, slice: Duration, inlined: bool },
}

/// A reply: the result, or the error as text.
pub(super) type Reply<T> = Result<T, String>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Slice {
    /// The time that counts for the row.
    pub(super) took: Duration,
    /// The elapsed time, including the parts that the case leaves out of `took`.
    pub(super) elapsed: Duration,
    /// The duration of the reference chain before and after the slice.
    pub(super) chain: [f64; 2],
    pub(super) done: Done,
}

impl Slice {
    /// Makes the sample of a slice of `n` operations that took the time `took`, which may be the time of a part. If the
    /// case waits (`waits`), its time does not depend on the processor's speed, and is not converted.
    pub(super) fn sample(&self, took: Duration, n: u64, waits: bool) -> Sample {
        let ns = nanos(took, n);
        if waits { Sample::of_wait(ns) } else { Sample { ns, chain: self.chain } }
    }
}

/// The allocations of several runs, or `None` if the binary does not count.
pub(super) type Counted = Option<Vec<Counts>>;

//! What a workload does, and what it says about having done it.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// Why the result of a case is not what it must be.
pub type Wrong = String;

/// Runs the operation so many times.
type Run = Box<dyn FnMut(u64) -> Result<Done, Wrong>>;

/// How many of something one operation has.
type PerOperation = Box<dyn Fn() -> f64>;

/// An operation of a workload.
pub struct Case {
    pub(super) info: Info,
    pub(super) run: Run,
    make: Option<Box<dyn FnMut() -> Run>>,
    threads: u32,
    has: Vec<(&'static str, PerOperation)>,
}

/// What a case is, without how it runs.
#[derive(Clone, Debug)]
pub(super) struct Info {
    pub(super) id: String,
    pub(super) counted_over: u64,
    pub(super) batch: u64,
    pub(super) per: Option<&'static str>,
    pub(super) exact: bool,
    pub(super) one_core: bool,
    /// Whether it is made anew for each slice.
    pub(super) afresh: bool,
    pub(super) traced: bool,
    pub(super) not_in: &'static [&'static str],
    pub(super) selected: bool,
    pub(super) beside: Option<String>,
    pub(super) counted: bool,
    /// Where it is not as long as others'.
    pub(super) slice: Option<Duration>,
    /// The parts that it reported, in its order.
    pub(super) parts: Vec<String>,
}

impl Case {
    /// Makes a case. Its id is `<who>/<name>`, who being `rust` or `cc`. `run(n)` runs the operation `n`
    /// times.
    pub fn new(id: impl Into<String>, run: impl FnMut(u64) -> Result<Done, Wrong> + 'static) -> Self {
        let info = Info {
            id: id.into(),
            counted_over: 100,
            batch: 1,
            per: None,
            exact: true,
            one_core: false,
            afresh: false,
            traced: true,
            not_in: &[],
            selected: true,
            beside: None,
            counted: true,
            slice: None,
            parts: Vec::new(),
        };
        Self { info, run: Box::new(run), make: None, threads: 1, has: Vec::new() }
    }

    /// Makes a case whose `run` is made anew for each slice, which begins with a [batch](Self::batch) that is not
    /// timed where there are batches: what it keeps (a runtime) is somewhere else in memory each time. A runtime whose
    /// queues lie badly is slower by up to a sixth for as long as it lives.
    pub fn afresh<R>(id: impl Into<String>, mut make: impl FnMut() -> R + 'static) -> Self
    where
        R: FnMut(u64) -> Result<Done, Wrong> + 'static,
    {
        let mut case = Self::new(id, make());
        case.make = Some(Box::new(move || Box::new(make())));
        case.info.afresh = true;
        case
    }

    /// Ends what `run` keeps, if it is to be made anew.
    pub(crate) fn forget(&mut self) {
        if self.make.is_some() {
            self.run = Box::new(|_| Err("it was not made anew".to_owned()));
        }
    }

    /// Makes `run` anew, if it is to be.
    pub(crate) fn renew(&mut self) {
        if let Some(make) = &mut self.make {
            self.run = make();
        }
    }

    /// Counts allocations over this many operations (by default 100; with `--quick` a tenth, as a test at
    /// most 100), twice, after one operation that is not counted. The two counts have to be the same. What
    /// one `run` allocates beside its operations is among them: keep it in the closure.
    pub fn counted_over(mut self, operations: u64) -> Self {
        self.info.counted_over = operations.max(1);
        self
    }

    /// Has slices of about this much time instead of a millisecond: of an operation that takes so long itself,
    /// or that several threads run, as they start and end together only nearly.
    pub fn slices_of(mut self, time: Duration) -> Self {
        self.info.slice = Some(time);
        self
    }

    /// Runs this many operations at once, so that parts of them can be timed: `run` is only ever called with
    /// a multiple of it, also where less was asked for.
    pub fn batch(mut self, operations: u64) -> Self {
        self.info.batch = operations.max(1);
        self
    }

    /// Says which of its [counts](Done::count) a person would ask for the cost of: each poll rather than the
    /// whole pipeline. The rows are about operations, but what is promised is about these.
    pub fn per(mut self, count: &'static str) -> Self {
        self.info.per = Some(count);
        self
    }

    /// Runs in one turn with the other cases of this group, right after or before each, so that they can be
    /// [compared](super::Results::difference).
    pub fn beside(mut self, group: impl Into<String>) -> Self {
        self.info.beside = Some(group.into());
        self
    }

    /// Says that so many threads do it at once, whose time is added up: it may be so many times as long as it took.
    pub fn by_threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Says how many of a [count](Done::count) one operation has, once it has run: where it counts otherwise, the bench fails.
    pub fn has(mut self, count: &'static str, per_operation: impl Fn() -> f64 + 'static) -> Self {
        self.has.push((count, Box::new(per_operation)));
        self
    }

    /// Says what is wrong with what `n` operations say they have done, which took so long.
    pub(crate) fn check(&self, done: &Done, n: u64, elapsed: Duration) -> Result<(), Wrong> {
        let took = done.took.unwrap_or(elapsed);
        let parts: Duration = done.parts.iter().map(|(_, (took, _))| *took).sum();
        if took.is_zero() || took > elapsed * self.threads || parts > took {
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

    /// Counts no allocations, as the counter doesn't see those of C++.
    pub fn uncounted(mut self) -> Self {
        self.info.counted = false;
        self
    }

    /// Lets the counts differ, where other threads allocate when they please: the median of seven is taken.
    pub fn inexact(mut self) -> Self {
        self.info.exact = false;
        self
    }

    /// Keeps the thread that calls `run`, and those started by it meanwhile, on one core, the same in every
    /// mode.
    pub fn one_core(mut self) -> Self {
        self.info.one_core = true;
        self
    }

    /// Has nothing to say in these modes: it does not run in them.
    pub fn not_in(mut self, modes: &'static [&'static str]) -> Self {
        self.info.not_in = modes;
        self
    }

    /// Has nothing to instrument, such as C++: it runs in the mode `none` only, and its rows have no mode in
    /// their ids.
    pub fn untraced(mut self) -> Self {
        self.info.traced = false;
        self
    }
}

/// A name and what belongs to it, a few of them: no allocation of ours shall be among those that are counted.
type Named<T> = SmallVec<[(Cow<'static, str>, T); 8]>;

/// What `run(n)` has done, all `n` operations together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Done {
    pub(crate) messages: u64,
    #[serde(default)]
    pub(crate) others_wrote: bool,
    /// How many of them were lost, if they go by Perfetto's way.
    #[serde(default)]
    pub(crate) lost: Option<u64>,
    pub(crate) took: Option<Duration>,
    pub(crate) parts: Named<(Duration, u64)>,
    pub(crate) counts: Named<u64>,
    pub(crate) gauges: Named<f64>,
}

impl Done {
    /// Begins with a case that has nothing to say.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages are written while tracing is on: two for each time that a span is entered, one for
    /// an event. The sink must have got exactly as many; in a mode that does not write, none.
    pub fn messages(mut self, messages: u64) -> Self {
        self.messages = messages;
        self
    }

    /// Other threads wrote at their own pace meanwhile (what surrounds the case was started or stopped, or is at
    /// work): what the sink got is not held against the case. In a mode that does not write it still is.
    pub fn others_wrote(mut self, yes: bool) -> Self {
        self.others_wrote = yes;
        self
    }

    /// How long it took, where that is not all the time between the call and the return.
    pub fn took(mut self, took: Duration) -> Self {
        self.took = Some(took);
        self
    }

    /// A part of it, which is to have a row of its own: `operations` of something took so long together. Time
    /// thousands of them at once, as a reading of the clock takes as long as some do. Always the same parts,
    /// in the same order.
    pub fn part(mut self, name: &'static str, took: Duration, operations: u64) -> Self {
        self.parts.push((name.into(), (took, operations)));
        self
    }

    /// How often something happened, such as polls: the row has it per operation.
    pub fn count(mut self, name: &'static str, total: u64) -> Self {
        self.counts.push((name.into(), total));
        self
    }

    /// Returns how often that happened, or what a gauge of this name says.
    pub fn said(&self, name: &str) -> Option<f64> {
        let counts = self.counts.iter().map(|(of, total)| (of, *total as f64));
        let mut all = counts.chain(self.gauges.iter().map(|(of, value)| (of, *value)));
        all.find_map(|(of, value)| (of == name).then_some(value))
    }

    /// Returns how long it says that it took.
    pub fn time(&self) -> Option<Duration> {
        self.took
    }

    /// Something that is not per operation, such as threads alive: the row has its median.
    pub fn gauge(mut self, name: &'static str, value: f64) -> Self {
        self.gauges.push((name.into(), value));
        self
    }
}

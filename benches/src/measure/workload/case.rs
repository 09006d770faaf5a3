//! What a workload does, and what it says about having done it.

use std::borrow::Cow;
use std::fmt;
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
    pub(crate) id: String,
    pub(crate) run: Run,
    make: Option<Box<dyn FnMut() -> Run>>,
    pub(crate) counted_over: u64,
    pub(crate) exact: bool,
    pub(crate) one_core: bool,
    pub(crate) traced: bool,
    pub(crate) not_in: &'static [&'static str],
    pub(crate) slice: Option<Duration>,
    pub(crate) batch: u64,
    pub(crate) per: Option<&'static str>,
    pub(crate) beside: Option<String>,
    pub(crate) counted: bool,
    threads: u32,
    has: Vec<(&'static str, PerOperation)>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Case {
    /// Makes a case. Its id is `<who>/<name>`, who being `rust` or `cc`. `run(n)` runs the operation `n`
    /// times.
    pub fn new(id: impl Into<String>, run: impl FnMut(u64) -> Result<Done, Wrong> + 'static) -> Self {
        Self {
            id: id.into(),
            run: Box::new(run),
            make: None,
            counted_over: 100,
            exact: true,
            one_core: false,
            traced: true,
            not_in: &[],
            slice: None,
            batch: 1,
            per: None,
            beside: None,
            counted: true,
            threads: 1,
            has: Vec::new(),
        }
    }

    /// Makes a case whose `run` is made anew for each slice, which begins with a [batch](Self::batch) that is not
    /// timed where there are batches: what it keeps (a runtime) is somewhere else in memory each time. A runtime whose
    /// queues lie badly is slower by up to a sixth for as long as it lives.
    pub fn afresh<R>(id: impl Into<String>, mut make: impl FnMut() -> R + 'static) -> Self
    where
        R: FnMut(u64) -> Result<Done, Wrong> + 'static,
    {
        let first = make();
        Self { make: Some(Box::new(move || Box::new(make()))), ..Self::new(id, first) }
    }

    pub(crate) fn is_afresh(&self) -> bool {
        self.make.is_some()
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
    #[must_use]
    pub fn counted_over(mut self, operations: u64) -> Self {
        self.counted_over = operations.max(1);
        self
    }

    /// Has slices of about this much time instead of a millisecond: of an operation that takes so long itself,
    /// or that several threads run, as they start and end together only nearly.
    #[must_use]
    pub fn slices_of(mut self, time: Duration) -> Self {
        self.slice = Some(time);
        self
    }

    /// Runs this many operations at once, so that parts of them can be timed: `run` is only ever called with
    /// a multiple of it, also where less was asked for.
    #[must_use]
    pub fn batch(mut self, operations: u64) -> Self {
        self.batch = operations.max(1);
        self
    }

    /// Says which of its [counts](Done::count) a person would ask for the cost of: each poll rather than the
    /// whole pipeline. The rows are about operations, but what is promised is about these.
    #[must_use]
    pub fn per(mut self, count: &'static str) -> Self {
        self.per = Some(count);
        self
    }

    /// Runs in one turn with the other cases of this group, right after or before each, so that they can be
    /// [compared](super::Results::difference).
    #[must_use]
    pub fn beside(mut self, group: impl Into<String>) -> Self {
        self.beside = Some(group.into());
        self
    }

    /// Says that so many threads do it at once, whose time is added up: it may be so many times as long as it took.
    #[must_use]
    pub fn by_threads(mut self, threads: u32) -> Self {
        self.threads = threads;
        self
    }

    /// Says how many of a [count](Done::count) one operation has, once it has run: where it counts otherwise, the bench fails.
    #[must_use]
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
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.counted = false;
        self
    }

    /// Lets the counts differ, where other threads allocate when they please: the median of seven is taken.
    #[must_use]
    pub fn inexact(mut self) -> Self {
        self.exact = false;
        self
    }

    /// Keeps the thread that calls `run`, and those started by it meanwhile, on one core, the same in every
    /// mode.
    #[must_use]
    pub fn one_core(mut self) -> Self {
        self.one_core = true;
        self
    }

    /// Has nothing to say in these modes: it does not run in them.
    #[must_use]
    pub fn not_in(mut self, modes: &'static [&'static str]) -> Self {
        self.not_in = modes;
        self
    }

    /// Has nothing to instrument, such as C++: it runs in the mode `none` only, and its rows have no mode in
    /// their ids.
    #[must_use]
    pub fn untraced(mut self) -> Self {
        self.traced = false;
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
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many messages are written while tracing is on: two for each time that a span is entered, one for
    /// an event. The sink must have got exactly as many; in a mode that does not write, none.
    #[must_use]
    pub fn messages(mut self, messages: u64) -> Self {
        self.messages = messages;
        self
    }

    /// Other threads wrote at their own pace meanwhile (what surrounds the case was started or stopped, or is at
    /// work): what the sink got is not held against the case. In a mode that does not write it still is.
    #[must_use]
    pub fn others_wrote(mut self, yes: bool) -> Self {
        self.others_wrote = yes;
        self
    }

    /// How long it took, where that is not all the time between the call and the return.
    #[must_use]
    pub fn took(mut self, took: Duration) -> Self {
        self.took = Some(took);
        self
    }

    /// A part of it, which is to have a row of its own: `operations` of something took so long together. Time
    /// thousands of them at once, as a reading of the clock takes as long as some do. Always the same parts,
    /// in the same order.
    #[must_use]
    pub fn part(mut self, name: &'static str, took: Duration, operations: u64) -> Self {
        self.parts.push((name.into(), (took, operations)));
        self
    }

    /// How often something happened, such as polls: the row has it per operation.
    #[must_use]
    pub fn count(mut self, name: &'static str, total: u64) -> Self {
        self.counts.push((name.into(), total));
        self
    }

    /// Returns how often that happened, or what a gauge of this name says.
    #[must_use]
    pub fn said(&self, name: &str) -> Option<f64> {
        let counts = self.counts.iter().map(|(of, total)| (of, *total as f64));
        let mut all = counts.chain(self.gauges.iter().map(|(of, value)| (of, *value)));
        all.find_map(|(of, value)| (of == name).then_some(value))
    }

    /// Returns how long it says that it took.
    #[must_use]
    pub fn time(&self) -> Option<Duration> {
        self.took
    }

    /// Something that is not per operation, such as threads alive: the row has its median.
    #[must_use]
    pub fn gauge(mut self, name: &'static str, value: f64) -> Self {
        self.gauges.push((name.into(), value));
        self
    }
}

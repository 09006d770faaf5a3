//! The measured samples, and the rows that are computed from them.
//!
//! A sample is the time of one operation in one slice (a short measurement). It is stored with the case, the mode, and
//! the subject of the timing: the operation, a part of the operation, or raw writes (writes of the operation's messages
//! without this library). It is also stored with the *generation* (the set of processes) and the *turn* in which it was
//! measured. In a turn of a round, all modes of a case run one after the other, with raw writes in between. A turn of
//! twins has only the modes that are promised to take the same time.
//!
//! - The time of a row is the median of the generations' medians, at the reference speed of the processor. All
//!   measurements in one process have the same random addresses, so they are not independent. So the interval is
//!   computed from the medians of the generations (sets of processes).
//! - A difference or a ratio of two rows is computed for each turn (measurements directly one after the other), from
//!   two measurements at the same speed of the processor. The interval is an [interval of
//!   clusters](Interval::of_clusters), in which each set of processes is a cluster. Only cases that have turns together
//!   can be compared ([`Info::beside`](super::Info::beside)).
//! - A ratio of two *added* times is the quotient of two differences of times. It is not computed from single
//!   measurements, because such a quotient could have any sign and size (`ratio_of_added`).
//! - A count of an operation is the median over all measurements. A rate is a sum of occurrences divided by a sum of
//!   times, and its interval is computed from the rates of the sets of processes.
//!
//! [`Results::finish`] makes the rows. Before it is called, no row exists.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::catalogue::Id;
use crate::instruments::alloc::Counts;
use crate::measure::workload::case::{Case, Done, Info, Slice};
use crate::measure::workload::mode::Mode;
use crate::row::{AT_ONCE, Above, Row, Sink, Versus, note_comparisons};
use crate::stats::Interval;
use crate::stats::sample::{self, Sample, equally_fast};

/// The subject of a sample: the operation, a part of the operation, or raw writes (writes of the operation's messages
/// without this library).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Total,
    Part(String),
    /// Writes of the operation's messages by `write()`, without this library.
    Raw,
    /// Writes of the operation's messages by the inlined system call, without this library.
    Inlined,
}

/// Determines whether raw writes (writes of an operation's messages without this library) are timed, and which times
/// are compared with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawWrites {
    /// Raw writes (writes of the messages without this library) are not timed.
    Untimed,
    /// The time that a mode adds to another mode is compared with the time of raw writes (without this library).
    OfWhatIsAdded,
    /// The whole time of the operation is compared with the time of raw writes (without this library).
    OfTheWhole,
}

/// The functions that name the rows (results) of a case in a mode, and whether raw writes are timed.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Returns the name of the operation's row, from the case and the mode.
    pub row: fn(&str, &str) -> String,
    /// Returns the name of the row for raw writes (writes of the operation's messages without this library), from the
    /// case and the mode.
    pub raw: fn(&str, &str) -> String,
    /// Returns the name of the row for writes of the operation's messages by the inlined system call, from the case and
    /// the mode. The time of these writes is the lowest possible cost of writing the messages.
    pub inlined: fn(&str, &str) -> String,
    /// Whether raw writes (without this library) are timed, and which times are compared with them.
    pub raw_writes: RawWrites,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            row: |case, mode| Id::of_workload(case, mode),
            raw: |case, mode| format!("limit/raw_writes_of/{case}/{mode}"),
            inlined: |case, mode| format!("limit/inline_writes_of/{case}/{mode}"),
            raw_writes: RawWrites::OfWhatIsAdded,
        }
    }
}

/// The index of a case, the index of a mode, and the subject of the measurement.
pub(super) type Key = (usize, usize, What);

/// For every generation (set of processes), its samples. Samples with the same number (of a turn) were measured
/// directly one after the other.
type Rounds = Vec<Vec<(usize, Sample)>>;

/// For every pair of a case and a mode, the measured values by name.
type Named<T> = BTreeMap<(usize, usize), BTreeMap<String, Vec<T>>>;

/// The results of all cases in all modes.
#[derive(Default)]
pub struct Results {
    /// The modes.
    pub modes: Vec<Mode>,
    pub(super) cases: Vec<Info>,
    sink: Sink,
    pub(super) names: Names,
    pub(super) generations: usize,
    rounds: BTreeMap<Key, Rounds>,
    pub(super) allocated: BTreeMap<(usize, usize), (Counts, u64)>,
    counts: Named<f64>,
    /// For every generation (set of processes), the number of occurrences, and the seconds in which they occurred.
    rates: Named<[f64; 2]>,
    /// Two numbers of measurements with the Perfetto backend: those that lost events, and those that lost no event.
    pub(super) whole: [u64; 2],
    /// The duration of the reference chain (`instruments/chain.rs`) at the reference speed: the speed of the processor
    /// to which all times are converted. The value is valid after all measurements.
    reference: f64,
    rows: Vec<Row>,
    /// The index in `rows` of the row of each key.
    places: BTreeMap<Key, usize>,
}

impl Results {
    pub(super) fn new(modes: Vec<Mode>, cases: Vec<Case>, sink: Sink, names: Names) -> Self {
        let cases = cases.into_iter().map(|case| case.info).collect();
        Self { modes, cases, sink, names, reference: 1.0, ..Self::default() }
    }

    /// Returns all rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the ids of the selected cases that have instrumentation.
    pub fn traced_cases(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|case| case.selected && case.traced).map(|case| &case.id[..])
    }

    fn units_of(&self, case: usize) -> f64 {
        let counted = |name| median(self.counts.get(&(case, self.mode("nosub")?))?.get(name)?);
        self.cases[case].per.and_then(counted).filter(|&n| n >= 1.0).unwrap_or(1.0)
    }

    /// Returns the twin of a mode (the mode that should take the same time), or the mode itself if it has no twin.
    pub(super) fn twin(&self, mode: usize) -> usize {
        self.modes[mode].twin.and_then(|twin| self.mode(twin)).unwrap_or(mode)
    }

    /// Returns the typical difference between a mode and its twin (the mode that should take the same time) if both are
    /// measured directly one after the other, as a multiple of the allowed difference.
    pub(super) fn spread(&self, case: usize, mode: usize, twin: usize) -> Option<f64> {
        let key = |mode| (case, mode, What::Total);
        if mode == twin {
            return None;
        }
        let pairs: Vec<_> = self.together([&key(mode), &key(twin)])?.concat();
        let all: Vec<f64> = pairs.iter().map(|[_, base]| base.ns).collect();
        let pairs = pairs.iter().filter(|pair| equally_fast(&pair[..]));
        let differences: Vec<f64> = pairs.map(|[own, base]| (own.ns - base.ns).abs()).collect();
        // For a normal distribution around 0, the median of the absolute values divided by 0.6745 estimates the
        // standard deviation.
        let spread = median(&differences)? / 0.6745;
        Some(spread / allowed(median(&all)?, self.units_of(case)))
    }

    /// Returns the names of the parts that a case has reported.
    pub fn parts(&self, case: &str) -> &[String] {
        self.case(case).map_or(&[], |case| &self.cases[case].parts)
    }

    /// Returns a list of all parts that have parts themselves, as `resume` has the part `resume/compute`. For each, the
    /// list has the id of its row, and the sum of the times of its parts divided by its own time. The times are means
    /// over all measurements.
    pub(super) fn parts_of_parts(&self) -> Vec<(String, f64)> {
        let mean = |case: usize, mode: usize, part: &str| {
            let samples = self.rounds.get(&(case, mode, What::Part(part.to_owned())))?.iter().flatten();
            let all: Vec<f64> = samples.map(|(_, sample)| sample.ns).collect();
            (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
        };
        let mut found = Vec::new();
        for (case, Info { parts, .. }) in self.cases.iter().enumerate() {
            for part in parts {
                let is_within =
                    |other: &&String| other.strip_prefix(&part[..]).is_some_and(|rest| rest.starts_with('/'));
                for mode in self.modes_of(case) {
                    let Some(whole) = mean(case, mode, part) else { continue };
                    let within: Vec<f64> =
                        parts.iter().filter(is_within).filter_map(|part| mean(case, mode, part)).collect();
                    if !within.is_empty() {
                        let id = self.id(case, mode, &What::Part(part.clone()));
                        found.push((id, within.iter().sum::<f64>() / whole));
                    }
                }
            }
        }
        found
    }

    /// Returns the row of a case in a mode, which is `none` for a case without modes.
    pub fn row(&self, case: &str, mode: &str) -> Option<&Row> {
        self.row_of(case, mode, What::Total)
    }

    /// Returns the row of a part of a case in a mode.
    pub fn part(&self, case: &str, part: &str, mode: &str) -> Option<&Row> {
        self.row_of(case, mode, What::Part(part.to_owned()))
    }

    /// Returns the counts of allocations of a case in a mode, and the number of operations that were counted.
    pub fn allocated(&self, case: &str, mode: &str) -> Option<(Counts, u64)> {
        self.allocated.get(&(self.case(case)?, self.mode(mode)?)).copied()
    }

    /// Adds a value to the counts of the row of a case in a mode, if the case ran in this mode.
    /// [`Workload::profile`](super::Workload::profile) calls this.
    pub fn gauge(&mut self, case: &str, mode: &str, name: &str, value: f64) {
        let key = self.case(case).zip(self.mode(mode));
        if let Some(counts) = key.and_then(|key| self.counts.get_mut(&key)) {
            counts.entry(name.to_owned()).or_default().push(value);
        }
    }

    /// Adds the rates of operations that ran after the generations (the sets of processes) had ended. All these
    /// operations together count as one more generation, because they ran in one process.
    pub fn add_rates(&mut self, case: &str, mode: &str, done: &Done) {
        let Some(key) = self.case(case).zip(self.mode(mode)) else { return };
        for (name, (occurrences, time)) in &done.rates {
            let of = self.rates.entry(key).or_default().entry(name.to_string()).or_default();
            add_to(of, self.generations, *occurrences, *time);
        }
    }

    /// Returns whether a case must have the same counts of allocations in each run.
    pub fn allocates_exactly(&self, case: &str) -> bool {
        self.case(case).is_some_and(|case| self.cases[case].exact)
    }

    /// Returns how many more allocations and allocated bytes an operation has in the mode `mode` than in `base`.
    pub(super) fn allocated_above(&self, case: &str, mode: &str, base: &str) -> Option<(f64, f64)> {
        self.allocated_more(self.case(case)?, self.mode(mode)?, self.mode(base)?)
    }

    /// Returns how many nanoseconds longer an operation of `of` takes than an operation of `base`. Both are of the form
    /// `(case, mode)` or `(case/part, mode)`. A difference is computed for each turn in which the processor's speed was
    /// the same for both. (In a turn, all modes are measured one after the other, within some tens of milliseconds,
    /// with raw writes in between.) The result is the median of these differences, with an [interval of
    /// clusters](Interval::of_clusters). A cluster is a generation, that is, one set of processes.
    ///
    /// # Panics
    ///
    /// Panics if [`Info::beside`](super::Info::beside) does not put the two cases into the same group.
    pub fn difference(&self, of: (&str, &str), base: (&str, &str)) -> Option<Interval> {
        let (of, base) = self.beside(of, base)?;
        self.above(&of, &base)
    }

    /// Returns the time of an operation of `of`, divided by the time of an operation of `base`. The ratio is computed
    /// like [`difference`](Self::difference).
    ///
    /// # Panics
    ///
    /// Panics in the same cases as [`difference`](Self::difference).
    pub fn ratio(&self, of: (&str, &str), base: (&str, &str)) -> Option<Interval> {
        let (of, base) = self.beside(of, base)?;
        self.times(&of, &base)
    }

    /// Returns the time that `mode` adds to the mode `base`, divided by the time that the mode `than` adds to `base`.
    pub fn added(&self, case: &str, mode: &str, than: &str, base: &str) -> Option<Interval> {
        let key = |mode| Some((self.case(case)?, self.mode(mode)?, What::Total));
        let (own, than, base) = (key(mode)?, key(than)?, key(base)?);
        ratio_of_added(self.above(&own, &base)?, self.above(&than, &base)?)
    }

    /// Returns the indices of the other cases that are measured directly before or after this case.
    fn beside_of(&self, case: usize) -> impl Iterator<Item = usize> + '_ {
        let beside = self.cases[case].beside.as_ref();
        (0..self.cases.len()).filter(move |&other| {
            other != case && beside.is_some() && self.cases[other].beside.as_ref() == beside
        })
    }

    /// Returns the keys of two cases, which must be measured directly one after the other.
    fn beside(&self, of: (&str, &str), base: (&str, &str)) -> Option<(Key, Key)> {
        let (of, base) = (self.key(of)?, self.key(base)?);
        let beside = |case: usize| self.cases[case].beside.as_deref().ok_or(case);
        assert_eq!(beside(of.0), beside(base.0), "cases that are compared have turns together");
        Some((of, base))
    }

    fn key(&self, (id, mode): (&str, &str)) -> Option<Key> {
        let mode = self.mode(mode)?;
        if let Some(case) = self.case(id) {
            return Some((case, mode, What::Total));
        }
        let (case, part) = Id::case_and_mode(id)?;
        Some((self.case(case)?, mode, What::Part(part.to_owned())))
    }

    fn case(&self, id: &str) -> Option<usize> {
        self.cases.iter().position(|case| case.id == id)
    }

    fn mode(&self, name: &str) -> Option<usize> {
        self.modes.iter().position(|mode| mode.name == name)
    }

    fn row_of(&self, case: &str, mode: &str, what: What) -> Option<&Row> {
        self.places.get(&(self.case(case)?, self.mode(mode)?, what)).map(|&place| &self.rows[place])
    }

    pub(super) fn case_id(&self, case: usize) -> &str {
        &self.cases[case].id
    }

    /// Returns whether a case runs in a mode. A case that the command line does not select never runs.
    pub(super) fn runs_in(&self, case: usize, mode: usize) -> bool {
        let Info { selected, traced, not_in, .. } = self.cases[case];
        let mode = &self.modes[mode];
        selected && (traced || !mode.compiled_in) && !not_in.contains(&mode.name)
    }

    /// Returns the indices of the modes in which a case runs.
    pub(super) fn modes_of(&self, case: usize) -> impl Iterator<Item = usize> + use<> {
        let runs: Vec<bool> = (0..self.modes.len()).map(|mode| self.runs_in(case, mode)).collect();
        (0..runs.len()).filter(move |&mode| runs[mode])
    }

    /// Returns the indices of the selected cases, in groups of cases that are measured directly one after the other.
    pub(super) fn groups(&self) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (case, info) in self.cases.iter().enumerate().filter(|(_, info)| info.selected) {
            let same = |group: &&mut Vec<usize>| self.cases[group[0]].beside == info.beside;
            match info.beside.as_ref().and_then(|_| groups.iter_mut().find(same)) {
                Some(group) => group.push(case),
                None => groups.push(vec![case]),
            }
        }
        groups
    }

    /// Returns the ids of the rows of all cases in their modes. The rows of raw writes and of parts are not included,
    /// because they are only known after a run.
    pub(super) fn ids(&self) -> Vec<String> {
        let all = |case| self.modes_of(case).map(move |mode| self.id(case, mode, &What::Total));
        (0..self.cases.len()).flat_map(all).collect()
    }

    /// Selects the cases that run: those with a row id for which `asked` is true, or with an id for which `has_part` is
    /// true. A selected case runs in all its modes.
    pub(super) fn select(&mut self, asked: impl Fn(&str) -> bool, has_part: impl Fn(&str) -> bool) {
        for case in 0..self.cases.len() {
            self.cases[case].selected = has_part(&self.cases[case].id)
                || self.modes_of(case).any(|mode| asked(&self.id(case, mode, &What::Total)));
        }
    }

    /// Adds the result of a slice (a short measurement of `n` operations). If a slice with the Perfetto backend has
    /// lost events, its times are ignored, because lost events take less time; the slice is only counted.
    pub(super) fn add(&mut self, (case, mode): (usize, usize), round: usize, n: u64, slice: &Slice) {
        if let Some(lost) = slice.done.lost {
            self.whole[usize::from(lost == 0)] += 1;
            if lost > 0 {
                return;
            }
        }
        let waits = self.cases[case].waits;
        self.push((case, mode, What::Total), round, slice.sample(slice.took, n, waits));
        for (name, (took, operations)) in &slice.done.parts {
            if !self.cases[case].parts.iter().any(|part| part == name) {
                self.cases[case].parts.push(name.to_string());
            }
            self.push(
                (case, mode, What::Part(name.to_string())),
                round,
                slice.sample(*took, *operations, waits),
            );
        }
        let Done { counts, gauges, rates, .. } = &slice.done;
        for (name, (occurrences, time)) in rates {
            let of = self.rates.entry((case, mode)).or_default().entry(name.to_string()).or_default();
            add_to(of, self.generations - 1, *occurrences, *time);
        }
        let per_op = counts.iter().map(|(name, total)| (name, *total as f64 / n as f64));
        let of = self.counts.entry((case, mode)).or_default();
        for (name, value) in per_op.chain(gauges.iter().map(|(name, value)| (name, *value))) {
            of.entry(name.to_string()).or_default().push(value);
        }
    }

    /// Adds the sample of the raw writes (writes without this library) that ran directly after a measurement: the time
    /// of one message, multiplied by the number of messages of an operation.
    pub(super) fn add_raw(
        &mut self,
        (case, mode): (usize, usize),
        turn: usize,
        n: u64,
        slice: &Slice,
        (one, inlined): (Sample, bool),
    ) {
        let what = if inlined { What::Inlined } else { What::Raw };
        let all = Sample { ns: one.ns * slice.done.messages as f64 / n as f64, ..one };
        self.push((case, mode, what), turn, all);
    }

    pub(super) fn push(&mut self, key: Key, turn: usize, sample: Sample) {
        let rounds = self.rounds.entry(key).or_default();
        rounds.resize(self.generations, Vec::new());
        rounds[self.generations - 1].push((turn, sample));
    }
}

/// Returns the ratio of `own` to `than`, times that modes add to a base, or `None` if `than` is not certainly above
/// zero. (A median of ratios of single measurements would be wrong: if `than` is small by chance, such a ratio is large
/// and has any sign.)
fn ratio_of_added(own: Interval, than: Interval) -> Option<Interval> {
    (than.low > 0.0).then(|| {
        let ratio = own.over(&than);
        // If `own` may be below zero, the ratio is lowest for the lowest `than`.
        Interval {
            low: ratio.low.min(own.low / than.low),
            high: ratio.high.max(own.high / than.high),
            ..ratio
        }
    })
}

/// A limit for the difference between twins, in nanoseconds, for each unit of `Info::per`. See [`allowed`].
const ZERO_NS: f64 = 2.0;
/// A limit for the difference between twins, as a fraction of the compared time. See [`allowed`].
const ZERO_RATIO: f64 = 0.01;

/// Returns the allowed difference in nanoseconds between twins (modes that should take the same time): the larger of
/// `ZERO_NS` for each unit, and `ZERO_RATIO` of the time. The operation takes `ns` nanoseconds, and has `units` units
/// of the count, such as polls, to which its promises refer.
fn allowed(ns: f64, units: f64) -> f64 {
    (ZERO_NS * units).max(ZERO_RATIO * ns)
}

/// Adds `occurrences` and `time` to the sums of a generation (set of processes): the number of occurrences, and the
/// time in seconds.
fn add_to(sums: &mut Vec<[f64; 2]>, generation: usize, occurrences: f64, time: Duration) {
    sums.resize(generation + 1, [0.0; 2]);
    let [all, seconds] = &mut sums[generation];
    (*all, *seconds) = (*all + occurrences, *seconds + time.as_secs_f64());
}

/// Returns the rate of occurrences over all generations (sets of processes). The interval is computed from the rates of
/// the generations.
fn rate(sums: &[[f64; 2]]) -> Option<Interval> {
    let sums: Vec<&[f64; 2]> = sums.iter().filter(|[_, seconds]| *seconds > 0.0).collect();
    let each: Vec<f64> = sums.iter().map(|[occurrences, seconds]| occurrences / seconds).collect();
    let total = |of: usize| sums.iter().map(|sums| sums[of]).sum::<f64>();
    let whole = total(0) / total(1);
    Interval::of(&each).map(|it| Interval {
        median: whole,
        low: it.low.min(whole),
        high: it.high.max(whole),
        ..it
    })
}

fn median(samples: &[f64]) -> Option<f64> {
    Interval::of(samples).map(|interval| interval.median)
}

impl Results {
    /// Makes the rows from the samples, after all measurements.
    pub(in crate::measure::workload) fn finish(&mut self) {
        let all = self.rounds.values().flatten().flatten();
        self.reference = sample::reference(all.map(|(_, sample)| sample));
        for case in 0..self.cases.len() {
            let parts = self.cases[case].parts.clone();
            let whats = std::iter::once(What::Total).chain(parts.into_iter().map(What::Part));
            for what in whats.chain([What::Raw, What::Inlined]) {
                for mode in self.modes_of(case) {
                    let key = (case, mode, what.clone());
                    if let Some(row) = self.make(&key) {
                        self.places.insert(key, self.rows.len());
                        self.rows.push(row);
                    }
                }
            }
        }
        note_comparisons(&mut self.rows);
    }

    pub(in crate::measure::workload) fn id(&self, case: usize, mode: usize, what: &What) -> String {
        let Info { id, traced, .. } = &self.cases[case];
        let id = match what {
            What::Part(part) => format!("{id}/{part}"),
            What::Total | What::Raw | What::Inlined => id.clone(),
        };
        match what {
            What::Raw => (self.names.raw)(&id, self.modes[mode].name),
            What::Inlined => (self.names.inlined)(&id, self.modes[mode].name),
            _ if *traced => (self.names.row)(&id, self.modes[mode].name),
            _ => id,
        }
    }

    fn make(&self, key: &Key) -> Option<Row> {
        let (case, mode, what) = key;
        let rounds = self.rounds.get(key)?;
        let all: Vec<Sample> = rounds.iter().flatten().map(|(_, sample)| *sample).collect();
        let interval = sample::in_range(&all, |convert| {
            let converted = |all: &Vec<(usize, Sample)>| {
                median(&all.iter().map(|(_, sample)| convert(sample, self.reference)).collect::<Vec<_>>())
            };
            // There is no median for a generation (set of processes) in which all measurements have lost events.
            Interval::of(&rounds.iter().filter_map(converted).collect::<Vec<_>>())
        });
        let mut row = Row::new(self.id(*case, *mode, what), interval?, self.sink)
            .with_rounds(&all.iter().map(|sample| sample.ns).collect::<Vec<_>>());
        row.speeds = sample::range(&all, self.reference);
        let batch = self.cases[*case].batch;
        if batch > 1 && matches!(what, What::Total | What::Part(_)) {
            row.counts.insert(AT_ONCE.to_owned(), batch as f64);
        }
        let per_op = (*what == What::Total).then(|| self.per_op(*case, *mode)).flatten();
        if let Some((allocs, bytes)) = per_op {
            (row.allocs, row.bytes) = (Some(allocs), Some(bytes));
        }
        if *what == What::Total {
            let counts = self.counts.get(&(*case, *mode)).into_iter().flatten();
            row.counts.extend(counts.filter_map(|(name, all)| Some((name.clone(), median(all)?))));
            for (name, sums) in self.rates.get(&(*case, *mode)).into_iter().flatten() {
                let Some(rate) = rate(sums) else { continue };
                row.counts.insert(name.clone(), rate.median);
                row.ranges.insert(name.clone(), [rate.low, rate.high]);
            }
        }
        if matches!(what, What::Raw | What::Inlined) {
            return Some(row);
        }
        for other in self.beside_of(*case) {
            let base = (other, *mode, what.clone());
            row.vs.extend(
                self.times(key, &base).map(|ratio| (self.id(other, *mode, what), Versus::from(ratio))),
            );
        }
        if self.names.raw_writes == RawWrites::OfTheWhole {
            let writes = self.modes[*mode].writes_of.and_then(|of| self.mode(of)).unwrap_or(*mode);
            let (raw, inlined) = ((*case, writes, What::Raw), (*case, writes, What::Inlined));
            let vs = if writes == *mode { &mut row.vs } else { &mut row.vs_process };
            for base in [&raw, &inlined] {
                let ratio = self.times(key, base);
                vs.extend(ratio.map(|ratio| (self.id(*case, writes, &base.2), Versus::from(ratio))));
            }
            if writes == *mode {
                let own = self.above(key, &inlined);
                row.above.extend(own.map(|own| (self.id(*case, *mode, &inlined.2), Above::from(own))));
            }
        }
        for &base in self.modes[*mode].bases {
            let Some(place) = self.mode(base) else { continue };
            let base_key = (*case, place, what.clone());
            let Some(ns) = self.above(key, &base_key) else { continue };
            let more = self.allocated_more(*case, *mode, place).filter(|_| *what == What::Total);
            let above = Above {
                allocs: more.map(|more| more.0),
                bytes: more.map(|more| more.1),
                // A ratio whose interval reaches below zero is not stored.
                raw_writes: self
                    .of_raw_writes(key, &base_key)
                    .filter(|times| times.low >= 0.0)
                    .map(Versus::from),
                ..Above::from(ns)
            };
            row.above.insert(base.to_owned(), above);
            if let Some(ratio) = self.times(key, &base_key) {
                row.vs_process.insert(self.id(*case, place, what), Versus::from(ratio));
            }
        }
        Some(row)
    }

    /// Returns how many more allocations and allocated bytes an operation has in the mode `mode` than in `base`.
    pub(super) fn allocated_more(&self, case: usize, mode: usize, base: usize) -> Option<(f64, f64)> {
        let (own, base) = (self.per_op(case, mode)?, self.per_op(case, base)?);
        // If the counts are not exact, a negative difference is noise and becomes 0.
        let least = if self.cases[case].exact { f64::NEG_INFINITY } else { 0.0 };
        Some(((own.0 - base.0).max(least), (own.1 - base.1).max(least)))
    }

    fn per_op(&self, case: usize, mode: usize) -> Option<(f64, f64)> {
        let (counts, n) = self.allocated.get(&(case, mode))?;
        Some((counts.allocs as f64 / *n as f64, counts.bytes as f64 / *n as f64))
    }

    /// Returns the time of `key` minus the time of `base`, divided by the time of the raw writes (writes without this
    /// library) that were measured directly after.
    fn of_raw_writes(&self, key: &Key, base: &Key) -> Option<Interval> {
        if key.2 != What::Total || self.names.raw_writes != RawWrites::OfWhatIsAdded {
            return None;
        }
        let raw = (key.0, key.1, What::Raw);
        self.generations([key, base, &raw], |[own, base, raw]| (own.ns - base.ns) / raw.ns)
    }

    /// Returns how many nanoseconds longer an operation of `key` takes than an operation of `base`. Both times are
    /// converted to the processor's reference speed.
    pub(super) fn above(&self, key: &Key, base: &Key) -> Option<Interval> {
        self.generations([key, base], |[own, base]| own.at(self.reference) - base.at(self.reference))
    }

    /// Returns the indices of the cases that run in a mode and in its twin (which should take the same time).
    pub(in crate::measure::workload) fn twins(&self, mode: usize) -> Vec<usize> {
        let twin = self.twin(mode);
        let both = |case: &usize| self.runs_in(*case, mode) && self.runs_in(*case, twin);
        (0..self.cases.len()).filter(both).collect()
    }

    /// Returns the difference between a mode and its twin (the mode that should take the same time) over all
    /// measurements of `cases`, as a multiple of the allowed difference.
    pub(in crate::measure::workload) fn apart(&self, cases: &[usize], mode: usize) -> Option<Interval> {
        let mut clusters = vec![Vec::new(); self.generations];
        for &case in cases {
            let [own, base] = [mode, self.twin(mode)].map(|mode| (case, mode, What::Total));
            let Some(place) = self.places.get(&base) else { continue };
            let allowed = allowed(self.rows[*place].median, self.units_of(case));
            let part = |sample: Sample| Sample { ns: sample.ns / allowed, ..sample };
            for (all, pairs) in clusters.iter_mut().zip(self.together([&own, &base])?) {
                all.extend(pairs.into_iter().map(|pair| pair.map(part)));
            }
        }
        let apart = |[own, base]: [Sample; 2]| own.at(self.reference) - base.at(self.reference);
        sample::compare(&clusters, self.reference, apart, Interval::of_clusters)
    }

    /// Returns the ratio of the time of `key` to the time of `base`.
    pub(super) fn times(&self, key: &Key, base: &Key) -> Option<Interval> {
        self.generations([key, base], |[own, base]| own.ns / base.ns)
    }

    /// Computes `f` for each turn (measurements directly one after the other) that has samples for all keys. Returns
    /// the median of the results, with an interval of clusters. The clusters are the generations (sets of processes).
    fn generations<const N: usize>(
        &self,
        keys: [&Key; N],
        f: impl Fn([Sample; N]) -> f64,
    ) -> Option<Interval> {
        sample::compare(&self.together(keys)?, self.reference, f, Interval::of_clusters)
    }

    /// Returns, for every generation (set of processes), the samples of each turn (measurements directly one after the
    /// other) that has samples for all keys.
    pub(super) fn together<const N: usize>(&self, keys: [&Key; N]) -> Option<Vec<Vec<[Sample; N]>>> {
        let all: Vec<&Rounds> = keys.into_iter().map(|key| self.rounds.get(key)).collect::<Option<_>>()?;
        let of_generation = |generation: usize| {
            let mut turns = BTreeMap::<usize, Vec<Sample>>::new();
            for &(turn, sample) in all.iter().filter_map(|rounds| rounds.get(generation)).flatten() {
                turns.entry(turn).or_default().push(sample);
            }
            // The conversion to an array fails for turns that lack a sample, so these turns are dropped.
            turns.into_values().filter_map(|slices| slices.try_into().ok()).collect()
        };
        Some((0..self.generations).map(of_generation).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_of_added_times_needs_a_divisor_that_is_certainly_above_zero() {
        let (own, than) = (Interval::around(30.0, 3.0), Interval::around(100.0, 20.0));
        let ratio = ratio_of_added(own, than).unwrap();
        assert_eq!([ratio.low, ratio.median, ratio.high], [27.0 / 120.0, 0.3, 33.0 / 80.0]);
        let around_zero = Interval { low: -4.0, ..own };
        assert_eq!(ratio_of_added(around_zero, than).unwrap().low, -4.0 / 80.0);
        assert_eq!(ratio_of_added(own, Interval::around(100.0, 100.0)), None);
        assert!(!ratio_of_added(own, Interval { sure: false, ..than }).unwrap().sure);
    }
}

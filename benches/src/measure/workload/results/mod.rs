//! What was measured, and the rows that are made of it.

mod rows;

use std::collections::BTreeMap;

use super::case::{Case, Done, Info};
use super::exchange::Slice;
use super::mode::Mode;
use crate::catalogue::Id;
use crate::instruments::alloc::Counts;
use crate::row::{Row, Sink};
use crate::stats::Interval;
use crate::stats::sample::{Sample, equally_fast};

/// Which nanoseconds of a case in a mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum What {
    Total,
    Part(String),
    /// Its messages, only written.
    Raw,
    /// The same by the inlined system call.
    Inlined,
}

/// Whether the messages of an operation are written again by themselves, and what that is compared to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawWrites {
    /// Nobody asks.
    Untimed,
    /// What the operation takes above each mode that it is compared to.
    OfWhatIsAdded,
    /// All that the operation takes.
    OfTheWhole,
}

/// What rows are called, of a case and a mode.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// The operation's.
    pub row: fn(&str, &str) -> String,
    /// That of the writes of its messages.
    pub raw: fn(&str, &str) -> String,
    /// That of the same by the inlined system call, the least that they can cost.
    pub inlined: fn(&str, &str) -> String,
    /// Whether there are such.
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

/// A case, a mode and which nanoseconds of them.
pub(super) type Key = (usize, usize, What);

/// For every generation, its slices, with their turns.
type Rounds = Vec<Vec<(usize, Sample)>>;

/// What was measured of all cases in all modes.
pub struct Results {
    modes: Vec<Mode>,
    cases: Vec<Info>,
    sink: Sink,
    names: Names,
    generations: usize,
    rounds: BTreeMap<Key, Rounds>,
    allocated: BTreeMap<(usize, usize), (Counts, u64)>,
    counts: BTreeMap<(usize, usize), BTreeMap<String, Vec<f64>>>,
    /// How many slices of Perfetto's way have lost events, and have not.
    whole: [u64; 2],
    /// How long the chain takes at the speed that times are given at; known when all has run.
    reference: f64,
    rows: Vec<Row>,
    /// Where in `rows` what is.
    places: BTreeMap<Key, usize>,
}

impl Results {
    pub(super) fn new(modes: Vec<Mode>, cases: Vec<Case>, sink: Sink, names: Names) -> Self {
        Self {
            modes,
            cases: cases.into_iter().map(|case| case.info).collect(),
            sink,
            names,
            generations: 0,
            rounds: BTreeMap::new(),
            allocated: BTreeMap::new(),
            counts: BTreeMap::new(),
            whole: [0; 2],
            reference: 1.0,
            rows: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    /// Returns the modes.
    pub fn modes(&self) -> &[Mode] {
        &self.modes
    }

    /// Returns all rows.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the ids of the cases that ran and can be traced.
    pub fn traced_cases(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|case| case.selected && case.traced).map(|case| &case.id[..])
    }

    /// Returns the ids of the cases that ran.
    pub(super) fn case_ids(&self) -> impl Iterator<Item = &str> {
        self.cases.iter().filter(|case| case.selected).map(|case| &case.id[..])
    }

    fn units_of(&self, case: usize) -> f64 {
        let counted = |name| median(self.counts.get(&(case, self.mode("nosub")?))?.get(name)?);
        self.cases[case].per.and_then(counted).filter(|&n| n >= 1.0).unwrap_or(1.0)
    }

    /// The mode that a mode is promised to take as long as; itself if there is none.
    pub(super) fn twin(&self, mode: usize) -> usize {
        self.modes[mode].twin.and_then(|twin| self.mode(twin)).unwrap_or(mode)
    }

    /// How far one turn of a case in a mode is from that of its twin, as a multiple of what is allowed.
    pub(super) fn spread(&self, case: usize, mode: usize, twin: usize) -> Option<f64> {
        let key = |mode| (case, mode, What::Total);
        if mode == twin {
            return None;
        }
        let pairs: Vec<_> = self.together([&key(mode), &key(twin)])?.concat();
        let all: Vec<f64> = pairs.iter().map(|[_, base]| base.ns).collect();
        let pairs = pairs.iter().filter(|pair| equally_fast(&pair[..]));
        let differences: Vec<f64> = pairs.map(|[own, base]| (own.ns - base.ns).abs()).collect();
        // Of a normal distribution the median distance from the middle, which is 0 if the promise is kept.
        let spread = median(&differences)? / 0.6745;
        Some(spread / allowed(median(&all)?, self.units_of(case)))
    }

    /// Returns the parts that a case reported.
    pub fn parts(&self, case: &str) -> &[String] {
        self.case(case).map_or(&[], |case| &self.cases[case].parts)
    }

    /// Returns the row of a case in a mode (`none` for one without modes).
    pub fn row(&self, case: &str, mode: &str) -> Option<&Row> {
        self.row_of(case, mode, What::Total)
    }

    /// Returns the row of a part of a case.
    pub fn part(&self, case: &str, part: &str, mode: &str) -> Option<&Row> {
        self.row_of(case, mode, What::Part(part.to_owned()))
    }

    /// Returns what a case allocated in a mode, and in how many operations.
    pub fn allocated(&self, case: &str, mode: &str) -> Option<(Counts, u64)> {
        self.allocated.get(&(self.case(case)?, self.mode(mode)?)).copied()
    }

    /// Adds to the row of a case in a mode what was found otherwise than by its rounds, in
    /// [`Workload::profile`](super::Workload::profile). There is no such row: nothing is added.
    pub fn gauge(&mut self, case: &str, mode: &str, name: &str, value: f64) {
        let Some(key) = self.case(case).zip(self.mode(mode)) else { return };
        if let Some(counts) = self.counts.get_mut(&key) {
            counts.entry(name.to_owned()).or_default().push(value);
        }
    }

    /// Adds a row of [how much longer](Self::difference) one takes than the other, if it is known to.
    pub fn add_difference(&mut self, id: String, of: (&str, &str), base: (&str, &str)) {
        let longer = self.difference(of, base).filter(|longer| longer.low > 0.0);
        self.rows.extend(longer.map(|longer| Row::new(id, longer, self.sink)));
    }

    /// Tells whether the allocations of a case are the same in each run.
    pub fn allocates_exactly(&self, case: &str) -> bool {
        self.case(case).is_some_and(|case| self.cases[case].exact)
    }

    /// How many more allocations and bytes an operation of a case has in a mode than in another.
    pub(super) fn allocated_above(&self, case: &str, mode: &str, base: &str) -> Option<(f64, f64)> {
        self.allocated_more(self.case(case)?, self.mode(mode)?, self.mode(base)?)
    }

    /// Returns how many nanoseconds longer one operation of a case in a mode takes than one of another case
    /// in another mode, each `(case, mode)` or `(case/part, mode)`: the median of the differences in a turn, with the
    /// interval [of clusters](Interval::of_clusters), which the generations are.
    ///
    /// # Panics
    ///
    /// When the two cases have no turns together: [`Case::beside`] gives them some.
    pub fn difference(&self, of: (&str, &str), base: (&str, &str)) -> Option<Interval> {
        let (of, base) = self.beside(of, base)?;
        self.above(&of, &base)
    }

    /// As [`difference`](Self::difference), how many times as long.
    ///
    /// # Panics
    ///
    /// As that.
    pub fn ratio(&self, of: (&str, &str), base: (&str, &str)) -> Option<Interval> {
        let (of, base) = self.beside(of, base)?;
        self.times(&of, &base)
    }

    /// Returns what a case takes in one mode above a base, as a multiple of what it takes in another above that.
    pub fn added(&self, case: &str, mode: &str, than: &str, base: &str) -> Option<Interval> {
        let key = |mode| Some((self.case(case)?, self.mode(mode)?, What::Total));
        self.added_of(&key(mode)?, &key(than)?, &key(base)?)
    }

    /// How many slices of Perfetto's way have lost events, and have not.
    pub(super) fn whole(&self) -> [u64; 2] {
        self.whole
    }

    /// The keys of two that share turns.
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

    pub(super) fn cases(&self) -> &[Info] {
        &self.cases
    }

    pub(super) fn case_id(&self, case: usize) -> &str {
        &self.cases[case].id
    }

    pub(super) fn is_exact(&self, case: usize) -> bool {
        self.cases[case].exact
    }

    /// Whether anybody asks what writing the messages alone takes.
    pub(super) fn writes_are_timed(&self) -> bool {
        self.names.raw_writes != RawWrites::Untimed
    }

    /// Whether what an operation takes is compared to its writes as a whole.
    pub(super) fn compares_the_whole(&self) -> bool {
        self.names.raw_writes == RawWrites::OfTheWhole
    }

    pub(super) fn is_counted(&self, case: usize) -> bool {
        self.cases[case].counted
    }

    /// Whether a case runs in a mode: never if it is not selected.
    pub(super) fn runs_in(&self, case: usize, mode: usize) -> bool {
        let Info { selected, traced, not_in, .. } = self.cases[case];
        let mode = &self.modes[mode];
        selected && (traced || !mode.compiled_in) && !not_in.contains(&mode.name)
    }

    /// The modes that a case runs in, by their places.
    pub(super) fn modes_of(&self, case: usize) -> impl Iterator<Item = usize> + use<> {
        let runs: Vec<bool> = (0..self.modes.len()).map(|mode| self.runs_in(case, mode)).collect();
        (0..runs.len()).filter(move |&mode| runs[mode])
    }

    /// The cases that are selected, those together that have turns together.
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

    /// The ids of all rows that are not parts, which only a run tells.
    pub(super) fn ids(&self) -> Vec<String> {
        let all = |case| self.modes_of(case).map(move |mode| self.id(case, mode, &What::Total));
        (0..self.cases.len()).flat_map(all).collect()
    }

    /// Keeps the cases any of whose ids is asked for, in all their modes.
    pub(super) fn select(&mut self, asked: impl Fn(&str) -> bool) {
        for case in 0..self.cases.len() {
            self.cases[case].selected =
                self.modes_of(case).any(|mode| asked(&self.id(case, mode, &What::Total)));
        }
    }

    /// Whether all cases are kept.
    pub(super) fn is_whole(&self) -> bool {
        self.cases.iter().all(|case| case.selected)
    }

    /// Whether no case is kept.
    pub(super) fn is_empty(&self) -> bool {
        self.cases.iter().all(|case| !case.selected)
    }

    pub(super) fn begin_generation(&mut self) {
        self.generations += 1;
    }

    /// Adds a slice; but one that has lost events of Perfetto's way, which were not paid for, is only counted.
    pub(super) fn add(&mut self, case: usize, mode: usize, round: usize, n: u64, slice: &Slice) {
        if let Some(lost) = slice.done.lost {
            self.whole[usize::from(lost == 0)] += 1;
            if lost > 0 {
                return;
            }
        }
        self.push((case, mode, What::Total), round, slice.sample(slice.took, n));
        for (name, (took, operations)) in &slice.done.parts {
            if !self.cases[case].parts.iter().any(|part| part == name) {
                self.cases[case].parts.push(name.to_string());
            }
            self.push((case, mode, What::Part(name.to_string())), round, slice.sample(*took, *operations));
        }
        let Done { counts, gauges, .. } = &slice.done;
        let per_op = counts.iter().map(|(name, total)| (name, *total as f64 / n as f64));
        let of = self.counts.entry((case, mode)).or_default();
        for (name, value) in per_op.chain(gauges.iter().map(|(name, value)| (name, *value))) {
            of.entry(name.to_string()).or_default().push(value);
        }
    }

    /// Adds what writing one of its messages takes, beside the slice whose messages they are.
    pub(super) fn add_raw(
        &mut self,
        (case, mode): (usize, usize),
        turn: usize,
        one: Sample,
        inlined: bool,
        n: u64,
        slice: &Slice,
    ) {
        let what = if inlined { What::Inlined } else { What::Raw };
        let all = Sample { ns: one.ns * slice.done.messages as f64 / n as f64, ..one };
        self.push((case, mode, what), turn, all);
    }

    pub(super) fn set_counts(&mut self, case: usize, mode: usize, counted: Option<Counts>, n: u64) {
        if let Some(counts) = counted {
            self.allocated.insert((case, mode), (counts, n));
        }
    }

    pub(super) fn push(&mut self, key: Key, turn: usize, sample: Sample) {
        let rounds = self.rounds.entry(key).or_default();
        rounds.resize(self.generations, Vec::new());
        rounds[self.generations - 1].push((turn, sample));
    }
}

/// A difference of zero may be this many nanoseconds…
const ZERO_NS: f64 = 2.0;
/// …or this part of what it is a difference to, whichever is more.
const ZERO_RATIO: f64 = 0.01;

/// How many nanoseconds a difference of zero may be, to an operation that takes so long and
/// has so many units that it is about.
fn allowed(ns: f64, units: f64) -> f64 {
    (ZERO_NS * units).max(ZERO_RATIO * ns)
}

fn median(samples: &[f64]) -> Option<f64> {
    Interval::of(samples).map(|interval| interval.median)
}

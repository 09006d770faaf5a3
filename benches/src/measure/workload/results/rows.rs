//! The rows that are made of what was measured.

use std::collections::BTreeMap;

use super::super::case::Info;
use super::{Key, RawWrites, Results, Rounds, What, allowed, median};
use crate::row::{Above, Row, Versus};
use crate::stats::Interval;
use crate::stats::sample::{self, Sample};

impl Results {
    /// Makes the rows.
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
        let at_reference = |all: &Vec<(usize, Sample)>| {
            median(&all.iter().map(|(_, sample)| sample.at(self.reference)).collect::<Vec<_>>())
        };
        // A generation may have none: its slices lost events.
        let medians: Vec<_> = rounds.iter().filter_map(at_reference).collect();
        let all: Vec<Sample> = rounds.iter().flatten().map(|(_, sample)| *sample).collect();
        let mut row = Row::new(self.id(*case, *mode, what), Interval::of(&medians)?, self.sink)
            .with_rounds(&all.iter().map(|sample| sample.ns).collect::<Vec<_>>());
        row.speeds = sample::range(&all, self.reference);
        let per_op = (*what == What::Total).then(|| self.per_op(*case, *mode)).flatten();
        if let Some((allocs, bytes)) = per_op {
            (row.allocs, row.bytes) = (Some(allocs), Some(bytes));
        }
        if *what == What::Total {
            let counts = self.counts.get(&(*case, *mode)).into_iter().flatten();
            row.counts.extend(counts.filter_map(|(name, all)| Some((name.clone(), median(all)?))));
        }
        if matches!(what, What::Raw | What::Inlined) {
            return Some(row);
        }
        if self.compares_the_whole() {
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
                // What may be less than nothing is no number of times as long as something.
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

    /// How many more allocations and bytes an operation has in a mode than in another.
    pub(super) fn allocated_more(&self, case: usize, mode: usize, base: usize) -> Option<(f64, f64)> {
        let (own, base) = (self.per_op(case, mode)?, self.per_op(case, base)?);
        // Where threads allocate when they please, fewer than the other had is none seen.
        let least = if self.cases[case].exact { f64::NEG_INFINITY } else { 0.0 };
        Some(((own.0 - base.0).max(least), (own.1 - base.1).max(least)))
    }

    fn per_op(&self, case: usize, mode: usize) -> Option<(f64, f64)> {
        let (counts, n) = self.allocated.get(&(case, mode))?;
        Some((counts.allocs as f64 / *n as f64, counts.bytes as f64 / *n as f64))
    }

    /// The difference, as a multiple of the raw writes of the same round.
    fn of_raw_writes(&self, key: &Key, base: &Key) -> Option<Interval> {
        if key.2 != What::Total || self.names.raw_writes != RawWrites::OfWhatIsAdded {
            return None;
        }
        let raw = (key.0, key.1, What::Raw);
        self.generations([key, base, &raw], |[own, base, raw]| (own.ns - base.ns) / raw.ns)
    }

    /// What one takes above a base, as a multiple of what another does, where that takes more in each turn.
    pub(super) fn added_of(&self, key: &Key, than: &Key, base: &Key) -> Option<Interval> {
        self.generations([key, than, base], |[own, than, base]| (own.ns - base.ns) / (than.ns - base.ns))
            .filter(|_| self.above(than, base).is_some_and(|above| above.low > 0.0))
    }

    /// How many nanoseconds longer, at the reference speed.
    pub(super) fn above(&self, key: &Key, base: &Key) -> Option<Interval> {
        self.generations([key, base], |[own, base]| own.at(self.reference) - base.at(self.reference))
    }

    /// The cases that run in a mode and in its twin.
    pub(in crate::measure::workload) fn twins(&self, mode: usize) -> Vec<usize> {
        let twin = self.twin(mode);
        let both = |case: &usize| self.runs_in(*case, mode) && self.runs_in(*case, twin);
        (0..self.cases.len()).filter(both).collect()
    }

    /// How far a mode is from its twin, in all slices of these cases together: parts of what a difference may be that should be
    /// none.
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

    /// How many times as long.
    pub(super) fn times(&self, key: &Key, base: &Key) -> Option<Interval> {
        self.generations([key, base], |[own, base]| own.ns / base.ns)
    }

    /// What `f` says of the slices of the turns in which there are all of these keys', the generations being clusters.
    fn generations<const N: usize>(
        &self,
        keys: [&Key; N],
        f: impl Fn([Sample; N]) -> f64,
    ) -> Option<Interval> {
        sample::compare(&self.together(keys)?, self.reference, f, Interval::of_clusters)
    }

    /// Of every generation, the turns in which there are slices of all of these keys.
    pub(super) fn together<const N: usize>(&self, keys: [&Key; N]) -> Option<Vec<Vec<[Sample; N]>>> {
        let all: Vec<&Rounds> = keys.into_iter().map(|key| self.rounds.get(key)).collect::<Option<_>>()?;
        let of_generation = |generation: usize| {
            let mut turns = BTreeMap::<usize, Vec<Sample>>::new();
            for &(turn, sample) in all.iter().filter_map(|rounds| rounds.get(generation)).flatten() {
                turns.entry(turn).or_default().push(sample);
            }
            // Those with fewer are no array of so many.
            turns.into_values().filter_map(|slices| slices.try_into().ok()).collect()
        };
        Some((0..self.generations).map(of_generation).collect())
    }
}

//! What a test knows of a workload's tables without measuring: what they look like of made-up numbers, and that each line of its
//! original's has a row.

use std::io;

use super::Workload;
use super::results::{Key, Results, What};
use crate::catalogue::published::lines::{Field, Line, originals};
use crate::instruments::alloc::Counts;
use crate::row::Row;
use crate::stats::sample::Sample;
use crate::table::Table;

/// What the tables of a workload look like where each number is made up of the name of what it is about.
#[derive(Clone, Copy, Debug)]
pub struct Golden {
    /// Which cases are in them.
    pub cases: fn(&str) -> bool,
    /// Makes up what [`Workload::profile`] finds.
    pub profile: fn(&mut Results),
    /// The tables.
    pub tables: &'static str,
}

impl Golden {
    /// Fails where the tables of the workload are others.
    pub(super) fn check<W: Workload>(&self, results: &Results) -> io::Result<()> {
        let mut made_up = results.made_up(self.cases);
        (self.profile)(&mut made_up);
        made_up.finish();
        let text = texts(&W::tables(&made_up));
        if text == self.tables {
            return Ok(());
        }
        Err(io::Error::other(format!(
            "of made-up numbers the tables are not what they should be, but:\n{text}"
        )))
    }
}

/// As they are printed, one below the other.
pub(super) fn texts(tables: &[Table]) -> String {
    tables.iter().map(Table::to_string).collect::<Vec<_>>().join("\n")
}

/// Another number for each name.
fn number(of: &str) -> u32 {
    1000 + of.bytes().fold(7, |sum, byte| (sum * 31 + u32::from(byte)) % 8999)
}

impl Results {
    /// These cases, with made-up numbers.
    fn made_up(&self, cases: fn(&str) -> bool) -> Self {
        let mut made_up = self.empty(cases);
        // What runs in a mode may have lost events, so that there is no row.
        let all =
            (0..self.cases().len()).flat_map(|case| made_up.modes_of(case).map(move |mode| (case, mode)));
        let whats = |(case, mode)| {
            let parts = self.parts(self.case_id(case)).iter().cloned().map(What::Part);
            let raw = Some(What::Raw).filter(|raw| self.has(&(case, mode, raw.clone())));
            parts.chain([What::Total]).chain(raw).map(move |what| (case, mode, what))
        };
        let keys: Vec<Key> = all.flat_map(whats).collect();
        for generation in 0..6 {
            made_up.begin_generation();
            for key in &keys {
                let ns = f64::from(number(&self.id(key.0, key.1, &key.2)) + 10 * generation);
                made_up.push(key.clone(), 0, Sample::of(ns));
            }
        }
        for (case, mode, _) in keys.into_iter().filter(|key| key.2 == What::Total) {
            let of = |what: &str| number(&format!("{} {what}", self.id(case, mode, &What::Total)));
            if self.allocated(self.case_id(case), self.modes()[mode].name()).is_some() {
                let [allocs, bytes, frees, freed, peak] =
                    ["allocs", "bytes", "frees", "freed", "peak"].map(|what| of(what).into());
                made_up.set_counts(case, mode, Some(Counts { allocs, bytes, frees, freed, peak }), 10);
            }
            for name in self.names_of_counts(case) {
                made_up.gauge(
                    self.case_id(case),
                    self.modes()[mode].name(),
                    name,
                    f64::from(of(name)) / 100.0,
                );
            }
        }
        made_up
    }
}

/// Tells which row, or number of a row, there should be of a line of an original and is not; `None`: there are all.
pub(super) fn unanswered<W: Workload>(results: &Results) -> Option<String> {
    let originals = originals().into_iter().filter(|original| original.bench == W::NAME);
    // Nor is it 0 where the original's is not, without a reason.
    let says = |number: f64, may_be_zero: bool| may_be_zero || number != 0.0;
    let measured = |row: &Row, field: Field, may_be_zero: bool| match field {
        Field::Time | Field::PerSecond => true,
        Field::Rate | Field::Bytes => row.bytes.is_some_and(|bytes| says(bytes, may_be_zero)),
        Field::Count(name) => row.counts.get(name).is_some_and(|count| says(*count, may_be_zero)),
    };
    let mut all = originals.flat_map(|original| {
        let line = |line: Line| Some((line.here.ok()?, line.zero.is_some() || line.there == Some(0.0)));
        let checks = [original.check.of, original.check.by].map(|of| (of, false));
        original.groups.into_iter().flatten().filter_map(line).chain(checks)
    });
    let (missing, _) = all.find(|(of, may_be_zero)| {
        !results.rows().iter().any(|row| row.id == of.id && measured(row, of.field, *may_be_zero))
    })?;
    Some(format!("the original has a line of {} ({:?}): there is no such number", missing.id, missing.field))
}

//! A promise beside what was measured of it.
//!
//! There is one form for all promises: of ratios, of differences, of counts. A bench leaves those that it has judged in
//! `promises/<bench>.json` beside its rows, for the report and for the screen that ends `cargo bench`.
//!
//! - **kept**: the whole interval of what was measured is within what was asked for;
//! - **missed**: the whole interval is outside;
//! - **open**: a part of it is, or there were fewer than six pairs of slices to know it by.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::catalogue::promises::{self, Promise, SYSTEM_CALLS, must_not_allocate};
use crate::catalogue::{BENCHES, INSTRUCTIONS, Id};
use crate::row::{Row, dir, replace};
use crate::stats::Interval;
use crate::table::number::{count, ratio};

/// The directory of these files within that of the rows.
const DIRECTORY: &str = "promises";

/// What came of a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// What was measured is outside of what was asked for.
    Missed,
    /// It is not known well enough.
    Open,
    /// It is within.
    Kept,
}

impl Verdict {
    /// Judges something that is known exactly.
    pub const fn kept_if(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::Missed }
    }

    /// Judges an interval that should not be above `limit`.
    pub fn at_most(limit: f64, of: impl Into<Interval>) -> Self {
        match of.into() {
            Interval { sure: false, .. } => Self::Open,
            of if of.high <= limit => Self::Kept,
            of if of.low > limit => Self::Missed,
            _ => Self::Open,
        }
    }

    /// Judges an interval that should not be below `limit`.
    pub fn at_least(limit: f64, of: impl Into<Interval>) -> Self {
        let Interval { median, low, high, sure } = of.into();
        Self::at_most(-limit, Interval { median: -median, low: -high, high: -low, sure })
    }

    /// Judges an interval that should be between two limits.
    pub fn within(limits: [f64; 2], of: Interval) -> Self {
        // Missed is worse than open, and open than kept.
        Self::at_least(limits[0], of).min(Self::at_most(limits[1], of))
    }

    /// As it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Missed => "MISSED",
            Self::Open => "open",
        }
    }
}

/// A promise, what was measured of it, and whether it was kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// What is promised, in words that all of a group have: `off, of C++`.
    pub promise: String,
    /// Of which case, or of what else.
    pub of: String,
    /// What was measured, such as `0.13`.
    pub measured: String,
    /// More about that, such as its interval.
    pub more: String,
    /// What was asked for, such as `≤ 0.20`.
    pub limit: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Whether it is about something that is counted: it holds in a test, too, and breaking it fails the bench.
    pub exact: bool,
}

impl Judged {
    /// Makes a promise about time.
    pub fn new(
        promise: impl Into<String>,
        of: impl Into<String>,
        measured: impl Into<String>,
        limit: impl Into<String>,
        verdict: Verdict,
    ) -> Self {
        Self {
            promise: promise.into(),
            of: of.into(),
            measured: measured.into(),
            more: String::new(),
            limit: limit.into(),
            verdict,
            exact: false,
        }
    }

    /// Makes a promise that something measured is at most `limit`, in this unit and with so many decimal places.
    pub fn at_most(
        promise: impl Into<String>,
        of: impl Into<String>,
        measured: impl Into<Interval>,
        limit: f64,
        (places, unit): (usize, &str),
    ) -> Self {
        let interval = measured.into();
        let [median, low, high] =
            [interval.median, interval.low, interval.high].map(|x| format!("{x:.places$}"));
        let verdict = Verdict::at_most(limit, interval);
        let judged = Self::new(promise, of, median + unit, format!("≤ {limit}{unit}"), verdict);
        judged.more(format!("{low} – {high}"))
    }

    /// Says more about what was measured.
    pub fn more(mut self, more: impl Into<String>) -> Self {
        self.more = more.into();
        self
    }

    /// Makes it one about something that is counted.
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Tells whether this fails the bench.
    pub fn fails(&self) -> bool {
        self.exact && self.verdict != Verdict::Kept
    }

    /// Judges promises about differences, by these rows, and what is promised of system calls that were counted. A promise that
    /// no row is of is left out.
    pub fn of_differences(promises: &[Promise], rows: &[Row]) -> Vec<Self> {
        let mut all = Vec::new();
        for Promise { name, id, base, at_most } in promises {
            let [id_text, base] = [id, base].map(Id::to_string);
            let row = rows.iter().find(|row| row.id == id_text);
            let Some(above) = row.and_then(|row| row.above.get(&base)) else { continue };
            let judged = Self::at_most(*name, id.short(), above.interval(), *at_most, (1, " ns"));
            let more = format!("{} above {base}", judged.more);
            all.push(judged.more(more));
        }
        let (name, most) = SYSTEM_CALLS;
        for (row, calls) in rows.iter().filter_map(|row| Some((row, row.counts.get(name)?))) {
            let verdict = Verdict::kept_if(*calls <= most);
            let (of, measured) = (Id::of(&row.id).short(), format!("{calls:.4}"));
            all.push(Self::new(
                "system calls an event, of 100,000 a second",
                of,
                measured,
                format!("≤ {most}"),
                verdict,
            ));
        }
        all
    }

    /// Judges the promises of the catalogue by the ratios of these rows, and by what they allocate. A promise that no row
    /// is of is left out.
    pub fn of_rows(promises: &[Promise], rows: &[Row]) -> Vec<Self> {
        let mut all = Vec::new();
        for Promise { name, id, base, at_most } in promises {
            let [id_text, base] = [id, base].map(Id::to_string);
            let Some(row) = rows.iter().find(|row| row.id == id_text) else { continue };
            let Some(v) = row.versus(&base) else { continue };
            let verdict = Verdict::at_most(*at_most, *v);
            let judged = Self::new(*name, id.short(), ratio(v.ratio), format!("≤ {at_most:.2}"), verdict);
            let few = if v.sure { "" } else { ", from fewer than six pairs" };
            all.push(judged.more(format!("{}–{} of {base}{few}", ratio(v.low), ratio(v.high))));
        }
        // A count is of a thousand operations, and what is done once for all of them.
        let instructions = |id: &Id| {
            let id = id.to_string();
            let row = rows.iter().find(|row| row.id == id)?;
            row.counts.get(INSTRUCTIONS).map(|n| n.round())
        };
        for Promise { id, at_most, .. } in promises::of("instructions") {
            let judged = |n| {
                let verdict = Verdict::kept_if(n <= at_most);
                Self::new(INSTRUCTIONS, id.short(), count(n), format!("≤ {at_most}"), verdict)
            };
            all.extend(instructions(&id).map(judged));
        }
        for Promise { name, id, base, at_most } in promises::of("instructions of others") {
            let Some((n, of)) = instructions(&id).zip(instructions(&base)) else { continue };
            let verdict = Verdict::kept_if(n <= at_most * of);
            let judged = Self::new(name, id.short(), ratio(n / of), format!("≤ {at_most:.2}"), verdict);
            all.push(judged.more(format!("{} and {} of {base}", count(n), count(of))));
        }
        let counted = rows.iter().filter(|row| must_not_allocate(&Id::of(&row.id)));
        let counted: Vec<(&Row, f64)> = counted.filter_map(|row| Some((row, row.allocs?))).collect();
        let of = format!("all {} rows", counted.len());
        let allocating: Vec<_> = counted.iter().filter(|(_, allocs)| *allocs > 0.0).collect();
        const NAME: &str = "allocations of an operation";
        for (row, allocs) in &allocating {
            all.push(Self::new(NAME, &row.id, count(*allocs), "0", Verdict::Missed));
        }
        if !counted.is_empty() && allocating.is_empty() {
            all.push(Self::new(NAME, of, "0", "0", Verdict::Kept));
        }
        all
    }
}

/// Writes what a bench has judged, and returns where.
///
/// # Errors
///
/// What the system answered, with the file it was about.
pub fn write(bench: &str, all: &[Judged]) -> io::Result<PathBuf> {
    let dir = dir().join(DIRECTORY);
    let name = format!("{bench}.json");
    replace(&dir, &name, (serde_json::to_string_pretty(all)? + "\n").as_bytes())?;
    Ok(dir.join(name))
}

/// Reads what the benches have judged whose rows are in `measured`, by the bench's name, in the order of a full run. What
/// can't be read is named.
pub fn read(measured: &Path) -> (Vec<(String, Vec<Judged>)>, Vec<String>) {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    let mut found = BTreeMap::new();
    for bench in BENCHES {
        let path = measured.join(DIRECTORY).join(format!("{}.json", bench.name));
        match std::fs::read(&path).map(|text| serde_json::from_slice(&text)) {
            Ok(Ok(judged)) => _ = found.insert(bench.name, judged),
            Ok(Err(e)) => problems.push(format!("{} can't be read: {e}", path.display())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => problems.push(format!("{} can't be read: {e}", path.display())),
        }
    }
    for bench in BENCHES {
        all.extend(found.remove(bench.name).map(|judged| (bench.name.to_owned(), judged)));
    }
    (all, problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::promises;
    use crate::row::{Sink, Versus};

    #[test]
    fn the_interval_decides() {
        let interval = |low, high| Interval { median: low, low, high, sure: true };
        let verdicts = |low, high| {
            let of = interval(low, high);
            [Verdict::at_most(0.2, of), Verdict::at_least(0.2, of)]
        };
        assert_eq!(verdicts(0.1, 0.2), [Verdict::Kept, Verdict::Open]);
        assert_eq!(verdicts(0.19, 0.21), [Verdict::Open; 2]);
        assert_eq!(verdicts(0.21, 0.22), [Verdict::Missed, Verdict::Kept]);
        assert_eq!(verdicts(0.1, 0.19), [Verdict::Kept, Verdict::Missed]);
        let unsure = Interval { sure: false, ..interval(0.1, 0.1) };
        assert_eq!(Verdict::at_most(0.2, unsure), Verdict::Open);
        assert_eq!(Verdict::at_least(0.2, unsure), Verdict::Open);
        assert_eq!(Verdict::within([0.0, 0.2], unsure), Verdict::Open);
    }

    #[test]
    fn a_ratio_is_judged_though_the_time_is_noisy() {
        let row = |id: &str, [low, ratio, high]: [f64; 3], noisy: bool, allocs: f64| {
            let mut row = Row::new(id, Interval::around(1.0, 0.0), Sink::Null);
            row.vs.insert(id.replace("rust", "cc"), Versus { ratio, low, high, sure: true });
            (row.noisy, row.allocs) = (noisy, Some(allocs));
            row
        };
        let mut rows = [
            row("rust/tracing_off_begin/10", [0.18, 0.19, 0.20], true, 0.0),
            row("rust/tracing_off_begin/1000", [0.21, 0.22, 0.23], false, 0.0),
            row("rust/tracing_off_end", [0.10, 0.19, 0.28], false, 0.0),
        ];
        let judged = |rows: &[Row]| Judged::of_rows(&promises::of("events"), rows);
        let all = judged(&rows);
        let verdicts: Vec<Verdict> = all.iter().map(|judged| judged.verdict).collect();
        assert_eq!(verdicts, [Verdict::Kept, Verdict::Missed, Verdict::Open, Verdict::Kept]);
        assert_eq!(
            (&all[0].of[..], &all[0].measured[..], &all[0].limit[..]),
            ("off_begin/10", "0.19", "≤ 0.20")
        );
        assert_eq!(all[3].of, "all 3 rows");
        rows[0].counts.insert(INSTRUCTIONS.to_owned(), 13.07);
        let instructions =
            |rows: &[Row]| judged(rows).into_iter().find(|judged| judged.promise == INSTRUCTIONS);
        assert_eq!(instructions(&rows).unwrap().verdict, Verdict::Kept);
        rows[0].counts.insert(INSTRUCTIONS.to_owned(), 14.07);
        assert_eq!(instructions(&rows).unwrap().verdict, Verdict::Missed);
        rows[0].counts.clear();
        let filtered = |n| {
            let row = |id: &str, n| {
                let mut row = Row::new(id, Interval::around(1.0, 0.0), Sink::Null);
                row.counts.insert(INSTRUCTIONS.to_owned(), n);
                row
            };
            let all = judged(&[row("perfetto/filtered_span", n), row("limit/no_subscriber_span", 27.08)]);
            assert_eq!(all.len(), 1, "{all:?}");
            (all[0].measured.clone(), all[0].verdict)
        };
        assert_eq!(filtered(27.09), ("1.00".to_owned(), Verdict::Kept));
        assert_eq!(filtered(28.09), ("1.04".to_owned(), Verdict::Missed));
        rows[0].vs.values_mut().for_each(|v| v.sure = false);
        let few = &judged(&rows)[0];
        assert_eq!(few.verdict, Verdict::Open);
        assert!(few.more.ends_with("from fewer than six pairs"), "{few:?}");
        rows[0].allocs = Some(1.0);
        let last = judged(&rows).pop().unwrap();
        assert_eq!((&last.of[..], last.verdict), ("rust/tracing_off_begin/10", Verdict::Missed));
    }

    #[test]
    fn differences_and_system_calls_are_judged() {
        let mut row = Row::new("perfetto/tracing_on_begin/10", Interval::around(30.0, 0.0), Sink::Null);
        let judged = |row: &Row| {
            let all = Judged::of_differences(&promises::of("differences"), std::slice::from_ref(row));
            all.into_iter().map(|judged| (judged.measured, judged.limit, judged.verdict)).collect::<Vec<_>>()
        };
        assert_eq!(judged(&row), []);
        row.above.insert("limit/timestamp".to_owned(), Interval::around(21.0, 0.5).into());
        let kept = ("21.0 ns".to_owned(), "≤ 22 ns".to_owned(), Verdict::Kept);
        assert_eq!(judged(&row), [kept]);
        row.above.insert("limit/timestamp".to_owned(), Interval::around(23.0, 0.5).into());
        row.counts.insert("system_calls".to_owned(), 0.02);
        let verdicts: Vec<_> = judged(&row).into_iter().map(|judged| judged.2).collect();
        assert_eq!(verdicts, [Verdict::Missed, Verdict::Missed]);
    }

    #[test]
    fn what_is_counted_fails_where_it_is_not_kept() {
        let judged = |verdict| Judged::new("p", "x", "1", "0", verdict);
        assert!(!judged(Verdict::Missed).fails() && judged(Verdict::Missed).exact().fails());
        assert!(!judged(Verdict::Kept).exact().fails());
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let all = vec![Judged::new("p", "x", "1", "0", Verdict::Open).more("0–2")];
        let text = serde_json::to_string(&all).unwrap();
        replace(&dir.path().join(DIRECTORY), "atrace.json", text.as_bytes()).unwrap();
        replace(&dir.path().join(DIRECTORY), "live.json", b"[7]").unwrap();
        let (found, problems) = read(dir.path());
        assert_eq!(found, [("atrace".to_owned(), all)]);
        assert!(problems.len() == 1 && problems[0].contains("live.json"), "{problems:?}");
    }
}

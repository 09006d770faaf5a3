//! Promises (limits for measured results) and the verdicts about them. A bench judges its promises and writes the
//! verdicts to a file. At the end of a run of all benches, the verdicts of all benches are printed.
//!
//! Verdicts have the same form for promises about ratios, differences and counts. A bench writes its verdicts to
//! `promises/<bench>.json` in the directory of its rows (results). The report and the [`Screen`] at the end of `cargo
//! bench` read the verdicts there.
//!
//! - **kept**: the whole interval of the measured value is within the limit;
//! - **missed**: the whole interval of the measured value is outside of the limit;
//! - **open**: the limit is within the interval of the measured value, or the interval is not sure. It is not sure if
//!   it comes from fewer than six pairs of measurements (in a workload, from fewer than six sets of processes), or if
//!   events were lost.
//!
//! The [`Screen`] has a line for each group of promises with the same words. The line has the worst verdict, and the
//! first of the measured values.

use std::path::{Path, PathBuf};
use std::{fmt, io};

use serde::{Deserialize, Serialize};

use crate::catalogue::promises::{self, Promise, SYSTEM_CALLS, must_not_allocate};
use crate::catalogue::{BENCHES, INSTRUCTIONS, Id};
use crate::row::file::json;
use crate::row::{Row, dir, replace};
use crate::stats::Interval;
use crate::table::number::{count, ratio};

/// The directory of the verdicts, within the directory of the rows (results).
const DIRECTORY: &str = "promises";

/// The verdict about a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The whole interval of the measured value is outside the limit.
    Missed,
    /// The measured value is too uncertain to decide.
    Open,
    /// The whole interval of the measured value is within the limit.
    Kept,
}

impl Verdict {
    /// Returns the verdict about a promise whose measured value is exact: kept or missed.
    pub const fn kept_if(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::Missed }
    }

    /// Judges the promise that a value is at most `limit`. `of` is the measured value with its interval. The promise is
    /// kept if the whole interval is within the limit, and missed if the whole interval is above it.
    pub fn at_most(limit: f64, of: impl Into<Interval>) -> Self {
        match of.into() {
            Interval { sure: false, .. } => Self::Open,
            of if of.high <= limit => Self::Kept,
            of if of.low > limit => Self::Missed,
            _ => Self::Open,
        }
    }

    /// Judges the promise that a value is at least `limit`, by the same rules as [`at_most`](Self::at_most).
    pub fn at_least(limit: f64, of: impl Into<Interval>) -> Self {
        let Interval { median, low, high, sure } = of.into();
        Self::at_most(-limit, Interval { median: -median, low: -high, high: -low, sure })
    }

    /// Judges the promise that a value is between two limits, by the same rules as [`at_most`](Self::at_most).
    pub fn within(limits: [f64; 2], of: Interval) -> Self {
        // Verdicts are ordered from the worst to the best: missed, open, kept. So the minimum is the worse verdict.
        Self::at_least(limits[0], of).min(Self::at_most(limits[1], of))
    }

    /// Returns the printed name of the verdict.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Missed => "MISSED",
            Self::Open => "open",
        }
    }
}

/// A promise, the measured value, and the verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// The promise in words, such as `off, of C++`. All promises of a group have the same words.
    pub promise: String,
    /// The case, or another subject of the promise.
    pub of: String,
    /// The measured value, such as `0.13`.
    pub measured: String,
    /// Details of the measured value, such as its interval.
    pub more: String,
    /// The limit of the measured value, such as `≤ 0.20`.
    pub limit: String,
    /// Whether the promise was kept, was missed, or is open.
    pub verdict: Verdict,
    /// Whether the measured value is an exact count. A promise about an exact count is also judged if the bench runs as
    /// a test, and the bench fails if it is not kept.
    pub exact: bool,
}

impl Judged {
    /// Makes a judged promise. The measured value does not count as exact, unless [`exact`](Self::exact) is called.
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

    /// Judges the promise that a measured value is at most `limit`. Formats the value and its interval with `places`
    /// decimal places, and the value with the unit `unit`.
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

    /// Adds details of the measured value.
    pub fn more(mut self, more: impl Into<String>) -> Self {
        self.more = more.into();
        self
    }

    /// Marks the promise as a promise about an exact count.
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Returns whether the bench fails because of this promise, that is, whether the promise is about an exact count
    /// and was not kept.
    pub fn fails(&self) -> bool {
        self.exact && self.verdict != Verdict::Kept
    }

    /// Judges promises about differences of two rows (results), and the promise about the number of system calls per
    /// event. The result has no entry for a promise whose row was not measured.
    pub fn of_differences(promises: &[Promise], rows: &[Row]) -> Vec<Self> {
        let difference = |Promise { name, id, base, at_most }: &Promise| {
            let above = find(rows, id)?.above.get(&base.to_string())?;
            let judged = Self::at_most(*name, id.short(), above.interval(), *at_most, (1, " ns"));
            let more = format!("{} above {base}", judged.more);
            Some(judged.more(more))
        };
        let (name, most) = SYSTEM_CALLS;
        let system_calls = |row: &Row| {
            const NAME: &str = "system calls an event, of 100,000 a second";
            let (median, [low, high]) = (*row.counts.get(name)?, *row.ranges.get(name)?);
            let calls = Interval { median, low, high, sure: true };
            Some(Self::at_most(NAME, Id::of(&row.id).short(), calls, most, (4, "")))
        };
        promises.iter().filter_map(difference).chain(rows.iter().filter_map(system_calls)).collect()
    }

    /// Judges `promises`, which are about ratios, and the catalogue's promises about instructions and allocations. The
    /// result has no entry for a promise whose row (result) was not measured.
    pub fn of_rows(promises: &[Promise], rows: &[Row]) -> Vec<Self> {
        let judge = |Promise { name, id, base, at_most }: &Promise| {
            let v = find(rows, id)?.versus(&base.to_string())?;
            let (limit, verdict) = (format!("≤ {at_most:.2}"), Verdict::at_most(*at_most, *v));
            let few = if v.sure { "" } else { ", from too few pairs or generations" };
            let more = format!("{}–{} of {base}{few}", ratio(v.low), ratio(v.high));
            Some(Self::new(*name, id.short(), ratio(v.ratio), limit, verdict).more(more))
        };
        // A count of instructions is an average over a thousand operations. It includes a thousandth of the
        // instructions that run only once; rounding removes this fraction.
        let instructions = |id: &Id| find(rows, id)?.counts.get(INSTRUCTIONS).map(|n| n.round());
        let alone = |Promise { id, at_most, .. }: Promise| {
            let (n, limit) = (instructions(&id)?, format!("≤ {at_most}"));
            Some(Self::new(INSTRUCTIONS, id.short(), count(n), limit, Verdict::kept_if(n <= at_most)))
        };
        let beside = |Promise { name, id, base, at_most }: Promise| {
            let (n, of) = (instructions(&id)?, instructions(&base)?);
            let (limit, verdict) = (format!("≤ {at_most:.2}"), Verdict::kept_if(n <= at_most * of));
            let more = format!("{} and {} of {base}", count(n), count(of));
            Some(Self::new(name, id.short(), ratio(n / of), limit, verdict).more(more))
        };
        let mut all: Vec<Self> = promises.iter().filter_map(judge).collect();
        all.extend(promises::of("instructions").into_iter().filter_map(alone));
        all.extend(promises::of("instructions of others").into_iter().filter_map(beside));
        let counted = rows.iter().filter(|row| must_not_allocate(&Id::of(&row.id)));
        let counted: Vec<(&Row, f64)> = counted.filter_map(|row| Some((row, row.allocs?))).collect();
        const NAME: &str = "allocations of an operation";
        let allocating = counted.iter().filter(|(_, allocs)| *allocs > 0.0);
        let allocating: Vec<Self> = allocating
            .map(|(row, allocs)| Self::new(NAME, &row.id, count(*allocs), "0", Verdict::Missed))
            .collect();
        if !counted.is_empty() && allocating.is_empty() {
            all.push(Self::new(NAME, format!("all {} rows", counted.len()), "0", "0", Verdict::Kept));
        }
        all.extend(allocating);
        all
    }
}

fn find<'a>(rows: &'a [Row], id: &Id) -> Option<&'a Row> {
    let id = id.to_string();
    rows.iter().find(|row| row.id == id)
}

/// Writes the verdicts of a bench to a file, and returns the path of the file.
///
/// # Errors
///
/// Returns the system's error, with the path of the file.
pub fn write(bench: &str, all: &[Judged]) -> io::Result<PathBuf> {
    let dir = dir().join(DIRECTORY);
    let name = format!("{bench}.json");
    replace(&dir, &name, (serde_json::to_string_pretty(all)? + "\n").as_bytes())?;
    Ok(dir.join(name))
}

/// Reads the files of verdicts below `measured`, the directory of the rows (results). Returns the verdicts of each
/// bench, in the order of [`BENCHES`], and a message for each file that can't be read.
pub fn read(measured: &Path) -> (Vec<(String, Vec<Judged>)>, Vec<String>) {
    let (mut all, mut problems) = (Vec::new(), Vec::new());
    for bench in BENCHES {
        let path = measured.join(DIRECTORY).join(format!("{}.json", bench.name));
        // A symbolic link without a target, and anything else that is not a regular file, is not skipped, so that it is
        // reported.
        if path.symlink_metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            continue;
        }
        let judged = json(&path).and_then(|value| {
            serde_json::from_value(value).map_err(|e| format!("{} can't be read: {e}", path.display()))
        });
        match judged {
            Ok(judged) => all.push((bench.name.to_owned(), judged)),
            Err(problem) => problems.push(problem),
        }
    }
    (all, problems)
}

/// Returns the numbers of missed, open and kept promises.
pub fn counts<'a>(judged: impl IntoIterator<Item = &'a Judged>) -> [usize; 3] {
    let mut counts = [0; 3];
    judged.into_iter().for_each(|judged| counts[judged.verdict as usize] += 1);
    counts
}

/// The maximum number of lines on the screen.
const LINES: usize = 40;
/// The maximum number of characters in a line of the screen.
const WIDTH: usize = 120;
/// The maximum number of measured values in the line of a group of promises.
const SHOWN: usize = 4;

/// A text that shows the promises of all benches on one screen of a terminal.
#[derive(Debug, Default)]
pub struct Screen {
    lines: Vec<(Verdict, String)>,
    /// The counts of verdicts, as returned by [`counts`].
    counts: [usize; 3],
    problems: Vec<String>,
    measured: PathBuf,
}

impl Screen {
    /// Reads the verdicts that the benches have written below `measured`, the directory of their results.
    pub fn read(measured: &Path) -> Self {
        let (benches, problems) = read(measured);
        let mut screen = Self { problems, measured: measured.to_owned(), ..Self::default() };
        for (bench, all) in &benches {
            screen.add(bench, all);
        }
        screen
    }

    /// Adds the promises of a bench. Promises with the same words share a line.
    pub fn add(&mut self, bench: &str, all: &[Judged]) {
        let mut groups: Vec<(&str, Vec<&Judged>)> = Vec::new();
        for (all, more) in self.counts.iter_mut().zip(counts(all)) {
            *all += more;
        }
        for judged in all {
            match groups.iter_mut().find(|(promise, _)| *promise == judged.promise) {
                Some((_, group)) => group.push(judged),
                None => groups.push((&judged.promise, vec![judged])),
            }
        }
        for (promise, mut group) in groups {
            // The sort is stable, so promises with the same verdict keep the bench's order.
            group.sort_by_key(|judged| judged.verdict);
            let worst = group.first().map_or(Verdict::Kept, |judged| judged.verdict);
            self.lines.push((worst, line(bench, promise, &group)));
        }
    }

    /// Returns the lines about promises, without the title and the lines at the end.
    pub fn lines(&self) -> String {
        self.lines.iter().map(|(_, line)| &line[..]).collect::<Vec<_>>().join("\n")
    }

    /// Returns whether there is nothing to show: neither promises nor files that could not be read.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.problems.is_empty()
    }
}

/// Formats the line of a group of promises: the number of promises that were missed or are open, the words of the
/// promise, and the measured values.
fn line(bench: &str, promise: &str, group: &[&Judged]) -> String {
    let verdict = match counts(group.iter().copied()) {
        [0, 0, _] => "kept".to_owned(),
        [0, open, _] => format!("{open} open"),
        [missed, 0, _] => format!("{missed} MISSED"),
        [missed, open, _] => format!("{missed} MISSED, {open} open"),
    };
    let same = group.iter().all(|judged| judged.limit == group[0].limit);
    let limit = if same { format!(" {}", group[0].limit) } else { String::new() };
    let number = |judged: &&Judged| {
        let limit = if same { String::new() } else { format!(" {}", judged.limit) };
        let verdict = match judged.verdict {
            Verdict::Kept => "",
            other => &format!(" {}", other.name()),
        };
        match group.len() {
            1 => format!("{} {}{verdict}", judged.measured, judged.of),
            _ => format!("{} {}{limit}{verdict}", judged.of, judged.measured),
        }
    };
    let shown: Vec<String> = group.iter().take(SHOWN).map(number).collect();
    let more = match group.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    format!("{verdict:16} {bench}: {promise}{limit}: {}{more}", shown.join(", "))
}

impl fmt::Display for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [missed, open, kept] = self.counts;
        let all = kept + missed + open;
        let counts = format!("{all}, of which {kept} kept, {missed} missed, {open} open");
        writeln!(f, "Promises: {counts} (not known well enough).")?;
        // Besides the lines about promises, the screen has four lines: the title, the line about omitted lines, and two
        // at the end.
        let room = LINES - 4 - self.problems.len().min(5);
        let mut shown: Vec<&(Verdict, String)> = self.lines.iter().collect();
        shown.sort_by_key(|(verdict, _)| *verdict == Verdict::Kept);
        let left = shown.len().saturating_sub(room);
        for (_, line) in shown.iter().take(room) {
            writeln!(f, "{}", cut(line))?;
        }
        if left > 0 {
            writeln!(f, "{left} more lines are in the report")?;
        }
        for problem in self.problems.iter().take(5) {
            writeln!(f, "{}", cut(problem))?;
        }
        writeln!(f, "Everything that was printed: {}/*.txt", self.measured.display())?;
        f.write_str("All numbers, with plots: cargo run -p atrace-benches --bin report")
    }
}

/// Cuts a line to the maximum number of characters.
fn cut(line: &str) -> String {
    let is_long = line.chars().count() > WIDTH;
    if is_long { line.chars().take(WIDTH - 1).chain(['…']).collect() } else { line.to_owned() }
}

#[cfg(test)]
mod judged_tests {
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
        assert!(few.more.ends_with("from too few pairs or generations"), "{few:?}");
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
        row.counts.insert("system_calls".to_owned(), 0.01);
        for (range, verdict) in [
            ([0.011, 0.03], Verdict::Missed),
            ([0.009, 0.011], Verdict::Open),
            ([0.008, 0.01], Verdict::Kept),
        ] {
            row.ranges.insert("system_calls".to_owned(), range);
            let verdicts: Vec<_> = judged(&row).into_iter().map(|judged| judged.2).collect();
            assert_eq!(verdicts, [Verdict::Missed, verdict]);
        }
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

#[cfg(test)]
mod screen_tests {
    use super::*;

    fn judged(promise: &str, of: &str, verdict: Verdict) -> Judged {
        Judged::new(promise, of, "0.13", "≤ 0.20", verdict)
    }

    #[test]
    fn what_was_not_kept_comes_first() {
        let mut screen = Screen::default();
        screen.add(
            "atrace",
            &[
                judged("off, of C++", "off_end", Verdict::Kept),
                judged("on, of C++", "on_end", Verdict::Kept),
                judged("on, of C++", "on_int", Verdict::Missed),
                judged("on, of C++", "on_int64", Verdict::Open),
            ],
        );
        let text = screen.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Promises: 4, of which 2 kept, 1 missed, 1 open (not known well enough).");
        assert_eq!(
            lines[1],
            "1 MISSED, 1 open atrace: on, of C++ ≤ 0.20: on_int 0.13 MISSED, on_int64 0.13 open, on_end 0.13"
        );
        assert_eq!(lines[2], "kept             atrace: off, of C++ ≤ 0.20: 0.13 off_end");
        assert!(lines[4].starts_with("All numbers"), "{text}");
    }

    #[test]
    fn it_has_room_on_a_screen() {
        let mut screen = Screen { problems: vec!["x".repeat(300); 9], ..Screen::default() };
        for group in 0..60 {
            let name = format!("promise {group}");
            let all: Vec<Judged> =
                (0..30).map(|i| judged(&name, &format!("case_{i}"), Verdict::Kept)).collect();
            screen.add("coroutines", &all);
        }
        screen.add("live", &[judged("late", "x", Verdict::Missed)]);
        let text = screen.to_string();
        assert_eq!(text.lines().count(), LINES);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("live: late") && text.contains("; 26 more") && text.contains("30 more lines"));
    }
}

//! Saves results under a name, and compares today's results (those of the latest run) with saved results.
//!
//! `--save NAME` saves the rows (results). `--compare NAME --max-regression 5%` compares today's rows with the saved
//! rows, and fails if a row is *certainly* worse. A difference within the confidence intervals is never a failure. The
//! rules are:
//!
//! - **Ratios** are preferred, because changes of the machine affect both the numerator and the denominator. A ratio is
//!   worse if the lower bound of today's ratio, divided by the upper bound of the saved ratio, is above 1 + the
//!   maximum.
//! - A row of this workspace's code (`rust/`, `ffi/` or `perfetto/`) is compared by its **time** if it has no ratio and
//!   its bench is no workload. The times are first corrected for the change of the machine's speed. This change is the
//!   median, over the `limit/` and `cc/` rows of the bench, of today's time divided by the saved time, with an
//!   interval. Then the bounds of the two times are compared in the same way as the bounds of ratios. If no `limit/` or
//!   `cc/` row shows the change of the machine, times and additions are not judged.
//! - An **addition** is the time that a row takes more than another row, such as the time that tracing adds to a
//!   workload. Today's addition is first corrected for the change of the machine's speed. It is worse if its lower
//!   bound then exceeds the upper bound of the saved addition by more than an allowance. The allowance is the largest
//!   of: the maximum percentage of the saved addition, 2 ns, and 1 % of the other row's time.
//! - A ratio or a time is only worse if the row has also become slower by more than half a nanosecond, because smaller
//!   slowdowns can come from the placement of the code by the linker. For a ratio, the slowdown is today's time of the
//!   row minus the time with which the row would have the saved ratio.
//! - Counts of **instructions** have no intervals, and the minimum of half a nanosecond does not apply to them. The
//!   **allocations** of an operation must not grow by more than a hundredth of an allocation.
//! - The comparison fails if a row is **missing** today and the saved row was not noisy, or if today's row lacks a
//!   saved ratio or addition. Some numbers are reported but not judged: the time of a **noisy** row, a ratio or an
//!   addition from fewer than six pairs of measurements, and all times and additions of a bench that has no well-known
//!   `limit/` or `cc/` row. If nothing could be judged, or a saved file can't be read, the comparison fails.
//! - The rows of an Android device are compared with the saved rows of the same device.
//!
//! An interval shows the variation within one process, but not the differences between processes. So after a failure,
//! run the bench once more, in new processes, before you look for a cause. If a comparison fails, `--save` in the same
//! command saves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::content::KNOWN;
use super::input::{Input, Machine, Problems, entries, place};
use super::model::Section;
use crate::catalogue::{Id, Who};
use crate::row::{self, Row};
use crate::stats::Interval;
use crate::table::number::{count, percent, ratio, time};

/// The largest difference of times, in nanoseconds, that is ignored, because it can come from the placement of the code
/// by the linker.
const FLOOR_NS: f64 = 0.5;
/// The number of nanoseconds by which the time that tracing adds to a workload may grow, unless [`ZERO_PART`] allows
/// more.
const ZERO_NS: f64 = 2.0;
/// The time that tracing adds to a workload may grow by this fraction of the workload's time without tracing.
const ZERO_PART: f64 = 0.01;
/// The largest growth of an allocation count that is ignored. A count is an average over many operations, and varies a
/// little, because a container may have to grow in one run and not in another.
const FLOOR_ALLOCS: f64 = 0.01;
/// The reason that is reported if a time is not judged.
const NO_DRIFT: &str = "no row of a limit or of C++ shows how the machine's speed has changed";

fn directory(measured: &Path, name: &str) -> PathBuf {
    measured.join("saved").join(name)
}

/// Saves the rows (results) of all benches under a name. Returns a message with the number of saved rows.
pub(crate) fn save(input: &Input, measured: &Path, name: &str) -> Result<String, String> {
    if input.is_damaged {
        let measured = measured.display();
        return Err(format!("nothing is saved as {name}: not all of {measured} can be read; see the report"));
    }
    let to = directory(measured, name);
    let devices = input.devices.iter().map(|(name, place)| (&name[..], place));
    let places: Vec<_> = [("", &input.here)]
        .into_iter()
        .chain(devices)
        .filter(|(_, place)| !place.benches.is_empty())
        .collect();
    if places.iter().all(|(_, place)| place.benches.values().all(|bench| bench.rows.is_empty())) {
        return Err(format!("there are no rows in {} to save: run `cargo bench`", measured.display()));
    }
    let io = |path: &Path| {
        let path = path.display().to_string();
        move |e: std::io::Error| format!("{path}: {e}")
    };
    // The new files are written to a temporary directory, so that they are complete before they replace the old files.
    let parent = measured.join("saved");
    std::fs::create_dir_all(&parent).map_err(io(&parent))?;
    let temp = tempfile::Builder::new().prefix(".saving-").tempdir_in(&parent).map_err(io(&parent))?;
    let new = temp.path().join("new");
    let (mut benches, mut rows) = (0, 0);
    for (device, place) in places {
        let dir = if device.is_empty() { new.clone() } else { new.join("devices").join(file_name(device)) };
        for (bench, found) in &place.benches {
            row::write_to(&dir, &file_name(bench), &found.rows).map_err(|e| e.to_string())?;
            benches += 1;
            rows += found.rows.len();
        }
    }
    if to.exists() {
        std::fs::rename(&to, temp.path().join("old")).map_err(io(&to))?;
    }
    std::fs::rename(&new, &to).map_err(io(&to))?;
    Ok(format!("saved as {name}: {rows} rows of {benches} benches, in {}", to.display()))
}

/// Makes a file name from a text. Characters that could lead to another directory are replaced.
fn file_name(name: &str) -> String {
    name.chars().map(|c| if c == '/' { '_' } else { c }).collect()
}

/// The comparison of today's results with saved results.
#[derive(Debug, Default)]
pub(crate) struct Against {
    name: String,
    max: f64,
    worse: Vec<Change>,
    missing: Vec<String>,
    noisy: Vec<String>,
    better: Vec<Change>,
    judged: usize,
    new: usize,
    problems: Vec<String>,
}

/// A property of a row that has changed since the results were saved.
#[derive(Clone, Debug, PartialEq)]
struct Change {
    /// The id of the row, after the names of its machine and its bench.
    row: String,
    /// The name of the compared property, such as the time or a ratio.
    what: String,
    then: String,
    now: String,
    /// The factor by which the property has changed, and the minimum and the maximum factor that the intervals allow.
    by: [f64; 3],
}

impl Change {
    fn new(row: &str, what: impl Into<String>, [then, now]: [String; 2], by: [f64; 3]) -> Self {
        Self { row: row.to_owned(), what: what.into(), then, now, by }
    }
}

/// Compares today's results with the results saved under `name`.
pub(crate) fn against(input: &Input, measured: &Path, name: &str, max: f64) -> Result<Against, String> {
    let dir = directory(measured, name);
    if !dir.is_dir() {
        let parent = measured.join("saved");
        let known: Vec<String> = entries(&parent, &mut Problems::default()).into_keys().collect();
        let (known, dir) = (known.join(", "), dir.display());
        let known = if known.is_empty() { "nothing was saved yet" } else { &format!("saved: {known}") };
        return Err(format!("--compare {name}: there is no {dir} ({known}); `--save {name}` makes it"));
    }
    let mut problems = Problems::default();
    let then = place(&dir, &mut problems);
    let mut all = Against { name: name.to_owned(), max, ..Against::default() };
    all.place("", &then, &input.here);
    let nothing = Machine::default();
    for (device, path) in entries(&dir.join("devices"), &mut problems) {
        let then = place(&path, &mut problems);
        all.place(&format!("{device}: "), &then, input.devices.get(&device).unwrap_or(&nothing));
    }
    all.problems = problems.into_vec();
    Ok(all)
}

impl Against {
    /// Returns whether the comparison passes: no row is worse or missing, at least one number was judged, and all saved
    /// files could be read.
    pub(crate) fn passes(&self) -> bool {
        self.worse.is_empty() && self.missing.is_empty() && self.judged > 0 && self.problems.is_empty()
    }

    fn place(&mut self, prefix: &str, then: &Machine, now: &Machine) {
        for (bench, old) in &then.benches {
            let rows = now.benches.get(bench).into_iter().flat_map(|bench| &bench.rows);
            let rows: BTreeMap<&str, &Row> = rows.map(|row| (&row.id[..], row)).collect();
            let drift = drift(&old.rows, &rows);
            let workload = !KNOWN.contains(&&bench[..]);
            for old in &old.rows {
                let name = format!("{prefix}{bench}: {}", old.id);
                match rows.get(&old.id[..]) {
                    Some(new) => self.row(&name, old, new, drift, workload),
                    // A row that is missing today is no failure if the saved row was noisy.
                    None if old.noisy => {}
                    None => self.missing.push(name),
                }
            }
            let kept = old.rows.iter().filter(|old| rows.contains_key(&old.id[..])).count();
            self.new += rows.len().saturating_sub(kept);
        }
    }

    fn row(&mut self, name: &str, then: &Row, now: &Row, drift: Option<Interval>, workload: bool) {
        if let (Some(a), Some(b)) = (then.allocs, now.allocs)
            && b > a + FLOOR_ALLOCS
        {
            let by = if a > 0.0 { b / a } else { f64::INFINITY };
            self.worse.push(Change::new(name, "allocations", [a, b].map(count), [by; 3]));
        }
        let own = is_own(&now.id);
        let mut compared = false;
        for (base, a) in then.vs.iter().chain(&then.vs_process).filter(|(base, _)| own && **base != then.id) {
            let b = now.versus(base);
            compared |= b.is_some();
            let what = format!("ratio to {base}");
            let Some(b) = self.known(name, &format!("the {what}"), b.map(|b| (b, a.sure && b.sure))) else {
                continue;
            };
            // The part of today's time by which the row has become slower, according to the two ratios.
            let added = now.median * (1.0 - a.ratio / b.ratio);
            let by = [b.ratio / a.ratio, b.low / a.high, b.high / a.low];
            self.judge(Change::new(name, what, [a.ratio, b.ratio].map(ratio), by), added.abs() > FLOOR_NS);
        }
        for (base, a) in then.above.iter().filter(|_| own) {
            let (b, what) = (now.above.get(base), format!("what it is above {base}"));
            let Some(b) = self.known(name, &what, b.map(|b| (b, a.sure && b.sure))) else { continue };
            let Some(drift) = drift else {
                self.noisy.push(format!("{name}, {what}: {NO_DRIFT}"));
                continue;
            };
            let without = (then.median - a.ns).abs();
            let room = (self.max * a.ns.abs()).max(ZERO_NS).max(ZERO_PART * without);
            // If an addition is below zero, the division by the larger bound of the machine's change gives the larger
            // result.
            let low = (b.low / drift.low).min(b.low / drift.high);
            let high = (b.high / drift.low).max(b.high / drift.high);
            let worse = low > a.high + room;
            self.judged += 1;
            if worse || high < a.low - room {
                let what = format!("{what}, by {} of the machine", ratio(drift.median));
                let change = Change::new(name, what, [a.ns, b.ns].map(time), [f64::INFINITY; 3]);
                if worse { self.worse.push(change) } else { self.better.push(change) }
            }
        }
        // The whole times of a workload are not judged, because they are mostly the times of the measured program.
        if compared || !own || workload {
            return;
        }
        if then.noisy || now.noisy {
            self.noisy.push(name.to_owned());
            return;
        }
        let instructions = now.unit != "ns";
        let Some(drift) = (if instructions { Some(Interval::around(1.0, 0.0)) } else { drift }) else {
            self.noisy.push(format!("{name}: {NO_DRIFT}"));
            return;
        };
        let (a, b) = (then.median * drift.median, now.median);
        if a <= 0.0 || then.low <= 0.0 || now.low <= 0.0 {
            return;
        }
        let text = |x: f64| if instructions { format!("{} {}", count(x), now.unit) } else { time(x) };
        let what = match instructions {
            true => now.unit.clone(),
            false => format!("time, by {} of the machine", ratio(drift.median)),
        };
        let by = [b / a, now.low / (then.high * drift.high), now.high / (then.low * drift.low)];
        let change = Change::new(name, what, [then.median, now.median].map(text), by);
        self.judge(change, instructions || (b - a).abs() > FLOOR_NS);
    }

    /// Returns today's value `now` if it exists and is precise enough. Otherwise records that it is missing or noisy,
    /// and returns `None`.
    fn known<T>(&mut self, row: &str, what: &str, now: Option<(T, bool)>) -> Option<T> {
        match now {
            Some((now, true)) => return Some(now),
            Some(_) => self.noisy.push(format!("{row}: {what}")),
            None => self.missing.push(format!("{row}: {what}")),
        }
        None
    }

    fn judge(&mut self, change: Change, matters: bool) {
        self.judged += 1;
        if matters && change.by[1] > 1.0 + self.max {
            self.worse.push(change);
        } else if matters && change.by[2] < 1.0 / (1.0 + self.max) {
            self.better.push(change);
        }
    }

    fn verdict(&self) -> String {
        let Self { name, max, judged, .. } = self;
        let max = percent(*max);
        match (self.worse.len(), self.missing.len()) {
            (0, 0) if *judged == 0 => format!("FAILED: no row can be judged against {name}"),
            (0, 0) if !self.problems.is_empty() => {
                format!("FAILED: what was saved as {name} can't be read whole")
            }
            (0, 0) => format!("no row is more than {max} worse than in {name} ({judged} comparisons)"),
            (_, missing) => {
                let worse = self.worse.iter().map(|change| &change.row[..]).collect::<BTreeSet<_>>().len();
                format!(
                    "FAILED: against {name}, {worse} rows are more than {max} worse and {missing} are missing"
                )
            }
        }
    }

    /// Makes the report's section about the comparison.
    pub(crate) fn section(&self) -> Section {
        let title = format!("Compared with {}", self.name);
        Section::new("compared", title, Vec::new()).with_text(self.to_string().lines())
    }
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in &self.worse {
            write!(f, "WORSE    {}, {}: {} → {}", c.row, c.what, c.then, c.now)?;
            if c.by[0].is_finite() {
                let [by, low, high] = c.by.map(ratio);
                write!(f, ", × {by} ({low}–{high})")?;
            }
            writeln!(f)?;
        }
        for (what, lines, more) in [
            ("MISSING ", &self.missing, ""),
            ("PROBLEM ", &self.problems, ""),
            ("noisy   ", &self.noisy, ": not judged"),
        ] {
            lines.iter().try_for_each(|line| writeln!(f, "{what} {line}{more}"))?;
        }
        for c in &self.better {
            writeln!(f, "better   {}, {}: {} → {}", c.row, c.what, c.then, c.now)?;
        }
        if self.new > 0 {
            writeln!(f, "{} rows are new", self.new)?;
        }
        f.write_str(&self.verdict())
    }
}

/// Returns whether a row measures this workspace's code. Other rows are only used as bases of comparisons.
fn is_own(id: &str) -> bool {
    matches!(Id::of(id).who, Who::Rust | Who::Ffi | Who::Perfetto)
}

/// Returns the factor by which the machine has become slower, as the median over the `limit/` and `cc/` rows, which do
/// not measure this workspace's code. The interval of the median takes the intervals of the rows into account. Returns
/// `None` if no such row has usable times.
fn drift(then: &[Row], now: &BTreeMap<&str, &Row>) -> Option<Interval> {
    let fixed =
        |row: &&Row| matches!(Id::of(&row.id).who, Who::Limit | Who::Cc) && !row.noisy && row.unit == "ns";
    let all: Vec<[f64; 3]> = then
        .iter()
        .filter(fixed)
        .filter_map(|old| Some((old, now.get(&old.id[..]).filter(|new| !new.noisy)?)))
        .map(|(old, new)| [new.median / old.median, new.low / old.high, new.high / old.low])
        .filter(|changes| changes.iter().all(|change| change.is_finite() && *change > 0.0))
        .collect();
    let [median, low, high] =
        [0, 1, 2].map(|end| Interval::of(&all.iter().map(|changes| changes[end]).collect::<Vec<_>>()));
    Some(Interval { low: low?.low, high: high?.high, ..median? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Sink, Versus};

    fn rows<const N: usize>(all: [(&str, f64); N]) -> Vec<Row> {
        let row = |(id, ns)| Row::new(id, Interval { median: ns, low: ns, high: ns, sure: true }, Sink::File);
        all.map(row).into()
    }

    #[test]
    fn a_name_is_one_of_a_file() {
        assert_eq!(file_name("../a/b"), ".._a_b");
    }

    /// A machine whose speed has not changed.
    const SAME: Option<Interval> = Some(Interval::around(1.0, 0.0));

    fn interval_of(then: &[Row], now: &[Row]) -> Option<Interval> {
        drift(then, &now.iter().map(|row| (&row.id[..], row)).collect())
    }

    fn drift_of(then: &[Row], now: &[Row]) -> f64 {
        interval_of(then, now).unwrap().median
    }

    /// Compares a bench's only row of this workspace's code, whose median has grown from 30 to `ns`. The rows `then`
    /// and `now` show how the speed of the machine has changed.
    fn compared(then: &[Row], now: &[Row], ns: f64) -> Against {
        let mut all = nothing_yet(0.05);
        let [old, new] = [30.0, ns].map(|ns| Row::new("rust/alone", Interval::around(ns, 0.3), Sink::File));
        let drift = interval_of(then, now);
        all.row("rust/alone", &old, &new, drift, false);
        all
    }

    #[test]
    fn what_an_unknown_or_uncertain_speed_explains_is_not_worse() {
        let then = rows([("limit/a", 10.0), ("limit/b", 10.0), ("limit/c", 10.0)]);
        let mut now = rows([("limit/a", 8.0), ("limit/b", 9.2), ("limit/c", 10.0)]);
        // The machine may have become slower by as much as the row, so the row does not count as worse.
        let all = compared(&then, &now, 30.0);
        assert_eq!((all.worse.len(), all.judged), (0, 1), "{all}");
        assert_eq!(compared(&then, &now, 32.5).worse.len(), 1);
        now.iter_mut().for_each(|row| row.noisy = true);
        let all = compared(&then, &now, 36.0);
        assert_eq!((all.worse.len(), all.judged, all.noisy.len()), (0, 0, 1), "{all}");
    }

    #[test]
    fn the_drift_is_the_middle_of_what_is_not_ours() {
        let then = rows([("limit/a", 1.0), ("limit/b", 1.0), ("cc/c", 1.0), ("cc/d", 1.0), ("rust/e", 1.0)]);
        let now = rows([("limit/a", 1.0), ("limit/b", 2.0), ("cc/c", 3.0), ("cc/d", 10.0), ("rust/e", 90.0)]);
        assert_eq!(drift_of(&then, &now), 2.5);
        let found = interval_of(&then[..3], &now).unwrap();
        assert_eq!([found.low, found.median, found.high], [1.0, 2.0, 3.0]);
        assert_eq!(interval_of(&then[4..], &now), None);
    }

    #[test]
    fn no_drift_is_told_by_noise_by_counts_or_by_nothing() {
        let then = rows([("limit/a", 1.0), ("limit/b", 1.0), ("cc/c", 1.0)]);
        let now = rows([("limit/a", 9.0), ("limit/b", 9.0), ("cc/c", 2.0)]);
        let spoilt = |spoil: fn(&mut Row)| {
            let mut rows = then.clone();
            rows[..2].iter_mut().for_each(spoil);
            rows
        };
        assert_eq!(drift_of(&then, &now), 9.0);
        assert_eq!(drift_of(&spoilt(|row| row.noisy = true), &now), 2.0);
        assert_eq!(drift_of(&spoilt(|row| row.unit = "instructions".to_owned()), &now), 2.0);
        assert_eq!(drift_of(&spoilt(|row| row.median = 0.0), &now), 2.0);
        let mut noisy = now.clone();
        noisy[..2].iter_mut().for_each(|row| row.noisy = true);
        assert_eq!(drift_of(&then, &noisy), 2.0);
        let mut nothing = now;
        nothing[..2].iter_mut().for_each(|row| row.median = 0.0);
        assert_eq!(drift_of(&then, &nothing), 2.0);
    }

    fn nothing_yet(max: f64) -> Against {
        Against { name: "old".to_owned(), max, ..Against::default() }
    }

    #[test]
    fn worse_and_better_begin_beyond_the_same_factor() {
        let judge = |low: f64, high: f64, matters| {
            let mut all = nothing_yet(0.25);
            all.judge(Change::new("", "", [String::new(), String::new()], [low, low, high]), matters);
            assert_eq!(all.judged, 1);
            (all.worse.len(), all.better.len())
        };
        assert_eq!(judge(1.25, 1.5, true), (0, 0));
        assert_eq!(judge(1.251, 1.5, true), (1, 0));
        assert_eq!(judge(1.251, 1.5, false), (0, 0));
        assert_eq!(judge(0.5, 0.8, true), (0, 0));
        assert_eq!(judge(0.5, 0.799, true), (0, 1));
        assert_eq!(judge(0.5, 0.799, false), (0, 0));
        assert_eq!(judge(0.5, 1.5, true), (0, 0));
    }

    #[test]
    fn each_fault_alone_is_a_failure_and_said() {
        let with = |change: fn(&mut Against)| {
            let mut all = nothing_yet(0.05);
            all.judged = 1;
            change(&mut all);
            (all.passes(), all.verdict())
        };
        let passed = with(|_| ());
        assert_eq!(passed, (true, "no row is more than 5 % worse than in old (1 comparisons)".to_owned()));
        for (change, said) in [
            ((|all| all.judged = 0) as fn(&mut Against), "FAILED: no row can be judged against old"),
            (|all| all.problems.push("x".to_owned()), "FAILED: what was saved as old can't be read whole"),
            (
                |all| all.missing.push("x".to_owned()),
                "FAILED: against old, 0 rows are more than 5 % worse and 1 are missing",
            ),
        ] {
            assert_eq!(with(change), (false, said.to_owned()));
        }
    }

    fn one(median: f64) -> Row {
        let [row] = rows([("rust/x", median)]).try_into().unwrap();
        row
    }

    #[test]
    fn more_allocations_are_worse_by_their_ratio() {
        let change = |then: f64, now: f64| {
            let mut all = nothing_yet(0.05);
            let of = |allocs| Row { allocs: Some(allocs), ..one(1.0) };
            all.row("x", &of(then), &of(now), SAME, true);
            assert_eq!((all.judged, all.better.len()), (0, 0));
            all.worse.first().map(|change| change.by)
        };
        assert_eq!(change(2.0, 8.0), Some([4.0; 3]));
        assert_eq!(change(0.0, 3.0), Some([f64::INFINITY; 3]));
        assert_eq!(change(2.0, 2.005), None);
        assert_eq!(change(8.0, 2.0), None);
    }

    #[test]
    fn what_the_linker_may_add_is_not_judged() {
        // The row takes twice as long as before and its base takes as long as before. So half of the row's new time was
        // added.
        let by_ratio = |median: f64| {
            let mut all = nothing_yet(0.05);
            let of = |ratio| {
                let vs = Versus { ratio, low: ratio, high: ratio, sure: true };
                Row { vs: [("limit/base".to_owned(), vs)].into(), ..one(median) }
            };
            all.row("x", &of(1.0), &of(2.0), SAME, false);
            (all.judged, all.worse.len())
        };
        assert_eq!(by_ratio(2.0 * FLOOR_NS), (1, 0));
        assert_eq!(by_ratio(2.1 * FLOOR_NS), (1, 1));
        let by_time = |then: f64, now: f64| {
            let mut all = nothing_yet(0.05);
            all.row("x", &one(then), &one(now), SAME, false);
            (all.judged, all.worse.len())
        };
        assert_eq!(by_time(1.0, 1.0 + FLOOR_NS), (1, 0));
        assert_eq!(by_time(1.0, 1.1 + FLOOR_NS), (1, 1));
    }

    #[test]
    fn everything_is_in_the_section() {
        let mut all = nothing_yet(0.05);
        let of = |allocs| Row { allocs: Some(allocs), ..one(1.0) };
        all.row("grown", &of(1.0), &of(2.0), SAME, true);
        all.missing.push("gone".to_owned());
        let text = [
            "WORSE    grown, allocations: 1 → 2, × 2.00 (2.00–2.00)",
            "MISSING  gone",
            "FAILED: against old, 1 rows are more than 5 % worse and 1 are missing",
        ];
        assert_eq!(all.section().text, text);
        assert!(!all.to_string().contains("new"), "{all}");
        all.new = 2;
        assert!(all.to_string().contains("\n2 rows are new\n"), "{all}");
    }
}

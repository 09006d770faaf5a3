//! Reads the files that the benches have written, and validates all data.
//!
//! Files may be damaged: a run may have been interrupted, a disk may have been full, and a file may have been edited or
//! written by another version. Only the valid parts of a file are used. Invalid parts are left out, and reported as
//! problems. All returned numbers are finite, and every interval contains its median, except for rounding.
//!
//! Criterion's data is in `<case>/new/{benchmark,estimates}.json`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::promise::{self, Judged};
use crate::row::environment::{self, Environment};
use crate::row::file::{clean, json};
use crate::row::{self, PERCENTS, Row, Versus};
use crate::table::number::time;

/// The maximum number of rows in a file, which is several times the number that a bench writes.
const MAX_ROWS: usize = 5_000;
/// The maximum length of a row's id in bytes.
const MAX_ID: usize = 200;
/// The maximum number that is accepted: eleven days in nanoseconds.
const MAX_NUMBER: f64 = 1e15;
const MAX_DEVICES: usize = 50;

/// All results, those of this machine and those of devices.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) here: Machine,
    pub(crate) devices: BTreeMap<String, Machine>,
    pub(crate) problems: Problems,
    /// Whether a file of measurements, or a part of it, could not be used.
    pub(crate) is_damaged: bool,
}

/// The results of one machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// The results of the benches, by the name of the bench.
    pub(crate) benches: BTreeMap<String, Bench>,
    /// The content of `device.json`, which describes the device. Empty for this machine.
    pub(crate) device: BTreeMap<String, String>,
    /// The judged promises of each bench, with the name of the bench.
    pub(crate) judged: Vec<(String, Vec<Judged>)>,
    /// Criterion's estimates, by the full id that Criterion gives to a case.
    pub(crate) criterion: BTreeMap<String, Estimate>,
}

/// The results of one bench.
#[derive(Debug, Default)]
pub(crate) struct Bench {
    pub(crate) rows: Vec<Row>,
    pub(crate) environment: Option<Environment>,
}

impl Machine {
    /// Returns the row (result) of a bench with the id `id`.
    pub(crate) fn row(&self, bench: &str, id: &str) -> Option<&Row> {
        self.benches.get(bench)?.rows.iter().find(|row| row.id == id)
    }
}

impl Input {
    /// Reads the directory of the benches' results (`measured`) and the directory of Criterion's data.
    pub(crate) fn read(measured: &Path, criterion: &Path) -> Self {
        let mut input = Self::default();
        input.here = place(measured, &mut input.problems);
        let (judged, unread) = promise::read(measured);
        input.here.judged = judged;
        unread.into_iter().for_each(|problem| input.problems.add(problem));
        for (name, path) in entries(measured, &mut input.problems) {
            let record = path.join("device.json");
            if !record.exists() {
                continue;
            }
            if input.devices.len() == MAX_DEVICES {
                input.problems.add(format!("{}: more than {MAX_DEVICES} devices", measured.display()));
                break;
            }
            let mut device = place(&path, &mut input.problems);
            match json(&record) {
                Ok(Value::Object(fields)) => {
                    let text =
                        |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    let fields = fields.iter().take(50).map(|(key, value)| (key.clone(), text(value)));
                    device.device = fields.collect();
                }
                Ok(_) => input.problems.add(format!("{}: not an object", record.display())),
                Err(e) => input.problems.add(e),
            }
            input.devices.insert(clean(&name, 100), device);
        }
        input.is_damaged = !input.problems.is_empty();
        for (id, estimate, first) in read(criterion, &mut input.problems) {
            let place = first.and_then(|first| input.devices.get_mut(&first));
            place.unwrap_or(&mut input.here).criterion.insert(id, estimate);
        }
        input
    }
}

/// Reads the files of rows (results) that are directly in `dir`, and the environments of these measurements.
pub(crate) fn place(dir: &Path, problems: &mut Problems) -> Machine {
    let mut place = Machine::default();
    for (name, path) in entries(dir, problems) {
        let Some(bench) = name.strip_suffix(".json").filter(|_| name != "device.json") else { continue };
        if path.is_dir() {
            continue;
        }
        let Ok(rows) = json(&path).map_err(|e| problems.add(e)) else { continue };
        let rows = rows_of(rows, &path, problems);
        let environment = dir.join(environment::DIRECTORY).join(&name);
        let read = || {
            let known = Environment::deserialize(json(&environment)?);
            known.map_err(|e| format!("{}: {e}", environment.display()))
        };
        let environment = environment.exists().then(read).transpose();
        let environment = environment.map_err(|e| problems.add(e)).ok().flatten();
        place.benches.insert(clean(bench, 100), Bench { rows, environment });
    }
    place
}

/// Checks the rows of a file. An invalid row is left out, and does not affect the other rows.
fn rows_of(value: Value, path: &Path, problems: &mut Problems) -> Vec<Row> {
    let Value::Array(values) = value else {
        problems.add(format!("{}: not an array of rows", path.display()));
        return Vec::new();
    };
    if values.len() > MAX_ROWS {
        let (path, all) = (path.display(), values.len());
        problems.add(format!("{path}: {all} rows, of which the first {MAX_ROWS} are read"));
    }
    let mut rows: Vec<Row> = Vec::new();
    for (index, value) in values.into_iter().take(MAX_ROWS).enumerate() {
        let name = match value.get("id").and_then(Value::as_str) {
            Some(id) => format!("{:?}", clean(id, 60)),
            None => format!("{}", index + 1),
        };
        let row = Row::deserialize(value).map_err(|e| e.to_string());
        match row.and_then(|row| Ok((checked(row.clone())?, row))) {
            Ok((row, _)) if rows.iter().any(|other| other.id == row.id) => {
                problems.add(format!("{}: row {name} is there twice; the first counts", path.display()));
            }
            Ok((row, whole)) => {
                if row != whole {
                    problems.add(format!(
                        "{}: parts of row {name} are out of range, and left out",
                        path.display()
                    ));
                }
                rows.push(row);
            }
            Err(e) => problems.add(format!("{}: row {name} is left out: {e}", path.display())),
        }
    }
    row::note_comparisons(&mut rows);
    rows
}

/// Returns the row without those of its parts that are invalid, or the reason why the whole row is invalid.
fn checked(mut row: Row) -> Result<Row, String> {
    if row.id.is_empty() || row.id.len() > MAX_ID {
        return Err(format!("an id has 1 to {MAX_ID} bytes, not {}", row.id.len()));
    }
    if !holds(row.low, row.median, row.high) {
        return Err(format!("{} is not a median between {} and {}", row.median, row.low, row.high));
    }
    let counted = |x: &f64| (0.0..=MAX_NUMBER).contains(x);
    row.allocs = row.allocs.filter(counted);
    row.bytes = row.bytes.filter(counted);
    let sensible = |v: &Versus| v.low > 0.0 && holds(v.low, v.ratio, v.high);
    for all in [&mut row.vs, &mut row.vs_process] {
        all.retain(|base, versus| base.len() <= MAX_ID && sensible(versus));
    }
    row.above.retain(|base, above| base.len() <= MAX_ID && holds(above.low, above.ns, above.high));
    row.counts.retain(|name, count| name.len() <= MAX_ID && count.abs() <= MAX_NUMBER);
    let counts = &row.counts;
    row.ranges.retain(|name, [low, high]| counts.get(name).is_some_and(|median| holds(*low, *median, *high)));
    for above in row.above.values_mut() {
        let counted = |x: &f64| x.abs() <= MAX_NUMBER;
        above.allocs = above.allocs.filter(counted);
        above.bytes = above.bytes.filter(counted);
        above.raw_writes = above.raw_writes.filter(sensible);
    }
    row.rounds = row.rounds.filter(|rounds| {
        let ascending = rounds.at.windows(2).all(|pair| pair[0] <= pair[1]);
        rounds.at.len() == PERCENTS.len() && ascending && rounds.at.iter().all(|x| x.abs() <= MAX_NUMBER)
    });
    Ok(row)
}

/// Returns whether the interval from `low` to `high` contains the median. The numbers in files are rounded to five
/// digits, so a median that is slightly outside is accepted.
fn holds(low: f64, median: f64, high: f64) -> bool {
    let slack = 1e-3 * median.abs();
    [low, median, high].iter().all(|x| x.abs() <= MAX_NUMBER)
        && low <= median + slack
        && median <= high + slack
}

/// The maximum number of problems that are listed individually.
const MAX_PROBLEMS: usize = 50;

/// Messages about data that could not be used, with the reasons.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    all: Vec<String>,
    more: usize,
}

impl Problems {
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        match self.all.len() < MAX_PROBLEMS {
            true => self.all.push(clean(&problem.into(), 500)),
            false => self.more += 1,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn into_vec(mut self) -> Vec<String> {
        if self.more > 0 {
            self.all.push(format!("and {} more", self.more));
        }
        self.all
    }
}

/// Returns the paths of the entries of a directory, by name. Returns an empty map if the directory does not exist.
pub(crate) fn entries(dir: &Path, problems: &mut Problems) -> BTreeMap<String, std::path::PathBuf> {
    match std::fs::read_dir(dir) {
        Ok(entries) => entries
            .filter_map(Result::ok)
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .filter(|(name, _)| !name.starts_with('.'))
            .take(10_000)
            .collect(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        Err(e) => {
            problems.add(format!("{} can't be read: {e}", dir.display()));
            BTreeMap::new()
        }
    }
}

/// The maximum number of cases that are read from Criterion's data.
const MAX_CASES: usize = 2_000;
/// The maximum depth to which Criterion's directories are searched.
const MAX_DEPTH: usize = 5;

/// Criterion's estimate of a case in nanoseconds: lower bound, median, upper bound.
pub(crate) type Estimate = [f64; 3];

/// Reads Criterion's data about all cases below `dir`. Returns the full id of each case, its estimate, and the name of
/// the directory in `dir` that has the case. For a case of a device, this is the name of the device.
pub(crate) fn read(dir: &Path, problems: &mut Problems) -> Vec<(String, Estimate, Option<String>)> {
    let mut found = Vec::new();
    let mut todo: Vec<(PathBuf, usize, Option<String>)> = vec![(dir.to_owned(), 0, None)];
    while let Some((dir, depth, first)) = todo.pop() {
        for (name, path) in entries(&dir, problems).into_iter().rev() {
            if !path.is_dir() || matches!(&name[..], "base" | "change" | "report") {
                continue;
            }
            if name == "new" {
                if found.len() == MAX_CASES {
                    problems.add(format!("{}: more than {MAX_CASES} cases", dir.display()));
                    return found;
                }
                match case(&path) {
                    Ok((id, estimate)) => found.push((id, estimate, first.clone())),
                    Err(e) => problems.add(e),
                }
            } else if depth < MAX_DEPTH {
                let first = first.clone().or_else(|| Some(name.clone()));
                todo.push((path, depth + 1, first));
            }
        }
    }
    found
}

/// Returns the directory of Criterion's data.
pub(super) fn home() -> PathBuf {
    row::env_path("CRITERION_HOME").unwrap_or_else(|| row::target_dir().join("criterion"))
}

/// Returns Criterion's results for the cases `names`, with a line for each case. (If the name of a case is long,
/// Criterion itself prints the time on a separate line, so a search for times would not show the name.)
pub fn lines(names: &[String]) -> String {
    lines_of(&home(), names)
}

fn lines_of(home: &Path, names: &[String]) -> String {
    let found = read(home, &mut Problems::default());
    let line = |name: &String| {
        let (_, estimate, _) = found.iter().find(|(id, ..)| id == name)?;
        let [low, median, high] = *estimate;
        Some(format!("{name:<32} time:   [{} {} {}]\n", time(low), time(median), time(high)))
    };
    names.iter().filter_map(line).collect()
}

fn case(dir: &Path) -> Result<(String, Estimate), String> {
    let benchmark = json(&dir.join("benchmark.json"))?;
    let id = benchmark.get("full_id").and_then(Value::as_str);
    let id = id.ok_or_else(|| format!("{}: benchmark.json has no full_id", dir.display()))?;
    let estimates = json(&dir.join("estimates.json"))?;
    let number = |pointer: &str| estimates.pointer(pointer).and_then(Value::as_f64).filter(|x| *x >= 0.0);
    let interval = ["confidence_interval/lower_bound", "point_estimate", "confidence_interval/upper_bound"];
    let [Some(low), Some(median), Some(high)] = interval.map(|name| number(&format!("/median/{name}")))
    else {
        return Err(format!("{}: estimates.json has no median with its interval", dir.display()));
    };
    if !(low <= median && median <= high && high <= 1e15) {
        return Err(format!("{}: {median} is not a median between {low} and {high}", dir.display()));
    }
    Ok((id.to_owned(), [low, median, high]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_stands_beside_its_time() {
        let home = tempfile::tempdir().unwrap();
        let name = "BM_TracingOnAtraceAsyncForTrackBegin".to_owned();
        let dir = home.path().join(&name).join("new");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("benchmark.json"), format!(r#"{{"full_id": "{name}"}}"#)).unwrap();
        let bounds = r#"{"lower_bound": 6.02, "upper_bound": 6.06}"#;
        let estimates =
            format!(r#"{{"median": {{"point_estimate": 6.04, "confidence_interval": {bounds}}}}}"#);
        std::fs::write(dir.join("estimates.json"), estimates).unwrap();
        let lines = lines_of(home.path(), &[name.clone(), "nobody".to_owned()]);
        assert_eq!(lines, format!("{name} time:   [6.02 ns 6.04 ns 6.06 ns]\n"));
    }
}

//! What the benches have left, read by someone who trusts none of it.
//!
//! A run may have been cut short, a disk full, a file edited or written by another version. Whatever can be used
//! is; the rest is named in a problem and left out. No number that comes out of here is infinite, and every
//! interval holds its median.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use super::criterion::{self, Estimate};
use super::reading::{Problems, clean, entries, json};
use crate::promise::{self, Judged};
use crate::row::environment::{self, Environment};
use crate::row::{PERCENTS, Row, Versus};

/// No file of ours has a hundredth of so many rows.
const MAX_ROWS: usize = 5_000;
/// Nor ids this long.
const MAX_ID: usize = 200;
/// A number beyond this, in nanoseconds eleven days, was not measured.
const MAX_NUMBER: f64 = 1e15;
const MAX_DEVICES: usize = 50;

/// Everything that was measured, on this machine and on devices.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) here: Machine,
    pub(crate) devices: BTreeMap<String, Machine>,
    pub(crate) problems: Problems,
    /// Whether something that was measured could not be read.
    pub(crate) is_damaged: bool,
}

/// What was measured on one machine.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// By the name of the bench.
    pub(crate) benches: BTreeMap<String, Bench>,
    /// What `device.json` says.
    pub(crate) device: BTreeMap<String, String>,
    /// What the benches have judged.
    pub(crate) judged: Vec<(String, Vec<Judged>)>,
    /// Criterion's estimates, by its full id.
    pub(crate) criterion: BTreeMap<String, Estimate>,
}

/// What one bench has left.
#[derive(Debug, Default)]
pub(crate) struct Bench {
    pub(crate) rows: Vec<Row>,
    pub(crate) environment: Option<Environment>,
}

impl Machine {
    /// Returns the row `id` of a bench.
    pub(crate) fn row(&self, bench: &str, id: &str) -> Option<&Row> {
        self.benches.get(bench)?.rows.iter().find(|row| row.id == id)
    }
}

impl Input {
    /// Reads the directory of rows and that of Criterion.
    pub(crate) fn read(measured: &Path, criterion: &Path) -> Self {
        let mut input = Self::default();
        input.here = place(measured, &mut input.problems);
        let (judged, unread) = promise::read(measured);
        input.here.judged = judged;
        unread.into_iter().for_each(|problem| input.problems.add(problem));
        for (name, path) in directories(measured, &mut input.problems) {
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
                    let text = |value: &Value| match value {
                        Value::String(s) => s.clone(),
                        other => other.to_string(),
                    };
                    device.device =
                        fields.iter().take(50).map(|(key, value)| (key.clone(), text(value))).collect();
                }
                Ok(_) => input.problems.add(format!("{}: not an object", record.display())),
                Err(e) => input.problems.add(e),
            }
            input.devices.insert(clean(&name, 100), device);
        }
        input.is_damaged = !input.problems.is_empty();
        for (id, estimate, first) in criterion::read(criterion, &mut input.problems) {
            let place = first.and_then(|first| input.devices.get_mut(&first));
            place.unwrap_or(&mut input.here).criterion.insert(id, estimate);
        }
        input
    }
}

/// Reads the measured files right in `dir`, with their environments.
pub(crate) fn place(dir: &Path, problems: &mut Problems) -> Machine {
    let mut place = Machine::default();
    for (name, path) in entries(dir, problems) {
        let Some(bench) = name.strip_suffix(".json").filter(|_| name != "device.json") else { continue };
        if path.is_dir() {
            continue;
        }
        let rows = match json(&path) {
            Ok(value) => rows(value, &path, problems),
            Err(e) => {
                problems.add(e);
                continue;
            }
        };
        let environment = dir.join(environment::DIRECTORY).join(&name);
        let environment = match environment.exists().then(|| json(&environment)) {
            None => None,
            Some(Ok(value)) => match Environment::deserialize(value) {
                Ok(environment) => Some(environment),
                Err(e) => {
                    problems.add(format!("{}: {e}", environment.display()));
                    None
                }
            },
            Some(Err(e)) => {
                problems.add(e);
                None
            }
        };
        place.benches.insert(clean(bench, 100), Bench { rows, environment });
    }
    place
}

/// Reads the rows of one file, each by itself.
fn rows(value: Value, path: &Path, problems: &mut Problems) -> Vec<Row> {
    let Value::Array(values) = value else {
        problems.add(format!("{}: not an array of rows", path.display()));
        return Vec::new();
    };
    if values.len() > MAX_ROWS {
        problems.add(format!(
            "{}: {} rows, of which the first {MAX_ROWS} are read",
            path.display(),
            values.len()
        ));
    }
    let mut rows: Vec<Row> = Vec::new();
    for (index, value) in values.into_iter().take(MAX_ROWS).enumerate() {
        let name = match value.get("id").and_then(Value::as_str) {
            Some(id) => format!("{:?}", clean(id, 60)),
            None => format!("{}", index + 1),
        };
        match Row::deserialize(value).map_err(|e| e.to_string()).and_then(checked) {
            Ok(row) if rows.iter().any(|other| other.id == row.id) => {
                problems.add(format!("{}: row {name} is there twice; the first counts", path.display()));
            }
            Ok(row) => rows.push(row),
            Err(e) => problems.add(format!("{}: row {name} is left out: {e}", path.display())),
        }
    }
    rows
}

/// Returns the row without what makes no sense, or why it makes none.
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

/// Whether these are a median and its interval. Written with five digits each, they may overlap in the last.
fn holds(low: f64, median: f64, high: f64) -> bool {
    let slack = 1e-3 * median.abs();
    [low, median, high].iter().all(|x| x.abs() <= MAX_NUMBER)
        && low <= median + slack
        && median <= high + slack
}

fn directories(dir: &Path, problems: &mut Problems) -> BTreeMap<String, std::path::PathBuf> {
    let mut all = entries(dir, problems);
    all.retain(|_, path| path.is_dir());
    all
}

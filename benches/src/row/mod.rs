//! Rows: the results of measured cases. A bench writes its rows to a file in `target/overhead/`, from which the report
//! and later runs read them.
//!
//! A file is a JSON array of rows. Earlier versions of the benches ignore fields that later versions have added. A new
//! file replaces the old file as a whole.

pub mod environment;
pub(crate) mod file;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::Permissions;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

use crate::instruments::alloc::PerOp;
use crate::stats::{Interval, NOISY_RATIO};

/// The name of the [count](Row::counts) that holds the number of operations in a batch: operations that are timed
/// together.
pub const AT_ONCE: &str = "at_once";

/// The destination of the messages while a row was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    /// Messages went to a real `trace_marker`.
    Tracefs,
    /// Messages went to libcutils.
    Cutils,
    /// Messages went to Android's libandroid.
    Ndk,
    /// Messages went to the memory that is shared with Perfetto's service.
    Perfetto,
    /// Messages went to a temporary file.
    File,
    /// Messages went to `/dev/null`.
    Null,
    /// Messages went nowhere.
    #[default]
    None,
    /// Messages went to a sink that this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The displayed name is the name that files use.
        let name = serde_json::to_value(self).unwrap_or_default();
        f.pad(name.as_str().unwrap_or_default())
    }
}

/// The ratio of a row to another row, usually of their times, with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// The median of the ratios, each of which was computed from one pair of measurements.
    pub ratio: f64,
    /// The lower bound of the ratio.
    pub low: f64,
    /// The upper bound of the ratio.
    pub high: f64,
    /// Whether there were enough measurements for bounds of 95 %. A file has this field only if the value is false.
    #[serde(default = "yes", skip_serializing_if = "is_so")]
    pub sure: bool,
}

impl From<Interval> for Versus {
    fn from(Interval { median: ratio, low, high, sure }: Interval) -> Self {
        Self { ratio, low, high, sure }
    }
}

impl From<Versus> for Interval {
    fn from(Versus { ratio: median, low, high, sure }: Versus) -> Self {
        Self { median, low, high, sure }
    }
}

/// The difference between the times of two rows that were measured alternately, with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Above {
    /// The median of the differences, in nanoseconds.
    pub ns: f64,
    /// The lower bound of the difference, in nanoseconds.
    pub low: f64,
    /// The upper bound of the difference, in nanoseconds.
    pub high: f64,
    /// Whether there were enough measurements for bounds of 95 %. A file has this field only if the value is false.
    #[serde(default = "yes", skip_serializing_if = "is_so")]
    pub sure: bool,
    /// The number of allocations of one operation that the row has in addition to those of the other row, if both were
    /// counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocs: Option<f64>,
    /// The number of allocated bytes of one operation that the row has in addition to those of the other row, if both
    /// were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// The time that the row has in addition to the other row's, divided by the time of raw writes (writes of the same
    /// messages without this library).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_writes: Option<Versus>,
}

impl From<Interval> for Above {
    fn from(Interval { median: ns, low, high, sure }: Interval) -> Self {
        Self { ns, low, high, sure, allocs: None, bytes: None, raw_writes: None }
    }
}

impl Versus {
    /// Returns how precisely the ratio is known.
    pub fn known(&self) -> Known {
        Known::of_pairs(self.sure)
    }
}

impl Above {
    /// Returns how precisely the difference is known.
    pub fn known(&self) -> Known {
        Known::of_pairs(self.sure)
    }

    /// Returns the difference in nanoseconds, with its interval.
    pub fn interval(&self) -> Interval {
        Interval { median: self.ns, low: self.low, high: self.high, sure: self.sure }
    }
}

/// The result of a measured case (an operation), or of a part of a case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The id of the row: `<who>/<name>`, such as `rust/tracing_off_begin/10`.
    pub id: String,
    /// The unit of `median`, `low` and `high`.
    pub unit: String,
    /// The median of the measured values, in the unit `unit`.
    pub median: f64,
    /// The lower bound of the 95 % interval of the median.
    pub low: f64,
    /// The upper bound of the 95 % interval of the median.
    pub high: f64,
    /// The number of allocations of one operation, or `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocs: Option<f64>,
    /// The number of bytes that one operation allocates, or `None` if they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    /// The destination of the messages while the row was measured.
    pub sink: Sink,
    /// Whether the interval is too wide for a useful time. A ratio to another row may be known nevertheless; see
    /// [`known`](Self::known).
    pub noisy: bool,
    /// Whether there were enough measurements for bounds of 95 %. A file has this field only if the value is false.
    #[serde(default = "yes", skip_serializing_if = "is_so")]
    pub sure: bool,
    /// Ratios to other rows, by row id. The two cases were measured alternately in one process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs: BTreeMap<String, Versus>,
    /// Ratios to other rows, by row id. The two cases were measured in two processes that ran alternately.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs_process: BTreeMap<String, Versus>,
    /// The distribution of the measured values, if it was stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// The range of the processor's speed during the measurement, as factors of slowdown relative to the reference
    /// speed, without the extreme 5 % at each end. The reference speed is the speed to which times are converted. The
    /// median and its bounds are converted, unless that would move the median out of the range of the measured times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speeds: Option<[f64; 2]>,
    /// The differences to other rows. In a row of a workload, a key is the name of another mode (see
    /// [`crate::measure::workload`]) or the id of a row of inlined writes. In any other row, a key is the id of a row.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub above: BTreeMap<String, Above>,
    /// Further counts, by name. Some counts are per operation, such as polls and messages. Others are not, such as the
    /// number of living threads.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub counts: BTreeMap<String, f64>,
    /// The 95 % intervals of those counts that are rates or were counted in several periods. (If there were fewer than
    /// six values, the interval is from the lowest to the highest value.) Other counts have no interval.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, [f64; 2]>,
    /// Whether another row has a precisely known ratio to this row. [`note_comparisons`] sets this field.
    #[serde(skip)]
    pub is_base: bool,
}

/// Sets the field [`is_base`](Row::is_base) of all rows. `rows` must be all rows of a bench.
pub fn note_comparisons(rows: &mut [Row]) {
    let bases: BTreeSet<String> = rows.iter().flat_map(Row::known_bases).map(str::to_owned).collect();
    rows.iter_mut().for_each(|row| row.is_base = bases.contains(&row.id));
}

/// How precisely a number is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Known {
    /// The interval of the number is narrow.
    #[default]
    Well,
    /// The machine's speed varied during the measurement, so the time is uncertain. But a ratio to a row that was
    /// measured alternately with this row is known.
    Varied,
    /// A ratio or difference comes from too few pairs of measurements for a 95 % interval.
    Few,
    /// Neither the time nor a ratio is known precisely.
    Not,
}

impl Known {
    fn of_pairs(are_enough: bool) -> Self {
        if are_enough { Self::Well } else { Self::Few }
    }

    /// Returns a comma and the [words](Self::words) that are shown beside the number, or an empty text if the number is
    /// known well.
    pub(crate) fn remark(self) -> String {
        self.words().map(|words| format!(", {words}")).unwrap_or_default()
    }

    /// Returns the words that are shown beside the number, or `None` if the number is known well.
    pub fn words(self) -> Option<&'static str> {
        match self {
            Self::Well => None,
            Self::Varied => Some("speed varied"),
            Self::Few => Some("from too few pairs"),
            Self::Not => Some("not known"),
        }
    }
}

/// The distribution of the values that were measured for a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// The number of values.
    pub n: usize,
    /// The quantiles of the values, at the percentages in [`PERCENTS`].
    pub at: Vec<f64>,
}

/// The percentages of the quantiles in [`Rounds`].
pub const PERCENTS: [usize; 11] = [0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100];

impl Rounds {
    /// Returns the distribution of `samples`, or `None` if there is no sample, or if a sample is not a finite number.
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|x| !x.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let at = PERCENTS.map(|percent| sorted[((n * percent).div_ceil(100)).saturating_sub(1)]);
        Some(Self { n, at: at.to_vec() })
    }
}

impl Row {
    /// Makes a row of nanoseconds without comparisons.
    pub fn new(id: impl Into<String>, ns: Interval, sink: Sink) -> Self {
        Self {
            id: id.into(),
            unit: "ns".into(),
            median: ns.median,
            low: ns.low,
            high: ns.high,
            sink,
            noisy: ns.is_noisy(),
            sure: ns.sure,
            ..Self::default()
        }
    }

    #[cfg(test)]
    pub(crate) fn around(id: &str, median: f64, half: f64) -> Self {
        Self::new(id, Interval::around(median, half), Sink::Tracefs)
    }

    /// Returns the median with its interval.
    pub fn interval(&self) -> Interval {
        Interval { median: self.median, low: self.low, high: self.high, sure: self.sure }
    }

    /// Returns the ratio of this row to the row `base`, if the ratio was measured, in one process or in alternating
    /// processes.
    pub fn versus(&self, base: &str) -> Option<&Versus> {
        self.vs.get(base).or_else(|| self.vs_process.get(base))
    }

    /// Returns how precisely the time is known.
    pub fn known(&self) -> Known {
        match self.noisy {
            false => Known::Well,
            true if self.is_base || self.known_bases().next().is_some() => Known::Varied,
            true => Known::Not,
        }
    }

    /// Returns whether the median is within the range of the measured times. Returns true if the distribution of the
    /// times was not stored. A median that was converted to the reference speed must be in this range, too: an
    /// operation that waits takes the same time at any speed, so the conversion would be wrong for it.
    pub fn is_in_range(&self) -> bool {
        // Numbers in files are rounded to five digits, so the comparison allows for rounding.
        const DIGITS: f64 = 1.0001;
        // A file may have a distribution without quantiles.
        let ends = self.rounds.as_ref().and_then(|rounds| rounds.at.first().zip(rounds.at.last()));
        ends.is_none_or(|(least, most)| *least <= self.median * DIGITS && self.median <= *most * DIGITS)
    }

    /// Returns the ids of the other rows to which the ratio of this row is known precisely.
    fn known_bases(&self) -> impl Iterator<Item = &str> {
        let is_known = |ratio: &Versus| ratio.sure && Interval::from(*ratio).relative() <= NOISY_RATIO;
        let all = self.vs.iter().chain(&self.vs_process);
        all.filter(move |(_, ratio)| is_known(ratio)).map(|(base, _)| &base[..])
    }

    /// Sets the distribution of the measured values.
    pub fn with_rounds(mut self, samples: &[f64]) -> Self {
        self.rounds = Rounds::of(samples);
        self
    }

    /// Sets the counts of allocations and bytes of one operation, or `None` if allocations were not counted.
    pub fn with_allocs(mut self, counted: Option<PerOp>) -> Self {
        self.allocs = counted.map(|c| c.allocs);
        self.bytes = counted.map(|c| c.bytes);
        self
    }
}

const fn yes() -> bool {
    true
}

const fn is_so(yes: &bool) -> bool {
    *yes
}

/// A JSON formatter that rounds numbers to five digits, which is more precise than any measured interval. Whole numbers
/// are counts, so they keep all digits and have no decimal point.
struct Tidy;

impl Formatter for Tidy {
    fn write_f64<W: io::Write + ?Sized>(&mut self, writer: &mut W, x: f64) -> io::Result<()> {
        let rounded: f64 = if x.fract() == 0.0 { x } else { format!("{x:.4e}").parse().unwrap_or(x) };
        if rounded.fract() == 0.0 && rounded.abs() < 9e15 {
            write!(writer, "{}", rounded as i64)
        } else {
            CompactFormatter.write_f64(writer, rounded)
        }
    }
}

/// Formats a value as JSON. Numbers that are not whole are rounded to five digits.
pub(crate) fn to_json(value: &(impl Serialize + ?Sized)) -> io::Result<String> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, Tidy))?;
    String::from_utf8(json).map_err(io::Error::other)
}

/// Returns the directory of the files of results: the directory that `ATRACE_OVERHEAD_DIR` names or, if the variable is
/// not set, `overhead` in the target directory in which this program was built.
///
/// The target directory is the first of these that applies: `CARGO_TARGET_DIR`, if it is an absolute path; the nearest
/// directory above the program's file that has the file `CACHEDIR.TAG` (cargo's mark) or is called `target`; `target`
/// in the current directory.
pub fn dir() -> PathBuf {
    env_path("ATRACE_OVERHEAD_DIR").unwrap_or_else(|| target_dir().join("overhead"))
}

/// Returns the target directory in which this program was built.
pub(crate) fn target_dir() -> PathBuf {
    target_dir_of(env_path("CARGO_TARGET_DIR"), std::env::current_exe().ok().as_deref())
}

/// Returns the path in an environment variable. An empty variable counts as unset.
pub(crate) fn env_path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn target_dir_of(target: Option<PathBuf>, exe: Option<&Path>) -> PathBuf {
    let is_target = |dir: &&Path| {
        dir.join("CACHEDIR.TAG").is_file() || dir.file_name().is_some_and(|name| name == "target")
    };
    target
        .filter(|dir| dir.is_absolute())
        .or_else(|| exe?.ancestors().skip(1).find(is_target).map(Path::to_owned))
        .unwrap_or_else(|| PathBuf::from("target"))
}

/// Writes the rows of the bench `bench` to a file in [`dir`], writes the [environment] of the measurement to a file
/// below the same directory, and returns the path of the file of rows.
///
/// # Errors
///
/// Returns the system's error, with the path of the file. The old file of rows is replaced only when the new file is
/// complete.
pub fn write(bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let dir = dir();
    let path = write_to(&dir, bench, rows)?;
    environment::write_to(&dir, bench)?;
    Ok(path)
}

/// Checks that [`write()`] can create files in the directory of results.
///
/// # Errors
///
/// Returns the same errors as [`write()`].
pub fn can_write(bench: &str) -> io::Result<()> {
    let dir = dir();
    let path = dir.join(format!("{bench}.json"));
    let all = || std::fs::create_dir_all(&dir).and_then(|()| tempfile::tempfile_in(&dir)).map(drop);
    all().map_err(|e| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

/// Writes the rows of the bench `bench` to a file in `dir`, and returns the path of the file.
///
/// # Errors
///
/// Returns the same errors as [`write()`].
pub fn write_to(dir: &Path, bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let name = format!("{bench}.json");
    // Each row is a line of the file, so that files are easy to read and to compare.
    let line = |row: &Row| Ok(format!("\n{}", to_json(row)?));
    let rows = rows.iter().map(line).collect::<io::Result<Vec<_>>>()?;
    replace(dir, &name, format!("[{}\n]\n", rows.join(",")).as_bytes())?;
    Ok(dir.join(name))
}

/// Reads a file of rows.
///
/// # Errors
///
/// Returns the system's error or `InvalidData`, with the path of the file.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let all = || {
        let mut rows: Vec<Row> = serde_json::from_slice(&std::fs::read(path)?)?;
        note_comparisons(&mut rows);
        Ok(rows)
    };
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("reading {}: {e}", path.display())))
}

/// Replaces the file `name` in `dir` atomically: a reader gets either the old or the new content. Makes `dir` if it
/// does not exist.
pub(crate) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let all = || {
        std::fs::create_dir_all(dir)?;
        let mut temp = tempfile::Builder::new().prefix(".overhead-").tempfile_in(dir)?;
        temp.write_all(content)?;
        // By default, a temporary file is only readable by its owner. The file of results is readable by everyone.
        temp.as_file().set_permissions(Permissions::from_mode(0o644))?;
        temp.persist(&path).map_err(|e| e.error)?;
        Ok(())
    };
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

#[cfg(test)]
mod model_tests {
    use super::*;

    #[test]
    fn the_file_has_the_form_of_the_design() {
        let mut row = Row::around("rust/tracing_off_begin/10", 0.88, 0.01);
        row.low = 0.870_000_000_01;
        row.high = 0.9;
        (row.allocs, row.bytes) = (Some(0.0), Some(2_400_512.0));
        let versus = Versus { ratio: 0.15, low: 0.14, high: 0.16, sure: true };
        row.vs.insert("cc/tracing_off_begin/10".into(), versus);
        assert_eq!(
            to_json(&row).unwrap(),
            r#"{"id":"rust/tracing_off_begin/10","unit":"ns","median":0.88,"low":0.87,"high":0.9,"allocs":0,"bytes":2400512,"sink":"tracefs","noisy":false,"vs":{"cc/tracing_off_begin/10":{"ratio":0.15,"low":0.14,"high":0.16}}}"#
        );
    }

    #[test]
    fn a_workloads_row_has_more() {
        let mut row = Row::around("rust/x/on", 1000.0, 1.0);
        let raw_writes = Some(Versus { ratio: 1.05, low: 1.0, high: 1.1, sure: false });
        let ns = Interval { median: 800.0, low: 790.0, high: 810.000_001, sure: true };
        let above = Above { allocs: Some(0.0), raw_writes, ..Above::from(ns) };
        row.above.insert("nosub".into(), above);
        row.counts.insert("polls".into(), 3.0);
        let json = to_json(&row).unwrap();
        let expected = concat!(
            r#""noisy":false,"above":{"nosub":{"ns":800,"low":790,"high":810,"allocs":0,"#,
            r#""raw_writes":{"ratio":1.05,"low":1,"high":1.1,"sure":false}}},"counts":{"polls":3}}"#
        );
        assert!(json.ends_with(expected), "{json}");
        let read: Row = serde_json::from_str(&json).unwrap();
        assert_eq!((read.counts, read.above["nosub"].sure), (row.counts, true));
        assert!(!read.above["nosub"].raw_writes.unwrap().sure);
    }

    #[test]
    fn rounds_are_kept_by_their_ranks() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let rounds = Rounds::of(&samples).unwrap();
        assert_eq!(rounds.n, 200);
        assert_eq!(rounds.at, [1.0, 2.0, 10.0, 20.0, 50.0, 100.0, 150.0, 180.0, 190.0, 198.0, 200.0]);
        assert_eq!(Rounds::of(&[3.5]).unwrap().at, [3.5; 11]);
        assert_eq!((Rounds::of(&[]), Rounds::of(&[f64::NAN])), (None, None));
        let row = Row::around("a", 1.0, 0.0).with_rounds(&[1.000_000_1, 2.0]);
        let text = to_json(&row).unwrap();
        assert!(text.ends_with(r#""rounds":{"n":2,"at":[1,1,1,1,1,1,2,2,2,2,2]}}"#), "{text}");
    }

    #[test]
    fn what_a_later_version_adds_is_ignored() {
        let text = r#"{"id": "a", "unit": "ns", "median": 1, "low": 1, "high": 1, "sink": "uprobe",
            "noisy": false, "instructions": 12, "vs": {"b": {"ratio": 1, "low": 1, "high": 1, "p": 0.5}}}"#;
        let row: Row = serde_json::from_str(text).unwrap();
        assert_eq!((row.sink, row.allocs, row.vs["b"].ratio), (Sink::Other, None, 1.0));
    }
}

#[cfg(test)]
mod file_tests {
    use super::*;
    use crate::row::Versus;

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let nested = dir.path().join("a/b");
        let mut rows = vec![Row::around("rust/x", 627.25, 1.5), Row::around("cc/x", 1.0, 0.5)];
        rows[0].allocs = Some(1.5);
        rows[0].vs_process.insert("cc/x".into(), Versus { ratio: 3.0, low: 2.5, high: 4.0, sure: true });
        let path = write_to(&nested, "main", &rows).unwrap();
        assert_eq!(path, nested.join("main.json"));
        assert_eq!(read(&path).unwrap(), rows);
        assert!(rows[1].noisy);
        write_to(&nested, "main", &rows[..1]).unwrap();
        assert_eq!(read(&path).unwrap(), rows[..1]);
        write_to(&nested, "main", &[]).unwrap();
        assert_eq!(read(&path).unwrap(), []);
        assert_eq!(std::fs::read_dir(&nested).unwrap().count(), 1);
        let none = read(&nested.join("none.json")).unwrap_err();
        assert!(none.to_string().contains("none.json"), "{none}");
    }

    #[test]
    fn the_directory_is_found() {
        let temp = tempfile::tempdir().unwrap();
        let exe = temp.path().join("odd/release/deps/bench-0");
        let some = |s: &str| Some(PathBuf::from(s));
        assert_eq!(target_dir_of(some("/t"), Some(&exe)), Path::new("/t"));
        let named = Path::new("/w/target/release/deps/bench-0");
        assert_eq!(target_dir_of(some("relative"), Some(named)), Path::new("/w/target"));
        assert_eq!(target_dir_of(None, Some(&exe)), Path::new("target"));
        std::fs::create_dir_all(exe.parent().unwrap()).unwrap();
        std::fs::write(temp.path().join("odd/CACHEDIR.TAG"), "").unwrap();
        assert_eq!(target_dir_of(None, Some(&exe)), temp.path().join("odd"));
    }

    #[test]
    fn a_median_outside_of_the_measured_times_is_found() {
        let row = |median, samples: &[f64]| Row::around("x", median, 0.1).with_rounds(samples);
        assert!(row(2.0, &[1.0, 2.0, 3.0]).is_in_range() && row(3.0, &[1.0, 3.0]).is_in_range());
        assert!(!row(3.1, &[1.0, 3.0]).is_in_range() && !row(0.9, &[1.0, 3.0]).is_in_range());
        // Without a distribution there is nothing to compare with.
        let empty = Row { rounds: Some(Rounds { n: 0, at: Vec::new() }), ..row(1.0, &[]) };
        assert!(row(1.0, &[]).is_in_range() && empty.is_in_range());
    }
}

//! The measured file: what a bench leaves in `target/overhead/` for the report, the tests and the
//! next run.
//!
//! A file is a JSON array of rows. Whatever a later version adds is ignored by an earlier one.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::{Deserialize, Serialize, Serializer};

use crate::alloc::PerOp;
use crate::environment;
use crate::stats::Interval;
use crate::terminal::fail;

/// Where the messages went while a row was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    /// A real `trace_marker`.
    Tracefs,
    /// Android's libcutils.
    Cutils,
    /// Android's libandroid.
    Ndk,
    /// A temporary file.
    File,
    /// `/dev/null`.
    Null,
    /// Nowhere.
    None,
    /// Somewhere this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tracefs => "tracefs",
            Self::Cutils => "cutils",
            Self::Ndk => "ndk",
            Self::File => "file",
            Self::Null => "null",
            Self::None => "none",
            Self::Other => "other",
        })
    }
}

/// How many times as long as something else, with a 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Versus {
    /// The median of the ratios of all rounds.
    #[serde(serialize_with = "tidy")]
    pub ratio: f64,
    /// Its lower bound.
    #[serde(serialize_with = "tidy")]
    pub low: f64,
    /// Its upper bound.
    #[serde(serialize_with = "tidy")]
    pub high: f64,
}

impl From<Interval> for Versus {
    fn from(i: Interval) -> Self {
        Self { ratio: i.median, low: i.low, high: i.high }
    }
}

/// How much more than something else, with a 95 % interval, from processes that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Above {
    /// The median of the differences, in nanoseconds.
    #[serde(serialize_with = "tidy")]
    pub ns: f64,
    /// Its lower bound.
    #[serde(serialize_with = "tidy")]
    pub low: f64,
    /// Its upper bound.
    #[serde(serialize_with = "tidy")]
    pub high: f64,
    /// How many more allocations, where both were counted.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "tidy_option")]
    pub allocs: Option<f64>,
    /// How many more bytes, where both were counted.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "tidy_option")]
    pub bytes: Option<f64>,
    /// How many times as long that is as only writing the messages takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_writes: Option<Versus>,
}

/// One measured case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `<who>/<name>`, such as `rust/tracing_off_begin/10`.
    pub id: String,
    /// What the three numbers are in.
    pub unit: String,
    /// The median.
    #[serde(serialize_with = "tidy")]
    pub median: f64,
    /// The lower bound of its 95 % interval.
    #[serde(serialize_with = "tidy")]
    pub low: f64,
    /// The upper bound of its 95 % interval.
    #[serde(serialize_with = "tidy")]
    pub high: f64,
    /// Allocations of one operation; absent where they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "tidy_option")]
    pub allocs: Option<f64>,
    /// Bytes allocated by one operation; absent where they were not counted.
    #[serde(default, skip_serializing_if = "Option::is_none", serialize_with = "tidy_option")]
    pub bytes: Option<f64>,
    /// Where messages went.
    pub sink: Sink,
    /// Whether the interval is too wide to mean anything: the row counts as missing.
    pub noisy: bool,
    /// Ratios to other rows, from interleaved rounds in one process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs: BTreeMap<String, Versus>,
    /// Ratios to other rows, from alternating processes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs_process: BTreeMap<String, Versus>,
    /// How the rounds were distributed, where that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// Of a workload's row, what its mode costs more than other modes, by their names: see
    /// [`crate::workload`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub above: BTreeMap<String, Above>,
    /// What else was counted, by its name: of one operation (polls, messages), or at any time (threads
    /// alive).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", serialize_with = "tidy_map")]
    pub counts: BTreeMap<String, f64>,
}

/// How what was measured in the rounds of a case was distributed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    /// How many rounds there were.
    pub n: usize,
    /// What was not exceeded in [`PERCENTS`] of them.
    #[serde(serialize_with = "tidy_all")]
    pub at: Vec<f64>,
}

/// The parts of the rounds that [`Rounds`] tells of, in percent.
pub const PERCENTS: [usize; 11] = [0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100];

impl Rounds {
    /// Returns the distribution of `samples`; `None` where there are none, or one is not a finite number.
    #[must_use]
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
    /// Makes a row of nanoseconds that is compared to nothing yet.
    #[must_use]
    pub fn new(id: impl Into<String>, ns: Interval, sink: Sink) -> Self {
        Self {
            id: id.into(),
            unit: "ns".into(),
            median: ns.median,
            low: ns.low,
            high: ns.high,
            allocs: None,
            bytes: None,
            sink,
            noisy: ns.is_noisy(),
            vs: BTreeMap::new(),
            vs_process: BTreeMap::new(),
            rounds: None,
            above: BTreeMap::new(),
            counts: BTreeMap::new(),
        }
    }

    /// Keeps how the rounds were distributed that the numbers are of.
    #[must_use]
    pub fn with_rounds(mut self, samples: &[f64]) -> Self {
        self.rounds = Rounds::of(samples);
        self
    }

    /// Sets what was counted, if it was.
    #[must_use]
    pub fn with_allocs(mut self, counted: Option<PerOp>) -> Self {
        self.allocs = counted.map(|c| c.allocs);
        self.bytes = counted.map(|c| c.bytes);
        self
    }
}

/// Five digits are more than any interval is wide, and a whole number has no point.
fn tidy<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let rounded: f64 = format!("{x:.4e}").parse().unwrap_or(*x);
    #[expect(clippy::cast_possible_truncation, reason = "below 2^53 and whole")]
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 {
        serializer.serialize_i64(rounded as i64)
    } else {
        serializer.serialize_f64(rounded)
    }
}

#[expect(clippy::ref_option, reason = "the signature that serde calls")]
fn tidy_option<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match x {
        Some(x) => tidy(x, serializer),
        None => serializer.serialize_none(),
    }
}

/// A number within something else, tidy.
#[derive(Serialize)]
struct Tidy(#[serde(serialize_with = "tidy")] f64);

fn tidy_all<S: Serializer>(all: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(all.iter().copied().map(Tidy))
}

fn tidy_map<S: Serializer>(map: &BTreeMap<String, f64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(map.iter().map(|(name, &x)| (name, Tidy(x))))
}

/// Returns the directory of measured files: what `ATRACE_OVERHEAD_DIR` names, else `overhead` in
/// the target directory that this program was built in.
///
/// That is the one of `CARGO_TARGET_DIR`, if absolute; else the nearest above the program that
/// cargo marked (`CACHEDIR.TAG`) or that is called `target`; else `target` here.
#[must_use]
pub fn dir() -> PathBuf {
    env_path("ATRACE_OVERHEAD_DIR").unwrap_or_else(|| target_dir().join("overhead"))
}

/// Returns the target directory that this program was built in.
pub(crate) fn target_dir() -> PathBuf {
    target_dir_of(env_path("CARGO_TARGET_DIR"), std::env::current_exe().ok().as_deref())
}

/// Returns the path that a variable names; empty is as good as unset.
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

/// Writes the rows of `bench` to its file in [`dir`], with the [environment] beside it, and
/// returns which that is.
///
/// # Errors
///
/// What the system answered, with the file it was about. The old file is there until the new one
/// is complete.
pub fn write(bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let dir = dir();
    let path = write_to(&dir, bench, rows)?;
    environment::write_to(&dir, bench)?;
    Ok(path)
}

/// Tells whether the rows of `bench` can be written where they will be.
///
/// # Errors
///
/// As [`write()`].
pub fn can_write(bench: &str) -> io::Result<()> {
    let dir = dir();
    let path = dir.join(format!("{bench}.json"));
    let all = || std::fs::create_dir_all(&dir).and_then(|()| tempfile::tempfile_in(&dir)).map(drop);
    all().map_err(|e| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

/// Writes the rows of `bench` to its file in `dir` and returns which that is.
///
/// # Errors
///
/// As [`write()`].
pub fn write_to(dir: &Path, bench: &str, rows: &[Row]) -> io::Result<PathBuf> {
    let name = format!("{bench}.json");
    // One row a line: good to read, and to compare.
    let mut text = String::from("[");
    for (i, row) in rows.iter().enumerate() {
        text.push_str(if i == 0 { "\n" } else { ",\n" });
        text.push_str(&serde_json::to_string(row)?);
    }
    text.push_str("\n]\n");
    replace(dir, &name, text.as_bytes())?;
    Ok(dir.join(name))
}

/// Makes `name` in `dir`, which is made if needed, a file with this content. Whoever reads meanwhile gets all of
/// the old one or all of the new.
pub(crate) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let path = dir.join(name);
    let all = || {
        std::fs::create_dir_all(dir)?;
        let mut temp = tempfile::Builder::new().prefix(".overhead-").tempfile_in(dir)?;
        temp.write_all(content)?;
        make_readable(temp.as_file())?;
        temp.persist(&path).map_err(|e| e.error)?;
        Ok(())
    };
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("writing {}: {e}", path.display())))
}

/// A temporary file is its owner's alone; a result is for everyone, as if it had been created.
fn make_readable(file: &std::fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

/// Reads a measured file.
///
/// # Errors
///
/// What the system answered, or `InvalidData`, with the file it was about.
pub fn read(path: &Path) -> io::Result<Vec<Row>> {
    let all = || Ok(serde_json::from_slice(&std::fs::read(path)?)?);
    all().map_err(|e: io::Error| io::Error::new(e.kind(), format!("reading {}: {e}", path.display())))
}

/// Returns how a bench with these rows ends: it fails, and says so, when every one is noisy.
#[must_use]
pub fn exit_code(rows: &[Row]) -> ExitCode {
    if rows.iter().any(|row| !row.noisy) {
        return ExitCode::SUCCESS;
    }
    let why = if rows.is_empty() { "no row was measured" } else { "every row is noisy" };
    fail(1, format_args!("{why}: nothing can be said about this machine"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, median: f64, half: f64) -> Row {
        let ns = Interval { median, low: median - half, high: median + half, sure: true };
        Row::new(id, ns, Sink::Tracefs)
    }

    #[test]
    fn the_file_has_the_form_of_the_design() {
        let mut row = row("rust/tracing_off_begin/10", 0.88, 0.01);
        row.low = 0.870_000_000_01;
        row.high = 0.9;
        (row.allocs, row.bytes) = (Some(0.0), Some(0.0));
        let versus = Versus { ratio: 0.15, low: 0.14, high: 0.16 };
        row.vs.insert("cc/tracing_off_begin/10".into(), versus);
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"id":"rust/tracing_off_begin/10","unit":"ns","median":0.88,"low":0.87,"high":0.9,"allocs":0,"bytes":0,"sink":"tracefs","noisy":false,"vs":{"cc/tracing_off_begin/10":{"ratio":0.15,"low":0.14,"high":0.16}}}"#
        );
    }

    #[test]
    fn a_workloads_row_has_more() {
        let mut row = row("rust/x/on", 1000.0, 1.0);
        let raw_writes = Some(Versus { ratio: 1.05, low: 1.0, high: 1.1 });
        let above =
            Above { ns: 800.0, low: 790.0, high: 810.000_001, allocs: Some(0.0), bytes: None, raw_writes };
        row.above.insert("nosub".into(), above);
        row.counts.insert("polls".into(), 3.0);
        let json = serde_json::to_string(&row).unwrap();
        let expected = concat!(
            r#""noisy":false,"above":{"nosub":{"ns":800,"low":790,"high":810,"allocs":0,"#,
            r#""raw_writes":{"ratio":1.05,"low":1,"high":1.1}}},"counts":{"polls":3}}"#
        );
        assert!(json.ends_with(expected), "{json}");
        assert_eq!(serde_json::from_str::<Row>(&json).unwrap().counts, row.counts);
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let nested = dir.path().join("a/b");
        let mut rows = vec![row("rust/x", 627.25, 1.5), row("cc/x", 1.0, 0.5)];
        rows[0].allocs = Some(1.5);
        rows[0].vs_process.insert("cc/x".into(), Versus { ratio: 3.0, low: 2.5, high: 4.0 });
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
    fn rounds_are_kept_by_their_ranks() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        let rounds = Rounds::of(&samples).unwrap();
        assert_eq!(rounds.n, 200);
        assert_eq!(rounds.at, [1.0, 2.0, 10.0, 20.0, 50.0, 100.0, 150.0, 180.0, 190.0, 198.0, 200.0]);
        assert_eq!(Rounds::of(&[3.5]).unwrap().at, [3.5; 11]);
        assert_eq!((Rounds::of(&[]), Rounds::of(&[f64::NAN])), (None, None));
        let row = row("a", 1.0, 0.0).with_rounds(&[1.000_000_1, 2.0]);
        let text = serde_json::to_string(&row).unwrap();
        assert!(text.ends_with(r#""rounds":{"n":2,"at":[1,1,1,1,1,1,2,2,2,2,2]}}"#), "{text}");
    }

    #[test]
    fn what_a_later_version_adds_is_ignored() {
        let text = r#"{"id": "a", "unit": "ns", "median": 1, "low": 1, "high": 1, "sink": "uprobe",
            "noisy": false, "instructions": 12, "vs": {"b": {"ratio": 1, "low": 1, "high": 1, "p": 0.5}}}"#;
        let row: Row = serde_json::from_str(text).unwrap();
        assert_eq!((row.sink, row.allocs, row.vs["b"].ratio), (Sink::Other, None, 1.0));
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
    fn a_run_fails_only_when_every_row_is_noisy() {
        let (good, bad) = (row("a", 100.0, 1.0), row("b", 100.0, 50.0));
        // `ExitCode` can't be compared.
        let code = |rows: &[Row]| format!("{:?}", exit_code(rows));
        let (ok, failed) = (format!("{:?}", ExitCode::SUCCESS), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(code(&[good.clone(), bad.clone()]), ok);
        assert_eq!(code(&[bad]), failed);
        assert_eq!(code(&[]), failed);
    }
}

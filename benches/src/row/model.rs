//! A measured row, as it stands in the file.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use crate::instruments::alloc::PerOp;
use crate::stats::Interval;

/// Where the messages went while a row was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sink {
    /// A real `trace_marker`.
    Tracefs,
    /// Android's libcutils.
    Cutils,
    /// Android's libandroid.
    Ndk,
    /// Memory that is shared with Perfetto's service.
    Perfetto,
    /// A temporary file.
    File,
    /// `/dev/null`.
    Null,
    /// Nowhere.
    #[default]
    None,
    /// Somewhere this version does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for Sink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As in the file.
        let name = serde_json::to_value(self).unwrap_or_default();
        f.pad(name.as_str().unwrap_or_default())
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
    /// Whether there were slices enough for bounds of 95 %; only where not, it stands in the file.
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
    /// Whether there were slices enough for bounds of 95 %; only where not, it stands in the file.
    #[serde(default = "yes", skip_serializing_if = "is_so")]
    pub sure: bool,
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

impl From<Interval> for Above {
    fn from(Interval { median: ns, low, high, sure }: Interval) -> Self {
        Self { ns, low, high, sure, allocs: None, bytes: None, raw_writes: None }
    }
}

impl Above {
    /// Returns the nanoseconds with their interval.
    pub fn interval(&self) -> Interval {
        Interval { median: self.ns, low: self.low, high: self.high, sure: self.sure }
    }
}

/// One measured case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Whether there were slices enough for bounds of 95 %; only where not, it stands in the file.
    #[serde(default = "yes", skip_serializing_if = "is_so")]
    pub sure: bool,
    /// Ratios to other rows, from interleaved rounds in one process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs: BTreeMap<String, Versus>,
    /// Ratios to other rows, from alternating processes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vs_process: BTreeMap<String, Versus>,
    /// How the rounds were distributed, where that was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// How many times as long as at the reference speed, which the three numbers are at, the processor took for the same work
    /// meanwhile: from and to, without a twentieth at each end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speeds: Option<[f64; 2]>,
    /// What it costs more than others: of a workload's row, than its other modes, by their names (see
    /// [`crate::measure::workload`]); of another, than other rows, by their ids.
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

    /// Returns how many times as long it takes as another, from interleaved rounds or alternating processes.
    pub fn versus(&self, base: &str) -> Option<&Versus> {
        self.vs.get(base).or_else(|| self.vs_process.get(base))
    }

    /// Keeps how the rounds were distributed that the numbers are of.
    pub fn with_rounds(mut self, samples: &[f64]) -> Self {
        self.rounds = Rounds::of(samples);
        self
    }

    /// Sets what was counted, if it was.
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

/// Five digits are more than any interval is wide. A whole number has no point and all its digits: it was counted.
fn tidy<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    let rounded: f64 = if x.fract() == 0.0 { *x } else { format!("{x:.4e}").parse().unwrap_or(*x) };
    if rounded.fract() == 0.0 && rounded.abs() < 9e15 {
        serializer.serialize_i64(rounded as i64)
    } else {
        serializer.serialize_f64(rounded)
    }
}

fn tidy_option<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    x.map(Tidy).serialize(serializer)
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

#[cfg(test)]
mod tests {
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
            serde_json::to_string(&row).unwrap(),
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
        let json = serde_json::to_string(&row).unwrap();
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
}

//! What the report says, before it is Markdown, HTML or JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::catalogue::published::Published;
use crate::catalogue::{Id, Who};
use crate::row::environment::Environment;
use crate::row::{Row, Versus};

/// The whole report.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// What was found, in a sentence or two.
    pub(crate) summary: String,
    /// On what.
    pub(crate) about: String,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
    pub(crate) sections: Vec<Section>,
    /// All rows as they were measured, by place and bench; here is "".
    pub(crate) measured: BTreeMap<String, BTreeMap<String, Measured>>,
}

/// What a bench left.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment: Option<Environment>,
    pub(crate) rows: Vec<Row>,
}

/// One of the numbers that matter most.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    /// None where it was not measured.
    pub(crate) value: Option<String>,
    pub(crate) beside: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Section {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) text: Vec<String>,
    pub(crate) parts: Vec<Part>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    Table(Table),
    Plot(Plot),
    /// Shown when asked for.
    Folded(String, Vec<Part>),
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<Cell>>,
    pub(crate) note: String,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Cell {
    /// There is nothing like it.
    Empty,
    /// It should be there.
    Missing,
    Text(String),
    /// The name of a case.
    Name(String),
    Value(Value),
    /// How many times as long; the interval is missing where none was published.
    Ratio(f64, Option<(f64, f64)>),
    Count(f64),
    /// Several, each with what it is.
    List(Vec<(String, Cell)>),
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Value {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) unit: String,
    pub(crate) noisy: bool,
    /// Whether it is this workspace's own, which is what the reader looks for.
    pub(crate) own: bool,
}

impl Table {
    /// Leaves out the columns that have nothing in them.
    pub(crate) fn dense(mut self) -> Self {
        for index in (1..self.columns.len()).rev() {
            if self.rows.iter().all(|row| row.get(index).is_none_or(|cell| *cell == Cell::Empty)) {
                self.columns.remove(index);
                for row in self.rows.iter_mut().filter(|row| row.len() > index) {
                    row.remove(index);
                }
            }
        }
        self
    }
}

impl Cell {
    pub(crate) fn value(row: Option<&Row>) -> Self {
        let Some(row) = row else { return Self::Missing };
        Self::Value(Value {
            median: row.median,
            low: row.low,
            high: row.high,
            unit: row.unit.clone(),
            noisy: row.noisy,
            own: Id::of(&row.id).who == Who::Rust,
        })
    }

    /// A number that the original's authors published.
    pub(crate) fn published(time: Published) -> Self {
        let Published { low, ns: median, high } = time;
        Self::Value(Value { median, low, high, unit: "ns".to_owned(), noisy: false, own: false })
    }

    pub(crate) fn ratio(versus: Option<&Versus>) -> Self {
        versus.map_or(Self::Empty, |v| Self::Ratio(v.ratio, Some((v.low, v.high))))
    }

    pub(crate) fn count(count: Option<f64>) -> Self {
        count.map_or(Self::Empty, Self::Count)
    }
}

/// Who a row is about: decides on its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Series {
    Limit,
    Cc,
    Rust,
    Ffi,
    Peer,
}

impl Series {
    pub(crate) const ALL: [Self; 5] = [Self::Limit, Self::Cc, Self::Rust, Self::Ffi, Self::Peer];

    pub(crate) fn of(id: &str) -> Self {
        match Id::of(id).who {
            Who::Rust => Self::Rust,
            Who::Cc => Self::Cc,
            Who::Ffi => Self::Ffi,
            Who::Limit => Self::Limit,
            Who::Other(_) => Self::Peer,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Limit => "limit (nothing traced, or the raw write)",
            Self::Cc => "C++ (libcutils)",
            Self::Rust => "Rust (this workspace)",
            Self::Ffi => "Rust through libcutils",
            Self::Peer => "others",
        }
    }

    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Cc => "cc",
            Self::Rust => "rust",
            Self::Ffi => "ffi",
            Self::Peer => "peer",
        }
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Plot {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) kind: Kind,
    pub(crate) groups: Vec<Group>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Several marks a line, on a logarithmic axis of nanoseconds.
    Dots,
    /// One mark a line, on a stem.
    Ladder,
    /// Marks around zero: what something adds.
    Differences,
    /// How rounds are distributed around their median.
    Rounds,
}

#[derive(Debug, Serialize)]
pub(crate) struct Group {
    pub(crate) title: String,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) label: String,
    /// What is said at its end.
    pub(crate) text: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) series: Series,
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) noisy: bool,
    /// The row that it is of.
    pub(crate) of: String,
    /// The percentiles of its rounds by their median; only where these are drawn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rounds: Vec<f64>,
}

impl Point {
    pub(crate) fn of(row: &Row) -> Self {
        Self {
            series: Series::of(&row.id),
            median: row.median,
            low: row.low,
            high: row.high,
            noisy: row.noisy,
            of: row.id.clone(),
            rounds: Vec::new(),
        }
    }
}

/// A name as part of an id of the page.
pub(crate) fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_told_by_ids() {
        assert_eq!(Series::of("peer-tracing-chrome/event"), Series::Peer);
        assert_eq!(Series::of("cc/x"), Series::Cc);
    }
}

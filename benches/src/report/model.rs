//! What the report says, before it is HTML or JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::catalogue::{Id, Who};
use crate::row::Row;
use crate::row::environment::Environment;
use crate::table::Table;

/// The whole report.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) title: String,
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

impl Section {
    /// Without a text.
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>, parts: Vec<Part>) -> Self {
        Self { id: id.into(), title: title.into(), text: Vec::new(), parts }
    }

    /// Says something above its parts.
    pub(crate) fn with_text<S: Into<String>>(mut self, text: impl IntoIterator<Item = S>) -> Self {
        self.text = text.into_iter().map(Into::into).collect();
        self
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Part {
    Table(Table),
    Plot(Plot),
    /// Shown when asked for.
    Folded(String, Table),
}

/// Who a row is about: decides on its mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Series {
    Limit,
    Cc,
    Rust,
    Ffi,
}

impl Series {
    fn of(id: &str) -> Self {
        match Id::of(id).who {
            Who::Cc => Self::Cc,
            Who::Ffi => Self::Ffi,
            Who::Limit => Self::Limit,
            _ => Self::Rust,
        }
    }

    pub(crate) fn label(self) -> &'static str {
        const LABELS: [&str; 4] = [
            "limit (nothing traced, or the raw write)",
            "C++ (libcutils)",
            "Rust (this workspace)",
            "Rust through libcutils",
        ];
        LABELS[self as usize]
    }

    pub(crate) fn class(self) -> &'static str {
        ["limit", "cc", "rust", "ffi"][self as usize]
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Plot {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) groups: Vec<Group>,
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
}

impl Point {
    pub(crate) fn of(row: &Row) -> Self {
        let Row { median, low, high, noisy, ref id, .. } = *row;
        Self { series: Series::of(id), median, low, high, noisy, of: id.clone() }
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
        assert_eq!(Series::of("perfetto/event"), Series::Rust);
        assert_eq!(Series::of("cc/x"), Series::Cc);
    }
}

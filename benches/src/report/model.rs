//! The content of the report, independent of HTML and JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::catalogue::{Id, Who};
use crate::row::environment::Environment;
use crate::row::{Known, Row};
use crate::table::Table;

/// The whole report.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) title: String,
    /// A description of the machine and the run.
    pub(crate) about: String,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
    pub(crate) sections: Vec<Section>,
    /// All measured rows (results), by the names of the machine and the bench. The machine that makes the report has an
    /// empty name.
    pub(crate) measured: BTreeMap<String, BTreeMap<String, Measured>>,
}

/// The rows (results) and the environment of a bench.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Measured {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) environment: Option<Environment>,
    pub(crate) rows: Vec<Row>,
}

/// A key number: one of the most important results, which the report shows first.
#[derive(Debug, Serialize)]
pub(crate) struct Finding {
    pub(crate) what: String,
    /// The value as text, or `None` if it was not measured.
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
    /// Makes a section without a text.
    pub(crate) fn new(id: impl Into<String>, title: impl Into<String>, parts: Vec<Part>) -> Self {
        Self { id: id.into(), title: title.into(), text: Vec::new(), parts }
    }

    /// Sets the text above the parts of the section, as paragraphs.
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
    /// A table that is only shown when the reader unfolds it, and its summary, which is always shown.
    Folded(String, Table),
}

/// Returns the series to which a row (a result) belongs in a plot. The series determines the shape and the colour of
/// the row's mark.
pub(crate) fn series(id: &str) -> &'static str {
    match Id::of(id).who {
        Who::Cc => "cc",
        Who::Ffi => "ffi",
        Who::Limit => "limit",
        _ => "rust",
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Plot {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) caption: String,
    /// The description of C++ in the legend of the plot.
    pub(crate) cc: String,
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
    /// The text at the end of this line of the plot.
    pub(crate) text: String,
    pub(crate) points: Vec<Point>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Point {
    pub(crate) series: &'static str,
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) known: Known,
    /// The id of the row (result) that the point shows.
    pub(crate) of: String,
}

impl Point {
    pub(crate) fn of(row: &Row) -> Self {
        let Row { median, low, high, ref id, .. } = *row;
        Self { series: series(id), median, low, high, known: row.known(), of: id.clone() }
    }
}

/// Makes a text that can be a part of an HTML id, from a name.
pub(crate) fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_told_by_ids() {
        assert_eq!(["perfetto/event", "cc/x"].map(series), ["rust", "cc"]);
    }
}

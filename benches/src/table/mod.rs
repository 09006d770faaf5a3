//! A table, and how it is written: for terminals, and as HTML.
//!
//! Everything that is shown in columns is a [`Table`], so that a number looks the same wherever it stands. A cell that has
//! no number says why: the reasons are printed below the table.

mod html;
pub(crate) mod number;
mod rows;
mod text;

use std::fmt;

use serde::Serialize;

pub(crate) use self::html::draw;
pub use self::rows::of_rows;
pub(crate) use self::rows::{COUNTS, counted_of};
pub use self::text::WIDTH;

use self::number::{count, interval, ratio};
use crate::catalogue::{Id, Who, published::Published};
use crate::row::{Above, Row, Versus};

/// Lines of cells below a line of names.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// What all of it is.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The lines, each with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// What a reader should know, printed below.
    pub note: String,
}

/// What stands in a line of a [`Table`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// Nothing is expected here.
    Empty,
    /// There is no number, for this reason.
    None(String),
    /// Words.
    Text(String),
    /// The name of a case.
    Name(String),
    /// Something measured.
    Value(Value),
    /// How many times as long; the interval is missing where none was published.
    Ratio(f64, Option<(f64, f64)>),
    /// Something counted.
    Count(f64),
    /// Several, each with what it is.
    List(Vec<(String, Cell)>),
}

/// A median with its interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// The median.
    pub median: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// What the three are in.
    pub unit: String,
    /// Whether the interval is too wide to mean anything.
    pub noisy: bool,
    /// Whether it is this workspace's own, which is what the reader looks for.
    pub own: bool,
}

impl Table {
    /// Makes a table without lines.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Says something below the table.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds a line.
    pub fn push(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Leaves out the columns that have no number, and says so below.
    pub fn dense(mut self) -> Self {
        for index in (1..self.columns.len()).rev() {
            let has_none =
                |row: &Vec<Cell>| matches!(row.get(index), None | Some(Cell::Empty | Cell::None(_)));
            if self.rows.iter().all(has_none) {
                let column = self.columns.remove(index);
                if let Some(Cell::None(why)) = self.rows.first().and_then(|row| row.get(index)) {
                    let space = if self.note.is_empty() { "" } else { " " };
                    self.note.push_str(&format!("{space}No column \"{column}\": {why}."));
                }
                for row in self.rows.iter_mut().filter(|row| row.len() > index) {
                    row.remove(index);
                }
            }
        }
        self
    }

    /// Returns what is wrong with the form of the table: a line that has not a cell for each column, or a cell that says
    /// neither a number nor why there is none.
    pub fn hole(&self) -> Option<String> {
        let line =
            self.rows.iter().find(|row| row.len() != self.columns.len() || row.contains(&Cell::Empty))?;
        let cells: Vec<String> = line.iter().map(Cell::to_string).collect();
        Some(format!("the table \"{}\" has a hole: {}", self.title, cells.join(" | ")))
    }

    /// Returns why cells have no number, each reason once; their marks are `a`, `b`, … in this order.
    pub(crate) fn reasons(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for cell in self.rows.iter().flatten() {
            if let Cell::None(why) = cell
                && !all.contains(&&why[..])
            {
                all.push(why);
            }
        }
        all
    }

    /// Returns the sentences below the table: the note, and the reasons with their marks.
    pub(crate) fn below(&self) -> Vec<String> {
        let reasons = self.reasons();
        let note = (!self.note.is_empty()).then(|| self.note.clone());
        note.into_iter().chain(reasons.iter().map(|why| format!("{}: {why}.", mark(&reasons, why)))).collect()
    }
}

/// What stands for a reason in the table.
fn mark(reasons: &[&str], why: &str) -> String {
    let index = reasons.iter().position(|reason| *reason == why).unwrap_or_default();
    let letter = u8::try_from(index % 26).unwrap_or_default() + b'a';
    format!("–{}", char::from(letter))
}

impl Value {
    /// A time in nanoseconds, with its bounds, that is not this workspace's own.
    pub(crate) fn times(low: f64, median: f64, high: f64) -> Self {
        Self { median, low, high, unit: "ns".to_owned(), noisy: false, own: false }
    }

    /// What something costs more than something else, in nanoseconds.
    pub fn of(above: &Above) -> Self {
        Self { own: true, ..Self::times(above.low, above.ns, above.high) }
    }
}

impl Cell {
    /// Makes a cell of a measured row.
    pub fn value(row: Option<&Row>) -> Self {
        let Some(row) = row else { return Self::not_measured() };
        Self::Value(Value {
            median: row.median,
            low: row.low,
            high: row.high,
            unit: row.unit.clone(),
            noisy: row.noisy,
            own: matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto),
        })
    }

    /// Makes a cell of what should have been measured and was not.
    pub fn not_measured() -> Self {
        Self::None("not measured in this run".to_owned())
    }

    /// Makes a cell that says why there is no number.
    pub fn none(why: impl Into<String>) -> Self {
        Self::None(why.into())
    }

    /// Returns this cell, or one that says why it is empty.
    pub fn or(self, why: &str) -> Self {
        if self == Self::Empty { Self::none(why) } else { self }
    }

    /// Returns this cell, or if it is empty that nothing was measured.
    pub fn or_not_measured(self) -> Self {
        if self == Self::Empty { Self::not_measured() } else { self }
    }

    /// Makes a cell of a number that the original's authors published.
    pub(crate) fn published(time: Published) -> Self {
        Self::Value(Value::times(time.low, time.ns, time.high))
    }

    /// Makes a cell of a ratio, empty where there is none.
    pub fn ratio(versus: Option<&Versus>) -> Self {
        versus.map_or(Self::Empty, |v| Self::Ratio(v.ratio, Some((v.low, v.high))))
    }

    /// Makes a cell of a count, empty where nothing was counted.
    pub fn count(count: Option<f64>) -> Self {
        count.map_or(Self::Empty, Self::Count)
    }

    /// Makes a cell of several things, or one that says why there are none.
    pub(crate) fn list(all: Vec<(String, Self)>, why: &str) -> Self {
        if all.is_empty() { Self::none(why) } else { Self::List(all) }
    }

    /// Makes a cell of words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell of the name of a case.
    pub fn name(name: impl Into<String>) -> Self {
        Self::Name(name.into())
    }

    /// What it says, where a reason is one of these.
    fn said(&self, reasons: &[&str]) -> String {
        match self {
            Self::None(why) => mark(reasons, why),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => Ok(()),
            Self::None(_) => f.write_str("–"),
            Self::Text(text) | Self::Name(text) => f.write_str(text),
            Self::List(all) => {
                let each: Vec<String> = all.iter().map(|(of, cell)| format!("{cell} {of}")).collect();
                f.write_str(&each.join("; "))
            }
            Self::Value(value) => {
                let (median, range, unit) = interval(value.median, value.low, value.high, &value.unit);
                f.write_str(&median)?;
                if !matches!(&unit[..], "ns" | "instructions") {
                    write!(f, " {unit}")?;
                }
                if value.low < value.high {
                    write!(f, " ({range})")?;
                }
                f.write_str(if value.noisy { " NOISY" } else { "" })
            }
            Self::Ratio(r, None) => f.write_str(&ratio(*r)),
            Self::Ratio(r, Some((low, high))) => {
                write!(f, "{} ({}–{})", ratio(*r), ratio(*low), ratio(*high))
            }
            Self::Count(n) => f.write_str(&count(*n)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_without_a_number_says_why_below() {
        let mut table = Table::new("t", ["case", "x", "y"]).with_note("A note.");
        table.push([Cell::name("a"), Cell::Count(1.0), Cell::none("C++ has no such function")]);
        table.push([Cell::name("b"), Cell::not_measured(), Cell::none("C++ has no such function")]);
        let below = ["A note.", "–a: C++ has no such function.", "–b: not measured in this run."];
        assert_eq!(table.below(), below);
        let text = table.to_string();
        assert!(text.contains("b     –b  –a"), "{text}");
        assert!(draw(&table).into_string().contains("<td class=\"missing\">–b</td>"));
    }

    #[test]
    fn columns_with_nothing_in_them_are_left_out() {
        let mut table = Table::new("", ["case", "x", "y"]);
        table.push([Cell::name("a"), Cell::not_measured(), Cell::Count(2.0)]);
        let table = table.dense();
        assert_eq!(table.below(), ["No column \"x\": not measured in this run."]);
        assert_eq!((&table.columns[..], table.rows[0].len()), (&["case".to_owned(), "y".to_owned()][..], 2));
        assert_eq!(Cell::Empty.or("no").to_string(), "–");
    }

    #[test]
    fn a_hole_is_found() {
        let with = |cells: &[Cell]| {
            let mut table = Table::new("t", ["case", "x"]);
            table.push(cells.iter().cloned());
            table.hole()
        };
        let name = Cell::name("a");
        assert_eq!(with(&[name.clone(), Cell::count(Some(1.25))]), None);
        assert_eq!(with(&[name.clone(), Cell::count(None).or_not_measured()]), None);
        let hole = Some("the table \"t\" has a hole: a | ".to_owned());
        assert_eq!(with(&[name.clone(), Cell::count(None)]), hole);
        assert!(with(&[name]).is_some());
    }
}

//! Tables, and how they are written to a terminal, as Markdown and as HTML.
//!
//! The benches and the report make their tables from a [`Table`], so a number has the same format in all of them. If a
//! cell has no number, it has the reason for that, which is printed below the table.

pub(crate) mod number;
pub(crate) mod workload;

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};
use maud::{Markup, html};
use serde::Serialize;

use crate::catalogue::published::Published;
use crate::catalogue::{Id, Who};
use crate::row::{Above, Known, Row, Versus};
use crate::table::number::{count, interval, ratio};

/// A table: a header line, and lines of cells.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Table {
    /// The title of the table.
    pub title: String,
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The lines. Each line has a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// A note, which is printed below the table.
    pub note: String,
}

/// A cell of a [`Table`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    /// The cell has no number, for this reason.
    None(String),
    /// The cell has plain text.
    Text(String),
    /// The cell has the name of a case.
    Name(String),
    /// The cell has a measured value.
    Value(Value),
    /// The cell has a ratio, its interval, and the precision with which the ratio is known. A ratio without an interval
    /// is of two published numbers, or of two rows that were not measured in pairs.
    Ratio(f64, Option<(f64, f64)>, Known),
    /// The cell has a count.
    Count(f64),
    /// The cell is a list of cells, each with a label.
    List(Vec<(String, Cell)>),
}

/// A median with its interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Value {
    /// The median of the measured values.
    pub median: f64,
    /// The lower bound of the interval.
    pub low: f64,
    /// The upper bound of the interval.
    pub high: f64,
    /// The unit of `median`, `low` and `high`.
    pub unit: String,
    /// How precisely the value is known.
    pub known: Known,
    /// Whether the value was measured for this workspace's code. The HTML report highlights such values.
    pub own: bool,
}

/// The reason that a cell shows if the run did not measure its number.
pub(crate) const NOT_MEASURED: &str = "not measured in this run";

impl Table {
    /// Makes a table without lines.
    pub fn new<S: Into<String>>(title: impl Into<String>, columns: impl IntoIterator<Item = S>) -> Self {
        let columns = columns.into_iter().map(Into::into).collect();
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Sets the note below the table.
    pub fn with_note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Adds a line.
    pub fn push(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Removes each column in which no cell has a number, only reasons. The first column always stays. The name of a
    /// removed column and the reasons of its cells are added to the note.
    pub fn dense(mut self) -> Self {
        for index in (1..self.columns.len()).rev() {
            let has_none = |row: &Vec<Cell>| matches!(row.get(index), None | Some(Cell::None(_)));
            if self.rows.iter().all(has_none) {
                let column = self.columns.remove(index);
                let mut reasons: Vec<&str> = Vec::new();
                for row in &self.rows {
                    if let Some(Cell::None(why)) = row.get(index)
                        && !reasons.contains(&&**why)
                    {
                        reasons.push(why);
                    }
                }
                if !reasons.is_empty() {
                    let space = if self.note.is_empty() { "" } else { " " };
                    let why = reasons.join(", or ");
                    self.note.push_str(&format!("{space}No column \"{column}\": {why}."));
                }
                for row in self.rows.iter_mut().filter(|row| row.len() > index) {
                    row.remove(index);
                }
            }
        }
        self
    }

    /// Returns a table with only the given lines and columns, in the given order. `lines` has the names that lines have
    /// in the first column, and `columns` the names of columns in the header.
    pub(crate) fn only(&self, lines: &[String], columns: &[String]) -> Self {
        let places: Vec<usize> =
            columns.iter().filter_map(|name| self.columns.iter().position(|column| column == name)).collect();
        let line = |name: &String| {
            let row = self.rows.iter().find(|row| row.first() == Some(&Cell::name(name)))?;
            Some(places.iter().filter_map(|&place| row.get(place).cloned()).collect())
        };
        Self {
            columns: places.iter().map(|&place| self.columns[place].clone()).collect(),
            rows: lines.iter().filter_map(line).collect(),
            ..self.clone()
        }
    }

    /// Returns the table as Markdown: the header and the lines, and below them the note and the reasons why cells have
    /// no number.
    pub(crate) fn markdown(&self) -> String {
        let reasons = self.reasons();
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | ").replace('\n', " "));
        let mut out = line(self.columns.clone());
        out.push_str(&format!("|---{}|\n", "|---:".repeat(self.columns.len().saturating_sub(1))));
        for row in &self.rows {
            out.push_str(&line(row.iter().map(|cell| cell.said(&reasons).replace('|', "\\|")).collect()));
        }
        for below in self.below() {
            out.push_str(&format!("\n{below}\n"));
        }
        out
    }

    /// Returns a message about the first line whose number of cells differs from the number of columns, or `None` if
    /// there is no such line.
    pub fn hole(&self) -> Option<String> {
        let line = self.rows.iter().find(|row| row.len() != self.columns.len())?;
        let cells: Vec<String> = line.iter().map(Cell::to_string).collect();
        Some(format!("the table \"{}\" has a hole: {}", self.title, cells.join(" | ")))
    }

    /// Returns the reasons why cells have no number, without duplicates. The marks that stand for the reasons in the
    /// table are `–a`, `–b`, … in this order.
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

    /// Returns the lines below the table: the note, and the reasons why cells have no number, each with its mark.
    pub(crate) fn below(&self) -> Vec<String> {
        let reasons = self.reasons();
        let note = (!self.note.is_empty()).then(|| self.note.clone());
        note.into_iter().chain(reasons.iter().map(|why| format!("{}: {why}.", mark(&reasons, why)))).collect()
    }
}

/// Returns the mark that a cell shows in place of its number, for the reason `why`.
fn mark(reasons: &[&str], why: &str) -> String {
    let index = reasons.iter().position(|reason| *reason == why).unwrap_or_default();
    let letter = u8::try_from(index % 26).unwrap_or_default() + b'a';
    format!("–{}", char::from(letter))
}

impl Value {
    /// Makes a value in nanoseconds that was not measured for this workspace's code.
    pub(crate) fn times(low: f64, median: f64, high: f64) -> Self {
        Self { median, low, high, unit: "ns".to_owned(), known: Known::Well, own: false }
    }

    /// Makes a value from the difference between two rows, in nanoseconds.
    pub fn of(above: &Above) -> Self {
        Self { own: true, known: above.known(), ..Self::times(above.low, above.ns, above.high) }
    }
}

impl Cell {
    /// Makes a cell from a measured row (a result). For `None`, makes a cell that says that the row was not measured.
    pub fn value(row: Option<&Row>) -> Self {
        let Some(row) = row else { return Self::not_measured() };
        Self::Value(Value {
            median: row.median,
            low: row.low,
            high: row.high,
            unit: row.unit.clone(),
            known: row.known(),
            own: matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto),
        })
    }

    /// Makes a cell for a value that was not measured in this run.
    pub fn not_measured() -> Self {
        Self::none(NOT_MEASURED)
    }

    /// Makes a cell that has a reason in place of a number.
    pub fn none(why: impl Into<String>) -> Self {
        Self::None(why.into())
    }

    /// Makes a cell from a published time.
    pub(crate) fn published(time: Published) -> Self {
        Self::Value(Value::times(time.low, time.ns, time.high))
    }

    /// Makes a cell from a ratio, or a cell with the reason `why` if there is no ratio.
    pub fn ratio(versus: Option<&Versus>, why: &str) -> Self {
        versus.map_or_else(|| Self::none(why), |v| Self::Ratio(v.ratio, Some((v.low, v.high)), v.known()))
    }

    /// Makes a cell from a ratio of two published numbers, or of two rows that were not measured in pairs.
    pub(crate) fn bare_ratio(ratio: f64) -> Self {
        Self::Ratio(ratio, None, Known::Well)
    }

    /// Makes a cell from a count, or a cell with the reason `why` if there is no count.
    pub fn count(count: Option<f64>, why: &str) -> Self {
        count.map_or_else(|| Self::none(why), Self::Count)
    }

    /// Makes a cell that is a list of labelled cells, or a cell with the reason `why` if the list is empty.
    pub(crate) fn list(all: Vec<(String, Self)>, why: &str) -> Self {
        if all.is_empty() { Self::none(why) } else { Self::List(all) }
    }

    /// Makes a cell of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// Makes a cell with the name of a case (a measured operation).
    pub fn name(name: impl Into<String>) -> Self {
        Self::Name(name.into())
    }

    /// Formats the cell. If the cell has no number, returns the mark that stands for the reason.
    fn said(&self, reasons: &[&str]) -> String {
        match self {
            Self::None(why) => mark(reasons, why),
            other => other.to_string(),
        }
    }
}

/// Formats the cells of a list with their labels.
fn each(all: &[(String, Cell)]) -> Vec<String> {
    all.iter().map(|(of, cell)| format!("{cell} {of}")).collect()
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None(_) => f.write_str("–"),
            Self::Text(text) | Self::Name(text) => f.write_str(text),
            Self::List(all) => f.write_str(&each(all).join("; ")),
            Self::Value(value) => {
                let (median, range, unit) = interval(value.median, value.low, value.high, &value.unit);
                f.write_str(&median)?;
                if !matches!(&unit[..], "ns" | "instructions") {
                    write!(f, " {unit}")?;
                }
                if value.low < value.high {
                    write!(f, " ({range})")?;
                }
                f.write_str(&value.known.remark())
            }
            Self::Ratio(r, bounds, known) => {
                f.write_str(&ratio(*r))?;
                if let Some((low, high)) = bounds {
                    write!(f, " ({}–{})", ratio(*low), ratio(*high))?;
                }
                f.write_str(&known.remark())
            }
            Self::Count(n) => f.write_str(&count(*n)),
        }
    }
}

/// The maximum number of counts that a long table shows for a row.
pub(crate) const COUNTS: usize = 5;

/// Makes a table with a line for each row (measured result), in the given order.
pub fn of_rows<'a>(title: &str, rows: impl IntoIterator<Item = &'a Row>) -> Table {
    /// A column: its name, a function that returns whether a row has a value for the column, and a function that makes
    /// the column's cell for a row.
    type Column = (&'static str, fn(&Row) -> bool, fn(&Row) -> Cell);
    const UNCOUNTED: &str = "not counted";
    const UNCOMPARED: &str = "compared with nothing";
    const COLUMNS: [Column; 5] = [
        (
            "compared",
            |row| !row.vs.is_empty() || !row.vs_process.is_empty(),
            |row| {
                let all = row.vs.iter().chain(&row.vs_process).filter(|(base, _)| **base != row.id);
                let named = |base: &str| format!("of {}", named_base(&row.id, base));
                Cell::list(
                    all.map(|(base, v)| (named(base), Cell::ratio(Some(v), UNCOMPARED))).collect(),
                    UNCOMPARED,
                )
            },
        ),
        (
            "more, in ns",
            |row| !row.above.is_empty(),
            |row| {
                let named = |base: &str| format!("than {}", named_base(&row.id, base));
                let all = row.above.iter().map(|(base, above)| (named(base), Cell::Value(Value::of(above))));
                Cell::list(all.collect(), UNCOMPARED)
            },
        ),
        ("allocations", |row| row.allocs.is_some(), |row| Cell::count(row.allocs, UNCOUNTED)),
        ("bytes", |row| row.bytes.is_some_and(|b| b > 0.0), |row| Cell::count(row.bytes, UNCOUNTED)),
        ("counted", |row| !row.counts.is_empty(), |row| Cell::list(counted_of(row, COUNTS), UNCOUNTED)),
    ];
    let rows: Vec<&Row> = rows.into_iter().collect();
    let mut columns = COLUMNS.to_vec();
    columns.retain(|(_, has, _)| rows.iter().any(|row| has(row)));
    let names = columns.iter().map(|(name, ..)| *name);
    let mut table = Table::new(title, ["case", "median"].into_iter().chain(names));
    for row in rows {
        let more = columns.iter().map(|(_, _, cell)| cell(row));
        table.push([Cell::name(&row.id), Cell::value(Some(row))].into_iter().chain(more));
    }
    table
}

/// Returns the first `most` counts of a row that are not zero, each as a cell with the count's name. `report.json` has
/// all counts.
pub(crate) fn counted_of(row: &Row, most: usize) -> Vec<(String, Cell)> {
    let there = row.counts.iter().filter(|(_, n)| **n != 0.0);
    there.take(most).map(|(what, n)| (what.clone(), Cell::Count(*n))).collect()
}

/// Returns a name for the row `base`, with which the row `id` is compared. If both rows measure the same operation, the
/// name is only that of the implementation.
fn named_base(id: &str, base: &str) -> String {
    let (mine, theirs) = (Id::of(id), Id::of(base));
    if mine.name == theirs.name { theirs.who.name().to_owned() } else { base.to_owned() }
}

/// The maximum number of characters in a printed line of cells.
pub const WIDTH: u16 = 120;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons();
        let mut text = comfy_table::Table::new();
        text.load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH)
            .set_header(&self.columns);
        for row in &self.rows {
            let cells = row.iter().map(|cell| match cell {
                Cell::List(all) => each(all).join("\n"),
                cell => cell.said(&reasons),
            });
            text.add_row(cells.collect::<Vec<_>>());
        }
        for (index, column) in text.column_iter_mut().enumerate() {
            let is_words = |row: &Vec<Cell>| matches!(row.get(index), Some(Cell::List(_) | Cell::Text(_)));
            let left = index == 0 || self.rows.iter().any(is_words);
            column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, 2));
            // The ids of rows are not wrapped. Other cells are wrapped between words.
            let names = self.rows.iter().filter_map(|row| match row.first() {
                Some(Cell::Name(name)) if index == 0 => Some(name),
                _ => None,
            });
            if let Some(longest) = names.clone().map(|name| name.chars().count() + 2).max()
                && names.clone().all(|name| !name.contains(' '))
            {
                let longest = u16::try_from(longest).unwrap_or(WIDTH).min(WIDTH / 2);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(longest)));
            }
        }
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for line in text.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        for line in self.below() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

/// Draws a table with its title as a heading.
pub(crate) fn draw(table: &Table) -> Markup {
    let reasons = table.reasons();
    html! {
        @if !table.title.is_empty() { h3 { (table.title) } }
        div class="scroll" tabindex="0" role="region" aria-label=(table.title) {
            table {
                thead { tr { @for column in &table.columns { th scope="col" { (column) } } } }
                tbody { @for row in &table.rows { tr { @for cell in row { (draw_cell(cell, &reasons)) } } } }
            }
        }
        @for line in table.below() { p class="note" { (line) } }
    }
}

fn draw_cell(cell: &Cell, reasons: &[&str]) -> Markup {
    match cell {
        Cell::None(_) => html! { td class="missing" { (cell.said(reasons)) } },
        Cell::Text(text) => html! { td class="text" { (text) } },
        Cell::Name(name) => html! { td { code { (name) } } },
        Cell::List(all) => html! {
            td class="text" { @for (of, cell) in all { div { (cell) " " (of) } } }
        },
        Cell::Value(value) => {
            let class = match (value.known, value.own) {
                (Known::Not, _) => "unknown",
                (Known::Varied | Known::Few, _) => "varied",
                (Known::Well, true) => "own",
                (Known::Well, false) => "",
            };
            let (median, range, unit) = interval(value.median, value.low, value.high, &value.unit);
            html! {
                td class=(class) {
                    b { (median) } @if unit != "ns" && unit != "instructions" { " " (unit) }
                    @if value.low < value.high { small { (range) } }
                    @if let Some(words) = value.known.words() { small { (words) } }
                }
            }
        }
        Cell::Ratio(r, bounds, known) => html! {
            td {
                (ratio(*r))
                @if let Some((low, high)) = bounds { small { (ratio(*low)) "–" (ratio(*high)) } }
                @if let Some(words) = known.words() { small { (words) } }
            }
        },
        Cell::Count(_) => html! { td { (cell) } },
    }
}

#[cfg(test)]
mod table_tests {
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
        let mut other = table.clone();
        other.push([Cell::name("b"), Cell::none("nothing is written"), Cell::Count(3.0)]);
        assert_eq!(
            other.dense().below(),
            ["No column \"x\": not measured in this run, or nothing is written."]
        );
        let table = table.dense();
        assert_eq!(table.below(), ["No column \"x\": not measured in this run."]);
        assert_eq!((&table.columns[..], table.rows[0].len()), (&["case".to_owned(), "y".to_owned()][..], 2));
        assert_eq!(Cell::count(None, "no").to_string(), "–");
    }

    #[test]
    fn a_hole_is_found() {
        let with = |cells: &[Cell]| {
            let mut table = Table::new("t", ["case", "x"]);
            table.push(cells.iter().cloned());
            table.hole()
        };
        let name = Cell::name("a");
        assert_eq!(with(&[name.clone(), Cell::count(Some(1.25), "no")]), None);
        assert_eq!(with(&[name.clone(), Cell::count(None, "no")]), None);
        assert_eq!(with(&[name]), Some("the table \"t\" has a hole: a".to_owned()));
    }
}

#[cfg(test)]
mod rows_tests {
    use super::*;

    #[test]
    fn the_same_thing_of_another_is_named_by_who() {
        assert_eq!(named_base("rust/a/10", "cc/a/10"), "cc");
        assert_eq!(named_base("rust/a", "limit/b"), "limit/b");
    }
}

#[cfg(test)]
mod text_tests {
    use super::*;
    use crate::row::{Row, Sink, Versus};
    use crate::stats::Interval;

    #[test]
    fn a_name_is_not_broken() {
        let name = "rust/channel_sink_no_allocations/rendezvous";
        let columns = ["case", "a", "b", "c", "d", "e", "f"];
        let mut table = Table::new("", columns);
        let number = || Cell::Text("-12092.0 µs (-19643.0 to 13092.0)".to_owned());
        table.push([Cell::name(name)].into_iter().chain(std::iter::repeat_with(number).take(6)));
        let text = table.to_string();
        assert!(text.contains(name) && text.contains("-19643.0 "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{text}");
    }

    #[test]
    fn too_few_pairs_are_told_beside_the_number() {
        let few = Interval { sure: false, ..Interval::around(2.0, 1.0) };
        let cells = |it: Interval| [Cell::ratio(Some(&it.into()), ""), Cell::Value(Value::of(&it.into()))];
        let [ratio, value] = cells(few);
        assert_eq!(ratio.to_string(), "2.00 (1.00–3.00), from too few pairs");
        assert_eq!(value.to_string(), "2.00 (1.00–3.00), from too few pairs");
        for cell in [&ratio, &value] {
            assert!(draw_cell(cell, &[]).into_string().contains("<small>from too few pairs</small>"));
        }
        for cell in cells(Interval::around(2.0, 1.0)) {
            assert_eq!(cell.to_string(), "2.00 (1.00–3.00)");
            assert!(!draw_cell(&cell, &[]).into_string().contains("few"));
        }
    }

    #[test]
    fn is_aligned_and_fits() {
        let row =
            |id: &str, median: f64, half: f64| Row::new(id, Interval::around(median, half), Sink::Tracefs);
        let vs = |ratio: f64| Versus { ratio, low: ratio * 0.98, high: ratio * 1.02, sure: true };
        let mut off = row("rust/tracing_off_begin/10", 0.884, 0.01);
        off.allocs = Some(0.0);
        off.vs.insert("cc/tracing_off_begin/10".into(), vs(0.15));
        let mut on = row("rust/tracing_on_begin/1000", 728.4, 2.0);
        on.vs.insert("cc/tracing_on_begin/1000".into(), vs(0.8));
        on.vs.insert("limit/raw_write_of_the_same_bytes/1000".into(), vs(1.04));
        on.vs_process.insert("limit/nothing".into(), vs(0.05));
        let noisy = row("cc/tracing_on_begin/1000", 12.0, 3.0);
        let text = of_rows("main", &[off, on, noisy]).to_string();
        let expected = "\
main
case                                            median  compared                                allocations
rust/tracing_off_begin/10             0.88 (0.87–0.89)  0.15 (0.15–0.15) of cc                            0
rust/tracing_on_begin/1000               728 (726–730)  0.80 (0.78–0.82) of cc                           –a
                                                        1.04 (1.02–1.06) of
                                                        limit/raw_write_of_the_same_bytes/1000
                                                        0.050 (0.049–0.051) of limit/nothing
cc/tracing_on_begin/1000    12.0 (9.0–15.0), not known  –b                                               –a
–a: not counted.
–b: compared with nothing.
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)));
    }
}

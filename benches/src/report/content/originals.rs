//! Every line of the originals' tables, there and here, and whether their conclusions hold here.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::published::lines::{Check, Field, Line, Measured, Original, originals as all};
use crate::table::number::ratio;
use crate::table::{Cell, Table, Value};

/// A section for each original.
pub(super) fn originals(here: &Machine) -> impl Iterator<Item = Section> + use<'_> {
    all().into_iter().map(|original| {
        let lines = original.groups.iter().map(Vec::len).sum::<usize>();
        let parts = vec![Part::Folded(format!("every line of its tables: {lines}"), table(&original, here))];
        let title = format!("There and here: {}", original.title);
        let text = [conclusion(&original, here)].into_iter().chain(original.otherwise.map(str::to_owned));
        Section::new(format!("original-{}", original.bench), title, parts).with_text(text)
    })
}

/// The original's conclusion, and whether ours agrees.
fn conclusion(original: &Original, here: &Machine) -> String {
    let Check { there, of, by, from, to } = &original.check;
    let found = || Some(value(of, "ns", here)?.median / value(by, "ns", here)?.median);
    let ours = match found() {
        None => "the rows that would tell were not measured in this run".to_owned(),
        Some(found) if (*from..=*to).contains(&found) => format!("{}, so ours agrees", ratio(found)),
        Some(found) => format!("{}, so ours does not agree", ratio(found)),
    };
    format!(
        "The original concludes: \"{}\" The ratio of {} to {} tells: there {}, here {ours}.",
        original.conclusion,
        named(of),
        named(by),
        ratio(*there)
    )
}

/// A row, and what of it if that is not its time.
fn named(of: &Measured) -> String {
    match of.field {
        Field::Count(name) => format!("{name} of {}", of.id),
        _ => of.id.to_owned(),
    }
}

fn table(original: &Original, here: &Machine) -> Table {
    let columns = ["line", "unit", "there", "of its first", "here", "of its first", "row"];
    let mut table = Table::new("", columns).with_note(
        "Of another machine's numbers only ratios can be compared: each number is also held against the first of its group that has the same unit.",
    );
    for group in &original.groups {
        for line in group {
            let first = group.iter().find(|first| first.unit == line.unit).unwrap_or(line);
            let row = line.here.as_ref().map_or_else(|why| Cell::none(*why), |row| Cell::name(row.id));
            table.push([
                Cell::text(line.what),
                Cell::text(line.unit),
                there(line),
                of_first(line.there, first.there),
                ours(line, here),
                ours_of_first(line, first, here),
                row,
            ]);
        }
    }
    table
}

fn there(line: &Line) -> Cell {
    let Some(median) = line.there else { return Cell::none("it can not be read in what was published") };
    let (low, high) = (median - line.error, median + line.error);
    Cell::Value(Value { median, low, high, unit: String::new(), noisy: false, own: false })
}

fn of_first(number: Option<f64>, first: Option<f64>) -> Cell {
    match number.zip(first) {
        None => Cell::none("it can not be read in what was published"),
        Some((_, 0.0)) => Cell::none("the first is 0"),
        Some((number, first)) => Cell::Ratio(number / first, None),
    }
}

fn ours(line: &Line, here: &Machine) -> Cell {
    match &line.here {
        Err(why) => Cell::none(*why),
        Ok(row) => {
            let value = value(row, line.unit, here);
            zero(line, value.as_ref()).or_else(|| value.map(Cell::Value)).unwrap_or_else(Cell::not_measured)
        }
    }
}

/// Why a number is 0 where the original's is not.
fn zero(line: &Line, value: Option<&Value>) -> Option<Cell> {
    let why = line.zero.filter(|_| value.is_some_and(|value| value.median == 0.0))?;
    Some(Cell::none(format!("0: {why}")))
}

fn ours_of_first(line: &Line, first: &Line, here: &Machine) -> Cell {
    let number = |line: &Line| value(line.here.as_ref().ok()?, line.unit, here);
    let own = number(line);
    match (&line.here, own.as_ref().map(|own| own.median), number(first).map(|first| first.median)) {
        (Err(why), ..) => Cell::none(*why),
        (_, Some(number), Some(first)) if first != 0.0 => {
            zero(line, own.as_ref()).unwrap_or(Cell::Ratio(number / first, None))
        }
        (_, Some(_), _) => Cell::none("its first has no number here"),
        _ => Cell::not_measured(),
    }
}

/// What was measured here, in the unit of there.
fn value(of: &Measured, unit: &str, here: &Machine) -> Option<Value> {
    let row = here.row(of.bench, of.id)?;
    let per_second = || row.counts.get("ops_per_s").copied().unwrap_or(1e9 / row.median);
    let exactly = |number: f64| (number, number, number);
    let (median, low, high) = match of.field {
        Field::Time => (row.median, row.low, row.high),
        Field::PerSecond => (1e9 / row.median, 1e9 / row.high, 1e9 / row.low),
        Field::Rate => exactly(row.bytes? * per_second() / 1e6),
        Field::Bytes => exactly(row.bytes?),
        Field::Count(name) => exactly(*row.counts.get(name)?),
    };
    let scale = of.times
        / match unit {
            "s/op" => 1e9,
            "ms/op" => 1e6,
            "us/op" => 1e3,
            _ => 1.0,
        };
    let [median, low, high] = [median, low, high].map(|number| number * scale);
    Some(Value { median, low, high, unit: String::new(), noisy: false, own: true })
}

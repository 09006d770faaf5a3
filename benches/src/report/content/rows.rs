//! Rows as they are.

use super::super::input::Place;
use super::super::model::{Cell, Part, Section, Table};
use crate::catalogue::{ATRACE, INSTRUCTIONS, Id, SUBSCRIBER};
use crate::row::Row;

/// A table of rows as they are.
pub(super) fn plain_table(title: &str, rows: &[&Row]) -> Table {
    let has = |f: &dyn Fn(&Row) -> bool| rows.iter().any(|row| f(row));
    let (allocs, bytes) = (has(&|r| r.allocs.is_some()), has(&|r| r.bytes.is_some_and(|b| b > 0.0)));
    let versus = has(&|r| !r.vs.is_empty() || !r.vs_process.is_empty());
    let mut columns = vec!["case", "median"];
    columns.extend(versus.then_some("compared"));
    columns.extend(allocs.then_some("allocations"));
    columns.extend(bytes.then_some("bytes"));
    let counts = has(&|r| !r.counts.is_empty());
    columns.extend(counts.then_some("counted"));
    let mut table = Table {
        title: title.to_owned(),
        columns: columns.into_iter().map(str::to_owned).collect(),
        ..Table::default()
    };
    for row in rows {
        let mut cells = vec![Cell::Name(row.id.clone()), Cell::value(Some(row))];
        if versus {
            let all = row.vs.iter().chain(&row.vs_process);
            let all: Vec<_> = all
                .filter(|(base, _)| **base != row.id)
                .map(|(base, v)| (of(&row.id, base), Cell::ratio(Some(v))))
                .collect();
            cells.push(if all.is_empty() { Cell::Empty } else { Cell::List(all) });
        }
        if allocs {
            cells.push(Cell::count(row.allocs));
        }
        if bytes {
            cells.push(Cell::count(row.bytes));
        }
        if counts {
            let all = counted_of(row);
            cells.push(if all.is_empty() { Cell::Empty } else { Cell::List(all) });
        }
        table.rows.push(cells);
    }
    table
}

/// The first few things that were counted, and were there; report.json has all.
pub(super) fn counted_of(row: &Row) -> Vec<(String, Cell)> {
    let there = row.counts.iter().filter(|(_, n)| **n != 0.0);
    there.take(5).map(|(what, n)| (what.clone(), Cell::Count(*n))).collect()
}

/// What a row is compared to, as short as it is clear.
fn of(id: &str, base: &str) -> String {
    let (mine, theirs) = (Id::of(id), Id::of(base));
    if mine.what == theirs.what { format!("of {}", theirs.who) } else { format!("of {base}") }
}

pub(super) fn instructions(here: &Place) -> Option<Section> {
    let rows: Vec<&Row> = here.benches.get(INSTRUCTIONS)?.rows.iter().collect();
    let mut table = plain_table("Instructions of one operation", &rows);
    table.note = "Instructions of the program, counted by callgrind: not those of the kernel. The same from run to run, so that a change of one instruction is seen on the busiest machine.".to_owned();
    (!rows.is_empty()).then(|| Section {
        id: INSTRUCTIONS.to_owned(),
        title: "Instructions".to_owned(),
        text: Vec::new(),
        parts: vec![Part::Folded(format!("{} cases", rows.len()), vec![Part::Table(table)])],
    })
}

pub(super) fn everything(here: &Place) -> Option<Section> {
    let parts: Vec<Part> = here
        .benches
        .iter()
        .filter(|(name, _)| [ATRACE, SUBSCRIBER].contains(&&name[..]))
        .map(|(name, bench)| {
            let rows: Vec<&Row> = bench.rows.iter().collect();
            Part::Folded(format!("{name}: {} rows", rows.len()), vec![Part::Table(plain_table(name, &rows))])
        })
        .collect();
    (!parts.is_empty()).then(|| Section {
        id: "rows".to_owned(),
        title: "Every row".to_owned(),
        text: Vec::new(),
        parts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_thing_of_another_is_named_by_who() {
        assert_eq!(of("rust/a/10", "cc/a/10"), "of cc");
        assert_eq!(of("rust/a", "limit/b"), "of limit/b");
    }
}

//! Rows as they are, in a table.

use super::{Cell, Table, Value};
use crate::catalogue::Id;
use crate::row::Row;

/// How many things that were counted are shown of a row, where there are many rows.
pub(crate) const COUNTS: usize = 5;

/// Makes a table of rows as they are.
pub fn of_rows<'a>(title: &str, rows: impl IntoIterator<Item = &'a Row>) -> Table {
    let rows: Vec<&Row> = rows.into_iter().collect();
    let has = |f: &dyn Fn(&Row) -> bool| rows.iter().any(|row| f(row));
    let (allocs, bytes) = (has(&|r| r.allocs.is_some()), has(&|r| r.bytes.is_some_and(|b| b > 0.0)));
    let versus = has(&|r| !r.vs.is_empty() || !r.vs_process.is_empty());
    let counts = has(&|r| !r.counts.is_empty());
    let above = has(&|r| !r.above.is_empty());
    let some = [
        (versus, "compared"),
        (above, "more, in ns"),
        (allocs, "allocations"),
        (bytes, "bytes"),
        (counts, "counted"),
    ];
    let some = some.into_iter().filter_map(|(is_there, column)| is_there.then_some(column));
    let mut table = Table::new(title, ["case", "median"].into_iter().chain(some));
    const UNCOUNTED: &str = "not counted";
    for row in &rows {
        let mut cells = vec![Cell::name(&row.id), Cell::value(Some(row))];
        if versus {
            let all = row.vs.iter().chain(&row.vs_process).filter(|(base, _)| **base != row.id);
            let named = |base: &str| format!("of {}", named_base(&row.id, base));
            cells.push(Cell::list(
                all.map(|(base, v)| (named(base), Cell::ratio(Some(v)))).collect(),
                "compared with nothing",
            ));
        }
        cells.extend(above.then(|| {
            let all = row.above.iter().map(|(base, above)| {
                (format!("than {}", named_base(&row.id, base)), Cell::Value(Value::of(above)))
            });
            Cell::list(all.collect(), "compared with nothing")
        }));
        cells.extend(allocs.then(|| Cell::count(row.allocs).or(UNCOUNTED)));
        cells.extend(bytes.then(|| Cell::count(row.bytes).or(UNCOUNTED)));
        cells.extend(counts.then(|| Cell::list(counted_of(row, COUNTS), UNCOUNTED)));
        table.push(cells);
    }
    table
}

/// The first things that were counted, and were there; report.json has all.
pub(crate) fn counted_of(row: &Row, most: usize) -> Vec<(String, Cell)> {
    let there = row.counts.iter().filter(|(_, n)| **n != 0.0);
    there.take(most).map(|(what, n)| (what.clone(), Cell::Count(*n))).collect()
}

/// What a row is compared to, as short as it is clear: only who it is, if the rest is the same.
fn named_base(id: &str, base: &str) -> String {
    let (mine, theirs) = (Id::of(id), Id::of(base));
    if mine.what == theirs.what { theirs.who.to_string() } else { base.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_thing_of_another_is_named_by_who() {
        assert_eq!(named_base("rust/a/10", "cc/a/10"), "cc");
        assert_eq!(named_base("rust/a", "limit/b"), "limit/b");
    }
}

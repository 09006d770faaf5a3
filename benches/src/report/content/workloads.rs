//! Programs with and without tracing.

use std::collections::BTreeMap;

use super::super::input::Machine;
use super::super::model::{Part, Section, slug};
use super::KNOWN;
use crate::catalogue::Id;
use crate::row::Row;
use crate::table::{COUNTS, Cell, Table, Value, counted_of, of_rows};

/// The benches that have no section of their own above.
pub(super) fn workloads(here: &Machine) -> Vec<Section> {
    let known = |name: &String| KNOWN.contains(&&name[..]);
    let benches = here.benches.iter().filter(|(name, bench)| !known(name) && !bench.rows.is_empty());
    benches.map(|(name, bench)| workload(name, &bench.rows)).collect()
}

/// A program with and without tracing: what each mode adds to each case.
fn workload(name: &str, rows: &[Row]) -> Section {
    // The mode that the others are held against: that which most of them name.
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for base in rows.iter().flat_map(|row| row.above.keys()) {
        *named.entry(base).or_default() += 1;
    }
    let base = named.iter().max_by_key(|(_, n)| **n).map(|(base, _)| *base).unwrap_or_default();
    let (mut cases, mut modes) = (Vec::new(), Vec::new());
    let compared = rows.iter().filter(|row| row.above.contains_key(base));
    for (case, mode) in compared.filter_map(|row| Id::case_and_mode(&row.id)) {
        for (all, one) in [(&mut cases, case), (&mut modes, mode)] {
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    let find =
        |case: &str, mode: &str| rows.iter().find(|row| Id::case_and_mode(&row.id) == Some((case, mode)));
    let columns = ["case", base].map(str::to_owned).into_iter();
    let columns = columns.chain(modes.iter().map(|mode| format!("{mode} adds")));
    let columns = columns.chain(["allocations added", "counted"].map(str::to_owned));
    let mut table = Table::new(format!("{name}: what each mode adds"), columns);
    let mut shown: Vec<&str> = Vec::new();
    for case in &cases {
        let plain = find(case, base);
        shown.extend(plain.map(|row| &row.id[..]));
        let mut cells = vec![Cell::name(*case), Cell::value(plain)];
        let (mut allocations, mut is_counted) = (Vec::new(), false);
        for mode in &modes {
            let Some((row, above)) = find(case, mode).and_then(|row| Some((row, row.above.get(base)?)))
            else {
                cells.push(Cell::none("the case does not run in this mode"));
                continue;
            };
            shown.push(&row.id);
            cells.push(Cell::Value(Value { noisy: row.noisy, ..Value::of(above) }));
            is_counted |= above.allocs.is_some();
            let some = above.allocs.filter(|n| *n != 0.0);
            allocations.extend(some.map(|n| (format!("in {mode}"), Cell::Count(n))));
        }
        cells.push(match allocations.is_empty() {
            true if is_counted => Cell::Count(0.0),
            true => Cell::none("allocations are counted of whole operations, and by Rust's allocator only"),
            false => Cell::List(allocations),
        });
        let counted = plain.map(|row| counted_of(row, COUNTS)).unwrap_or_default();
        cells.push(Cell::list(counted, "nothing else is counted"));
        table.push(cells);
    }
    let mut parts = Vec::new();
    parts.extend((!cases.is_empty()).then(|| Part::Table(table.dense())));
    let rest: Vec<&Row> = rows.iter().filter(|row| !shown.contains(&&row.id[..])).collect();
    let count = rest.len();
    let table = of_rows(&format!("{name}: all else that was measured"), rest);
    match count {
        0 => {}
        n if n <= 30 || cases.is_empty() => parts.push(Part::Table(table)),
        n => parts.push(Part::Folded(format!("{name}: {n} more rows"), table)),
    }
    Section::new(format!("bench-{}", slug(name)), format!("Workload: {name}"), parts).with_text([format!(
        "Time, allocations and counts of one operation of the workload; what a mode adds is the median difference to \"{}\", with its interval: one with zero in it is no difference that was measured.",
        if base.is_empty() { "the same without tracing" } else { base }
    )])
}

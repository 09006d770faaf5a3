//! Programs with and without tracing.

use std::collections::BTreeMap;

use super::super::input::Machine;
use super::super::model::{Group, Line, Part, Plot, PlotKind, Point, Section, slug};
use super::KNOWN;
use crate::catalogue::Id;
use crate::row::Row;
use crate::table::number::{ratio, time};
use crate::table::{COUNTS, counted_of, of_rows};
use crate::table::{Cell, Table, Value};

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
    let mut cases: Vec<&str> = Vec::new();
    let mut modes: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| row.above.contains_key(base)) {
        let Some((case, mode)) = Id::case_and_mode(&row.id) else { continue };
        if !cases.contains(&case) {
            cases.push(case);
        }
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    let find =
        |case: &str, mode: &str| rows.iter().find(|row| Id::case_and_mode(&row.id) == Some((case, mode)));
    let columns = ["case", base].map(str::to_owned).into_iter();
    let columns = columns.chain(modes.iter().map(|mode| format!("{mode} adds")));
    let columns = columns.chain(["allocations added", "counted"].map(str::to_owned));
    let mut table = Table::new(format!("{name}: what each mode adds"), columns);
    let mut groups = Vec::new();
    let mut shown: Vec<&str> = Vec::new();
    for case in &cases {
        let plain = find(case, base);
        shown.extend(plain.map(|row| &row.id[..]));
        let mut cells = vec![Cell::Name((*case).to_owned()), Cell::value(plain)];
        let mut lines = Vec::new();
        let (mut allocations, mut is_counted) = (Vec::new(), false);
        let counted = plain.map(|row| counted_of(row, COUNTS)).unwrap_or_default();
        for mode in &modes {
            let Some((row, above)) = find(case, mode).and_then(|row| Some((row, row.above.get(base)?)))
            else {
                cells.push(Cell::none("the case does not run in this mode"));
                continue;
            };
            shown.push(&row.id);
            cells.push(Cell::Value(Value { noisy: row.noisy, ..Value::of(above) }));
            is_counted |= above.allocs.is_some();
            if let Some(n) = above.allocs.filter(|n| *n != 0.0) {
                allocations.push((format!("in {mode}"), Cell::Count(n)));
            }
            let sign = if above.ns < 0.0 { "" } else { "+" };
            let writes = above
                .raw_writes
                .map(|v| format!(", {} of the raw writes", ratio(v.ratio)))
                .unwrap_or_default();
            lines.push(Line {
                label: (*mode).to_owned(),
                text: format!("{sign}{}{writes}", time(above.ns)),
                points: vec![Point {
                    median: above.ns,
                    low: above.low,
                    high: above.high,
                    of: format!("{} above {base}", row.id),
                    ..Point::of(row)
                }],
            });
        }
        cells.push(match allocations.is_empty() {
            true if is_counted => Cell::Count(0.0),
            true => Cell::none("allocations are counted of whole operations, and by Rust's allocator only"),
            false => Cell::List(allocations),
        });
        cells.push(if counted.is_empty() {
            Cell::none("nothing else is counted")
        } else {
            Cell::List(counted)
        });
        table.push(cells);
        groups.push(Group { title: (*case).to_owned(), lines });
    }
    let mut parts = Vec::new();
    if !cases.is_empty() {
        parts.push(Part::Plot(Plot {
            id: format!("workload-{}", slug(name)),
            title: format!("{name}: what tracing adds to {base}"),
            caption: "An interval with zero in it is no difference that was measured.".to_owned(),
            kind: PlotKind::Differences,
            groups,
        }));
        parts.push(Part::Table(table.dense()));
    }
    let rest: Vec<&Row> = rows.iter().filter(|row| !shown.contains(&&row.id[..])).collect();
    if !rest.is_empty() {
        let count = rest.len();
        let table = Part::Table(of_rows(&format!("{name}: all else that was measured"), rest));
        parts.push(match count {
            n if n <= 30 || cases.is_empty() => table,
            n => Part::Folded(format!("{name}: {n} more rows"), vec![table]),
        });
    }
    Section::new(format!("bench-{}", slug(name)), format!("Workload: {name}"), parts).with_text([format!(
        "Time, allocations and counts of one operation of the workload; what a mode adds is the median difference to \"{}\", with its interval.",
        if base.is_empty() { "the same without tracing" } else { base }
    )])
}

//! The tables of a workload: the time of each case, and the time that each mode adds.

use super::results::Results;
use crate::row::{Above, Row};
use crate::table::{Cell, Table, Value, counted_of};

const BASE: &str = "none";

/// Makes the table of every case without instrumentation: the time of an operation, a column for each part, the
/// allocations, and the other counts.
pub(super) fn measured(results: &Results) -> Table {
    let cases = results.cases.iter().filter(|case| case.selected);
    let cases = cases.filter_map(|case| Some((&case.id[..], results.row(&case.id, BASE)?)));
    let cases: Vec<(&str, &Row)> = cases.collect();
    let mut parts: Vec<&str> = Vec::new();
    for part in cases.iter().flat_map(|(case, _)| results.parts(case)) {
        if !parts.contains(&&part[..]) {
            parts.push(part);
        }
    }
    let columns = ["case", "total"].into_iter().chain(parts.iter().copied());
    let columns = columns.chain(["allocations", "bytes", "counted"]);
    let mut table = Table::new("without instrumentation, an operation", columns);
    for (case, row) in cases {
        let mut cells = vec![Cell::name(case), Cell::value(Some(row))];
        cells.extend(parts.iter().map(|part| match results.part(case, part, BASE) {
            Some(row) => Cell::value(Some(row)),
            None => Cell::none("the case has no such part"),
        }));
        cells.extend([row.allocs, row.bytes].map(|n| Cell::count(n).or("only Rust's allocator counts")));
        cells.push(Cell::list(counted_of(row, usize::MAX), "nothing else is counted"));
        table.push(cells);
    }
    table.dense()
}

/// Makes the table of the costs that each mode adds to the mode `none`, in nanoseconds and bytes, for every case and
/// part. Costs that a mode adds to other modes than `none` are in the workload's own table.
pub(super) fn overhead(results: &Results) -> Table {
    let modes: Vec<&str> =
        results.modes.iter().filter(|mode| mode.bases.first() == Some(&BASE)).map(|mode| mode.name).collect();
    let mut table = Table::new(
        format!(
            "per operation, in addition to {BASE}: time with its 95 % interval; below it bytes, and the number of allocations"
        ),
        ["case"].into_iter().chain(modes.iter().copied()),
    );
    for case in results.traced_cases() {
        let rows = modes.iter().map(|mode| results.row(case, mode)).collect::<Vec<_>>();
        lines(&mut table, case, &rows);
        for part in results.parts(case) {
            let rows = modes.iter().map(|mode| results.part(case, part, mode)).collect::<Vec<_>>();
            lines(&mut table, &format!("{case}/{part}"), &rows);
        }
    }
    table
}

/// Adds a line of times, and a line of bytes if bytes were counted.
fn lines(table: &mut Table, name: &str, rows: &[Option<&Row>]) {
    let above: Vec<_> = rows.iter().map(|row| row.and_then(|row| row.above.get(BASE))).collect();
    if above.iter().all(Option::is_none) {
        return;
    }
    let time = |above: Option<&Above>| above.map(|above| Cell::Value(Value::of(above)));
    let cells = above.iter().map(|above| time(*above).unwrap_or_else(Cell::not_measured));
    table.push([Cell::name(name)].into_iter().chain(cells));
    if above.iter().flatten().any(|above| above.bytes.is_some()) {
        let cells = above.iter().map(|above| {
            let counted = above.and_then(|above| above.bytes.zip(above.allocs));
            let text = |(bytes, allocs)| Cell::text(format!("{} ({})", count(bytes), count(allocs)));
            counted.map_or_else(|| Cell::none("not counted in this mode"), text)
        });
        table.push([Cell::text("  bytes (allocations)")].into_iter().chain(cells));
    }
}

/// Formats a difference of counts, without decimals if it is a whole number.
fn count(x: f64) -> String {
    if (x - x.round()).abs() < 5e-4 { format!("{:+.0}", x.round() + 0.0) } else { format!("{x:+.3}") }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::case::Slice;
    use super::super::results::Names;
    use super::super::{Case, Done, Mode};
    use super::*;
    use crate::instruments::alloc::Counts;
    use crate::row::Sink;

    #[test]
    fn every_case_has_a_line_and_every_cell_a_number_or_a_reason() {
        let run = |_| Ok(Done::new());
        let cases = vec![Case::new("rust/task", run), Case::new("cc/task", run).untraced()];
        let mut results = Results::new(vec![Mode::NONE, Mode::NOSUB], cases, Sink::Null, Names::default());
        for generation in 0..6 {
            results.generations += 1;
            for (case, mode, ns) in [(0, 0, 100), (0, 1, 150), (1, 0, 70)] {
                let [took, resume] = [ns + generation, ns / 2].map(Duration::from_nanos);
                let done = Done::new().count("polls", 2);
                let done = if (case, mode) == (0, 0) { done.part("resume", resume, 1) } else { done };
                results.add((case, mode), 0, 1, &Slice { took, elapsed: took, chain: [1.0; 2], done });
            }
        }
        for (mode, allocs) in [(0, 10), (1, 20)] {
            results
                .allocated
                .insert((0, mode), (Counts { allocs, bytes: 8 * allocs, ..Counts::default() }, 10));
        }
        results.finish();
        assert_eq!(
            measured(&results).to_string(),
            "without instrumentation, an operation\n\
             case                  total  resume  allocations  bytes  counted\n\
             rust/task     102 (100–105)    50.0            1      8  2 polls\n\
             cc/task    72.5 (70.0–75.0)      –a           –b     –b  2 polls\n\
             –a: the case has no such part.\n\
             –b: only Rust's allocator counts.\n"
        );
        let overhead = overhead(&results);
        assert_eq!(overhead.hole(), None);
        assert_eq!(overhead.rows.len(), 2, "{overhead}");
    }
}

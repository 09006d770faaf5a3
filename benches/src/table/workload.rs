//! The tables of a workload.

use std::collections::BTreeMap;

use super::{COUNTS, Cell, Table, Value, counted_of, of_rows};
use crate::catalogue::Id;
use crate::row::Row;

/// Makes the two tables of a workload. The first has the cost that each mode (configuration of
/// instrumentation and tracing) adds to each case. The second has all other rows.
pub(crate) fn of_workload(name: &str, rows: &[Row]) -> [Table; 2] {
    let base = base(rows);
    let table = added(name, rows, base);
    let is_case = |case: &str| table.rows.iter().any(|row| row.first() == Some(&Cell::name(case)));
    let shown = |row: &Row| {
        let case_and_mode = Id::case_and_mode(&row.id);
        row.above.contains_key(base)
            || case_and_mode.is_some_and(|(case, mode)| mode == base && is_case(case))
    };
    let others =
        of_rows(&format!("{name}: all else that was measured"), rows.iter().filter(|row| !shown(row)));
    [table.dense(), others]
}

/// Returns the mode with which the other modes are compared: the mode that the most rows name as
/// the base of a comparison.
pub(crate) fn base(rows: &[Row]) -> &str {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    for base in rows.iter().flat_map(|row| row.above.keys()) {
        *named.entry(base).or_default() += 1;
    }
    named.iter().max_by_key(|(_, n)| **n).map(|(base, _)| *base).unwrap_or_default()
}

/// Makes the table of the costs that each mode has in addition to the cost of the mode `base`, for
/// each case.
pub(crate) fn added(name: &str, rows: &[Row], base: &str) -> Table {
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
    for case in &cases {
        let plain = find(case, base);
        let mut cells = vec![Cell::name(*case), Cell::value(plain)];
        let (mut allocations, mut is_counted) = (Vec::new(), false);
        for mode in &modes {
            let Some(above) = find(case, mode).and_then(|row| row.above.get(base)) else {
                cells.push(Cell::none("the case does not run in this mode"));
                continue;
            };
            cells.push(Cell::Value(Value::of(above)));
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
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Above;
    use crate::stats::Interval;

    #[test]
    fn a_difference_is_as_well_known_as_its_own_pairs_are_many() {
        let (enough, few) =
            (Interval::around(20.0, 5.0), Interval { sure: false, ..Interval::around(20.0, 5.0) });
        let row = |mode: &str, half: f64, difference: Interval| {
            let above = [("none".to_owned(), Above::from(difference))].into();
            Row { above, ..Row::around(&format!("rust/work/{mode}"), 1000.0, half) }
        };
        // The row of the mode "on" is noisy, so its time is not known.
        let rows =
            [Row::around("rust/work/none", 1000.0, 1.0), row("on", 500.0, enough), row("off", 1.0, few)];
        assert!(rows[1].noisy && !rows[2].noisy);
        let table = added("", &rows, "none");
        let cells: Vec<_> = table.rows[0].iter().map(Cell::to_string).collect();
        assert_eq!(cells[2..4], ["20.0 (15.0–25.0)", "20.0 (15.0–25.0), from too few pairs"]);
    }
}

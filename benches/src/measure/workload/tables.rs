//! What a person sees: what each mode adds.

use super::results::Results;
use crate::row::Row;
use crate::table::{Cell, Table, Value};

const BASE: &str = "none";

/// Nanoseconds and bytes above `none`, of every case and part: a column a mode. What is above others is for the
/// workload's own table.
pub(super) fn overhead(results: &Results) -> Table {
    let modes: Vec<&str> = results
        .modes()
        .iter()
        .filter(|mode| mode.bases().first() == Some(&BASE))
        .map(super::Mode::name)
        .collect();
    let mut table = Table::new(
        format!(
            "above {BASE}, an operation: time with its 95 % interval; below that bytes, and how many allocations"
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

/// A line of times, and one of bytes where they were counted.
fn lines(table: &mut Table, name: &str, rows: &[Option<&Row>]) {
    let above: Vec<_> = rows.iter().map(|row| row.and_then(|row| row.above.get(BASE))).collect();
    if above.iter().all(Option::is_none) {
        return;
    }
    let cells = above
        .iter()
        .map(|above| above.map_or_else(Cell::not_measured, |above| Cell::Value(Value::of(above))));
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

/// A count more or less than another: whole if it is.
fn count(x: f64) -> String {
    if (x - x.round()).abs() < 5e-4 { format!("{:+.0}", x.round() + 0.0) } else { format!("{x:+.3}") }
}

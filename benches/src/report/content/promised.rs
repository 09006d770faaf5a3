//! What was promised, beside what was measured.

use super::super::model::{Part, Section};
use crate::promise::Judged;
use crate::table::{Cell, Table};

/// Every promise that the benches have judged.
pub(super) fn promised(benches: &[(String, Vec<Judged>)]) -> Option<Section> {
    let columns = ["bench", "promise", "of", "measured", "95 %", "asked", "came of it"];
    let mut table = Table::new("", columns).with_note(
        "Kept: the whole interval is within what was promised; missed: all of it is outside; open: a part of it is, or fewer than six pairs were compared.",
    );
    for (bench, judged) in
        benches.iter().flat_map(|(bench, all)| all.iter().map(move |judged| (bench, judged)))
    {
        let Judged { promise, of, measured, more, limit, verdict, .. } = judged;
        let more = if more.is_empty() { Cell::none("it is exact") } else { Cell::text(more) };
        table.push([
            Cell::text(bench),
            Cell::text(promise),
            Cell::name(of),
            Cell::text(measured),
            more,
            Cell::text(limit),
            Cell::text(verdict.name()),
        ]);
    }
    (!table.rows.is_empty()).then(|| {
        Section::new(
            "promises",
            "Promises",
            vec![Part::Folded(format!("{} promises", table.rows.len()), table)],
        )
    })
}

//! Rows as they are.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::{ATRACE, INSTRUCTIONS, SUBSCRIBER};
use crate::table::of_rows;

pub(super) fn instructions(here: &Machine) -> Option<Section> {
    let rows = &here.benches.get(INSTRUCTIONS)?.rows;
    let mut table = of_rows("Instructions of one operation", rows);
    table.note = "Instructions of the program, counted by callgrind: not those of the kernel. The same from run to run, so that a change of one instruction is seen on the busiest machine.".to_owned();
    (!rows.is_empty()).then(|| {
        Section::new(
            INSTRUCTIONS,
            "Instructions",
            vec![Part::Folded(format!("{} cases", rows.len()), vec![Part::Table(table)])],
        )
    })
}

pub(super) fn everything(here: &Machine) -> Option<Section> {
    let parts: Vec<Part> = here
        .benches
        .iter()
        .filter(|(name, _)| [ATRACE, SUBSCRIBER].contains(&&name[..]))
        .map(|(name, bench)| {
            let title = format!("{name}: {} rows", bench.rows.len());
            Part::Folded(title, vec![Part::Table(of_rows(name, &bench.rows))])
        })
        .collect();
    (!parts.is_empty()).then(|| Section::new("rows", "Every row", parts))
}

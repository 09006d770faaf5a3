//! What changes the cost of an event: its name, threads, a watch.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::{ATRACE, Id, What, Who};
use crate::row::Row;
use crate::table::of_rows;

/// A table's title and note, and which rows are in it.
type Circumstance = (&'static str, &'static str, fn(&Id) -> bool);

const ALL: [Circumstance; 3] = [
    ("The length of the name", "Characters; beside a write(2) of the same bytes.", |id| {
        id.who == Who::Rust && matches!(id.what, What::Name(..))
    }),
    (
        "Threads",
        "CPU time of one operation when several threads run it. From two threads on, every write(2) of a process pays for the shared table of descriptors, in any language.",
        |id| id.who != Who::Perfetto && matches!(id.what, What::Threads(..)),
    ),
    (
        "A thread that watches",
        "In processes of their own.",
        |id| matches!(&id.what, What::Watched(kind) if id.who == Who::Rust && kind != "whole_machine"),
    ),
];

pub(super) fn circumstances(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let table = |(title, note, is_in): Circumstance| {
        let rows: Vec<&Row> = bench.rows.iter().filter(|row| is_in(&Id::of(&row.id))).collect();
        (!rows.is_empty()).then(|| Part::Table(of_rows(title, rows).with_note(note)))
    };
    let parts: Vec<Part> = ALL.into_iter().filter_map(table).collect();
    (!parts.is_empty()).then(|| Section::new("circumstances", "Names, threads, a watch", parts))
}

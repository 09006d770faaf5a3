//! What changes the cost of an event: its name, threads, a watch.

use super::super::input::Machine;
use super::super::model::{Group, Line, Part, Plot, PlotKind, Point, Section};
use crate::catalogue::{ATRACE, Id, State, What, Who};
use crate::row::Row;
use crate::table::number::{ratio, time};
use crate::table::of_rows;

/// What changes the cost of an event: its name, threads, a watch.
pub(super) fn circumstances(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let mut parts = Vec::new();
    let mut lines = Vec::new();
    for row in &bench.rows {
        let Id { who: Who::Rust, what: What::Name(state, length) } = Id::of(&row.id) else { continue };
        let raw = Id { who: Who::Limit, what: What::RawWriteOfName(length) }.to_string();
        let text = row.versus(&raw).map(|v| format!(", {} of the raw write", ratio(v.ratio)));
        let raw = bench.rows.iter().find(|row| row.id == raw && state == State::On);
        lines.push(Line {
            label: format!("{length} characters, {}", state.name()),
            text: time(row.median) + &text.unwrap_or_default(),
            points: raw.into_iter().chain([row]).map(Point::of).collect(),
        });
    }
    if !lines.is_empty() {
        parts.push(Part::Plot(Plot {
            id: "names".to_owned(),
            title: "The length of the name".to_owned(),
            caption: String::new(),
            kind: PlotKind::Dots,
            groups: vec![Group { title: String::new(), lines }],
        }));
    }
    for (title, note, select) in [
        (
            "Threads",
            "CPU time of one operation when several threads run it. From two threads on, every write(2) of a process pays for the shared table of descriptors, in any language.",
            (|id: &Id| id.who != Who::Perfetto && matches!(id.what, What::Threads(..))) as fn(&Id) -> bool,
        ),
        (
            "A thread that watches",
            "In processes of their own.",
            |id: &Id| matches!(&id.what, What::Watched(kind) if id.who == Who::Rust && kind != "whole_machine"),
        ),
    ] {
        let rows: Vec<&Row> = bench.rows.iter().filter(|row| select(&Id::of(&row.id))).collect();
        if !rows.is_empty() {
            let mut table = of_rows(title, rows);
            table.note = note.to_owned();
            parts.push(Part::Table(table));
        }
    }
    (!parts.is_empty()).then(|| Section::new("circumstances", "Names, threads, a watch", parts))
}

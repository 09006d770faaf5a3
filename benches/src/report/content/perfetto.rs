//! An event by Perfetto's way, beside the marker's and the machine's limits.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::promises::SYSTEM_CALLS;
use crate::catalogue::{ATRACE, INSTRUCTIONS, Id, State, What, Who};
use crate::row::Row;
use crate::table::number::digits;
use crate::table::{Cell, Table, Value, of_rows};

/// What an event costs by Perfetto's way.
pub(super) fn perfetto(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let columns = [
        "case",
        "ns",
        "above the time stamp",
        "of begin/10",
        "of the raw write",
        "of the marker's way",
        "allocations",
        "instructions",
    ];
    let mut table = Table::new("Every kind of event", columns).with_note(
        "The time stamp is the bare clock. \"Of begin/10\" is of the row of that name here; \"of the raw write\", of a write(2) of begin/10's message to the marker; \"of the marker's way\", of the same function with the marker as its sink; all three from the same rounds. A literal has its name sent once.",
    );
    let mut more = Vec::new();
    for row in &bench.rows {
        let id = Id::of(&row.id);
        match (&id.who, &id.what) {
            (Who::Perfetto, What::Event(..)) => table.push(cells(here, row, &id)),
            (Who::Perfetto, _) | (_, What::Watched(_)) if is_more(&id) => more.push(row),
            (Who::Limit, What::Other(name)) if is_limit(name) => more.push(row),
            _ => {}
        }
    }
    if table.rows.is_empty() {
        return None;
    }
    let mut text = vec!["Nanoseconds of one operation in a loop, which writes packets into the memory that it shares with a tracing service; that is this workspace's own, a process beside it that writes what comes to a file in memory. All that was written has come, or there are no rows.".to_owned()];
    let calls = bench.rows.iter().filter_map(|row| row.counts.get(SYSTEM_CALLS.0));
    text.extend(calls.map(|calls| {
        format!(
            "System calls of all threads of the process for an event, at 100,000 events a second: {}.",
            digits(*calls)
        )
    }));
    let more = of_rows("Threads, sessions, and the whole machine", more).with_note(
        "Threads: CPU time of an operation, beside threads that read the clock and fill memory of their own (own_memory). Sessions: each gets every event. Whole machine: the CPU time of the caller, the socket's thread and the service, at a thousand events each millisecond; by the marker's way, of the caller. on_990_more: begin/1000 above begin/10, beside a copy of as many bytes into memory that a process on another processor has read. Where the two processors share their caches, as a guest's may in one run and not in the next, the copy takes a fraction, and a chunk that is opened every seven such events tells more.",
    );
    let parts = vec![Part::Table(table.dense()), Part::Table(more)];
    Some(Section::new("perfetto", "One event: Perfetto's way", parts).with_text(text))
}

/// Whether a row is of threads, sessions, or the whole machine.
fn is_more(id: &Id) -> bool {
    id.who == Who::Perfetto || matches!(&id.what, What::Watched(kind) if kind == "whole_machine")
}

/// Whether a limit is one of this way.
fn is_limit(name: &str) -> bool {
    ["timestamp", "copy_of_990"].contains(&name) || name.starts_with("own_memory")
}

fn cells(here: &Machine, row: &Row, id: &Id) -> Vec<Cell> {
    let begin = "perfetto/tracing_on_begin/10";
    let is_begin = row.id == begin;
    let ratio = |base: &str| Cell::ratio(row.versus(base));
    let above = row.above.get("limit/timestamp");
    let instructions = here.row(INSTRUCTIONS, &row.id).map(|row| row.median);
    let marked = match id.what {
        What::Event(State::On, event) => Id::event(Who::Rust, State::On, event).to_string(),
        _ => String::new(),
    };
    vec![
        Cell::Name(id.name()),
        Cell::value(Some(row)),
        above.map_or_else(Cell::not_measured, |above| Cell::Value(Value::of(above))),
        if is_begin { Cell::none("it is that row") } else { ratio(begin).or_not_measured() },
        ratio("limit/raw_write_begin/10").or("its message is another"),
        ratio(&marked).or("only some kinds are held against that"),
        Cell::count(row.allocs).or_not_measured(),
        Cell::count(instructions.map(f64::round)).or_not_measured(),
    ]
}

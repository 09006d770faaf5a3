//! An event by Perfetto's way, beside the marker's and the machine's limits.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::promises::SYSTEM_CALLS;
use crate::catalogue::{ATRACE, Id, What, Who};
use crate::table::number::digits;
use crate::table::of_rows;

/// What an event costs by Perfetto's way.
pub(super) fn perfetto(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let (mut events, mut more) = (Vec::new(), Vec::new());
    for row in &bench.rows {
        let id = Id::of(&row.id);
        match (&id.who, &id.what) {
            (Who::Perfetto, What::Event(..)) => events.push(row),
            (Who::Perfetto, _) => more.push(row),
            (_, What::Watched(kind)) if kind == "whole_machine" => more.push(row),
            (Who::Limit, What::Other(name)) if is_limit(name) => more.push(row),
            _ => {}
        }
    }
    if events.is_empty() {
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
    let events = of_rows("Every kind of event", events).with_note("The time stamp is the bare clock. What an event is compared with: begin/10, by Perfetto's way and as a write(2) of its message to the marker; and the same function with the marker as its sink, all in the same rounds. A literal has its name sent once.");
    let more = of_rows("Threads, sessions, and the whole machine", more).with_note(
        "Threads: CPU time of an operation, beside threads that read the clock and fill memory of their own (own_memory). Sessions: each gets every event. Whole machine: the CPU time of the caller, the socket's thread and the service, at a thousand events each millisecond; by the marker's way, of the caller. on_990_more: begin/1000 above begin/10, beside a copy of as many bytes into memory that a process on another processor has read. Where the two processors share their caches, as a guest's may in one run and not in the next, the copy takes a fraction, and a chunk that is opened every seven such events tells more.",
    );
    let parts = vec![Part::Table(events), Part::Table(more)];
    Some(Section::new("perfetto", "One event: Perfetto's way", parts).with_text(text))
}

/// Whether a limit is one of this way.
fn is_limit(name: &str) -> bool {
    ["timestamp", "copy_of_990"].contains(&name) || name.starts_with("own_memory")
}

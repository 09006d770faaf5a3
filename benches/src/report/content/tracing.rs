//! The crate `tracing`: the subscriber's twelve, and every kind of subscriber.

use std::collections::BTreeMap;

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::catalogue::{INSTRUCTIONS, Id, SUBSCRIBER, TracingCase, What, published};
use crate::row::Row;
use crate::table::{Cell, Table};

/// The second table of the original.
pub(super) fn subscriber(here: &Machine) -> Option<Section> {
    here.benches.get(SUBSCRIBER)?;
    let mut table = Table::new("The original's twelve, there and here", ["case", "there", "here", "of what", "ratio", "allocations", "instructions"]).with_note("Filtered is compared with a program that has no subscriber, off with a subscriber that takes everything and does nothing, on with raw writes of the same messages (one for an event, two for a span).");
    for case in &published::TRACING {
        let id = case.id().to_string();
        let own = here.row(SUBSCRIBER, &id);
        let base = own.and_then(|own| own.vs.iter().chain(&own.vs_process).next());
        table.push([
            Cell::Name(case.id().name()),
            Cell::published(case.rust),
            Cell::value(own),
            base.map_or_else(Cell::not_measured, |(base, _)| Cell::Text(base.clone())),
            Cell::ratio(base.map(|(_, v)| v)).or_not_measured(),
            Cell::count(own.and_then(|r| r.allocs)).or_not_measured(),
            Cell::count(here.row(INSTRUCTIONS, &id).map(|r| r.median)).or_not_measured(),
        ]);
    }
    let parts = vec![Part::Table(table.dense())];
    let section = Section::new("twelve", "The crate tracing: the subscriber's twelve", parts);
    Some(section.with_text(["An event and a span, without and with four fields, through AtraceSubscriber."]))
}

/// Rows by the kinds of subscriber that they are of, in their order.
fn by_kind(rows: &[Row]) -> Vec<(String, BTreeMap<TracingCase, &Row>)> {
    let mut kinds: Vec<(String, BTreeMap<TracingCase, &Row>)> = Vec::new();
    for row in rows {
        let Id { who, what: What::Tracing(kind, case) } = Id::of(&row.id) else { continue };
        let kind = if kind.is_empty() { who.to_string() } else { format!("{who}/{kind}") };
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, cases)) => _ = cases.insert(case, row),
            None => kinds.push((kind, BTreeMap::from([(case, row)]))),
        }
    }
    kinds
}

/// Every kind of subscriber beside the others.
pub(super) fn kinds(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(SUBSCRIBER)?;
    let columns = ["kind"].into_iter().chain(TracingCase::ALL.map(TracingCase::label));
    let mut table =
        Table::new("All kinds of subscriber", columns.chain(["allocations of a span with fields"]));
    for (kind, cases) in by_kind(&bench.rows) {
        let mut cells = vec![Cell::Name(kind)];
        cells.extend(TracingCase::ALL.map(|case| Cell::value(cases.get(&case).copied())));
        let allocs = cases.get(&TracingCase::SpanArgs).and_then(|row| row.allocs);
        cells.push(Cell::count(allocs).or("only Rust's allocator counts"));
        table.rows.push(cells);
    }
    let text = match bench.rows.iter().any(|row| Id::of(&row.id).who.peer().is_some()) {
        true => {
            "Peers are what else a program could take; each writes to a sink of its own, so what they cost beside the write differs too."
        }
        false => {
            "Peers were not measured: `cargo bench -p atrace-benches --features peers --bench subscriber` adds them."
        }
    };
    Some(Section::new("kinds", "Subscribers beside each other", vec![Part::Table(table)]).with_text([text]))
}

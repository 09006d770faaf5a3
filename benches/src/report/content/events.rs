//! The report's sections about events: Rust, C++ and lower limits of the cost; the Perfetto backend beside the marker
//! backend; and the effects of names, threads and watches (threads that notice changed properties). Also the sections
//! about the crate `tracing`: the twelve cases of AOSP's benchmark, and every kind of subscriber.

use std::collections::BTreeMap;

use crate::catalogue::promises::SYSTEM_CALLS;
use crate::catalogue::{
    ATRACE, Event, INSTRUCTIONS, Id, SUBSCRIBER, State, TracingCase, Who, published, tracing_name,
};
use crate::report::content::findings::cc;
use crate::report::input::Machine;
use crate::report::model::{Group, Line, Part, Plot, Point, Section};
use crate::row::Row;
use crate::table::number::{digits, time, versus};
use crate::table::{Cell, NOT_MEASURED, Table, of_rows};

/// Makes the section about events: the main plot; a table that has the published times of AOSP's benchmark of events,
/// and our results for C++ and Rust; and a table with the same columns for all other kinds of event.
pub(super) fn wrapper(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let row = |id: &Id| here.row(ATRACE, &id.to_string());
    let counted = |id: &Id| here.row(INSTRUCTIONS, &id.to_string()).map(|row| row.median);
    let ratio_to =
        |id: &Id, base: &Id| Cell::ratio(row(id).and_then(|r| r.versus(&base.to_string())), NOT_MEASURED);
    let instructions = |rust: &Id| match (counted(rust), counted(&rust.with_who(Who::Cc))) {
        (Some(rust), Some(cc)) => Cell::Text(format!("{} / {}", digits_of_count(rust), digits_of_count(cc))),
        (Some(rust), None) => Cell::Text(digits_of_count(rust)),
        _ => Cell::not_measured(),
    };
    let columns = [
        "case",
        "there: C++",
        "there: Rust",
        "Rust of C++",
        "here: C++",
        "here: Rust",
        "Rust of C++",
        "of the raw write",
        "of a wrapper like AOSP's",
        "through libcutils, of C++",
        "allocations",
        "instructions, Rust / C++",
    ];
    let mut others = Table::new("All other kinds of event", columns);
    let mut table = Table::new("The published events", columns).with_note("\"There\" are the times that the authors of AOSP's libatrace_rust published, from a Cuttlefish virtual device. Times of two machines can't be compared. Ratios of one run compare like with like, but they differ between processors, too. On a host, C++ calls this workspace's libcutils (cc-bench/cutils). It makes each message with snprintf, as Android's libcutils does; tests compare each message with libcutils' format; docs/costs.md compares the times of the two libraries. The column \"of a wrapper like AOSP's\" compares this library with a wrapper that, like AOSP's, calls a C function and, while tracing is on, makes a C string for each name. The column \"through libcutils, of C++\" compares this library, when it writes through libcutils (the default on Android), with C++.");
    for measured in &bench.rows {
        let rust = Id::of(&measured.id);
        let Some((state, event)) = rust.as_event() else { continue };
        if rust.who != Who::Rust {
            continue;
        }
        let [cc, ffi] = [Who::Cc, Who::Ffi].map(|who| rust.with_who(who));
        let of_cc =
            |cell: Cell| if event.cc.is_some() { cell } else { Cell::none("C++ has nothing like it") };
        let published = published::EVENTS.iter().find(|case| case.id(Who::Rust) == rust);
        let there = |cell: fn(&published::OfEvent) -> Cell| {
            published.map_or_else(|| Cell::none("it was not published"), cell)
        };
        let table = if published.is_some() { &mut table } else { &mut others };
        table.push([
            Cell::Name(rust.name.clone()),
            there(|case| Cell::published(case.cc)),
            there(|case| Cell::published(case.rust)),
            there(|case| Cell::bare_ratio(case.rust.ns / case.cc.ns)),
            of_cc(Cell::value(row(&cc))),
            Cell::value(Some(measured)),
            of_cc(ratio_to(&rust, &cc)),
            match state {
                State::On => ratio_to(&rust, &Id::raw_write(event.name)),
                State::Off => Cell::none("off, nothing is written"),
            },
            match published {
                Some(_) => ratio_to(&rust, &rust.with_who(Who::AospLike)),
                None => Cell::none("only the six published events are measured in this form"),
            },
            of_cc(ratio_to(&ffi, &cc)),
            Cell::count(measured.allocs, NOT_MEASURED),
            instructions(&rust),
        ]);
    }
    let mut parts = Vec::new();
    parts.extend(main_plot(here).map(Part::Plot));
    let tables = [table, others].into_iter().filter(|table| !table.rows.is_empty());
    parts.extend(tables.map(|table| Part::Table(table.dense())));
    Some(Section::new("events", "One event: Rust, C++ and the machine's limits", parts).with_text(["Nanoseconds of one operation in a loop, tracing switched off and on by the system's properties, and verified to be so by what arrived."]))
}

fn digits_of_count(count: f64) -> String {
    if count < 10.0 { digits(count) } else { format!("{count:.0}") }
}

/// Makes the main plot: the costs of events while tracing is off, and while it is on. Each line of the plot also shows
/// the results with which a cost is compared.
pub(crate) fn main_plot(here: &Machine) -> Option<Plot> {
    const DRAWN: [&str; 5] = ["begin/10", "begin/1000", "end", "scoped", "int"];
    let line = |label: &str, bench: &str, ids: &[Id], base: Who| {
        let rows: Vec<&Row> = ids.iter().filter_map(|id| here.row(bench, &id.to_string())).collect();
        let own = rows.iter().find(|row| Id::of(&row.id).who == Who::Rust)?;
        let base = ids.iter().find(|id| id.who == base)?;
        let base_name = if base.who == Who::Cc { "C++" } else { "the limit" };
        let beside = own.versus(&base.to_string());
        let beside = beside.map(|v| format!(", {} of {base_name}", versus(v)));
        let text = format!("{}{}{}", time(own.median), own.known().remark(), beside.unwrap_or_default());
        Some(Line { label: label.to_owned(), text, points: rows.into_iter().map(Point::of).collect() })
    };
    let mut groups = Vec::new();
    for state in State::ALL {
        let lines = DRAWN.iter().filter_map(|name| Event::named(name)).filter_map(|event| {
            let limit = match state {
                State::Off => Id::limit("load_and_test"),
                State::On => Id::raw_write(event.name),
            };
            let [cc, rust, ffi] = [Who::Cc, Who::Rust, Who::Ffi].map(|who| Id::event(who, state, event));
            line(event.label, ATRACE, &[limit, cc, rust, ffi], Who::Cc)
        });
        groups.push(Group { title: format!("Tracing {}", state.name()), lines: lines.collect() });
    }
    for (title, kind, is_on) in [
        ("tracing, the subscriber alone, filtered", "filtered", false),
        ("tracing, the subscriber alone, on", "tracing_on", true),
    ] {
        let lines = TracingCase::ALL.into_iter().filter_map(|case| {
            let base = match is_on {
                true => Id::raw_write(format_args!("of_on_{}", case.name())),
                false => Id::limit(&format!("no_subscriber_{}", case.name())),
            };
            let own = Id::new(Who::Rust, tracing_name(kind, case));
            line(case.label(), SUBSCRIBER, &[base, own], Who::Limit)
        });
        groups.push(Group { title: title.to_owned(), lines: lines.collect() });
    }
    groups.retain(|group| !group.lines.is_empty());
    (!groups.is_empty()).then(|| Plot {
        id: "costs".to_owned(),
        title: "What an event costs".to_owned(),
        caption: "Medians with 95 % intervals, most of them narrower than the marks. The limit is a load and a test while off, and while on a write(2) of the same bytes; of the crate tracing, a program without a subscriber, and the writes.".to_owned(),
        cc: cc(here, ATRACE).to_owned(),
        groups,
    })
}

/// Makes the section with the published times of AOSP's benchmark of its `tracing` subscriber, and our results.
pub(super) fn subscriber(here: &Machine) -> Option<Section> {
    here.benches.get(SUBSCRIBER)?;
    let columns = [
        "case",
        "there",
        "here, over the registry",
        "of what",
        "ratio",
        "here, alone",
        "of what",
        "ratio",
        "allocations",
        "instructions",
    ];
    let mut table = Table::new("The original's twelve, there and here", columns).with_note("The original benchmark measures its subscriber as a layer over tracing-subscriber's registry; the column \"here, over the registry\" measures ours as such a layer. But the original's layer is the default of one thread, and ours is the global default, as in most programs; it is found some nanoseconds faster. Criterion's cases in the bench subscriber have the original's default. The column \"here, alone\" measures this workspace's subscriber without the registry; the allocations and instructions are also measured without the registry. Rows with a filter are compared with a program that has no subscriber. Rows with tracing off are compared with an empty layer over the registry, or with a subscriber that accepts everything and does nothing. Rows with tracing on are compared with raw writes, write(2) of the same messages (one for an event, two for a span).");
    for case in published::TRACING.iter() {
        let id = case.id().to_string();
        let measured = |id: &str| {
            let own = here.row(SUBSCRIBER, id);
            // A comparison with inlined writes is not shown: an inlined system call takes less time than a call of
            // `write(2)`, with which all other tables compare.
            let is_write = |base: &str| !base.starts_with("limit/inline_write");
            let base =
                own.and_then(|own| own.vs.iter().chain(&own.vs_process).find(|(base, _)| is_write(base)));
            let of = base.map_or_else(Cell::not_measured, |(base, _)| Cell::Text(base.clone()));
            [Cell::value(own), of, Cell::ratio(base.map(|(_, v)| v), NOT_MEASURED)]
        };
        let counted =
            |bench, of: fn(&Row) -> Option<f64>| Cell::count(here.row(bench, &id).and_then(of), NOT_MEASURED);
        let mut cells = vec![Cell::Name(case.id().name), Cell::published(case.rust)];
        cells.extend(measured(&case.as_a_layer().to_string()));
        cells.extend(measured(&id));
        cells.push(counted(SUBSCRIBER, |row| row.allocs));
        cells.push(counted(INSTRUCTIONS, |row| Some(row.median)));
        table.push(cells);
    }
    let parts = vec![Part::Table(table.dense())];
    let section = Section::new("twelve", "The crate tracing: the subscriber's twelve", parts);
    Some(section.with_text(["An event and a span, without and with four fields."]))
}

/// Groups the rows (results) by the kind of subscriber, in the order in which the kinds first occur.
fn by_kind(rows: &[Row]) -> Vec<(String, BTreeMap<TracingCase, &Row>)> {
    let mut kinds: Vec<(String, BTreeMap<TracingCase, &Row>)> = Vec::new();
    for row in rows {
        let id = Id::of(&row.id);
        let Some((kind, case)) = id.as_tracing() else { continue };
        let who = id.who.name();
        let kind = if kind.is_empty() { who.to_owned() } else { format!("{who}/{kind}") };
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, cases)) => _ = cases.insert(case, row),
            None => kinds.push((kind, BTreeMap::from([(case, row)]))),
        }
    }
    kinds
}

/// Makes the section that shows the results of all kinds of subscriber side by side.
pub(super) fn kinds(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(SUBSCRIBER)?;
    let columns = ["kind"].into_iter().chain(TracingCase::ALL.map(TracingCase::label));
    let mut table =
        Table::new("All kinds of subscriber", columns.chain(["allocations of a span with fields"]));
    for (kind, cases) in by_kind(&bench.rows) {
        let mut cells = vec![Cell::Name(kind)];
        cells.extend(TracingCase::ALL.map(|case| Cell::value(cases.get(&case).copied())));
        let allocs = cases.get(&TracingCase::SpanArgs).and_then(|row| row.allocs);
        cells.push(Cell::count(allocs, "only Rust's allocator counts"));
        table.rows.push(cells);
    }
    let text = match bench.rows.iter().any(|row| Id::of(&row.id).who.peer().is_some()) {
        true => {
            "Peers are other crates that a program could use; each writes to a sink of its own, so their costs besides the write differ, too."
        }
        false => {
            "Peers were not measured: `cargo bench -p atrace-benches --features peers --bench subscriber` adds them."
        }
    };
    Some(Section::new("kinds", "Subscribers beside each other", vec![Part::Table(table)]).with_text([text]))
}

/// Makes the section about events through the Perfetto backend.
pub(super) fn perfetto(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let (mut events, mut more) = (Vec::new(), Vec::new());
    for row in &bench.rows {
        let id = Id::of(&row.id);
        match id.who {
            Who::Perfetto if id.as_event().is_some() => events.push(row),
            Who::Perfetto => more.push(row),
            Who::Limit if is_limit(&id.name) => more.push(row),
            _ if id.name == WHOLE_MACHINE => more.push(row),
            _ => {}
        }
    }
    if events.is_empty() {
        return None;
    }
    let text = "Nanoseconds of one operation in a loop, which writes packets into the memory that it shares with a tracing service; the service is this workspace's own, a separate process that writes the events to a file in memory. Each event arrived or was reported as lost, and at most one in a thousand was lost; otherwise there are no rows.";
    let calls = bench.rows.iter().find_map(|row| row.counts.get(SYSTEM_CALLS.0));
    let calls = calls.map(|calls| {
        format!(
            " An event takes {} system calls in all threads of the process together, at 100,000 events a second.",
            digits(*calls)
        )
    });
    let events = of_rows("Every kind of event", events).with_note("Each event is compared with a reading of the clock (limit/timestamp) and with perfetto/tracing_on_begin/10. Some events are also compared with a write(2) of their message to the marker (limit/raw_write_…), and with the same function when its events go to the marker (rust). All compared cases run in the same rounds. The text of a literal is sent only once for many events.");
    let more = of_rows("Threads, sessions, and the whole machine", more).with_note(
        "Rows with several threads show the CPU time of an operation. Their growth from one thread is compared with the growth of threads that only read the clock and fill memory of their own (own_memory_growth). In rows with several sessions, each session gets every event. Rows of the whole machine show the CPU time of an event in the calling thread, the socket thread and the service, at a thousand events each millisecond; for the marker, that of all threads of its process. The row on_990_more shows how much longer begin/1000 takes than begin/10, compared with a copy of as many bytes into memory that a process on another processor has read (copy_of_990). If the two processors share their caches, as a guest's processors may in one run and not in the next, the copy takes a fraction of the time. The opening of a chunk, at every seventh such event, then has more weight in the ratio."
            .to_owned()
            + &calls.unwrap_or_default(),
    );
    let parts = vec![Part::Table(events), Part::Table(more)];
    Some(Section::new("perfetto", "One event in Perfetto's memory", parts).with_text([text]))
}

/// The name of the rows with the CPU time that an event takes in all processes that handle it.
const WHOLE_MACHINE: &str = "on_begin_whole_machine/10";

/// Returns whether the limit `name` (a lower limit of the cost) is one with which events through the Perfetto backend
/// are compared.
fn is_limit(name: &str) -> bool {
    ["timestamp", "copy_of_990"].contains(&name) || name.starts_with("own_memory")
}

/// The title of a table, the note below the table, and a function that returns whether a row belongs to the table.
type Circumstance = (&'static str, &'static str, fn(&Id) -> bool);

const NAMES: Circumstance =
    ("The length of the name", "Characters; beside a write(2) of the same bytes.", |id| {
        id.who == Who::Rust && ["on_name/", "off_name/"].iter().any(|name| id.name.starts_with(name))
    });
const THREADS: Circumstance = (
    "Threads",
    "A row shows the CPU time of one operation when several threads run it. In a process with two or more threads, every write(2) takes longer because of the shared table of descriptors, in any language.",
    |id| id.who != Who::Perfetto && id.is_by_threads(),
);
const WATCH: Circumstance =
    ("A thread that watches", "Each row is measured in a process of its own.", |id| {
        id.who == Who::Rust && id.name.starts_with("on_begin_") && id.name != WHOLE_MACHINE
    });

fn circumstance(here: &Machine, (title, note, is_in): Circumstance) -> Option<Table> {
    let rows = &here.benches.get(ATRACE)?.rows;
    let rows: Vec<&Row> = rows.iter().filter(|row| is_in(&Id::of(&row.id))).collect();
    (!rows.is_empty()).then(|| of_rows(title, rows).with_note(note))
}

/// Makes two tables: events on several threads, and events in a process with a watch (a thread that notices changed
/// properties).
pub(super) fn threads(here: &Machine) -> Vec<Table> {
    [THREADS, WATCH].into_iter().filter_map(|of| circumstance(here, of)).collect()
}

pub(super) fn circumstances(here: &Machine) -> Option<Section> {
    let tables = circumstance(here, NAMES).into_iter().chain(threads(here));
    let parts: Vec<Part> = tables.map(Part::Table).collect();
    (!parts.is_empty()).then(|| Section::new("circumstances", "Names, threads, a watch", parts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::input::Bench;
    use crate::row::Versus;

    #[test]
    fn events_of_tracing_are_compared_with_a_write_as_in_the_first_table() {
        let mut row = Row::around("rust/tracing_on_event", 570.0, 1.0);
        for (base, ratio) in [("limit/inline_write_of_on_event", 1.53), ("limit/raw_write_of_on_event", 1.03)]
        {
            row.vs.insert(base.to_owned(), Versus { ratio, low: ratio, high: ratio, sure: true });
        }
        let bench = Bench { rows: vec![row], environment: None };
        let here = Machine { benches: [(SUBSCRIBER.to_owned(), bench)].into(), ..Machine::default() };
        let Some(Part::Table(table)) = subscriber(&here).unwrap().parts.pop() else { panic!("no table") };
        let text = table.markdown();
        let line = text.lines().find(|line| line.contains("| tracing_on_event |")).unwrap();
        assert!(line.contains("limit/raw_write_of_on_event | 1.03") && !line.contains("inline"), "{line}");
    }
}

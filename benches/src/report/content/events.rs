//! One event: Rust, C++ and the machine's limits.

use super::super::input::Machine;
use super::super::model::{Group, Line, Part, Plot, Point, Section};
use crate::catalogue::{
    ATRACE, Event, INSTRUCTIONS, Id, SUBSCRIBER, State, TracingCase, What, Who, published,
};
use crate::row::Row;
use crate::table::number::{digits, ratio, time};
use crate::table::{Cell, Table};

/// The first table of the original, with what C++ and Rust cost here.
pub(super) fn wrapper(here: &Machine) -> Option<Section> {
    let bench = here.benches.get(ATRACE)?;
    let row = |id: &Id| here.row(ATRACE, &id.to_string());
    let counted = |id: &Id| here.row(INSTRUCTIONS, &id.to_string()).map(|row| row.median);
    let ratio_to =
        |id: &Id, base: &Id| Cell::ratio(row(id).and_then(|r| r.versus(&base.to_string()))).or_not_measured();
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
        "through libcutils",
        "allocations",
        "instructions, Rust / C++",
    ];
    let mut table = Table::new("Every kind of event", columns).with_note("\"There\" are the times that the authors of AOSP's libatrace_rust published, from a Cuttlefish virtual device; only ratios can be compared with another machine's. Rust through libcutils is what their wrapper does.");
    for measured in &bench.rows {
        let rust = Id::of(&measured.id);
        let What::Event(state, event) = rust.what else { continue };
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
        table.push([
            Cell::Name(rust.name()),
            there(|case| Cell::published(case.cc)),
            there(|case| Cell::published(case.rust)),
            there(|case| Cell::Ratio(case.rust.ns / case.cc.ns, None)),
            of_cc(Cell::value(row(&cc))),
            Cell::value(Some(measured)),
            of_cc(ratio_to(&rust, &cc)),
            match state {
                State::On => ratio_to(&rust, &Id { who: Who::Limit, what: What::RawWrite(event) }),
                State::Off => Cell::none("off, nothing is written"),
            },
            of_cc(ratio_to(&ffi, &cc)),
            Cell::count(measured.allocs).or_not_measured(),
            instructions(&rust),
        ]);
    }
    let mut parts = Vec::new();
    parts.extend(main_plot(here).map(Part::Plot));
    parts.push(Part::Table(table.dense()));
    Some(Section::new("events", "One event: Rust, C++ and the machine's limits", parts).with_text(["Nanoseconds of one operation in a loop, tracing switched off and on by the system's properties, and verified to be so by what arrived."]))
}

fn digits_of_count(count: f64) -> String {
    if count < 10.0 { digits(count) } else { format!("{count:.0}") }
}

/// The plot that says most: off and on, each beside what it can be compared with.
pub(crate) fn main_plot(here: &Machine) -> Option<Plot> {
    const DRAWN: [&str; 5] = ["begin/10", "begin/1000", "end", "scoped", "int"];
    let line = |label: &str, bench: &str, ids: &[Id], base: Who| {
        let rows: Vec<&Row> = ids.iter().filter_map(|id| here.row(bench, &id.to_string())).collect();
        let own = rows.iter().find(|row| Id::of(&row.id).who == Who::Rust)?;
        let base = ids.iter().find(|id| id.who == base)?;
        let text = match own.versus(&base.to_string()) {
            Some(v) if base.who == Who::Cc => format!("{}, {} of C++", time(own.median), ratio(v.ratio)),
            Some(v) => format!("{}, {} of the limit", time(own.median), ratio(v.ratio)),
            None => time(own.median),
        };
        Some(Line { label: label.to_owned(), text, points: rows.into_iter().map(Point::of).collect() })
    };
    let mut groups = Vec::new();
    for state in State::ALL {
        let lines = DRAWN.iter().filter_map(|name| Event::named(name)).filter_map(|event| {
            let limit = match state {
                State::Off => Id::limit("load_and_test"),
                State::On => Id { who: Who::Limit, what: What::RawWrite(event) },
            };
            let [cc, rust, ffi] = [Who::Cc, Who::Rust, Who::Ffi].map(|who| Id::event(who, state, event));
            line(event.label, ATRACE, &[limit, cc, rust, ffi], Who::Cc)
        });
        groups.push(Group { title: format!("Tracing {}", state.name()), lines: lines.collect() });
    }
    for (title, kind, base) in [
        ("The crate tracing, filtered", "filtered", None),
        ("The crate tracing, on", "tracing_on", Some("on")),
    ] {
        let lines = TracingCase::ALL.into_iter().filter_map(|case| {
            let base = match base {
                Some(mode) => What::RawWriteOf(mode.to_owned(), case),
                None => What::Tracing("no_subscriber".to_owned(), case),
            };
            let base = Id { who: Who::Limit, what: base };
            let own = Id { who: Who::Rust, what: What::Tracing(kind.to_owned(), case) };
            line(case.label(), SUBSCRIBER, &[base, own], Who::Limit)
        });
        groups.push(Group { title: title.to_owned(), lines: lines.collect() });
    }
    groups.retain(|group| !group.lines.is_empty());
    (!groups.is_empty()).then(|| Plot {
        id: "costs".to_owned(),
        title: "What an event costs".to_owned(),
        caption: "Medians with 95 % intervals, most of them narrower than the marks. The limit is a load and a test while off, and while on a write(2) of the very bytes; of the crate tracing, a program without a subscriber, and the writes.".to_owned(),
        groups,
    })
}

//! What is promised of ratios: an operation takes at most so many times as long as another. And of instructions, which say
//! what is off, and what is this library's own, on the busiest machine.
//!
//! What is promised of all workloads is in `measure/workload/bars.rs`, of one in its bench. That no operation takes more
//! instructions than before is `benches/bounds.toml`'s. What came of a promise is a [`Judged`](crate::promise::Judged), whichever it was.

use super::case::TracingCase;
use super::event::Event;
use super::id::{Id, State, What, Who};

/// A promise about the ratio of two rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Promise {
    /// What is promised, in words that all of a group have.
    pub name: &'static str,
    /// The row.
    pub id: Id,
    /// What it is compared to.
    pub base: Id,
    /// The highest ratio.
    pub at_most: f64,
}

/// What is promised of the bench `atrace`.
pub fn of_events() -> Vec<Promise> {
    use State::{Off, On};
    let named = |name: &'static str| Event::named(name).expect("the catalogue has it");
    let of_cc = |name, who: &Who, state, at_most, events: &[&'static str]| {
        let promise = |event: &&'static str| {
            let [id, base] = [who, &Who::Cc].map(|who| Id::event(who.clone(), state, named(event)));
            Promise { name, id, base, at_most }
        };
        events.iter().map(promise).collect::<Vec<_>>()
    };
    let three = ["begin/10", "begin/1000", "end"];
    let mut all = of_cc("off, of C++", &Who::Rust, Off, 0.20, &three);
    all.extend(of_cc("off, of C++", &Who::Rust, Off, 0.15, &["scoped"]));
    all.extend(of_cc("on, of C++", &Who::Rust, On, 0.85, &three));
    all.extend(three.into_iter().zip([1.05, 1.10, 1.05]).map(|(event, at_most)| Promise {
        name: "on, of the raw write",
        id: Id::event(Who::Rust, On, named(event)),
        base: Id { who: Who::Limit, what: What::RawWrite(named(event)) },
        at_most,
    }));
    all.extend(of_cc("on through libcutils, of C++", &Who::Ffi, On, 1.04, &three));
    all
}

/// A promise about how much longer a row takes than another.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// What is promised, in words that all of a group have.
    pub name: &'static str,
    /// The row.
    pub id: Id,
    /// What it is compared to.
    pub base: Id,
    /// The most nanoseconds.
    pub at_most: f64,
}

/// By how much more processors' time an event takes on threads than on one.
pub const GROWTH: &str = "own_memory_growth";
/// How many system calls a process makes for an event of a hundred thousand in a second: the name of the count, and the most.
pub const SYSTEM_CALLS: (&str, f64) = ("system_calls", 0.01);

/// What is promised of Perfetto's way, while a reader is at work.
pub fn of_perfetto() -> Vec<Promise> {
    let event = |name: &'static str| by_perfetto(name);
    let raw = |name| Id { who: Who::Limit, what: What::RawWrite(Event::named(name).expect("it is there")) };
    let machine = |who| Id { who, what: What::Watched("whole_machine".to_owned()) };
    let begin = || event("begin/10");
    let threads = Event::named("begin/10").map(|event| What::Threads(State::On, event, 8));
    let threads = Id { who: Who::Perfetto, what: threads.expect("the catalogue has it") };
    let promise = |name, id, base, at_most| Promise { name, id, base, at_most };
    let mut all = vec![
        promise("Perfetto's way, of the raw write", event("begin_literal/10"), raw("begin/10"), 0.11),
        promise("Perfetto's way, of the raw write", begin(), raw("begin/10"), 0.13),
        promise(
            "990 characters more, of a copy of them",
            Id { who: Who::Perfetto, what: What::Other("on_990_more".to_owned()) },
            Id::limit("copy_of_990"),
            1.5,
        ),
    ];
    all.extend(
        [("instant", 1.0), ("end", 1.0), ("int64_literal", 1.1), ("int", 1.4), ("async_begin", 2.0)]
            .map(|(name, at_most)| promise("Perfetto's way, of begin/10", event(name), begin(), at_most)),
    );
    all.push(promise(
        "8 threads, of those that share nothing",
        threads,
        Id::limit(&format!("{GROWTH}/8_threads")),
        1.10,
    ));
    let scope = Event::named("scoped_literal").expect("the catalogue has it");
    let recorder = || Id::event(Who::Other("peer-perfetto-recorder".to_owned()), State::On, scope);
    all.extend([("scoped_literal", 0.80), ("scoped", 0.95)].map(|(name, at_most)| {
        promise("Perfetto's way, of perfetto-recorder", event(name), recorder(), at_most)
    }));
    let sdk = || Id::event(Who::Other("peer-perfetto-sdk".to_owned()), State::On, scope);
    all.extend(
        ["scoped_literal", "scoped"]
            .map(|name| promise("Perfetto's way, of Perfetto's SDK for Rust", event(name), sdk(), 0.20)),
    );
    let [by_perfetto, by_marker] = [Who::Perfetto, Who::Rust].map(machine);
    all.push(promise("the whole machine's time, of the marker's way", by_perfetto, by_marker, 0.35));
    all
}

/// What is promised of differences by Perfetto's way.
pub fn differences_of_perfetto() -> Vec<Difference> {
    [("begin_literal/10", 15.0), ("begin/10", 22.0)]
        .map(|(name, at_most)| Difference {
            name: "Perfetto's way, above the time stamp",
            id: by_perfetto(name),
            base: Id::limit("timestamp"),
            at_most,
        })
        .into()
}

fn by_perfetto(name: &str) -> Id {
    Id::event(Who::Perfetto, State::On, Event::named(name).expect("the catalogue has it"))
}

/// What is promised of the bench `subscriber`.
pub fn of_subscribers() -> Vec<Promise> {
    let row = |who, kind: &str, case| Id { who, what: What::Tracing(kind.to_owned(), case) };
    let raw = |mode: &str, case| Id { who: Who::Limit, what: What::RawWriteOf(mode.to_owned(), case) };
    let [event, event_args, span, span_args] = TracingCase::ALL;
    let mut all = Vec::new();
    let mut promise = |name, id, base, at_most| all.push(Promise { name, id, base, at_most });
    for case in TracingCase::ALL {
        let base = row(Who::Limit, "no_subscriber", case);
        promise("filtered, of no subscriber", row(Who::Rust, "filtered", case), base, 1.15);
    }
    for (case, at_most) in [(event, 1.15), (event_args, 1.15), (span, 1.20), (span_args, 1.20)] {
        let base = row(Who::Limit, "noop_always", case);
        promise("off, of one that does nothing", row(Who::Rust, "tracing_off", case), base, at_most);
    }
    for (case, at_most) in [(event, 1.07), (event_args, 1.30), (span, 1.05), (span_args, 1.20)] {
        promise("on, of the raw writes", row(Who::Rust, "tracing_on", case), raw("on", case), at_most);
    }
    for (case, at_most) in [(event, 1.08), (span, 1.15)] {
        let (id, base) = (row(Who::Rust, "layer_on", case), raw("layer_on", case));
        promise("a layer on, of the raw writes", id, base, at_most);
    }
    for (case, at_most) in [(event, 0.26), (event_args, 0.65), (span, 0.22), (span_args, 0.55)] {
        let (id, base) = (row(Who::Perfetto, "tracing_on", case), raw("on", case));
        promise("by Perfetto's way, of the raw writes", id, base, at_most);
    }
    let file = || Who::Other("peer-tracing-perfetto-file".to_owned());
    for (case, at_most) in [(event, 0.55), (event_args, 0.85), (span, 0.30)] {
        let (id, base) = (row(Who::Perfetto, "tracing_on", case), row(file(), "", case));
        promise("by Perfetto's way, of tracing-perfetto-file", id, base, at_most);
    }
    for case in TracingCase::ALL {
        let (id, base) = (row(Who::Rust, "on_filtered", case), row(Who::Rust, "tracing_on", case));
        promise("filtered and on, of on", id, base, 1.03);
    }
    all
}

/// Returns how many instructions operations take at most, with the loop around them.
pub fn of_instructions() -> Vec<(Id, f64)> {
    use State::{Off, On};
    let event = |state, name: &'static str| {
        Id::event(Who::Rust, state, Event::named(name).expect("the catalogue has it"))
    };
    let tracing = |kind: &str, case| Id { who: Who::Rust, what: What::Tracing(kind.to_owned(), case) };
    vec![
        (event(Off, "begin/10"), 13.0),
        (event(On, "begin/10"), 122.0),
        (event(On, "begin/1000"), 418.0),
        (event(On, "end"), 70.0),
        (tracing("tracing_off", TracingCase::Event), 98.0),
        (tracing("tracing_off", TracingCase::Span), 200.0),
        (tracing("tracing_on", TracingCase::Event), 460.0),
        (tracing("tracing_on", TracingCase::EventArgs), 2200.0),
        (tracing("tracing_on", TracingCase::Span), 410.0),
        (tracing("tracing_on", TracingCase::SpanArgs), 2700.0),
    ]
}

/// What is promised of how many instructions rows take of others'.
pub fn of_instructions_of_others() -> Vec<Promise> {
    let row = |who, kind: &str, case| Id { who, what: What::Tracing(kind.to_owned(), case) };
    let filtered = [
        ("instructions: filtered, of no subscriber", Who::Rust),
        ("instructions: filtered and connected, of no subscriber", Who::Perfetto),
    ];
    let promise = |(name, who): (&'static str, Who), kind: &str, case| Promise {
        name,
        id: row(who, kind, case),
        base: row(Who::Limit, "no_subscriber", case),
        at_most: 1.0,
    };
    let kinds =
        filtered.into_iter().flat_map(|each| ["filtered", "layer_filtered"].map(|kind| (each.clone(), kind)));
    kinds.flat_map(|(each, kind)| TracingCase::ALL.map(|case| promise(each.clone(), kind, case))).collect()
}

/// Tells whether an operation is promised not to allocate: everything of this workspace's, but a layer's span while on; by
/// Perfetto's way, only one with fields.
pub fn must_not_allocate(id: &Id) -> bool {
    let case = match &id.what {
        What::Tracing(kind, case) if kind == "layer_on" => Some(case),
        _ => None,
    };
    match id.who {
        Who::Rust => !matches!(case, Some(TracingCase::Span | TracingCase::SpanArgs)),
        Who::Perfetto => !matches!(case, Some(TracingCase::SpanArgs)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layers_span_may_allocate_while_on() {
        for (id, must_not) in [
            ("rust/tracing_on_event", true),
            ("rust/layer_off_span", true),
            ("rust/layer_on_event_args", true),
            ("rust/layer_on_span", false),
            ("rust/layer_on_span_args", false),
            ("cc/tracing_on_end", false),
            ("perfetto/tracing_on_int", true),
            ("perfetto/layer_filtered_span_args", true),
            ("perfetto/layer_on_span", true),
            ("perfetto/layer_on_span_args", false),
        ] {
            assert_eq!(must_not_allocate(&Id::of(id)), must_not, "{id}");
        }
    }
}

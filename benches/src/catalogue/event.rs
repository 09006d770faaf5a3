//! The kinds of event.

/// A kind of event, and what one operation of it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// As in ids: the original benchmark's name without `tracing_off_`.
    pub name: &'static str,
    /// In words.
    pub label: &'static str,
    /// How many messages an operation writes while tracing is on.
    pub messages: u64,
    /// The function of libcutils that C++ calls; none where C++ has nothing like it.
    pub cc: Option<&'static str>,
}

const fn event(name: &'static str, label: &'static str, messages: u64, cc: &'static str) -> Event {
    Event { name, label, messages, cc: Some(cc) }
}

/// Every kind of event, in the order of the tables.
pub static EVENTS: [Event; 14] = [
    event("begin/10", "begin, 10 characters", 1, "atrace_begin_body"),
    event("begin/1000", "begin, 1000 characters", 1, "atrace_begin_body"),
    event("end", "end", 1, "atrace_end_body"),
    event("scoped", "scope: begin and end", 2, "atrace_end_body"),
    event("instant", "instant", 1, "atrace_instant_body"),
    event("int", "counter", 1, "atrace_int_body"),
    event("int64", "counter, 64 bits", 1, "atrace_int64_body"),
    event("async_begin", "async begin", 1, "atrace_async_begin_body"),
    event("async_end", "async end", 1, "atrace_async_end_body"),
    event("track_begin", "begin on a track", 1, "atrace_async_for_track_begin_body"),
    event("track_end", "end on a track", 1, "atrace_async_for_track_end_body"),
    event("track_instant", "instant on a track", 1, "atrace_instant_for_track_body"),
    Event { name: "begin_fmt", label: "begin, formatted", messages: 1, cc: None },
    Event { name: "method", label: "trace_method!", messages: 2, cc: None },
];

/// Those that by Perfetto's way have a name of a callsite, which is sent once.
pub static LITERALS: [Event; 4] = [
    Event { name: "begin_literal/10", label: "begin, a literal of 10", messages: 1, cc: None },
    Event { name: "instant_literal", label: "instant, a literal", messages: 1, cc: None },
    Event { name: "int64_literal", label: "counter, 64 bits, a literal", messages: 1, cc: None },
    Event { name: "scoped_literal", label: "trace_name!", messages: 2, cc: None },
];

impl Event {
    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        EVENTS.iter().chain(&LITERALS).find(|event| event.name == name)
    }
}

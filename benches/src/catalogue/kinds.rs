//! The kinds of event, the operations with the crate `tracing`, and the kinds of subscriber.

use crate::catalogue::id::{Id, State, What, Who};

/// An operation with `tracing`, from AOSP's benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TracingCase {
    /// An event without fields.
    Event,
    /// An event with four fields.
    EventArgs,
    /// A span without fields, which is entered and left.
    Span,
    /// A span with four fields, which is entered and left.
    SpanArgs,
}

impl TracingCase {
    /// All cases, in the order of the tables.
    pub const ALL: [Self; 4] = [Self::Event, Self::EventArgs, Self::Span, Self::SpanArgs];

    /// Returns the name of the case in ids.
    pub const fn name(self) -> &'static str {
        ["event", "event_args", "span", "span_args"][self as usize]
    }

    /// Returns a description for tables.
    pub const fn label(self) -> &'static str {
        ["event", "event, 4 fields", "span", "span, 4 fields"][self as usize]
    }

    /// Returns how many messages the case writes while tracing is on.
    pub const fn messages(self) -> u64 {
        [1, 1, 2, 2][self as usize]
    }
}

/// A kind of event, and the operation that measures it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The name of the event in ids, which is the name in AOSP's benchmark without `tracing_off_`.
    pub name: &'static str,
    /// A description for tables.
    pub label: &'static str,
    /// The number of messages that an operation writes while tracing is on.
    pub messages: u64,
    /// The function of libcutils that C++ calls, or `None` if libcutils has no such function.
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

/// The kinds of event whose name is a static string at a callsite. The Perfetto backend sends such a name only once.
pub static LITERALS: [Event; 4] = [
    Event { name: "begin_literal/10", label: "begin, a literal of 10", messages: 1, cc: None },
    Event { name: "instant_literal", label: "instant, a literal", messages: 1, cc: None },
    Event { name: "int64_literal", label: "counter, 64 bits, a literal", messages: 1, cc: None },
    Event { name: "scoped_literal", label: "trace_name!", messages: 2, cc: None },
];

impl Event {
    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        EVENTS.iter().chain(&LITERALS).find(|event| event.name == name)
    }
}

/// The backend that takes the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// No backend of this workspace: a baseline or a crate of another project.
    Limit,
    /// The trace marker.
    Marker,
    /// Shared memory of Perfetto's service.
    Perfetto,
}

/// A kind of subscriber, in one state of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// The crate of another project, as in ids, or `None` for a subscriber of this workspace.
    pub peer: Option<&'static str>,
    /// The mode: the configuration with which the process of this subscriber is started.
    pub mode: &'static str,
    /// The prefix of this subscriber's row ids. The name of the case follows it.
    pub kind: &'static str,
    /// The backend, or [`Way::Limit`] for a subscriber of another project.
    pub way: Way,
    /// Whether tracing is on.
    pub state: State,
    /// The modes with which this subscriber is compared.
    pub compared_to: &'static [&'static str],
    /// Whether the instructions of this subscriber are counted as well.
    pub counted: bool,
}

/// Describes a subscriber of this workspace, or a baseline. A mode with a Perfetto session is compared with the raw
/// writes of the corresponding mode of the marker backend.
const fn of(
    (way, mode, kind): (Way, &'static str, &'static str),
    state: State,
    compared_to: &'static [&'static str],
    counted: bool,
) -> Subscriber {
    Subscriber { peer: None, mode, kind, way, state, compared_to, counted }
}

/// The modes with which this workspace's subscriber is compared while a Perfetto session records: the marker backend
/// and, depending on Cargo features, the alternatives in `subjects/subscribers.rs` that keep a trace.
const ON: &[&str] = &[
    "on",
    #[cfg(feature = "peer-tracing-perfetto-file")]
    "peer-tracing-perfetto-file",
    #[cfg(feature = "peer-tracing-perfetto-file")]
    "peer-tracing-perfetto-file-threads",
    #[cfg(feature = "peer-tracing-tracy")]
    "peer-tracing-tracy",
    #[cfg(feature = "peer-fastrace")]
    "peer-fastrace-tracing",
    #[cfg(feature = "peer-perfetto-sdk")]
    "peer-tracing-perfetto-sdk",
];
/// The modes with which a layer over a registry is compared. The peers (subscribers of other projects) are layers,
/// too.
const LAYER_ON: &[&str] = &[
    "registry",
    "layer_on",
    #[cfg(feature = "peer-tracing-perfetto-file")]
    "peer-tracing-perfetto-file",
    #[cfg(feature = "peer-tracing-perfetto-file")]
    "peer-tracing-perfetto-file-threads",
    #[cfg(feature = "peer-perfetto-sdk")]
    "peer-tracing-perfetto-sdk",
];

/// The modes with which a layer without a filter is compared while tracing is off.
const OTHERS: &[&str] = &["registry", "empty_layer"];

/// The modes with which a layer with a filter is compared.
const WITHOUT: &[&str] = &["no_subscriber", "registry"];

/// Every kind of subscriber of this workspace, after the baselines. (`subjects/subscribers.rs` lists the peers.)
/// Subscribers of other projects depend on Cargo features and are not listed here.
pub static SUBSCRIBERS: [Subscriber; 20] = [
    of((Way::Limit, "no_subscriber", "no_subscriber"), State::Off, &[], true),
    of((Way::Limit, "level_off", "level_off"), State::Off, &[], false),
    of((Way::Limit, "noop", "noop_always"), State::Off, &[], true),
    of((Way::Limit, "registry", "registry"), State::Off, &[], true),
    of((Way::Limit, "empty_layer", "empty_layer"), State::Off, &["registry"], true),
    of((Way::Marker, "off", "tracing_off"), State::Off, &["noop"], true),
    of((Way::Marker, "off_keeping_fields", "off_keeping_fields"), State::Off, &["off"], false),
    of((Way::Marker, "filtered", "filtered"), State::Off, &["no_subscriber"], true),
    of((Way::Marker, "on", "tracing_on"), State::On, &[], true),
    of((Way::Marker, "on_filtered", "on_filtered"), State::On, &["on"], false),
    of((Way::Marker, "on_without_fields", "on_without_fields"), State::On, &["on"], false),
    of((Way::Marker, "layer_off", "layer_off"), State::Off, OTHERS, true),
    of((Way::Marker, "layer_filtered", "layer_filtered"), State::Off, WITHOUT, true),
    of((Way::Marker, "layer_on", "layer_on"), State::On, &[], true),
    of((Way::Perfetto, "perfetto_off", "tracing_off"), State::Off, &["noop"], true),
    of((Way::Perfetto, "perfetto_filtered", "filtered"), State::Off, &["no_subscriber"], true),
    of((Way::Perfetto, "perfetto_on", "tracing_on"), State::On, ON, true),
    of((Way::Perfetto, "perfetto_layer_off", "layer_off"), State::Off, OTHERS, true),
    of((Way::Perfetto, "perfetto_layer_filtered", "layer_filtered"), State::Off, WITHOUT, true),
    of((Way::Perfetto, "perfetto_layer_on", "layer_on"), State::On, LAYER_ON, true),
];

impl Subscriber {
    /// Returns the id of a case's row under this subscriber.
    pub fn id(&self, case: TracingCase) -> Id {
        let who = match (self.peer, self.way) {
            (Some(peer), _) => Who::Other(peer.to_owned()),
            (None, Way::Limit) => Who::Limit,
            (None, Way::Marker) => Who::Rust,
            (None, Way::Perfetto) => Who::Perfetto,
        };
        Id { who, what: What::Tracing(self.kind.to_owned(), case) }
    }
}

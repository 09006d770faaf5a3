//! The kinds of event, the operations with the crate `tracing`, and the kinds of subscriber that receive these
//! operations.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use crate::catalogue::id::{Id, State, Who};

/// An operation with the crate `tracing`, from AOSP's benchmark of its subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
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

    /// Returns the name of the case in the ids of rows (results).
    pub const fn name(self) -> &'static str {
        ["event", "event_args", "span", "span_args"][self as usize]
    }

    /// Returns a description of the case for tables.
    pub const fn label(self) -> &'static str {
        ["event", "event, 4 fields", "span", "span, 4 fields"][self as usize]
    }

    /// Returns how many messages the case writes while tracing is on.
    pub const fn messages(self) -> u64 {
        [1, 1, 2, 2][self as usize]
    }
}

/// Returns the part of a row's id that names a case: the kind of subscriber, `_` and the case, such as `filtered_span`.
/// If the kind is empty, returns only the name of the case.
pub fn tracing_name(kind: &str, case: TracingCase) -> String {
    if kind.is_empty() { case.name().to_owned() } else { format!("{kind}_{}", case.name()) }
}

/// A kind of event, and the operation that measures it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Event {
    /// The name of the event in the ids of rows (results). For an event of AOSP's benchmark, the name is AOSP's without
    /// the prefix `tracing_off_`.
    pub name: &'static str,
    /// A description of the event for tables.
    pub label: &'static str,
    /// The number of messages that an operation writes while tracing is on.
    pub messages: u64,
    /// The function of libcutils that C++ calls for the event, or `None` if libcutils has no such function. For
    /// `scoped`, which calls two functions, the field names the function that ends the slice.
    pub cc: Option<&'static str>,
}

/// The content of `kinds.toml`.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct Kinds {
    events: Vec<Event>,
    literals: Vec<Event>,
    subscribers: Vec<Subscriber>,
}

fn kinds() -> Kinds {
    toml::from_str(include_str!("kinds.toml")).expect("the file has this form")
}

/// Every kind of event except the [`LITERALS`], in the order of the tables.
pub static EVENTS: LazyLock<Vec<Event>> = LazyLock::new(|| kinds().events);

/// Further kinds of event: events whose name is a static string. The Perfetto backend does not send the text of such a
/// name with every event.
pub static LITERALS: LazyLock<Vec<Event>> = LazyLock::new(|| kinds().literals);

/// The baselines, such as a program without a subscriber, and then every kind of subscriber of this workspace.
/// Subscribers of other projects (*peers*) are not in this list: they depend on Cargo features, and are listed in
/// `subjects/subscribers.rs`.
pub static SUBSCRIBERS: LazyLock<Vec<Subscriber>> = LazyLock::new(|| kinds().subscribers);

impl Event {
    /// Returns the kind of event with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        EVENTS.iter().chain(LITERALS.iter()).find(|event| event.name == name)
    }
}

/// The backend that writes the events of a measured subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// No backend of this workspace, because the subscriber is a baseline or is from another project.
    Limit,
    /// The marker backend, which writes to the kernel's trace marker.
    Marker,
    /// The Perfetto backend, which writes to memory that is shared with Perfetto's service.
    Perfetto,
}

/// A kind of subscriber, in one state of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Subscriber {
    /// The name, in row ids, of the other project's crate that has the subscriber, or `None` for a subscriber of this
    /// workspace.
    pub peer: Option<&'static str>,
    /// The mode: the name of the configuration with which the process that measures this subscriber is started.
    pub mode: &'static str,
    /// The prefix of this subscriber's row ids. The name of the case follows it.
    pub kind: &'static str,
    /// The backend that writes the events, or [`Backend::Limit`] for a baseline or a subscriber of another project.
    pub backend: Backend,
    /// Whether tracing is on.
    pub state: State,
    /// The modes (configurations of a process) with which this subscriber is compared.
    #[serde(default, deserialize_with = "leaked")]
    pub compared_to: &'static [&'static str],
    /// Whether the instructions of this subscriber are counted, in addition to measuring its times.
    #[serde(default)]
    pub counted: bool,
}

fn leaked<'de: 'static, D: Deserializer<'de>>(list: D) -> Result<&'static [&'static str], D::Error> {
    Ok(Vec::deserialize(list)?.leak())
}

impl Subscriber {
    /// Returns the id of the row (the result) of `case` when this subscriber receives its events.
    pub fn id(&self, case: TracingCase) -> Id {
        let who = match (self.peer, self.backend) {
            (Some(peer), _) => Who::Other(peer.to_owned()),
            (None, Backend::Limit) => Who::Limit,
            (None, Backend::Marker) => Who::Rust,
            (None, Backend::Perfetto) => Who::Perfetto,
        };
        Id::new(who, tracing_name(self.kind, case))
    }
}

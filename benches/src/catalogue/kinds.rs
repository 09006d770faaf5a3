//! The kinds of event, the operations with the crate `tracing`, and the kinds of subscriber.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

use crate::catalogue::id::{Id, State, Who};

/// An operation with `tracing`, from AOSP's benchmark.
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

/// Returns the name that a row's id has for a case: the kind of subscriber, `_` and the case, such as `filtered_span`.
/// If the kind is empty, returns only the case.
pub fn tracing_name(kind: &str, case: TracingCase) -> String {
    if kind.is_empty() { case.name().to_owned() } else { format!("{kind}_{}", case.name()) }
}

/// A kind of event, and the operation that measures it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct Event {
    /// The name of the event in ids. For an event of AOSP's benchmark, it is AOSP's name without `tracing_off_`.
    pub name: &'static str,
    /// A description for tables.
    pub label: &'static str,
    /// The number of messages that an operation writes while tracing is on.
    pub messages: u64,
    /// The function of libcutils that C++ calls (for `scoped`, the function that ends it), or `None` if libcutils has
    /// no such function.
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

/// Further kinds of event, whose name is a static string. The Perfetto backend does not send such a name with every
/// event.
pub static LITERALS: LazyLock<Vec<Event>> = LazyLock::new(|| kinds().literals);

/// The baselines, and then every kind of subscriber of this workspace. Subscribers of other projects (*peers*) depend
/// on Cargo features, and are listed in `subjects/subscribers.rs`.
pub static SUBSCRIBERS: LazyLock<Vec<Subscriber>> = LazyLock::new(|| kinds().subscribers);

impl Event {
    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        EVENTS.iter().chain(LITERALS.iter()).find(|event| event.name == name)
    }
}

/// The backend that takes the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// No backend of this workspace: a baseline or a crate of another project.
    Limit,
    /// The trace marker.
    Marker,
    /// Shared memory of Perfetto's service.
    Perfetto,
}

/// A kind of subscriber, in one state of tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct Subscriber {
    /// The crate of another project, as in ids, or `None` for a subscriber of this workspace.
    pub peer: Option<&'static str>,
    /// The mode: the configuration with which the process of this subscriber is started.
    pub mode: &'static str,
    /// The prefix of this subscriber's row ids. The name of the case follows it.
    pub kind: &'static str,
    /// The backend, or [`Backend::Limit`] for a baseline or a subscriber of another project.
    pub backend: Backend,
    /// Whether tracing is on.
    pub state: State,
    /// The modes with which this subscriber is compared.
    #[serde(default, deserialize_with = "leaked")]
    pub compared_to: &'static [&'static str],
    /// Whether the instructions of this subscriber are counted as well.
    #[serde(default)]
    pub counted: bool,
}

fn leaked<'de: 'static, D: Deserializer<'de>>(list: D) -> Result<&'static [&'static str], D::Error> {
    Ok(Vec::deserialize(list)?.leak())
}

impl Subscriber {
    /// Returns the id of a case's row under this subscriber.
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

//! The kinds of subscriber that a program has.

use super::case::TracingCase;
use super::id::{Id, State, What, Who};

/// Which way events go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nobody's here.
    Limit,
    /// The marker's.
    Marker,
    /// That of Perfetto's service.
    Perfetto,
}

/// A kind of subscriber, in one state of tracing.
#[derive(Debug, PartialEq, Eq)]
pub struct Subscriber {
    /// What the process is told that runs it.
    pub mode: &'static str,
    /// What the ids of its rows begin with, before the case's name.
    pub kind: &'static str,
    /// Whether it is this workspace's, by which way, or something to compare it with.
    pub way: Way,
    /// Whether tracing is on.
    pub state: State,
    /// The modes that it is compared to.
    pub compared_to: &'static [&'static str],
    /// Whether its instructions are counted, too.
    pub counted: bool,
}

const fn limit(mode: &'static str, kind: &'static str, counted: bool) -> Subscriber {
    Subscriber { mode, kind, way: Way::Limit, state: State::Off, compared_to: &[], counted }
}

const fn own(
    mode: &'static str,
    kind: &'static str,
    state: State,
    compared_to: &'static [&'static str],
    counted: bool,
) -> Subscriber {
    Subscriber { mode, kind, way: Way::Marker, state, compared_to, counted }
}

/// The same in a process that is connected to a reader of Perfetto's way; while that has a session, it is compared to the raw
/// writes of the mode on the marker's way.
const fn by_perfetto(
    mode: &'static str,
    kind: &'static str,
    state: State,
    compared_to: &'static [&'static str],
) -> Subscriber {
    Subscriber { mode, kind, way: Way::Perfetto, state, compared_to, counted: true }
}

/// What is on by Perfetto's way is compared to the marker's way and, with Cargo's features, to what else a program could take:
/// the modes of `subjects/peers.rs` that keep a trace.
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
/// The same of a layer over a registry, as the peers are.
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

/// Every kind of subscriber, the baselines first; without those of other projects, which depend on Cargo's features.
pub static SUBSCRIBERS: [Subscriber; 19] = [
    limit("no_subscriber", "no_subscriber", true),
    limit("level_off", "level_off", false),
    limit("noop", "noop_always", true),
    limit("registry", "registry", true),
    own("off", "tracing_off", State::Off, &["noop"], true),
    own("off_keeping_fields", "off_keeping_fields", State::Off, &["off"], false),
    own("filtered", "filtered", State::Off, &["no_subscriber"], true),
    own("on", "tracing_on", State::On, &[], true),
    own("on_filtered", "on_filtered", State::On, &["on"], false),
    own("on_without_fields", "on_without_fields", State::On, &["on"], false),
    own("layer_off", "layer_off", State::Off, &["registry"], true),
    own("layer_filtered", "layer_filtered", State::Off, &["no_subscriber", "registry"], true),
    own("layer_on", "layer_on", State::On, &[], true),
    by_perfetto("perfetto_off", "tracing_off", State::Off, &["noop"]),
    by_perfetto("perfetto_filtered", "filtered", State::Off, &["no_subscriber"]),
    by_perfetto("perfetto_on", "tracing_on", State::On, ON),
    by_perfetto("perfetto_layer_off", "layer_off", State::Off, &["registry"]),
    by_perfetto("perfetto_layer_filtered", "layer_filtered", State::Off, &["no_subscriber", "registry"]),
    by_perfetto("perfetto_layer_on", "layer_on", State::On, LAYER_ON),
];

impl Subscriber {
    /// Returns the kind that runs in this mode.
    pub fn of_mode(mode: &str) -> Option<&'static Self> {
        SUBSCRIBERS.iter().find(|subscriber| subscriber.mode == mode)
    }

    /// Returns the id of the row of a case.
    pub fn id(&self, case: TracingCase) -> Id {
        let who = match self.way {
            Way::Limit => Who::Limit,
            Way::Marker => Who::Rust,
            Way::Perfetto => Who::Perfetto,
        };
        Id { who, what: What::Tracing(self.kind.to_owned(), case) }
    }
}

//! The kinds of subscriber that take turns.

use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer, registry};

use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};

use crate::catalogue::{self, Case, Id, SUBSCRIBERS, State, What, Who};

/// One kind of subscriber, in one state of tracing, that can be installed.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The mode of the process that has it.
    pub name: &'static str,
    /// The crate of somebody else's that it is, as in ids.
    peer: Option<&'static str>,
    kind: &'static str,
    /// Whether tracing is on.
    pub on: bool,
    /// Makes it the global default.
    pub install: fn(),
    /// The modes that it is compared to.
    pub compared_to: &'static [&'static str],
}

impl Subject {
    /// Returns the id of the row of a case.
    #[must_use]
    pub fn id(&self, case: Case) -> Id {
        match (self.peer, catalogue::Subscriber::of_mode(self.name)) {
            (None, Some(own)) => own.id(case),
            (peer, _) => {
                let who = Who::Other(peer.unwrap_or_default().to_owned());
                Id { who, what: What::Tracing(self.kind.to_owned(), case) }
            }
        }
    }

    /// Tells whether it allocates the same in each run. A registry takes memory for more spans now and then.
    #[must_use]
    pub fn allocates_exactly(&self) -> bool {
        self.peer.is_none() && self.name != "registry" && !self.name.starts_with("layer")
    }
}

/// Makes a subscriber the global default.
///
/// # Panics
///
/// If there is one already.
pub fn install(subscriber: impl Subscriber + Send + Sync) {
    tracing::subscriber::set_global_default(subscriber).expect("no other subscriber was set");
}

/// Wants everything and does nothing.
struct Noop {
    level: LevelFilter,
}

impl Subscriber for Noop {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        if *metadata.level() <= self.level {
            tracing::subscriber::Interest::always()
        } else {
            tracing::subscriber::Interest::never()
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Returns all, the baselines first.
#[must_use]
pub fn all() -> Vec<Subject> {
    let own = SUBSCRIBERS.iter().map(|subscriber| Subject {
        name: subscriber.mode,
        peer: None,
        kind: subscriber.kind,
        on: subscriber.state == State::On,
        install: installer(subscriber.mode),
        compared_to: subscriber.compared_to,
    });
    own.chain(super::peers::all()).collect()
}

/// What makes the subscriber of a mode the global default.
fn installer(mode: &str) -> fn() {
    match mode {
        "no_subscriber" => || (),
        "level_off" => || install(Noop { level: LevelFilter::OFF }),
        "noop" => || install(Noop { level: LevelFilter::TRACE }),
        "registry" => || install(registry()),
        "off" | "on" => || install(AtraceSubscriber::default()),
        "off_keeping_fields" => || install(AtraceSubscriber::default().with_fields_while_off()),
        "filtered" | "on_filtered" => || install(AtraceSubscriber::default().with_filter()),
        "layer_off" | "layer_on" => || install(registry().with(AtraceLayer::default())),
        "layer_filtered" => || {
            let layer = Layer::with_filter(AtraceLayer::default(), AtraceFilter::default());
            install(registry().with(layer));
        },
        other => unreachable!("{other} is no mode of the catalogue"),
    }
}

/// A peer, in its own default state.
#[must_use]
pub fn peer(name: &'static str, crate_name: &'static str, install: fn()) -> Subject {
    let compared_to = &["no_subscriber"];
    Subject { name, peer: Some(crate_name), kind: "", on: false, install, compared_to }
}

impl Subject {
    /// The same peer switched off, under this name.
    #[must_use]
    pub fn off(self, name: &'static str, install: fn()) -> Self {
        Self { name, kind: "off", install, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subscriber_of_the_catalogue_can_be_installed() {
        for (mode, subscriber) in all().iter().zip(&SUBSCRIBERS) {
            assert_eq!(mode.id(Case::Span), subscriber.id(Case::Span));
            assert!(mode.compared_to.iter().all(|base| all().iter().any(|other| other.name == *base)));
        }
    }
}

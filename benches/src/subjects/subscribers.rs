//! The kinds of subscriber that take turns.

use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer, registry};

use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};

use super::subject::{Subject, install};
use crate::catalogue::{SUBSCRIBERS, State};

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
///
/// Inlined with what they install: a program installs its subscriber itself, and what is compiled into a program finds its
/// threads' memory without a call.
#[inline]
pub fn all() -> Vec<Subject> {
    let own = SUBSCRIBERS.iter().map(|subscriber| Subject {
        name: subscriber.mode,
        peer: None,
        kind: subscriber.kind,
        on: subscriber.state == State::On,
        way: subscriber.way,
        install: installer(subscriber.mode),
        compared_to: subscriber.compared_to,
    });
    own.chain(super::peers::all()).collect()
}

/// What makes the subscriber of a mode the global default.
#[inline]
fn installer(mode: &str) -> fn() {
    match mode.strip_prefix("perfetto_").unwrap_or(mode) {
        "no_subscriber" => || (),
        "level_off" => || install(Noop { level: LevelFilter::OFF }),
        "noop" => || install(Noop { level: LevelFilter::TRACE }),
        "registry" => || install(registry()),
        "off" | "on" => || install(AtraceSubscriber::default()),
        "off_keeping_fields" => || install(AtraceSubscriber::default().with_fields_while_off()),
        "on_without_fields" => || install(AtraceSubscriber::default().without_fields()),
        "filtered" | "on_filtered" => || install(AtraceSubscriber::default().with_filter()),
        "layer_off" | "layer_on" => || install(registry().with(AtraceLayer::default())),
        "layer_filtered" => || {
            let layer = Layer::with_filter(AtraceLayer::default(), AtraceFilter::default());
            install(registry().with(layer));
        },
        other => unreachable!("{other} is no mode of the catalogue"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::TracingCase;

    #[test]
    fn every_subscriber_of_the_catalogue_can_be_installed() {
        for (mode, subscriber) in all().iter().zip(&SUBSCRIBERS) {
            assert_eq!(mode.id(TracingCase::Span), subscriber.id(TracingCase::Span));
            assert!(mode.compared_to.iter().all(|base| all().iter().any(|other| other.name == *base)));
        }
    }
}

//! The kinds of subscriber that take turns.

use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::SubscriberExt as _;

use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};

/// An operation, run this often.
pub type Body = fn(u64);
/// Runs operations with something around them.
pub type Around = fn(Body, u64);

/// One kind of subscriber, in one state of tracing.
#[derive(Clone, Copy)]
pub struct Mode {
    /// What the process is told that runs it.
    pub name: &'static str,
    /// What its rows' ids are made of, around the case's name.
    who: &'static str,
    before: &'static str,
    /// Whether tracing is on.
    pub on: bool,
    /// Whether its cases write.
    pub writes: bool,
    /// Makes it the global default.
    pub install: fn(),
    /// The modes that it is compared to.
    pub compared_to: &'static [&'static str],
    /// What runs a case's operations this often, where they need something around them.
    around: Option<Around>,
}

impl Mode {
    /// The id of the row of a case.
    pub fn id(&self, case: &str) -> String {
        format!("{}/{}{case}", self.who, self.before)
    }

    /// Runs a case's operations this often.
    pub fn run(&self, case: Body, n: u64) {
        match self.around {
            Some(around) => around(case, n),
            None => case(n),
        }
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

/// Returns all modes, the baselines first.
pub fn all() -> Vec<Mode> {
    let limit = |name, before, install| Mode {
        name,
        who: "limit",
        before,
        on: false,
        writes: false,
        install,
        compared_to: &[],
        around: None,
    };
    let rust = |name, before, on, install, compared_to| Mode {
        name,
        who: "rust",
        before,
        on,
        writes: on,
        install,
        compared_to,
        around: None,
    };
    let mut all = vec![
        limit("no_subscriber", "no_subscriber_", || ()),
        limit("level_off", "level_off_", || install(Noop { level: LevelFilter::OFF })),
        limit("noop", "noop_always_", || install(Noop { level: LevelFilter::TRACE })),
        limit("registry", "registry_", || install(tracing_subscriber::registry())),
        rust("off", "tracing_off_", false, || install(AtraceSubscriber::default()), &["noop"]),
        rust(
            "off_keeping_fields",
            "off_keeping_fields_",
            false,
            || install(AtraceSubscriber::default().with_fields_while_off()),
            &["off"],
        ),
        rust(
            "filtered",
            "filtered_",
            false,
            || install(AtraceSubscriber::default().with_filter()),
            &["no_subscriber"],
        ),
        rust("on", "tracing_on_", true, || install(AtraceSubscriber::default()), &[]),
        rust(
            "on_filtered",
            "on_filtered_",
            true,
            || install(AtraceSubscriber::default().with_filter()),
            &["on"],
        ),
        rust(
            "layer_off",
            "layer_off_",
            false,
            || install(tracing_subscriber::registry().with(AtraceLayer::default())),
            &["registry"],
        ),
        rust(
            "layer_filtered",
            "layer_filtered_",
            false,
            || {
                use tracing_subscriber::Layer as _;
                install(
                    tracing_subscriber::registry()
                        .with(AtraceLayer::default().with_filter(AtraceFilter::default())),
                );
            },
            &["no_subscriber", "registry"],
        ),
        rust(
            "layer_on",
            "layer_on_",
            true,
            || install(tracing_subscriber::registry().with(AtraceLayer::default())),
            &[],
        ),
    ];
    all.extend(super::peers::all());
    all
}

/// A peer, in its own default state.
#[must_use]
pub fn peer(name: &'static str, who: &'static str, install: fn()) -> Mode {
    let compared_to = &["no_subscriber"];
    Mode { name, who, before: "", on: false, writes: false, install, compared_to, around: None }
}

impl Mode {
    /// The same peer switched off, under this name.
    #[must_use]
    pub fn off(self, name: &'static str, install: fn()) -> Self {
        Self { name, before: "off_", install, ..self }
    }

    /// The same peer with this around the operations.
    #[must_use]
    pub fn around(self, around: Around) -> Self {
        Self { around: Some(around), ..self }
    }
}

/// What was promised: a row, what it is compared to, and the highest ratio.
pub fn asked() -> Vec<(String, String, f64)> {
    let mut asked = Vec::new();
    let mut ask = |id: &str, base: &str, bound| asked.push((id.to_owned(), base.to_owned(), bound));
    for case in ["event", "event_args", "span", "span_args"] {
        ask(&format!("rust/filtered_{case}"), &format!("limit/no_subscriber_{case}"), 1.15);
    }
    for (case, bound) in [("event", 1.15), ("event_args", 1.15), ("span", 1.20), ("span_args", 1.20)] {
        ask(&format!("rust/tracing_off_{case}"), &format!("limit/noop_always_{case}"), bound);
    }
    for (case, bound) in [("event", 1.07), ("event_args", 1.30), ("span", 1.05), ("span_args", 1.20)] {
        ask(&format!("rust/tracing_on_{case}"), &format!("limit/raw_write_of_on_{case}"), bound);
    }
    for (case, bound) in [("event", 1.08), ("span", 1.15)] {
        ask(&format!("rust/layer_on_{case}"), &format!("limit/raw_write_of_layer_on_{case}"), bound);
    }
    for case in ["event", "event_args", "span", "span_args"] {
        ask(&format!("rust/on_filtered_{case}"), &format!("rust/tracing_on_{case}"), 1.03);
    }
    asked
}

/// Tells whether a row was promised not to allocate: all of the subscriber alone; of the layer off, filtered
/// and events.
pub fn must_not_allocate(id: &str) -> bool {
    let Some(name) = id.strip_prefix("rust/") else { return false };
    !name.starts_with("layer_on_span")
}

//! The kinds of `tracing` subscriber that are compared: this workspace's subscribers, the baselines, such as no
//! subscriber, and the *peers*, which are subscribers of other projects. Each peer's crate has its own Cargo feature,
//! so that the default build stays small.
//!
//! A peer is set up as its documentation shows, with two exceptions. Fields are recorded, because this workspace's
//! subscriber records them, too. A peer that writes a file writes to `/dev/null`, because files would grow by
//! gigabytes. So the result of a peer is its lowest cost. Some peers do a part of the work on a thread of their own.
//! The time of such a peer only includes the part of the calling thread. Its allocations include those of all threads
//! of the process, except allocations by C++.

use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer, registry};

use crate::catalogue::{Backend, SUBSCRIBERS, State, Subscriber as Kind};

/// A kind of `tracing` subscriber, with the function that installs it.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The kind of subscriber.
    pub of: Kind,
    /// The function that installs the subscriber as the global default.
    pub install: fn(),
}

impl Subject {
    /// Returns whether the subscriber allocates the same amount in each run. This is false for peers (subscribers of
    /// other projects), and for all kinds with a registry, which occasionally allocates memory for more spans.
    pub fn allocates_exactly(&self) -> bool {
        let Kind { peer, mode, kind, .. } = self.of;
        peer.is_none() && !["registry", "empty_layer"].contains(&mode) && !kind.starts_with("layer")
    }
}

/// Makes a subscriber the global default.
///
/// # Panics
///
/// Panics if there is a global default already.
#[inline]
pub fn install(subscriber: impl Subscriber + Send + Sync) {
    tracing::subscriber::set_global_default(subscriber).expect("no other subscriber was set");
}

/// Returns our layer over the registry, which is how AOSP's benchmark uses its subscriber.
fn layer() -> impl Subscriber + Send + Sync {
    registry().with(AtraceLayer::default())
}

/// Returns our layer with a filter over the registry, which is how AOSP's benchmark uses its subscriber with a filter.
fn filtered_layer() -> impl Subscriber + Send + Sync {
    registry().with(Layer::with_filter(AtraceLayer::default(), AtraceFilter::default()))
}

/// Makes our layer over the registry the default subscriber of the calling thread, until the result is dropped. AOSP's
/// benchmark installs its layer in this way. Most programs have a global default subscriber instead, which `tracing`
/// finds faster.
#[inline]
pub fn layer_of_this_thread(is_filtered: bool) -> DefaultGuard {
    use tracing::subscriber::set_default;
    if is_filtered { set_default(filtered_layer()) } else { set_default(layer()) }
}

/// A subscriber that enables spans and events up to a level, and does nothing with them.
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

/// A layer that does nothing.
struct Empty;

impl<S: Subscriber> Layer<S> for Empty {}

/// Returns all kinds of subscriber, beginning with the baselines, such as no subscriber.
///
/// This function is inlined, so that the code of the subscribers is compiled into the bench program, as it is in a real
/// program. Code in the program itself accesses thread-local variables without a function call.
#[inline]
pub fn all() -> Vec<Subject> {
    let own = SUBSCRIBERS.iter().map(|of| Subject { of: *of, install: installer(of.mode) });
    own.chain(peers()).collect()
}

/// Returns the function that installs the subscriber of a mode (the name of a configuration in the catalogue).
#[inline]
fn installer(mode: &str) -> fn() {
    match mode.strip_prefix("perfetto_").unwrap_or(mode) {
        "no_subscriber" => || (),
        "level_off" => || install(Noop { level: LevelFilter::OFF }),
        "noop" => || install(Noop { level: LevelFilter::TRACE }),
        "registry" => || install(registry()),
        "empty_layer" => || install(registry().with(Empty)),
        "off" | "on" => || install(AtraceSubscriber::default()),
        "off_keeping_fields" => || install(AtraceSubscriber::default().with_fields_while_off()),
        "on_without_fields" => || install(AtraceSubscriber::default().without_fields()),
        "filtered" | "on_filtered" => || install(AtraceSubscriber::default().with_filter()),
        "layer_off" | "layer_on" => || install(layer()),
        "layer_filtered" => || install(filtered_layer()),
        other => unreachable!("{other} is no mode of the catalogue"),
    }
}

/// Makes the [`Subject`] of a peer (a subscriber of another project). `kind` names a configuration of the peer; an
/// empty `kind` is its default configuration.
pub const fn peer(mode: &'static str, peer: &'static str, kind: &'static str, install: fn()) -> Subject {
    let compared_to = &["no_subscriber"];
    let (backend, state) = (Backend::Limit, State::Off);
    Subject {
        of: Kind { mode, peer: Some(peer), kind, backend, state, compared_to, counted: false },
        install,
    }
}

/// Returns the peers (subscribers of other projects) whose Cargo features are enabled.
fn peers() -> Vec<Subject> {
    let all: &[Subject] = &[
        // This peer encodes and writes on the caller's thread, under a mutex. It writes an event at once, and a span
        // when the span is closed. Nothing is buffered.
        #[cfg(feature = "peer-tracing-perfetto")]
        peer("peer-tracing-perfetto", "peer-tracing-perfetto", "", || {
            let layer = tracing_perfetto::PerfettoLayer::new(std::sync::Mutex::new(null()));
            install(registry().with(layer.with_debug_annotations(true)));
        }),
        // This peer encodes on the caller's thread into a buffer of the thread, and writes the buffer when it is full.
        // By default, a span is a slice for its whole lifetime, on a track of its own. In the configuration `threads`,
        // the peer writes the same data as this workspace: a slice on each thread that enters a span, and the place in
        // the source code where the span was made.
        #[cfg(feature = "peer-tracing-perfetto-file")]
        peer("peer-tracing-perfetto-file", "peer-tracing-perfetto-file", "", || {
            install_file(tracing_perfetto_file::PerfettoLayer::builder(null()));
        }),
        #[cfg(feature = "peer-tracing-perfetto-file")]
        peer("peer-tracing-perfetto-file-threads", "peer-tracing-perfetto-file", "threads", || {
            let builder = tracing_perfetto_file::PerfettoLayer::builder(null());
            let threads = tracing_perfetto_file::SpanMode::ThreadTracks;
            install_file(builder.span_mode(threads).with_source_locations());
        }),
        // This peer sends events through a channel to a thread, which converts them to JSON and writes the JSON. The
        // channel is unbounded: the caller never waits, no event is dropped, and the memory of the process grows if the
        // thread is too slow.
        #[cfg(feature = "peer-tracing-chrome")]
        peer("peer-tracing-chrome", "peer-tracing-chrome", "", || {
            let builder = tracing_chrome::ChromeLayerBuilder::new().writer(null());
            let (layer, guard) = builder.include_args(true).build();
            // The guard is leaked, because dropping it would wait for the thread.
            std::mem::forget(guard);
            install(registry().with(layer));
        }),
        // This peer queues events for Tracy's thread, which keeps all events in memory until a server asks for them; in
        // this bench, no server asks. No event is dropped, so every operation executes the same code. A configuration
        // that collects events only for a connected server would need another build (the feature `ondemand`).
        #[cfg(feature = "peer-tracing-tracy")]
        peer("peer-tracing-tracy", "peer-tracing-tracy", "", || {
            install(registry().with(tracing_tracy::TracyLayer::default()));
        }),
        #[cfg(feature = "peer-fastrace")]
        peer("peer-fastrace-tracing", "peer-fastrace-tracing", "", fastrace::install),
        #[cfg(feature = "peer-perfetto-sdk")]
        peer("peer-tracing-perfetto-sdk", "peer-tracing-perfetto-sdk", "", perfetto_sdk::on),
        #[cfg(feature = "peer-perfetto-sdk")]
        peer("peer-tracing-perfetto-sdk-off", "peer-tracing-perfetto-sdk", "off", perfetto_sdk::off),
    ];
    all.to_vec()
}

/// Opens the file to which a peer writes.
#[cfg(any(
    feature = "peer-tracing-perfetto",
    feature = "peer-tracing-perfetto-file",
    feature = "peer-tracing-chrome"
))]
fn null() -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open("/dev/null").expect("/dev/null can be written to")
}

#[cfg(feature = "peer-tracing-perfetto-file")]
fn install_file(builder: tracing_perfetto_file::PerfettoLayerBuilder) {
    let (layer, guard) = builder.with_debug_annotations().build();
    // The guard is leaked, because dropping it at the end of this function would end the recording.
    std::mem::forget(guard);
    install(registry().with(layer));
}

/// The crate fastrace, through its layer for `tracing`. When a span ends, fastrace sends the span through a channel to
/// a thread. The channel wakes the thread when the channel is half full, and drops no span. The thread passes the spans
/// to a reporter, which discards them.
#[cfg(feature = "peer-fastrace")]
mod fastrace {
    use std::hint::black_box;

    use fastrace::Span;
    use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
    use fastrace_tracing::FastraceCompatLayer;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::registry;

    use crate::subjects::cases;

    /// The number of operations in a request, which is a span around these operations.
    const REQUEST: u64 = 100;

    struct Discard;

    impl Reporter for Discard {
        fn report(&mut self, spans: Vec<SpanRecord>) {
            drop(black_box(spans));
        }
    }

    pub(super) fn install() {
        fastrace::set_reporter(Discard, Config::default());
        cases::run_within(requests);
        super::install(registry().with(FastraceCompatLayer::new()));
    }

    /// Runs the operations in *requests*: groups of operations within a span. fastrace only records an event that is
    /// within a span, and stores the event until the span ends. So without requests, events would be ignored, and with
    /// a single request, events would accumulate. A request costs two spans, a hundredth of which is included in the
    /// time of each operation.
    fn requests(case: fn(u64), n: u64) {
        let mut left = n;
        while left > 0 {
            let now = left.min(REQUEST);
            let root = Span::root("bench request", SpanContext::random());
            let _parent = root.set_local_parent();
            let _entered = tracing::info_span!("bench request").entered();
            case(now);
            left -= now;
        }
    }
}

/// Perfetto's SDK, which encodes events on the caller's thread, in memory that is shared with the service. The service
/// is a thread of this process, and moves the data to a ring buffer that overwrites its oldest data. In the kind "off",
/// there is no session. In the other kind, a session records the category of the layer's events.
#[cfg(feature = "peer-perfetto-sdk")]
mod perfetto_sdk {
    use perfetto_sdk::tracing_session::TracingSession;
    use tracing_perfetto_sdk::PerfettoLayer;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::registry;

    pub(super) fn on() {
        off();
        let mut session = TracingSession::in_process().expect("a session in this process");
        session.setup(&config());
        session.start_blocking();
        // The session is leaked, because dropping it at the end of this function would end it.
        std::mem::forget(session);
    }

    pub(super) fn off() {
        tracing_perfetto_sdk::init_in_process();
        super::install(registry().with(PerfettoLayer::new()));
    }

    /// Returns a `TraceConfig` with one buffer of 32 MiB and the track events of the layer's category. The message is
    /// encoded by hand, with Perfetto's field numbers.
    fn config() -> Vec<u8> {
        // BufferConfig.size_kb, 32768 as a varint.
        let buffer = [0x08, 0x80, 0x80, 0x02];
        // TrackEventConfig.enabled_categories.
        let events = field(&[2 << 3 | 2], b"tracing");
        // DataSourceConfig.name, .track_event_config: 1 and 113.
        let source = [field(&[1 << 3 | 2], b"track_event"), field(&[0x8a, 0x07], &events)].concat();
        // TraceConfig.buffers, .data_sources; DataSource.config.
        [field(&[1 << 3 | 2], &buffer), field(&[2 << 3 | 2], &field(&[1 << 3 | 2], &source))].concat()
    }

    /// Encodes a field of a protobuf message: the encoded `key`, the length of `content`, and `content`. The content
    /// must have less than 128 bytes, so that its length takes one byte.
    fn field(key: &[u8], content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("a short field");
        assert!(length < 0x80, "a length of one byte");
        [key, &[length], content].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subscriber_of_the_catalogue_can_be_installed() {
        const MODE: &str = "ATRACE_BENCHES_TEST_MODE";
        if let Ok(mode) = std::env::var(MODE) {
            (all().iter().find(|it| it.of.mode == mode).unwrap().install)();
            return tracing::dispatcher::get_default(|it| {
                assert_eq!(it.is::<tracing::subscriber::NoSubscriber>(), mode == "no_subscriber");
            });
        }
        let test = "subjects::subscribers::tests::every_subscriber_of_the_catalogue_can_be_installed";
        for mode in all() {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            let ran = again.args([test, "--exact"]).env(MODE, mode.of.mode).output().unwrap();
            let said = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && said.contains("1 passed"), "{}: {ran:?}", mode.of.mode);
            let mut own = mode.of.compared_to.iter().filter(|base| !base.starts_with("peer-"));
            assert!(own.all(|base| all().iter().any(|other| other.of.mode == *base)));
        }
    }
}

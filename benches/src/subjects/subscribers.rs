//! The kinds of subscribers that are compared: this workspace's subscribers, their baselines, and the *peers*,
//! which are subscribers of other projects. Each peer has its own Cargo feature, so that the default build stays
//! small.
//!
//! A peer is set up as its documentation shows, with two exceptions: fields are recorded, as by this workspace's
//! subscriber, and a peer that writes a file writes to `/dev/null`, because files would grow by gigabytes. So the row
//! of a peer shows its lowest cost. Some peers do a part of the work on a thread of their own. The time of such a peer
//! only includes the caller's part; its allocations include all threads of the process, without C++ allocations.

use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer, registry};

use crate::catalogue::{Backend, SUBSCRIBERS, State, Subscriber as Kind};

/// A kind of subscriber that can be installed.
#[derive(Clone, Copy)]
pub struct Subject {
    /// The kind of subscriber.
    pub of: Kind,
    /// The function that installs the subscriber as the global default.
    pub install: fn(),
}

impl Subject {
    /// Returns whether the subscriber allocates the same amount in each run. (A registry occasionally allocates
    /// memory for more spans.)
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

/// Returns a layer over the registry, as AOSP's benchmark has it.
fn layer() -> impl Subscriber + Send + Sync {
    registry().with(AtraceLayer::default())
}

/// Returns a layer with a filter over the registry, as AOSP's benchmark has it.
fn filtered_layer() -> impl Subscriber + Send + Sync {
    registry().with(Layer::with_filter(AtraceLayer::default(), AtraceFilter::default()))
}

/// Makes a layer over the registry the default of the calling thread, until the result is dropped. AOSP's benchmark
/// installs its layer in this way. The global default, which most programs have, is found faster.
#[inline]
pub fn layer_of_this_thread(is_filtered: bool) -> DefaultGuard {
    use tracing::subscriber::set_default;
    if is_filtered { set_default(filtered_layer()) } else { set_default(layer()) }
}

/// A subscriber that enables everything up to a level, and does nothing.
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

/// Returns all subjects, baselines first.
///
/// This function is inlined, so that the subscribers are compiled into the bench program, as in a real program. Code in
/// the program itself accesses thread-local memory without a call.
#[inline]
pub fn all() -> Vec<Subject> {
    let own = SUBSCRIBERS.iter().map(|of| Subject { of: *of, install: installer(of.mode) });
    own.chain(peers()).collect()
}

/// Returns the function that installs the subscriber of a mode.
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

/// Makes a peer (a subscriber of another project). An empty `kind` is the peer's default configuration.
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
        // Encodes and writes on the caller's thread under a mutex: an event at once, a span when it is closed. Nothing
        // is buffered.
        #[cfg(feature = "peer-tracing-perfetto")]
        peer("peer-tracing-perfetto", "peer-tracing-perfetto", "", || {
            let layer = tracing_perfetto::PerfettoLayer::new(std::sync::Mutex::new(null()));
            install(registry().with(layer.with_debug_annotations(true)));
        }),
        // Encodes on the caller's thread into a buffer of the thread, and writes the buffer when it is full. By
        // default, a span is a slice on its own track for its lifetime. As `threads`, the peer writes what this
        // workspace writes: slices on the threads that enter a span, and the place where the span was made.
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
        // Sends events to a thread that converts them to JSON and writes the JSON. The channel is unbounded: a caller
        // never waits, nothing is dropped, and if the thread falls behind, the process' memory grows.
        #[cfg(feature = "peer-tracing-chrome")]
        peer("peer-tracing-chrome", "peer-tracing-chrome", "", || {
            let builder = tracing_chrome::ChromeLayerBuilder::new().writer(null());
            let (layer, guard) = builder.include_args(true).build();
            // Dropping the guard would wait for the thread.
            std::mem::forget(guard);
            install(registry().with(layer));
        }),
        // Queues events for Tracy's thread, which keeps all events in memory until a server asks for them; here, no
        // server asks. Nothing is dropped, so every operation takes the same path. Collecting only for a server is
        // another build (`ondemand`), not a mode.
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
    // Dropping the guard would end the recording with this function.
    std::mem::forget(guard);
    install(registry().with(layer));
}

/// The crate fastrace, through its layer for `tracing`. When a span ends, it is sent to a thread through a channel.
/// The channel wakes the thread when it is half full, and drops no span. The thread passes the spans to a reporter,
/// which discards them.
#[cfg(feature = "peer-fastrace")]
mod fastrace {
    use std::hint::black_box;

    use fastrace::Span;
    use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
    use fastrace_tracing::FastraceCompatLayer;
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::registry;

    use crate::subjects::cases;

    /// The number of operations in a request.
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

    /// Runs the operations in *requests*, each within a span. fastrace only records an event within a span, and
    /// stores it until the span ends. So events outside of a span would be ignored, and events in a single span would
    /// accumulate. The time of an operation includes a hundredth of two spans.
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

/// Perfetto's SDK, which encodes events on the caller's thread, in memory that is shared with the service. The
/// service is a thread of this process, and moves the data to a ring buffer that overwrites its oldest data. For
/// "off" there is no session; for "on" there is a session with the category.
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
        // Dropping the session would end it with this function.
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

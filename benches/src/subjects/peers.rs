//! What a Rust user would take instead, each behind a feature of its own so that the default build stays
//! small.
//!
//! Each is set up as its own documentation does, but with the fields recorded, as this workspace's
//! subscriber does, and with nothing kept: what would go to a file goes to `/dev/null`, or files would
//! grow by gigabytes. So a peer's row is the least that it costs. Those with a thread of their own
//! leave work to it: a row's time is the caller's share alone, while its allocations are the whole
//! process', without those of C++.

use super::subject::Subject;

/// Returns the peers that the features ask for.
pub(crate) fn all() -> Vec<Subject> {
    let peers: &[fn() -> Vec<Subject>] = &[
        #[cfg(feature = "peer-tracing-perfetto")]
        tracing_perfetto::modes,
        #[cfg(feature = "peer-tracing-perfetto-file")]
        tracing_perfetto_file::modes,
        #[cfg(feature = "peer-tracing-chrome")]
        tracing_chrome::modes,
        #[cfg(feature = "peer-tracing-tracy")]
        tracing_tracy::modes,
        #[cfg(feature = "peer-fastrace")]
        fastrace::modes,
        #[cfg(feature = "peer-perfetto-sdk")]
        perfetto_sdk::modes,
    ];
    peers.iter().flat_map(|modes| modes()).collect()
}

/// Where a peer's file would be.
#[cfg(any(
    feature = "peer-tracing-perfetto",
    feature = "peer-tracing-perfetto-file",
    feature = "peer-tracing-chrome"
))]
fn null() -> std::fs::File {
    std::fs::OpenOptions::new().write(true).open("/dev/null").expect("/dev/null can be written to")
}

/// Encodes and writes on the caller's thread, below a mutex: an event at once, a span when it is closed.
/// Nothing is buffered.
#[cfg(feature = "peer-tracing-perfetto")]
mod tracing_perfetto {
    use std::sync::Mutex;

    use tracing_perfetto::PerfettoLayer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::subjects::subject::{self, Subject};

    pub(super) fn modes() -> Vec<Subject> {
        vec![subject::peer("peer-tracing-perfetto", "peer-tracing-perfetto", || {
            let layer = PerfettoLayer::new(Mutex::new(super::null())).with_debug_annotations(true);
            subject::install(tracing_subscriber::registry().with(layer));
        })]
    }
}

/// Encodes on the caller's thread into a buffer of that, and writes it there when it is full. As it is by default a span is a slice
/// on a track of its own, as long as it lives; as `threads` it writes what this workspace's does: slices on the threads that
/// enter a span, and where it was made.
#[cfg(feature = "peer-tracing-perfetto-file")]
mod tracing_perfetto_file {
    use tracing_perfetto_file::{PerfettoLayer, PerfettoLayerBuilder, SpanMode};
    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::subjects::subject::{self, Subject};

    pub(super) fn modes() -> Vec<Subject> {
        let by_default = subject::peer("peer-tracing-perfetto-file", "peer-tracing-perfetto-file", || {
            install(PerfettoLayer::builder(super::null()));
        });
        let on_threads = by_default.kind("peer-tracing-perfetto-file-threads", "threads", || {
            let builder = PerfettoLayer::builder(super::null());
            install(builder.span_mode(SpanMode::ThreadTracks).with_source_locations());
        });
        vec![by_default, on_threads]
    }

    fn install(builder: PerfettoLayerBuilder) {
        let (layer, guard) = builder.with_debug_annotations().build();
        // It would end with this function.
        std::mem::forget(guard);
        subject::install(tracing_subscriber::registry().with(layer));
    }
}

/// Sends what it makes of an event to a thread that makes JSON of it and writes that. The channel has no
/// bound: a caller never waits, nothing is dropped, and a thread that falls behind shows in the process'
/// memory instead of the row.
#[cfg(feature = "peer-tracing-chrome")]
mod tracing_chrome {
    use tracing_chrome::ChromeLayerBuilder;
    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::subjects::subject::{self, Subject};

    pub(super) fn modes() -> Vec<Subject> {
        vec![subject::peer("peer-tracing-chrome", "peer-tracing-chrome", || {
            let (layer, guard) = ChromeLayerBuilder::new().writer(super::null()).include_args(true).build();
            // It would wait for the thread to be done, and there is nobody to read what it writes.
            std::mem::forget(guard);
            subject::install(tracing_subscriber::registry().with(layer));
        })]
    }
}

/// Queues for Tracy's thread, which keeps everything in memory until a server asks for it; none does. Nothing
/// is dropped, so every operation queues alike. A client that waits for a server before it collects is
/// another build (`ondemand`), not a mode.
#[cfg(feature = "peer-tracing-tracy")]
mod tracing_tracy {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_tracy::TracyLayer;

    use crate::subjects::subject::{self, Subject};

    pub(super) fn modes() -> Vec<Subject> {
        vec![subject::peer("peer-tracing-tracy", "peer-tracing-tracy", || {
            subject::install(tracing_subscriber::registry().with(TracyLayer::default()));
        })]
    }
}

/// By its layer for `tracing`, as a program that has `tracing`'s macros would. Spans are sent to a thread
/// when they end, by a channel that wakes it when half full and drops nothing; it hands them to the reporter,
/// which throws them away.
#[cfg(feature = "peer-fastrace")]
mod fastrace {
    use std::hint::black_box;

    use fastrace::Span;
    use fastrace::collector::{Config, Reporter, SpanContext, SpanRecord};
    use fastrace_tracing::FastraceCompatLayer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::subjects::cases;
    use crate::subjects::subject::{self, Subject};

    /// How many operations a request is made of.
    const REQUEST: u64 = 100;

    struct Discard;

    impl Reporter for Discard {
        fn report(&mut self, spans: Vec<SpanRecord>) {
            drop(black_box(spans));
        }
    }

    pub(super) fn modes() -> Vec<Subject> {
        let install = || {
            fastrace::set_reporter(Discard, Config::default());
            cases::run_within(requests);
            subject::install(tracing_subscriber::registry().with(FastraceCompatLayer::new()));
        };
        vec![subject::peer("peer-fastrace-tracing", "peer-fastrace-tracing", install)]
    }

    /// Runs the operations in requests. It records an event only within a span, and keeps it until that span
    /// ends: events would be ignored outside of one, and pile up in a single one. So a row has a hundredth of
    /// two spans in it.
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

/// Encodes on the caller's thread into memory shared with the service, which is a thread of this process here
/// and moves it to a ring buffer, overwriting the oldest. Off is without a session, on with one that has its
/// category.
#[cfg(feature = "peer-perfetto-sdk")]
mod perfetto_sdk {
    use perfetto_sdk::tracing_session::TracingSession;
    use tracing_perfetto_sdk::PerfettoLayer;
    use tracing_subscriber::layer::SubscriberExt as _;

    use crate::subjects::subject::{self, Subject};

    pub(super) fn modes() -> Vec<Subject> {
        let on = subject::peer("peer-tracing-perfetto-sdk", "peer-tracing-perfetto-sdk", || {
            off();
            let mut session = TracingSession::in_process().expect("a session in this process");
            session.setup(&config());
            session.start_blocking();
            // It would end with this function.
            std::mem::forget(session);
        });
        vec![on, on.kind("peer-tracing-perfetto-sdk-off", "off", off)]
    }

    fn off() {
        tracing_perfetto_sdk::init_in_process();
        subject::install(tracing_subscriber::registry().with(PerfettoLayer::new()));
    }

    /// A `TraceConfig` of one buffer of 32 MiB, and of track events in the layer's category. By the fields'
    /// numbers, as it is all that is encoded here.
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

    /// A field of this key and content, which is shorter than 128 bytes.
    fn field(key: &[u8], content: &[u8]) -> Vec<u8> {
        let length = u8::try_from(content.len()).expect("a short field");
        assert!(length < 0x80, "a length of one byte");
        [key, &[length], content].concat()
    }
}

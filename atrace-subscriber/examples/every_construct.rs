//! Uses nearly every kind of span and event that this crate records, and prints which slices, instants and counters
//! Perfetto should find in the trace.
//!
//! Continuous integration runs this program with a trace buffer of its own (`ATRACE_MARKER`, `ATRACE_PROPERTIES`), and
//! compares the program's output with the result of Perfetto's trace processor. The argument selects how the subscriber
//! is used: `alone`, `layer`, `filtered`, `stack`. The output is JSON in the form that `.ci/perfetto/check.mjs` reads.

use std::error::Error;
use std::fmt;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use atrace::control::{Control, ThisProcess};
use atrace_subscriber::{AsyncSpans, AtraceFilter, AtraceLayer, AtraceSubscriber};
use serde_json::{Value, json};
use tracing::level_filters::LevelFilter;
use tracing::{Instrument as _, debug, error, field, info, info_span, instrument, trace, warn};
use tracing_subscriber::prelude::*;

/// The target whose spans are shown as slices on threads and as async slices.
const BESIDE: &str = "beside";
/// The target whose spans are shown as async slices only.
const INSTEAD: &str = "instead";

fn main() -> Result<(), Box<dyn Error>> {
    let how = std::env::args().nth(1).unwrap_or_else(|| "alone".to_owned());
    let subscriber = || {
        AtraceSubscriber::default()
            .with_async_spans(BESIDE, AsyncSpans::Beside)
            .with_async_spans(INSTEAD, AsyncSpans::Instead)
    };
    let layer = || {
        AtraceLayer::default()
            .with_async_spans(BESIDE, AsyncSpans::Beside)
            .with_async_spans(INSTEAD, AsyncSpans::Instead)
    };
    match how.as_str() {
        "alone" => subscriber().init(),
        "filtered" => subscriber().with_filter().init(),
        "layer" => tracing_subscriber::registry().with(layer()).init(),
        "stack" => tracing_subscriber::registry()
            .with(tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(LevelFilter::ERROR))
            .with(layer().with_filter(AtraceFilter::default()))
            .init(),
        _ => return Err(format!("{how} must be one of alone, filtered, layer, stack").into()),
    }
    info!("off: not in the trace");
    let switched = Control::open()?.enable(ThisProcess)?;
    // Usually the caches of `tracing` are rebuilt before the call above returns. The pause is a precaution.
    std::thread::sleep(Duration::from_millis(50));

    let mut expected = Expected::default();
    std::panic::set_hook(Box::new(|_| ())); // One panic is expected.
    events(&mut expected);
    spans(&mut expected);
    asynchronous(&mut expected);
    drop(switched);
    info!("off again: not in the trace");
    println!("{}", expected.json());
    Ok(())
}

/// The result that Perfetto should find in the trace.
#[derive(Default)]
struct Expected {
    slices: Vec<Value>,
    asynchronous: Vec<Value>,
    instants: Vec<Value>,
    counters: Vec<Value>,
}

impl Expected {
    fn slice(&mut self, name: &str, count: u32, parent: Option<&str>) {
        self.slices.push(json!({"name": name, "count": count, "dur": "closed", "parent": parent}));
    }

    fn life(&mut self, track: &str, name: &str) {
        self.asynchronous.push(json!({"name": name, "dur": "closed", "track": track}));
    }

    fn instant(&mut self, name: &str) {
        self.instants.push(json!({"name": name}));
    }

    fn json(self) -> Value {
        json!({
            "pid": std::process::id(), "exact": true,
            "slices": self.slices, "async": self.asynchronous, "instants": self.instants, "counters": self.counters,
        })
    }
}

fn events(expected: &mut Expected) {
    info!("an event");
    expected.instant("an event");
    debug!(integer = -1, float = 0.5, truth = true, text = "quoted", debug = ?[1, 2], display = %"plain", "fields");
    expected.instant(
        "fields, integer = -1, float = 0.5, truth = true, text = \"quoted\", debug = [1, 2], display = plain",
    );
    let failure = "x".parse::<i32>().unwrap_err();
    error!(error = &failure as &dyn Error);
    expected.instant("error = invalid digit found in string");
    trace!("a|b\nB|1|forged\0 </script>");
    expected.instant("a/b?B/1/forged? ?/script>");
    struct Panics;
    impl fmt::Debug for Panics {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("half ")?;
            panic!("expected");
        }
    }
    warn!(value = ?Panics, rest = 1);
    expected.instant("value = half <panicked>");
    let long = "é".repeat(100_000);
    info!(%long);
    let room = 1023 - format!("I|{}|long = ", std::process::id()).len();
    expected.instant(&format!("long = {}", "é".repeat(room / 2)));
    for value in [3, -4] {
        info!(counter.level = value);
    }
    expected.counters.push(json!({"name": "level", "values": [3, -4]}));
    info!(counter.bytes = u64::MAX, part = 1, "both");
    expected.counters.push(json!({"name": "bytes", "values": [i64::MAX.to_string()]}));
    expected.instant("both, part = 1");
}

#[instrument]
fn function(number: i32) {
    info!("in a function");
}

fn spans(expected: &mut Expected) {
    info_span!("span").in_scope(|| function(7));
    expected.slice("span", 1, None);
    expected.slice("function, number = 7", 1, Some("span"));
    expected.instant("in a function");

    let span = info_span!("a|b", first = 1, later = field::Empty);
    span.in_scope(|| ());
    span.record("later", "text");
    let thread = std::thread::spawn(move || span.in_scope(|| ()));
    thread.join().expect("the thread does not panic");
    expected.slice("a|b, first = 1", 1, None);
    expected.slice("a|b, first = 1, later = \"text\"", 1, None);

    // The older span is left before the younger span. Therefore the younger span's slice has two parts.
    let older = info_span!("older").entered();
    let younger = info_span!("younger", n = 1).entered();
    drop(older);
    drop(younger);
    expected.slice("older", 1, None);
    expected.slice("younger, n = 1", 1, Some("older"));
    expected.slice("younger, n = 1", 1, None);
}

/// A future that is pending once and then ready.
async fn twice() {
    let mut first = true;
    std::future::poll_fn(|_| if std::mem::take(&mut first) { Poll::Pending } else { Poll::Ready(()) }).await;
}

fn asynchronous(expected: &mut Expected) {
    {
        let mut future = pin!(twice().instrument(info_span!(target: "beside::tasks", "task", n = 1)));
        let mut context = Context::from_waker(Waker::noop());
        while future.as_mut().poll(&mut context).is_pending() {}
    }
    expected.life("beside::tasks", "task, n = 1");
    // The span is entered for two polls, and for the drop of the future.
    expected.slice("task, n = 1", 3, None);

    // These async slices are open at the same time and have one name. Their cookies distinguish them.
    let open: Vec<_> = (0..3).map(|n| info_span!(target: INSTEAD, "life", n)).collect();
    open[0].in_scope(|| ());
    for n in 0..3 {
        expected.life(INSTEAD, &format!("life, n = {n}"));
    }
    drop(open);

    let span = info_span!("request", atrace.track = "requests|1", later = field::Empty);
    span.record("later", 2);
    span.in_scope(|| ());
    expected.life("requests/1", "request");
    expected.instants.push(json!({"name": "request, later = 2", "track": "requests/1"}));
    expected.slice("request, later = 2", 1, None);
}

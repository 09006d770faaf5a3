//! Counts the instructions of one operation under callgrind:
//!
//! - every kind of event, with tracing off and on: in Rust, in Rust through libcutils and, if libcutils has the event,
//!   in C++;
//! - every kind of event through the Perfetto backend, with tracing on;
//! - events and spans of the crate `tracing`, with the subscribers whose instructions are counted.
//!
//! Each case (measured operation) runs in a process of its own. `atrace_benches::measure::instructions` starts the
//! process and sets all of its environment variables. The setup and the first operations of a case are not counted.

use std::hint::black_box;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::control::{Control, Switched, ThisProcess};
use atrace::perfetto::Recording;
use atrace_benches::catalogue::{Event, Id, State, TracingCase, Who};
use atrace_benches::measure::instructions::{self, OPERATIONS};
use atrace_benches::subjects::subscribers::{self, Subject};
use atrace_benches::subjects::{cases, events};
use atrace_cli::service::{Service, Storage};

fn main() -> ExitCode {
    instructions::main(|id| {
        let mut prepared = prepare(id);
        count_operations(&mut prepared.run);
        // A lost event takes fewer instructions, so the counts are only valid if no event was lost.
        assert_eq!(atrace::perfetto::status().lost(), 0, "{id}");
    })
}

/// A closure that runs an operation the given number of times.
type Run = Box<dyn FnMut(u64)>;

/// A case that is ready to be counted, with the values that must live until it was counted.
struct Prepared {
    run: Run,
    _on: Option<Switched>,
    _recording: Option<Recording>,
    _service: Option<Service>,
}

impl Prepared {
    fn new(run: Run) -> Self {
        Self { run, _on: None, _recording: None, _service: None }
    }
}

/// Prepares a case: switches tracing off or on as the case requires, and checks this state by whether an operation's
/// events arrive in the sink.
fn prepare(id: &Id) -> Prepared {
    let by_perfetto = id.who == Who::Perfetto;
    let (on, messages, install, mut run): (bool, u64, Option<fn()>, Run) =
        match (id.as_event(), id.as_tracing()) {
            (Some((_, event)), _) if by_perfetto => return event_by_perfetto(event),
            (_, Some((_, case))) if by_perfetto => return tracing_by_perfetto(subject(id, case), case),
            (Some((state, event)), _) => {
                let mut all = events::operations().into_iter();
                let operation =
                    all.find(|operation| operation.event == event).expect("each has an operation");
                let is_cc = id.who == Who::Cc;
                let run = if is_cc { operation.cc.expect("C++ has it") } else { operation.rust };
                (state == State::On, event.messages, None, run)
            }
            (_, Some((_, case))) => {
                let subject = subject(id, case);
                (
                    subject.of.state == State::On,
                    case.messages(),
                    Some(subject.install),
                    Box::new(move |n| cases::run(case, n)),
                )
            }
            _ => panic!("there is no case {id}"),
        };
    let control = Control::open().expect("there are properties");
    // Tracing is switched on once, so that the properties exist: libcutils never notices properties that did not exist
    // when it first looked for them.
    control.enable(ThisProcess).and_then(Switched::restore).expect("tracing can be switched");
    let on_for_now = on.then(|| control.enable(ThisProcess).expect("tracing can be switched on"));
    if let Some(install) = install {
        install();
    }
    // The first operation is not checked, because it does work that is done only once, such as the registration of a
    // callsite.
    run(1);
    let before = marker_len();
    run(1);
    let got = marker_len() - before;
    assert_eq!(got > 0, on && messages > 0, "{id} wrote {got} bytes; {}", atrace::sink());
    let rust = atrace::atrace_is_tag_enabled(AtraceTag::App);
    assert_eq!((rust, cc_bench::enabled_tags() & AtraceTag::App.bits() != 0), (on, on), "{id}");
    run(100);
    Prepared { _on: on_for_now, ..Prepared::new(run) }
}

/// Returns the kind of subscriber with which a case runs.
fn subject(id: &Id, case: TracingCase) -> Subject {
    let found = subscribers::all().into_iter().find(|subject| subject.of.id(case) == *id);
    found.unwrap_or_else(|| panic!("there is no case {id}"))
}

/// Prepares the case of an event that is written through the Perfetto backend.
fn event_by_perfetto(event: &Event) -> Prepared {
    let run = events::in_rust::<{ AtraceTag::App.bits() }>(event);
    recorded(event.name, run, || {
        // An end without a begin is not written, so as many slices are begun as will be ended.
        if event.name == "end" {
            (0..20_000).for_each(|_| atrace::atrace_begin(AtraceTag::App, "slice"));
        }
    })
}

/// Prepares a `tracing` case with the Perfetto backend. If the case needs tracing on, this process records its own
/// events. If not, the process is connected to a service that has no session, so that tracing is off.
fn tracing_by_perfetto(subject: Subject, case: TracingCase) -> Prepared {
    let mut run: Run = Box::new(move |n| cases::run(case, n));
    if subject.of.state == State::On {
        return recorded(subject.of.mode, run, subject.install);
    }
    let service = connect();
    (subject.install)();
    run(100);
    assert!(!atrace::atrace_is_tag_enabled(AtraceTag::App), "{} is on", subject.of.mode);
    Prepared { _service: Some(service), ..Prepared::new(run) }
}

/// Connects this process to a service that has no session. The service is a thread of this process.
fn connect() -> Service {
    let place = std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").expect("the service's socket can be created");
    let listener = UnixListener::bind(&place).expect("a service can listen");
    let uid = rustix::process::geteuid().as_raw();
    let service = Service::start_sessions(listener, uid, 0, Storage::Ring { bytes: 1 << 20 });
    atrace::perfetto::connect();
    let start = Instant::now();
    while !atrace::perfetto::status().is_connected() {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", atrace::perfetto::status());
        std::thread::sleep(Duration::from_millis(10));
    }
    service.expect("a service can run")
}

/// Prepares a case whose events this process records into a file. `first` runs after the recording has begun. The
/// growth of the file shows that events are recorded.
fn recorded(what: &str, mut run: Run, first: impl FnOnce()) -> Prepared {
    let directory = tempfile::tempdir().expect("a directory for files can be created");
    let path = directory.path().join("trace");
    let recording = atrace::perfetto::record_to(&path).expect("it can be recorded");
    let len = || std::fs::metadata(&path).map_or(0, |file| file.len());
    first();
    // The case runs for at least 200 ms, because the producer can read the processor's counter as a clock only after
    // some milliseconds. It runs until the file has grown, which happens when a chunk is full.
    let before = len();
    let start = Instant::now();
    while len() == before || start.elapsed() < Duration::from_millis(200) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing of {what} is recorded");
        run(100);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(atrace::perfetto::status().lost(), 0, "of {what}");
    Prepared { _recording: Some(recording), ..Prepared::new(run) }
}

/// Returns the number of bytes in the sink, which is a file.
fn marker_len() -> u64 {
    let sink = PathBuf::from(std::env::var_os("ATRACE_MARKER").expect("the sink is a file"));
    std::fs::metadata(sink).expect("the sink is there").len()
}

/// Runs the operations that are counted. Callgrind counts only while this function runs, and finds the function by its
/// name.
#[inline(never)]
fn count_operations(run: &mut dyn FnMut(u64)) {
    run(black_box(OPERATIONS));
}

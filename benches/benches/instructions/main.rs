//! Counts the instructions of one operation under callgrind: of every kind of event off and on, in Rust, in Rust
//! through libcutils and in C++, by Perfetto's way, and of the subscriber's events and spans.
//!
//! Each case is a process of its own, which `atrace_benches::measure::instructions` starts with all it needs in its environment.
//! What it sets up, and its first operations, are not counted.

use std::hint::black_box;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::control::{Control, Switched};
use atrace::perfetto::Recording;
use atrace_benches::catalogue::{Event, Id, State, TracingCase, What, Who};
use atrace_benches::measure::instructions::{self, OPERATIONS};
use atrace_benches::subjects::subject::Subject;
use atrace_benches::subjects::{cases, events, subscribers};
use atrace_cli::service::{Keep, Service};

fn main() -> ExitCode {
    instructions::main(|id| {
        let mut prepared = prepare(id);
        count_operations(&mut prepared.run);
        // What is lost takes fewer instructions.
        assert_eq!(atrace::perfetto::status().lost(), 0, "{id}");
    })
}

/// Runs an operation so many times.
type Run = Box<dyn FnMut(u64)>;

/// A case that is ready to be counted, and its sink.
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

/// Switches tracing as the case wants it, and makes sure that it is so by what arrives.
fn prepare(id: &Id) -> Prepared {
    match (&id.who, &id.what) {
        (Who::Perfetto, What::Event(_, event)) => return event_by_perfetto(event),
        (Who::Perfetto, What::Tracing(_, case)) => {
            return tracing_by_perfetto(subject(id, *case), *case);
        }
        _ => {}
    }
    let (on, messages, install, mut run): (bool, u64, Option<fn()>, Run) = match id.what {
        What::Event(state, event) => {
            let mut all = events::operations().into_iter();
            let operation = all.find(|operation| operation.event == event).expect("each has an operation");
            let is_cc = id.who == Who::Cc;
            let run = if is_cc { operation.cc.expect("C++ has it") } else { operation.rust };
            (state == State::On, event.messages, None, run)
        }
        What::Tracing(_, case) => {
            let subject = subject(id, case);
            (subject.on, case.messages(), Some(subject.install), Box::new(move |n| cases::run(case, n)))
        }
        _ => panic!("there is no case {id}"),
    };
    let control = Control::open().expect("there are properties");
    // libcutils never notices flags that did not exist when it first looked.
    control.enable_this_process().and_then(Switched::restore).expect("tracing can be switched");
    let on_for_now = on.then(|| control.enable_this_process().expect("tracing can be switched on"));
    if let Some(install) = install {
        install();
    }
    // The first sets up what is set up once; it is then that a callsite asks.
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

/// The kind of subscriber that a case is of.
fn subject(id: &Id, case: TracingCase) -> Subject {
    let found = subscribers::all().into_iter().find(|subject| subject.id(case) == *id);
    found.unwrap_or_else(|| panic!("there is no case {id}"))
}

/// An event by Perfetto's way.
fn event_by_perfetto(event: &Event) -> Prepared {
    let run = events::in_rust::<{ AtraceTag::App.bits() }>(event);
    recorded(event.name, run, || {
        // An end that ends nothing is not written.
        if event.name == "end" {
            (0..20_000).for_each(|_| atrace::atrace_begin(AtraceTag::App, "slice"));
        }
    })
}

/// What `tracing` does by Perfetto's way: recorded, or, off, in a program that a service could ask.
fn tracing_by_perfetto(subject: Subject, case: TracingCase) -> Prepared {
    let mut run: Run = Box::new(move |n| cases::run(case, n));
    if subject.on {
        return recorded(subject.name, run, subject.install);
    }
    let service = connect();
    (subject.install)();
    run(100);
    assert!(!atrace::atrace_is_tag_enabled(AtraceTag::App), "{} is on", subject.name);
    Prepared { _service: Some(service), ..Prepared::new(run) }
}

/// Connects this process to a service of its own that has no session.
fn connect() -> Service {
    let place = std::env::var_os("PERFETTO_PRODUCER_SOCK_NAME").expect("there is a place for the service");
    let listener = UnixListener::bind(&place).expect("a service can listen");
    let uid = rustix::process::geteuid().as_raw();
    let service = Service::start_sessions(listener, uid, 0, Keep::Ring { bytes: 1 << 20 });
    atrace::perfetto::connect();
    let start = Instant::now();
    while !atrace::perfetto::status().is_connected() {
        assert!(start.elapsed() < Duration::from_secs(60), "{}", atrace::perfetto::status());
        std::thread::sleep(Duration::from_millis(10));
    }
    service.expect("a service can run")
}

/// What this process records, once that has begun and `first` was done; makes sure of it by what arrives.
fn recorded(what: &str, mut run: Run, first: impl FnOnce()) -> Prepared {
    let directory = tempfile::tempdir().expect("there is a place for files");
    let path = directory.path().join("trace");
    let recording = atrace::perfetto::record_to(&path).expect("it can be recorded");
    let len = || std::fs::metadata(&path).map_or(0, |file| file.len());
    first();
    // The clock's anchor is there after some milliseconds. A chunk is in the file when it is full.
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

/// How many bytes the sink, a file, has got.
fn marker_len() -> u64 {
    let sink = PathBuf::from(std::env::var_os("ATRACE_MARKER").expect("the sink is a file"));
    std::fs::metadata(sink).expect("the sink is there").len()
}

/// Runs the case as often as is counted: callgrind knows it by its name.
#[inline(never)]
fn count_operations(run: &mut dyn FnMut(u64)) {
    run(black_box(OPERATIONS));
}

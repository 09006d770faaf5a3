//! Tests to which backend an event goes, and which watches and callsites are notified of sessions.
#![cfg(not(no_tracing))]
#![expect(unsafe_code, reason = "a program that forks")]

use std::sync::{Mutex, OnceLock, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use atrace::tracer::{only_atrace, only_perfetto};
use atrace::{AtraceTag, atrace_begin, atrace_end, atrace_instant, control, perfetto};
use atrace_real_service::{Config, Session, Setup, is_program, place, step, until, wait_for};
use atrace_subscriber::{AtraceFilter, AtraceLayer, AtraceSubscriber};
use atrace_sys::properties::Properties;
use tracing::callsite::{Callsite, Identifier};
use tracing::field::FieldSet;
use tracing::level_filters::LevelFilter;
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{Level, Metadata, enabled, info, info_span};
use tracing_subscriber::prelude::*;

/// Sets environment variables so that the program also has a backend of ATrace: a marker, and properties.
fn by_both_ways(program: &mut std::process::Command, setup: &Setup) {
    std::fs::write(setup.place("marker"), "").unwrap();
    program.env_remove("ATRACE_BACKEND").env("ATRACE_MARKER", setup.place("marker"));
    program.env("ATRACE_PROPERTIES", setup.place("properties"));
}

/// Sets the property that makes events with these tags go to Perfetto's backend if both backends want them.
fn prefer(tags: &str) {
    Properties::open().unwrap().set("debug.atrace.prefer_sdk", tags).unwrap();
    atrace::atrace_update_tags();
}

/// Tests that each event goes to one backend, by AOSP's rule, and that the end of a slice goes to the backend of its
/// begin.
#[test]
fn an_event_goes_one_way() {
    const TEST: &str = "an_event_goes_one_way";
    const TAG: AtraceTag = AtraceTag::Camera;
    if is_program(TEST) {
        perfetto::connect();
        assert_eq!(atrace::sink().kind(), "File");
        let control = control::Control::open().unwrap();
        assert!(!atrace::atrace_is_tag_enabled(TAG));
        atrace_instant(TAG, "neither");

        let on = control.enable(TAG).unwrap();
        atrace_instant(TAG, "ATrace only");
        let by_atrace = atrace::begin_scoped_event(TAG, "begun by ATrace");
        step(&place("session?"));
        wait_for(&place("session"));
        until("a session", || perfetto::status().sessions() == 1);
        assert_eq!(atrace::atrace_get_enabled_tags(), AtraceTag::ValidMask);
        atrace_instant(TAG, "both");
        prefer("0x400");
        atrace_instant(TAG, "both, preferred");
        prefer("0");
        drop(on);
        atrace_instant(TAG, "session only");
        drop(by_atrace);
        let by_perfetto = atrace::begin_scoped_event(TAG, "begun by Perfetto");
        let on = control.enable(TAG).unwrap();
        atrace_instant(TAG, "both again");
        drop(by_perfetto);
        atrace::atrace_set_tracing_enabled(false);
        assert!(!atrace::atrace_is_tag_enabled(TAG));
        assert_eq!(atrace::atrace_get_enabled_tags(), AtraceTag::NotReady);
        atrace_instant(TAG, "parked");
        atrace::atrace_set_tracing_enabled(true);
        drop(on);
        step(&place("stop?"));
        wait_for(&place("stopped"));
        until("no session", || perfetto::status().sessions() == 0);
        until("no tag", || !atrace::atrace_is_tag_enabled(TAG));
        atrace_instant(TAG, "neither");
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    std::fs::write(setup.place("marker"), "").unwrap();
    let mut program = setup.program();
    program.env_remove("ATRACE_BACKEND");
    program.env("ATRACE_MARKER", setup.place("marker")).env("ATRACE_PROPERTIES", setup.place("properties"));
    let mut child = program.spawn().unwrap();
    let pid = child.id();
    wait_for(&setup.place("session?"));
    let session = setup.session();
    step(&setup.place("session"));
    wait_for(&setup.place("stop?"));
    let trace = session.stop();
    step(&setup.place("stopped"));
    assert!(child.wait().unwrap().success());

    let by_perfetto: Vec<_> = trace
        .events()
        .into_iter()
        .map(|event| event.name.map_or("end".to_owned(), |name| String::from_utf8(name).unwrap()))
        .collect();
    assert_eq!(by_perfetto, ["both, preferred", "session only", "begun by Perfetto", "end"]);
    let by_atrace = std::fs::read_to_string(setup.place("marker")).unwrap();
    let messages = ["I|P|ATrace only", "B|P|begun by ATrace", "I|P|both", "E|P", "I|P|both again"];
    assert_eq!(by_atrace, messages.concat().replace("|P", &format!("|{pid}")));
}

/// The backends of a subscriber, or of a stack of layers.
#[derive(Clone, Copy, PartialEq)]
enum Stack {
    Atrace,
    Perfetto,
    Both,
    BothFiltered,
}

impl Stack {
    const ALL: [Self; 4] = [Self::Atrace, Self::Perfetto, Self::Both, Self::BothFiltered];

    fn init(self, tag: AtraceTag) {
        let both = tracing_subscriber::registry()
            .with(AtraceLayer::new(only_atrace(tag)))
            .with(AtraceLayer::new(only_perfetto(tag)));
        match self {
            Self::Atrace => AtraceSubscriber::new(only_atrace(tag)).init(),
            Self::Perfetto => AtraceSubscriber::new(only_perfetto(tag)).with_filter().init(),
            Self::Both => both.init(),
            Self::BothFiltered => both.with(AtraceFilter::new(tag)).init(),
        }
    }
}

/// Tests that a subscriber for one backend writes nothing to the other backend, and that two layers, one for each
/// backend, write everything to both backends. The same is true in a forked child.
#[test]
fn a_layer_for_each_way() {
    const TEST: &str = "a_layer_for_each_way";
    const STACK: &str = "STACK";
    const TAG: AtraceTag = AtraceTag::Camera;
    if is_program(TEST) {
        perfetto::connect();
        let control = control::Control::open().unwrap();
        let number: usize = std::env::var(STACK).unwrap().parse().unwrap();
        Stack::ALL[number].init(TAG);
        info!("neither");
        let on = control.enable(TAG).unwrap();
        let follows_atrace = Stack::ALL[number] != Stack::Perfetto;
        until("on", || enabled!(Level::INFO) == follows_atrace);
        info!("ATrace only");
        step(&place("session?"));
        until("a session", || perfetto::status().sessions() == 1 && enabled!(Level::INFO));
        info_span!("span").in_scope(|| info!("both"));
        // SAFETY: the child traces, and ends without returning.
        let child = unsafe { libc::fork() };
        if child == 0 {
            std::fs::write(place("child"), std::process::id().to_string()).unwrap();
            info!("child's");
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(0) };
        }
        // SAFETY: a null pointer is allowed here.
        assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
        drop(on);
        info!("session only");
        step(&place("stop?"));
        wait_for(&place("stopped"));
        until("no session", || perfetto::status().sessions() == 0);
        info!("neither");
        return;
    }
    for (number, stack) in Stack::ALL.into_iter().enumerate() {
        let Some(setup) = Setup::start(TEST) else { return };
        std::fs::write(setup.place("marker"), "").unwrap();
        let mut program = setup.program();
        program.env_remove("ATRACE_BACKEND").env(STACK, number.to_string());
        program.env("ATRACE_MARKER", setup.place("marker"));
        let mut program = program.env("ATRACE_PROPERTIES", setup.place("properties")).spawn().unwrap();
        wait_for(&setup.place("session?"));
        let session = setup.session();
        wait_for(&setup.place("stop?"));
        let trace = session.stop();
        step(&setup.place("stopped"));
        assert!(program.wait().unwrap().success());

        let child = std::fs::read_to_string(setup.place("child")).unwrap();
        let messages = std::fs::read_to_string(setup.place("marker")).unwrap();
        let messages =
            messages.replace(&format!("|{}", program.id()), "|P").replace(&format!("|{child}"), "|C");
        let by_atrace = ["I|P|ATrace only", "B|P|span", "I|P|both", "E|P", "I|C|child's"].concat();
        assert_eq!(messages, if stack == Stack::Perfetto { String::new() } else { by_atrace });

        let names = |is_child: bool| -> Vec<_> {
            let events = trace.events().into_iter();
            let events = events.filter(|event| (event.pid.to_string() == child) == is_child);
            let name = |name| String::from_utf8(name).unwrap();
            events.map(|event| event.name.map_or("end".to_owned(), name)).collect()
        };
        let (own, childs): (&[&str], &[&str]) = match stack {
            Stack::Atrace => (&[], &[]),
            _ => (&["span", "both", "end", "session only"], &["child's"]),
        };
        assert_eq!(names(false), own);
        assert_eq!(names(true), childs);
    }
}

/// Tests that a watch is notified of sessions, in a process with properties and in a process without.
#[test]
fn watches_follow_sessions() {
    const TEST: &str = "watches_follow_sessions";
    if is_program(TEST) {
        perfetto::connect();
        let (told, tags) = mpsc::channel();
        let _watch = atrace::watch::watch(move |tags| told.send(tags).unwrap()).unwrap();
        for round in 0..3 {
            step(&place(&format!("session {round}?")));
            let found = tags.recv_timeout(Duration::from_secs(30)).unwrap();
            // The watch's tags also contain the tags that are on for ATrace, which is `Always` here.
            assert_eq!(found - AtraceTag::Always, AtraceTag::App | AtraceTag::View);
            step(&place(&format!("stop {round}?")));
            let found = tags.recv_timeout(Duration::from_secs(30)).unwrap();
            assert_eq!(found - AtraceTag::Always, AtraceTag::empty());
        }
        return;
    }
    for has_properties in [false, true] {
        let Some(setup) = Setup::start(TEST) else { return };
        let mut program = setup.program();
        if has_properties {
            by_both_ways(&mut program, &setup);
        }
        let mut child = program.spawn().unwrap();
        for round in 0..3 {
            wait_for(&setup.place(&format!("session {round}?")));
            let wanted = Config { enabled: vec!["app", "view"], disabled: vec!["*"], ..Config::default() };
            let session = Session::start(&setup.service, &wanted);
            wait_for(&setup.place(&format!("stop {round}?")));
            session.stop();
        }
        assert!(child.wait().unwrap().success());
    }
}

/// A callsite that records each answer that `tracing` gives it: whether its events are enabled.
#[derive(Default)]
struct Told {
    metadata: OnceLock<Metadata<'static>>,
    answers: Mutex<Vec<Answer>>,
}

/// An answer: whether events of a callsite are enabled, and the thread and the time at which the callsite got the
/// answer.
#[derive(Clone, Copy)]
struct Answer {
    is_on: bool,
    by: ThreadId,
    at: Instant,
}

impl Callsite for Told {
    fn set_interest(&self, interest: Interest) {
        let by = std::thread::current().id();
        let answer = Answer { is_on: !interest.is_never(), by, at: Instant::now() };
        self.answers.lock().unwrap().push(answer);
    }

    fn metadata(&self) -> &Metadata<'_> {
        self.metadata.get().unwrap()
    }
}

impl Told {
    fn register() -> &'static Self {
        let told: &'static Self = Box::leak(Box::default());
        let fields = FieldSet::new(&[], Identifier(told));
        let metadata = Metadata::new("told", "here", Level::INFO, None, None, None, fields, Kind::EVENT);
        told.metadata.set(metadata).unwrap();
        tracing_core::callsite::register(told);
        told
    }

    /// Returns the answers that differ from the previous answer.
    fn changes(&self) -> Vec<Answer> {
        let mut answers = self.answers.lock().unwrap().clone();
        answers.dedup_by_key(|answer| answer.is_on);
        answers
    }
}

/// Tests that, with a filter, a session changes the interest of callsites once, even if no thread of the program uses a
/// callsite. The delay is printed but not checked, because it depends on the load of the machine.
#[test]
fn callsites_follow_sessions() {
    const TEST: &str = "callsites_follow_sessions";
    const STACK: &str = "STACK";
    const ROUNDS: usize = 20;
    if is_program(TEST) {
        perfetto::connect();
        match &*std::env::var(STACK).unwrap() {
            "alone" => AtraceSubscriber::default().with_filter().init(),
            "aosp" => tracing_subscriber::registry().with(AtraceSubscriber::default().with_filter()).init(),
            _ => {
                let layer = AtraceLayer::default().with_filter(AtraceFilter::default());
                tracing_subscriber::registry().with(layer).init();
            }
        }
        let told = Told::register();
        let mut took = [Vec::new(), Vec::new()];
        for round in 0..ROUNDS {
            info!(round, "off");
            let asked = Instant::now();
            step(&place(&format!("session {round}?")));
            while perfetto::status().sessions() == 0 {
                std::hint::spin_loop();
            }
            let known = Instant::now();
            // `tracing` notifies the callsites first, and raises its maximum level afterwards.
            until("on", || {
                told.changes().len() == 2 * round + 2 && LevelFilter::current() >= LevelFilter::INFO
            });
            let on = told.changes()[2 * round + 1].at;
            // The difference is zero if the thread that changes the interest was faster than this one.
            let since = |from: Instant| on.saturating_duration_since(from);
            [asked, known].into_iter().zip(&mut took).for_each(|(from, took)| took.push(since(from)));
            info!(round, "on");
            step(&place(&format!("stop {round}?")));
            until("off", || told.changes().len() == 2 * round + 3);
        }
        let changes = told.changes();
        assert_eq!(changes.len(), 2 * ROUNDS + 1);
        for (number, answer) in changes.iter().enumerate() {
            assert_eq!(answer.is_on, number % 2 == 1);
            let is_programs = answer.by == std::thread::current().id();
            assert_eq!(is_programs, number == 0, "change {number} came of itself, the first of asking");
        }
        let [asked, known] = took.map(|mut took| {
            took.sort();
            format!("{:?}, at most {:?}", took[ROUNDS / 2], took[ROUNDS - 1])
        });
        let took = format!("from asking for a session {asked}; from knowing of it {known}");
        std::fs::write(place("took"), took).unwrap();
        return;
    }
    for (stack, has_properties) in
        [("alone", false), ("alone", true), ("layer", false), ("layer", true), ("aosp", true)]
    {
        let Some(setup) = Setup::start(TEST) else { return };
        let mut program = setup.program();
        if has_properties {
            by_both_ways(&mut program, &setup);
        }
        let mut child = program.env(STACK, stack).spawn().unwrap();
        for round in 0..ROUNDS {
            wait_for(&setup.place(&format!("session {round}?")));
            let session = setup.session();
            wait_for(&setup.place(&format!("stop {round}?")));
            let names = session.stop().events().into_iter().filter_map(|event| event.name);
            assert_eq!(names.collect::<Vec<_>>(), [b"on"]);
        }
        assert!(child.wait().unwrap().success());
        let took = std::fs::read_to_string(setup.place("took")).unwrap();
        eprintln!("{stack}, properties {has_properties}: callsites are on, {took}");
    }
}

/// Tests that a program without a service is not affected. The program connects to a service of another user only if
/// the environment names that service.
#[test]
fn a_program_without_a_service_goes_on() {
    const TEST: &str = "a_program_without_a_service_goes_on";
    if is_program(TEST) {
        let start = Instant::now();
        perfetto::connect();
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(!perfetto::status().is_connected());
        assert_eq!(atrace::sink().kind(), "Perfetto");
        assert!(!atrace::atrace_is_tag_enabled(AtraceTag::App));
        for _ in 0..1000 {
            atrace_begin(AtraceTag::App, "nobody reads this");
            atrace_end(AtraceTag::App);
        }
        assert_eq!(perfetto::status().lost(), 0);
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([TEST, "--exact"]).env("ATRACE_TEST_PROGRAM", TEST).env("ATRACE_BACKEND", "perfetto");
    command.env("PERFETTO_PRODUCER_SOCK_NAME", directory.path().join("nobody"));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

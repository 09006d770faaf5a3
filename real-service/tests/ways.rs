//! Which way an event goes, and who is told of sessions.
#![cfg(not(no_tracing))]

use std::sync::mpsc;
use std::time::{Duration, Instant};

use atrace::{AtraceTag, SinkKind, Slice, atrace_begin, atrace_end, atrace_instant, control, perfetto};
use atrace_real_service::{Config, Session, Setup, is_program, place, step, until, wait_for};
use atrace_sys::properties::Properties;

/// Sets the property that has these tags prefer Perfetto's way.
fn prefer(tags: &str) {
    Properties::open().unwrap().set("debug.atrace.prefer_sdk", tags).unwrap();
    atrace::atrace_update_tags();
}

/// AOSP's rule, and what was begun one way ends that way.
#[test]
fn an_event_goes_one_way() {
    const TEST: &str = "an_event_goes_one_way";
    const TAG: AtraceTag = AtraceTag::Camera;
    if is_program(TEST) {
        perfetto::connect();
        assert_eq!(atrace::sink().kind(), SinkKind::File);
        let control = control::Control::open().unwrap();
        assert!(!atrace::atrace_is_tag_enabled(TAG));
        atrace_instant(TAG, "neither");

        let on = control.enable_tags(TAG).unwrap();
        atrace_instant(TAG, "ATrace only");
        let by_atrace = Slice::begin(TAG, "begun by ATrace");
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
        by_atrace.end();
        let by_perfetto = Slice::begin(TAG, "begun by Perfetto");
        let on = control.enable_tags(TAG).unwrap();
        atrace_instant(TAG, "both again");
        by_perfetto.end();
        atrace::atrace_set_tracing_enabled(false);
        assert!(!atrace::atrace_is_tag_enabled(TAG));
        assert_eq!(atrace::atrace_get_enabled_tags(), AtraceTag::NotReady);
        atrace_instant(TAG, "parked");
        atrace::atrace_set_tracing_enabled(true);
        drop(on);
        step(&place("stop?"));
        wait_for(&place("stopped"));
        until("no session", || perfetto::status().sessions() == 0);
        assert!(!atrace::atrace_is_tag_enabled(TAG));
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

/// A watch is told of sessions, with and without properties.
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
            // (What ATrace has on is on as well.)
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
            std::fs::write(setup.place("marker"), "").unwrap();
            program.env_remove("ATRACE_BACKEND").env("ATRACE_MARKER", setup.place("marker"));
            program.env("ATRACE_PROPERTIES", setup.place("properties"));
        }
        let mut child = program.spawn().unwrap();
        for round in 0..3 {
            wait_for(&setup.place(&format!("session {round}?")));
            let wanted = Config { enabled: vec!["app", "view"], ..Config::default() };
            let session = Session::start(&setup.service, &wanted);
            wait_for(&setup.place(&format!("stop {round}?")));
            session.stop();
        }
        assert!(child.wait().unwrap().success());
    }
}

/// Without a service nothing happens; one that is another user's is not talked to unless it is named.
#[test]
fn a_program_without_a_service_goes_on() {
    const TEST: &str = "a_program_without_a_service_goes_on";
    if is_program(TEST) {
        let start = Instant::now();
        perfetto::connect();
        assert!(start.elapsed() < Duration::from_secs(20));
        assert!(!perfetto::status().is_connected());
        assert_eq!(atrace::sink().kind(), SinkKind::Perfetto);
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
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

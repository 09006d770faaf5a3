//! Tests the example tracer for the crate `log`, with both backends.
#![cfg(target_os = "linux")]

mod common;

#[path = "../examples/log.rs"]
mod log_tracer;
#[allow(unreachable_pub, reason = "a module of several test programs")]
mod standins;

use atrace::tracer::PreparedTag;
use atrace::{AtraceTag, atrace_is_tag_enabled, perfetto};
use common::{Place, case, control};

#[test]
fn records_of_log_are_instants() {
    let name = case!({
        assert!(atrace_is_tag_enabled(AtraceTag::App));
        crate::log_tracer::main();
    });
    let Some(place) = Place::kernel(&name) else { return };
    let place = place.on();
    place.run(&name);
    let messages = place.messages();
    let names: Vec<_> =
        messages.iter().filter_map(|message| message.strip_prefix("I|")?.split('|').nth(1)).collect();
    let expected = ["INFO …: started", "DEBUG …: block 7 of 9", "ERROR …: failed"];
    assert_eq!(names, expected.map(|name| name.replace('…', "tracer::log_tracer")));
}

#[test]
fn records_of_log_keep_their_origin_in_perfettos_memory() {
    let name = case!({
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace");
        let recording = perfetto::record_to(&path).unwrap();
        crate::log_tracer::main();
        recording.finish().unwrap();
        let trace = std::fs::read(&path).unwrap();
        let has = |text: &str| trace.windows(text.len()).any(|part| part == text.as_bytes());
        for text in ["started", "block 7 of 9", "failed", "tracer::log_tracer", "examples/log.rs", "logger"] {
            assert!(has(text), "{text}");
        }
    });
    Place::file().run(&name);
}

/// Tests that a prepared tag distinguishes between a tag that a session enables and a tag that ATrace enables, with the
/// marker and with libcutils. With libcutils, the gate (the check whether a tag is enabled) reads libcutils' mask.
#[test]
fn a_prepared_tag_knows_what_sessions_want() {
    let name = case!({
        let app = PreparedTag::new(AtraceTag::App);
        assert!(!app.may_be_in_session());
        let directory = tempfile::tempdir().unwrap();
        let recording = perfetto::record_to(directory.path().join("trace")).unwrap();
        assert!(atrace_is_tag_enabled(AtraceTag::App));
        assert!(app.may_be_in_session(), "a session wants it");
        recording.finish().unwrap();
        let switched = control().enable("*").unwrap();
        assert!(atrace_is_tag_enabled(AtraceTag::App));
        assert!(!app.may_be_in_session(), "only ATrace wants it");
        drop(switched);
    });
    let place = Place::file();
    place.run(&name);
    let library = standins::build("libcutils", 34, place.path("").as_path());
    common::run(place.command(&name).env("ATRACE_BACKEND", format!("cutils:{}", library.display())));
}

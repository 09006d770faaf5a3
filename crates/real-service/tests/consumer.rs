//! Tests this workspace's consumer with Perfetto's own service.
#![cfg(not(no_tracing))]

use std::fs::File;
use std::time::Duration;

use atrace::{AtraceTag, atrace_instant, atrace_is_tag_enabled};
use atrace_cli::consumer::{Consumer, Wanted};
use atrace_real_service::{Losses, Setup, Trace, is_program, processed};

#[test]
fn the_service_records_what_is_asked_for() {
    const TEST: &str = "the_service_records_what_is_asked_for";
    if is_program(TEST) {
        while !atrace_is_tag_enabled(AtraceTag::App) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..1000 {
            atrace_instant(AtraceTag::App, "asked for");
        }
        // Waits until the session has ended.
        while atrace_is_tag_enabled(AtraceTag::App) {
            std::thread::sleep(Duration::from_millis(1));
        }
        return;
    }
    const CONSUMER: &str = "ATRACE_TEST_CONSUMER";
    let Some(wanted) = std::env::var_os(CONSUMER) else {
        let Some(setup) = Setup::start(TEST) else { return };
        // The consumer runs in a process of its own, because it gets the socket's path from the environment, which the
        // whole process shares.
        for (wanted, events) in [("*consumer*", 1000), ("*/other.program", 0)] {
            let mut traced = setup.program().spawn().unwrap();
            let mut consumer = std::process::Command::new(std::env::current_exe().unwrap());
            consumer.args([TEST, "--exact"]).env("PERFETTO_CONSUMER_SOCK_NAME", setup.service.consumers());
            consumer.env("ATRACE_TEST_FILE", setup.place("trace"));
            assert!(consumer.env(CONSUMER, wanted).status().unwrap().success());
            if events == 0 {
                traced.kill().unwrap();
            }
            traced.wait().unwrap();
            let path = setup.place("trace");
            let trace = Trace::open(&path);
            assert_eq!((trace.events().len(), trace.losses()), (events, Losses::default()), "{wanted}");
            let wrong =
                "select name, value from stats where severity in ('error', 'data_loss') and value > 0";
            if let Some(answers) = processed(&path, &[wrong]) {
                assert!(answers[0].contains("\"rows\":[]"), "{answers:?}");
            }
        }
        return;
    };
    let file = File::create(std::env::var_os("ATRACE_TEST_FILE").unwrap()).unwrap();
    let wanted = wanted.into_string().unwrap();
    let mut consumer = Consumer::connect().unwrap();
    let is_there = |consumer: &mut Consumer| {
        let state = consumer.state().unwrap();
        state.producers.iter().any(|(name, _)| name.contains("consumer"))
            && state.sources.iter().any(|source| source == "track_event")
    };
    while !is_there(&mut consumer) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let asked = Wanted { buffer_kib: 4096, producers: vec![wanted.clone()], ..Wanted::default() };
    consumer.start(&asked, &file).unwrap();
    assert_eq!(consumer.state().unwrap().sessions, 1);
    // The service writes to the file every second.
    let is_done =
        || Trace::open(std::env::var_os("ATRACE_TEST_FILE").unwrap().as_ref()).events().len() == 1000;
    while wanted != "*/other.program" && !is_done() {
        std::thread::sleep(Duration::from_millis(100));
    }
    if wanted == "*/other.program" {
        // Waits for a while, in which no event must arrive.
        std::thread::sleep(Duration::from_millis(500));
    }
    consumer.stop().unwrap();
}

//! Measures how fast a session of Perfetto's own service begins and ends in a connected program.
#![cfg(not(no_tracing))]

use atrace::{AtraceTag, atrace_instant, atrace_is_tag_enabled, perfetto};
use atrace_perfetto::clock;
use atrace_real_service::{Session, Setup, is_program, place, wait_for};

const ROUNDS: usize = 20;

/// Runs in the tested program: makes a file whose name is the step that is done. The file contains the time at which
/// the step was done.
fn say(name: &str, time: u64) {
    let draft = place(&format!("{name}.draft"));
    std::fs::write(&draft, time.to_string()).unwrap();
    std::fs::rename(draft, place(name)).unwrap();
}

/// Measures the delay between a request for a session and the moment at which the program sees it. A thread of the
/// program checks all the time whether events are enabled, so the delay depends only on the service and the socket
/// thread.
#[test]
fn a_session_begins_and_ends_soon() {
    const TEST: &str = "a_session_begins_and_ends_soon";
    if is_program(TEST) {
        perfetto::connect();
        say("connected", 0);
        for round in 0..ROUNDS {
            let is_on = || atrace_is_tag_enabled(AtraceTag::App);
            let wait = |wanted| {
                while is_on() != wanted {
                    std::thread::yield_now();
                }
            };
            wait(true);
            atrace_instant(AtraceTag::App, "first");
            say(&format!("on {round}"), clock::asked());
            wait(false);
            say(&format!("off {round}"), clock::asked());
            atrace_instant(AtraceTag::App, "too late");
        }
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let mut program = setup.program().spawn().unwrap();
    wait_for(&setup.place("connected"));
    let mut times = [const { Vec::new() }; 2];
    let said = |name: String| -> u64 {
        wait_for(&setup.place(&name));
        std::fs::read_to_string(setup.place(&name)).unwrap().parse().unwrap()
    };
    for round in 0..ROUNDS {
        let before = clock::asked();
        let session: Session = setup.session();
        times[0].push(said(format!("on {round}")) - before);
        let before = clock::asked();
        let trace = session.stop();
        times[1].push(said(format!("off {round}")) - before);
        let names: Vec<_> = trace.events().into_iter().filter_map(|event| event.name).collect();
        assert_eq!(names, [b"first".to_vec()]);
    }
    assert!(program.wait().unwrap().success());
    for (what, times) in ["session start to first event", "stop to none"].iter().zip(&mut times) {
        times.sort_unstable();
        let ms = |ns: u64| format!("{}.{:02} ms", ns / 1_000_000, ns / 10_000 % 100);
        println!("{what}: median {}, most {}", ms(times[ROUNDS / 2]), ms(times[ROUNDS - 1]));
    }
}

//! What a session asks for, compared with Perfetto's C++ SDK: both write the same events in the same session.
#![cfg(not(no_tracing))]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use atrace::{Arg, AtraceTag, Name, atrace_begin_args, atrace_end, atrace_instant, perfetto};
use atrace_perfetto::category;
use atrace_real_service::{Config, Event, Session, Setup, Trace, is_program, place, program, step, wait_for};

const TAG: AtraceTag = AtraceTag::App;

/// Writes what `service options` writes. To be called in the program.
fn write_events(ticks: u32) {
    static STATIC: Name = Name::new("static");
    static TICK: Name = Name::new("tick");
    perfetto::connect();
    for bit in 0..category::COUNT {
        atrace_instant(AtraceTag::from_bits_retain(1 << bit), "category");
    }
    atrace::atrace_instant_args(TAG, &STATIC, &[Arg::Int("number", 7), Arg::Str("text", "value")]);
    let name = String::from("dynamic");
    atrace_begin_args(TAG, &*name, &[Arg::Int("number", 7)]);
    atrace_end(TAG);
    for number in 0..ticks {
        atrace::atrace_instant_args(TAG, &TICK, &[Arg::Uint("number", number.into())]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    step(&place("written"));
    wait_for(&place("stopped"));
}

/// Records both programs in a session with this configuration. Returns the trace, the process id of the test's program,
/// and that of the SDK's.
fn recorded(setup: &Setup, config: &Config, ticks: u32) -> (Trace, u64, u64) {
    let session = Session::start(&setup.service, config);
    for file in ["written", "stopped"] {
        let _ = std::fs::remove_file(setup.place(file));
    }
    let mut sdk = Command::new(program().unwrap());
    sdk.args(["options", &ticks.to_string()]).env("PERFETTO_PRODUCER_SOCK_NAME", setup.service.producers());
    let mut sdk = sdk.stdout(Stdio::piped()).spawn().unwrap();
    let mut own = setup.program().spawn().unwrap();
    let mut line = String::new();
    BufReader::new(sdk.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "done\n");
    wait_for(&setup.place("written"));
    let trace = session.stop();
    step(&setup.place("stopped"));
    assert!(own.wait().unwrap().success());
    sdk.kill().unwrap();
    sdk.wait().unwrap();
    (trace, own.id().into(), sdk.id().into())
}

/// Returns the events of a process.
fn events_of(trace: &Trace, pid: u64) -> Vec<Event> {
    trace.events().into_iter().filter(|event| event.pid == pid).collect()
}

#[test]
fn categories_are_chosen_as_the_sdk_chooses_them() {
    const TEST: &str = "categories_are_chosen_as_the_sdk_chooses_them";
    if is_program(TEST) {
        return write_events(0);
    }
    let Some(setup) = Setup::start(TEST) else { return };
    // The cases of `category.rs`.
    let cases: [(&[&'static str], &[&'static str]); 14] = [
        (&[], &[]),
        (&["app", "view"], &[]),
        (&["app"], &["*"]),
        (&["*"], &["app"]),
        (&["*"], &["a*"]),
        (&["*"], &["*"]),
        (&["app"], &["app"]),
        (&["a*"], &["a*"]),
        (&["app"], &["a*"]),
        (&[], &["app"]),
        (&[], &["a*p"]),
        (&["a*p"], &["*"]),
        (&["a*p", "*p"], &["am", "*"]),
        (&["nothing"], &["*"]),
    ];
    for (enabled, disabled) in cases {
        let config = Config { enabled: enabled.to_vec(), disabled: disabled.to_vec(), ..Config::default() };
        let (trace, own, sdk) = recorded(&setup, &config, 0);
        let [own, sdk] = [own, sdk].map(|pid| {
            let events = events_of(&trace, pid).into_iter().filter(|event| event.name() == "category");
            events.flat_map(|event| event.categories).collect::<Vec<_>>()
        });
        assert_eq!(own, sdk, "{enabled:?} {disabled:?}");
        assert!(own.len() == category::COUNT as usize || !disabled.is_empty());
    }
}

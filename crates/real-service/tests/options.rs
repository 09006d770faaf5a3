//! Tests the options that a session may request, in comparison with Perfetto's C++ SDK: this library and the SDK write
//! the same events in the same session.
#![cfg(not(no_tracing))]
#![expect(unsafe_code, reason = "stops the service")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use atrace::{
    Arg, AtraceTag, Name, atrace_async_begin, atrace_async_end, atrace_begin, atrace_begin_args, atrace_end,
    atrace_instant, atrace_instant_args, perfetto,
};
use atrace_perfetto::category;
use atrace_real_service::{
    Config, Event, Session, Setup, Trace, is_program, place, program, step, until, wait_for,
};
use atrace_subscriber::AtraceSubscriber;
use tracing::{info, info_span};
use tracing_subscriber::util::SubscriberInitExt as _;

const TAG: AtraceTag = AtraceTag::App;

/// Writes the same events as the program `service options`. Only the program of a test may call this.
fn write_events(ticks: u32) {
    static CATEGORY: Name = Name::new("category");
    static STATIC: Name = Name::new("static");
    static TICK: Name = Name::new("tick");
    perfetto::connect();
    for bit in 0..category::COUNT {
        atrace_instant_args(AtraceTag::from_bits_retain(1 << bit), &CATEGORY, &[]);
    }
    atrace_instant_args(TAG, &STATIC, &[Arg::Int("number", 7), Arg::Str("text", "value")]);
    let name = String::from("dynamic");
    atrace_begin_args(TAG, &*name, &[Arg::Int("number", 7)]);
    atrace_end(TAG);
    for number in 0..ticks {
        atrace_instant_args(TAG, &TICK, &[Arg::Uint("number", number.into())]);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    step(&place("written"));
    wait_for(&place("stopped"));
}

/// Records both programs in a session with this configuration. Returns the trace, the process id of the test's
/// program, and the process id of the SDK's program.
fn recorded(setup: &Setup, config: &Config, ticks: u32) -> (Trace, u64, u64) {
    recorded_and(setup, config, ticks, |_| ())
}

/// Does the same as [`recorded`]. Calls `look` with the process ids after the events were written and before
/// the session ends.
fn recorded_and(
    setup: &Setup,
    config: &Config,
    ticks: u32,
    look: impl FnOnce([u32; 2]),
) -> (Trace, u64, u64) {
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
    look([own.id(), sdk.id()]);
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
    // The same cases as in the tests of `category.rs`.
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

/// A field of `TrackEventConfig`: its number, and the value with which events have no arguments.
const FILTER_ARGUMENTS: (u32, u64) = (7, 1);
/// A field of `TrackEventConfig`: its number, and the value with which producers replace names that are not constant.
const FILTER_NAMES: (u32, u64) = (9, 1);

#[test]
fn filters_leave_what_the_sdk_leaves() {
    const TEST: &str = "filters_leave_what_the_sdk_leaves";
    if is_program(TEST) {
        return write_events(3);
    }
    let Some(setup) = Setup::start(TEST) else { return };
    for filters in [vec![], vec![FILTER_ARGUMENTS], vec![FILTER_NAMES], vec![FILTER_ARGUMENTS, FILTER_NAMES]]
    {
        let config = Config { track_event: filters.clone(), ..Config::default() };
        let (trace, own, sdk) = recorded(&setup, &config, 3);
        let [own, sdk] = [own, sdk].map(|pid| -> Vec<_> {
            let with_args = |event: Event| {
                let name = event.name();
                // Only the SDK's program gives an argument to the end of a slice.
                (name.clone(), event.args.into_iter().filter(|(name, _)| name != "late").collect::<Vec<_>>())
            };
            events_of(&trace, pid).into_iter().map(with_args).collect()
        });
        assert_eq!(own, sdk, "{filters:?}");
        let all: Vec<_> = own.iter().map(|(name, args)| (name.as_str(), args.len())).collect();
        let (names, args) = (filters.contains(&FILTER_NAMES), filters.contains(&FILTER_ARGUMENTS));
        let dynamic = if names { "FILTERED" } else { "dynamic" };
        let number = |args_of| if args { 0 } else { args_of };
        assert_eq!(all[28..31], [("static", number(2)), (dynamic, number(1)), ("end", 0)], "{filters:?}");
        assert_eq!(all.len(), 34);
    }
}

/// Tests that no name or argument that a session filters out reaches the service, in whatever form an event has them,
/// and even if several sessions want the event.
#[test]
fn nothing_that_is_filtered_reaches_the_service() {
    const TEST: &str = "nothing_that_is_filtered_reaches_the_service";
    if is_program(TEST) {
        AtraceSubscriber::default().init();
        perfetto::connect();
        let [secret, long] = ["secret".to_owned(), "secret ".repeat(300)];
        for secret in [&secret, &long] {
            let all = [Arg::Flow(7), Arg::Str("a", secret), Arg::Flow(8), Arg::Str(secret, "value")];
            for args in [&all[..0], &all] {
                atrace_begin_args(TAG, secret.as_str(), args);
                atrace_end(TAG);
            }
            atrace_begin(TAG, secret);
            atrace_end(TAG);
            atrace_instant(TAG, secret);
            atrace_async_begin(TAG, secret, 1);
            atrace_async_end(TAG, secret, 1);
            let span = info_span!("span", early = %secret, late = tracing::field::Empty).entered();
            span.record("late", secret.as_str());
            info!(text = %secret, "message with {secret}");
            drop(span);
        }
        return;
    }
    for is_alone in [true, false] {
        let Some(setup) = Setup::start(TEST) else { return };
        let other = (!is_alone).then(|| setup.session());
        let config = Config { track_event: vec![FILTER_ARGUMENTS, FILTER_NAMES], ..Config::default() };
        let session = Session::start(&setup.service, &config);
        assert!(setup.program().status().unwrap().success());
        let trace = session.stop();
        trace.save(&setup.place("trace")).unwrap();
        let bytes = std::fs::read(setup.place("trace")).unwrap();
        let found = bytes.windows(6).position(|text| text == b"secret");
        let around = |at: usize| String::from_utf8_lossy(&bytes[at.saturating_sub(60)..at + 60]).into_owned();
        assert_eq!(found.map(around), None);
        let events = trace.events();
        assert!(events.iter().all(|event| event.args.is_empty()));
        assert_eq!(events.iter().filter(|event| event.flows == [7, 8]).count(), 2);
        assert_eq!(events.iter().filter(|event| event.name() == "FILTERED").count(), 2 * 6);
        let spans: Vec<_> = events.iter().filter(|event| event.name() == "span").collect();
        assert!(spans.len() == 2 && spans.iter().all(|span| span.place.is_some()), "{spans:?}");
        let ends = |events: &[Event]| events.iter().filter(|event| event.kind == 2).count();
        assert_eq!((events.len(), ends(&events)), (24, 10));
        if let Some(other) = other {
            let whole = other.stop().events();
            assert_eq!((whole.len(), ends(&whole)), (24, 10));
            assert!(whole.iter().any(|event| event.name() == "secret"));
        }
    }
}

#[test]
fn the_state_is_cleared_as_often_as_the_sdks() {
    const TEST: &str = "the_state_is_cleared_as_often_as_the_sdks";
    const TICKS: u32 = 1000;
    if is_program(TEST) {
        return write_events(TICKS);
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let config = Config { clear_ms: 10, ..Config::default() };
    let (trace, own, sdk) = recorded(&setup, &config, TICKS);
    // On a busy machine, several requests to clear the state may come between two events, and have the effect of a
    // single request.
    for pid in [own, sdk] {
        let states = trace.states_of(pid);
        assert!(states > 20, "{states}");
        let ticks = events_of(&trace, pid).into_iter().filter(|event| event.name() == "tick");
        let numbers: Vec<_> = ticks.map(|tick| tick.args[0].1.parse::<u32>().unwrap()).collect();
        assert!(numbers.into_iter().eq(0..TICKS));
    }
}

/// The number and the value of a field of `DataSourceConfig`: `BUFFER_EXHAUSTED_STALL_THEN_DROP`.
const STALL: (u32, u64) = (9, 3);

#[test]
fn threads_wait_for_room_if_the_session_asks_for_it() {
    const TEST: &str = "threads_wait_for_room_if_the_session_asks_for_it";
    const THREADS: usize = 4;
    const EVENTS: usize = 20_000;
    if is_program(TEST) {
        perfetto::connect();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| (0..EVENTS).for_each(|_| atrace_instant(TAG, "one of many")));
            }
        });
        return std::fs::write(place("lost"), perfetto::status().lost().to_string()).unwrap();
    }
    let lost = |source| {
        let setup = Setup::start(TEST)?;
        let session = Session::start(&setup.service, &Config { source, ..Config::default() });
        assert!(setup.program().env("ATRACE_SHMEM_KB", "64").status().unwrap().success());
        let lost: usize = std::fs::read_to_string(setup.place("lost")).unwrap().parse().unwrap();
        assert_eq!(session.stop().events().len() + lost, THREADS * EVENTS);
        Some(lost)
    };
    let Some(without) = lost(vec![]) else { return };
    // An event is lost only if it waits for room for a second. The service reads 64 KiB much faster, but a busy machine
    // may delay it.
    let with = lost(vec![STALL]).unwrap();
    assert!(with < without / 10, "{with} {without}");
}

/// Tests a service that does not answer. An event waits for a second, and is then lost and reported.
#[test]
fn threads_do_not_wait_for_ever() {
    const TEST: &str = "threads_do_not_wait_for_ever";
    if is_program(TEST) {
        perfetto::connect();
        step(&place("connected"));
        wait_for(&place("stopped"));
        let mut written = 0;
        while perfetto::status().lost() == 0 {
            atrace_instant(TAG, "one of many");
            written += 1;
        }
        step(&place("lost"));
        wait_for(&place("continued"));
        // Until there is room again, each of the events `after` may be lost, too.
        until("room", || {
            let lost = perfetto::status().lost();
            atrace_instant(TAG, "after");
            perfetto::status().lost() == lost
        });
        return std::fs::write(place("written"), written.to_string()).unwrap();
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let session = Session::start(&setup.service, &Config { source: vec![STALL], ..Config::default() });
    let mut program = setup.program().env("ATRACE_SHMEM_KB", "64").spawn().unwrap();
    // SAFETY: a signal to the test's own child.
    let signal = |signal| assert_eq!(unsafe { libc::kill(setup.service.id().cast_signed(), signal) }, 0);
    wait_for(&setup.place("connected"));
    signal(libc::SIGSTOP);
    step(&setup.place("stopped"));
    wait_for(&setup.place("lost"));
    signal(libc::SIGCONT);
    step(&setup.place("continued"));
    assert!(program.wait().unwrap().success());
    let trace = session.stop();
    let written: usize = std::fs::read_to_string(setup.place("written")).unwrap().parse().unwrap();
    let found = trace.events().iter().filter(|event| event.name() == "one of many").count();
    assert_eq!(found, written - 1);
    assert!(trace.losses().told > 0, "{:?}", trace.losses());
}

/// The numbers of fields of `ProducerConfig`.
const SIZE_KB: u32 = 2;
const PAGE_KB: u32 = 3;

/// Returns the sizes in KiB of the shared memory files that a process has mapped. If `own` is true, these are the files
/// that this library has made; otherwise they are the files of the service.
fn shared_kib(pid: u32, own: bool) -> Vec<u64> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let name = if own { "/memfd:atrace-perfetto" } else { "/memfd:perfetto_shmem" };
    let address = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        (address(to) - address(from)) >> 10
    };
    maps.lines().filter(|line| line.contains(name)).map(size).collect()
}

/// Tests that the memory has the size that the first session of a connection requests. Later sessions don't change the
/// size.
#[test]
fn memory_has_the_size_that_the_sdks_has() {
    const TEST: &str = "memory_has_the_size_that_the_sdks_has";
    if is_program(TEST) {
        return write_events(3);
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let sdk = program().unwrap().to_str().unwrap().to_owned();
    let producers = vec![setup.program().get_program().to_str().unwrap().to_owned(), sdk];
    // Without a request, each library asks for the size that it prefers.
    let cases =
        [(None, [1024, 256]), (Some(64), [64; 2]), (Some(4096), [4096; 2]), (Some(1 << 20), [32 << 10; 2])];
    for (size, expected) in cases {
        let with_size = |size: Option<u64>| Config {
            producer: size.map(|size| (SIZE_KB, size)).into_iter().collect(),
            producers: producers.clone(),
            ..Config::default()
        };
        let (trace, own, sdk) = recorded_and(&setup, &with_size(size), 3, |pids| {
            assert_eq!(pids.map(|pid| shared_kib(pid, false)), expected.map(|size| vec![size]), "{size:?}");
            let later = Session::start(&setup.service, &with_size(Some(512)));
            later.stop();
            assert_eq!(pids.map(|pid| shared_kib(pid, false)), expected.map(|size| vec![size]), "{size:?}");
            assert_eq!(shared_kib(pids[0], true), [0; 0]);
        });
        let [own, sdk] = [own, sdk].map(|pid| events_of(&trace, pid).len());
        assert_eq!((own, sdk), (34, 34), "{size:?}");
    }
}

/// Tests a service whose memory has another page size than this library supports. The process connects again, with
/// memory of its own.
#[test]
fn memory_with_other_pages_is_replaced() {
    const TEST: &str = "memory_with_other_pages_is_replaced";
    const EVENTS: usize = 1000;
    if is_program(TEST) {
        perfetto::connect();
        step(&place("connected"));
        until("a session", || perfetto::status().sessions() == 1);
        (0..EVENTS).for_each(|_| atrace_instant(TAG, "one of many"));
        step(&place("written"));
        wait_for(&place("stopped"));
        assert_eq!(perfetto::status().lost(), 0);
        return;
    }
    // The service takes its defaults, 256 KiB in pages of 4 KiB, for a size that is no multiple of the page.
    let cases: [(&[(u32, u64)], u64); 3] =
        [(&[(PAGE_KB, 4)], 1024), (&[(SIZE_KB, 512), (PAGE_KB, 16)], 512), (&[(SIZE_KB, 100)], 256)];
    for (producer, size) in cases {
        let Some(setup) = Setup::start(TEST) else { return };
        let mut own = setup.program().spawn().unwrap();
        wait_for(&setup.place("connected"));
        assert_eq!([true, false].map(|own_memory| shared_kib(own.id(), own_memory)), [[0; 0]; 2]);
        let producers = vec![setup.program().get_program().to_str().unwrap().to_owned()];
        let config = Config { producer: producer.to_vec(), producers, ..Config::default() };
        let session = Session::start(&setup.service, &config);
        wait_for(&setup.place("written"));
        assert_eq!(shared_kib(own.id(), true), [size], "{producer:?}");
        let trace = session.stop();
        step(&setup.place("stopped"));
        assert!(own.wait().unwrap().success());
        let found = trace.events().iter().filter(|event| event.name() == "one of many").count();
        assert_eq!((found, trace.losses().told), (EVENTS, 0), "{producer:?}");
    }
}

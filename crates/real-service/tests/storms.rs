//! Tests Perfetto's backend with Perfetto's own service, under failures: processes are killed, services stop and
//! restart, the memory is full, and programs fork.
#![cfg(not(no_tracing))]
#![expect(unsafe_code, reason = "programs that fork and kill themselves")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use atrace::{AtraceTag, atrace_begin, atrace_end, atrace_instant, perfetto};
use atrace_real_service::{Config, Event, Losses, Service, Session, Setup, Trace, is_program, place, step};

/// Checks that the trace processor finds no error in the trace, and no loss except those that the producer reported.
fn is_accepted(trace: &Trace, setup: &Setup) {
    let Losses { told, found } = trace.losses();
    assert_eq!(found, 0, "the service missed a chunk");
    let wrong = "select name, sum(value) from stats where severity in ('error', 'data_loss') and value > 0 group by name";
    if let Some(rows) = setup.rows(trace, &[wrong]) {
        // A loss before a sequence's first packet is not counted by the trace processor.
        let is_told = (1..=told).any(|count| rows[0] == format!("[[\"{LOSS}\",{count}]]"));
        assert!(rows[0] == "[]" || is_told, "{rows:?}, told {told}");
    }
}

/// Returns the number of repetitions: `long` if `ATRACE_LONG_TESTS` is set, otherwise `short`.
fn times(short: u32, long: u32) -> u32 {
    if std::env::var_os("ATRACE_LONG_TESTS").is_some() { long } else { short }
}

/// Checks that begins and ends are balanced in each sequence. Returns the number of begins.
fn balanced(events: &[Event]) -> usize {
    let mut depths = BTreeMap::<u64, i64>::new();
    let mut begins = 0;
    for event in events.iter().filter(|event| event.track.is_none()) {
        let depth = depths.entry(event.sequence).or_default();
        match event.kind {
            1 => {
                *depth += 1;
                begins += 1;
            }
            2 => *depth -= 1,
            _ => {}
        }
        assert!(*depth >= 0, "{event:?}");
    }
    assert!(depths.values().all(|depth| *depth == 0), "{depths:?}");
    begins
}

/// The trace processor's name for losses that a producer reported.
const LOSS: &str = "traced_buf_sequence_packet_loss";

/// Runs in the tested program: writes the number of lost events into a file.
fn report_losses() {
    std::fs::write(place("lost"), perfetto::status().lost().to_string()).unwrap();
}

/// Traces the program of a test. Returns the trace, its events (whose begins and ends are balanced), and the number of
/// lost events, which the program wrote into a file.
fn traced_with_losses(test: &'static str) -> Option<(Setup, Trace, Vec<Event>, u64)> {
    let setup = Setup::start(test)?;
    let trace = setup.traced();
    let lost = std::fs::read_to_string(setup.place("lost")).unwrap().parse().unwrap();
    let events = trace.events();
    balanced(&events);
    Some((setup, trace, events, lost))
}

/// Runs in the tested program: starts threads that alternately write events and pause for some milliseconds, until the
/// test stops them.
fn write_until_stopped(threads: usize, rest: u64, write: fn()) {
    perfetto::connect();
    let stop = place("stop");
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.exists() {
                    write();
                    std::thread::sleep(Duration::from_millis(rest));
                }
            });
        }
    });
}

/// Tests that the trace contains all events whose functions had returned when the process was killed.
#[test]
fn nothing_is_lost_when_the_process_is_killed() {
    const TEST: &str = "nothing_is_lost_when_the_process_is_killed";
    const EVENTS: usize = 5_003;
    if is_program(TEST) {
        perfetto::connect();
        for number in 0..EVENTS {
            atrace::atrace_instant_args(AtraceTag::App, format_args!("event {number}"), &[]);
        }
        // SAFETY: the arguments are numbers; ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let session = setup.session();
    assert_eq!(setup.program().status().unwrap().signal(), Some(libc::SIGKILL));
    let trace = session.stop();
    let names: Vec<_> = trace.events().into_iter().filter_map(|event| event.name).collect();
    assert_eq!(names.len(), EVENTS);
    assert!(names.iter().zip(0..).all(|(name, number)| *name == format!("event {number}").into_bytes()));
    is_accepted(&trace, &setup);
}

/// Tests so many short-lived threads that their chunks would use up the memory if they were not freed.
#[test]
fn threads_write_what_they_wrote() {
    const TEST: &str = "threads_write_what_they_wrote";
    if is_program(TEST) {
        perfetto::connect();
        for _ in 0..times(250, 1_250) {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for number in 0..40 {
                            atrace::atrace_begin_args(AtraceTag::App, format_args!("slice {number}"), &[]);
                            atrace_instant(AtraceTag::App, "inside");
                            atrace_end(AtraceTag::App);
                        }
                    });
                }
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        report_losses();
        return;
    }
    let Some((setup, trace, events, lost)) = traced_with_losses(TEST) else { return };
    assert_eq!(events.len() as u64 + lost, u64::from(times(250, 1_250)) * 8 * 40 * 3);
    assert!(!events.is_empty());
    is_accepted(&trace, &setup);
}

/// Tests a thread that writes without a pause, so that the memory is full again and again. The events in the trace and
/// the events that are counted as lost are together all events.
#[test]
fn what_is_lost_is_counted_and_told() {
    const TEST: &str = "what_is_lost_is_counted_and_told";
    const SLICES: u64 = 100_000;
    if is_program(TEST) {
        perfetto::connect();
        for _ in 0..SLICES {
            atrace_begin(AtraceTag::App, "a name of some length, so that memory is full soon");
            atrace_end(AtraceTag::App);
        }
        // Waits until the last unmatched ends (which had no room before) are written.
        std::thread::sleep(Duration::from_millis(50));
        atrace_begin(AtraceTag::App, "last");
        atrace_end(AtraceTag::App);
        report_losses();
        return;
    }
    let Some((setup, trace, events, lost)) = traced_with_losses(TEST) else { return };
    assert_eq!(events.len() as u64 + lost, 2 * SLICES + 2);
    assert_eq!(lost > 0, trace.losses().told > 0, "who was told?");
    is_accepted(&trace, &setup);
}

/// Tests a service that is killed and restarted. The program continues, and connects to the new service.
#[test]
fn a_service_that_comes_back_is_found() {
    const TEST: &str = "a_service_that_comes_back_is_found";
    if is_program(TEST) {
        return write_until_stopped(4, 1, || {
            for _ in 0..100 {
                atrace_begin(AtraceTag::App, "slice");
                atrace_end(AtraceTag::App);
            }
        });
    }
    let Some(mut setup) = Setup::start(TEST) else { return };
    let mut child = setup.program().spawn().unwrap();
    for round in 0..3 {
        let mut session = setup.session();
        let mut trace;
        loop {
            std::thread::sleep(Duration::from_millis(200));
            session.flush();
            trace = session.stop();
            if trace.events().len() > 1000 {
                break;
            }
            session = setup.session();
        }
        balanced_but_at_the_ends(&trace.events());
        is_accepted(&trace, &setup);
        if round < 2 {
            // The service is killed while a session runs.
            let session = setup.session();
            setup.service.kill();
            drop(session);
            setup.service = Service::start(setup.directory()).unwrap();
        }
    }
    step(&setup.place("stop"));
    assert!(child.wait().unwrap().success());
}

/// Checks that no slice ends without a begin, and that the slices of a sequence do not nest. Slices may be open at the
/// end of the session.
fn balanced_but_at_the_ends(events: &[Event]) {
    let mut depths = BTreeMap::<u64, i64>::new();
    for event in events {
        let depth = depths.entry(event.sequence).or_default();
        *depth += if event.kind == 1 { 1 } else { -1 };
        assert!((0..=1).contains(depth), "{event:?}");
    }
}

/// Tests that a forked child is a separate producer from its first event on, and writes nothing into its parent's
/// memory.
#[test]
fn a_child_is_its_own_producer() {
    const TEST: &str = "a_child_is_its_own_producer";
    if is_program(TEST) {
        perfetto::connect();
        atrace_begin(AtraceTag::App, "parent's");
        for _ in 0..times(5, 500) {
            // SAFETY: the child traces, and ends without returning.
            let child = unsafe { libc::fork() };
            if child == 0 {
                for _ in 0..100 {
                    atrace_begin(AtraceTag::App, "child's");
                    atrace_end(AtraceTag::App);
                }
                // SAFETY: no preconditions; ends the child at once.
                unsafe { libc::_exit(0) };
            }
            atrace_instant(AtraceTag::App, "parent's moment");
            let mut status = 0;
            // SAFETY: `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        atrace_end(AtraceTag::App);
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let session = setup.session();
    let mut child = setup.program().spawn().unwrap();
    let pid = u64::from(child.id());
    assert!(child.wait().unwrap().success());
    let trace = session.stop();
    let events = trace.events();
    let children = times(5, 500) as usize;
    assert_eq!(balanced(&events), 1 + 100 * children);
    let (own, others): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event.pid == pid);
    assert_eq!((own.len(), others.len()), (2 + children, 200 * children));
    assert!(others.iter().all(|event| event.name.as_ref().is_none_or(|name| name == b"child's")));
    is_accepted(&trace, &setup);
}

/// Tests sessions that start and stop while threads write. Several sessions run at once, each with its own categories.
#[test]
fn sessions_come_and_go_under_writers() {
    const TEST: &str = "sessions_come_and_go_under_writers";
    if is_program(TEST) {
        return write_until_stopped(8, 2, || {
            for _ in 0..50 {
                atrace_begin(AtraceTag::App, "app");
                atrace_begin(AtraceTag::View, "view");
                atrace_end(AtraceTag::View);
                atrace_end(AtraceTag::App);
            }
        });
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let mut child = setup.program().spawn().unwrap();
    // The buffer can hold all events that the program writes in some seconds, because the pause below may take longer
    // on a busy machine.
    let config = |enabled| Config { buffer_kib: 64 << 10, enabled, disabled: vec!["*"], ..Config::default() };
    // Waits until the program has connected and writes for a session.
    let start = Instant::now();
    loop {
        let first = Session::start(&setup.service, &config(vec!["app"]));
        std::thread::sleep(Duration::from_millis(50));
        if !first.stop().events().is_empty() {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(600), "the program writes for no session");
    }
    let mut found = 0;
    for _ in 0..times(60, 5_000) {
        let app = Session::start(&setup.service, &config(vec!["app"]));
        let view = Session::start(&setup.service, &config(vec!["view"]));
        std::thread::sleep(Duration::from_millis(7));
        for (session, name) in [(app, "app"), (view, "view")] {
            let events = session.stop().events();
            assert!(
                events.iter().all(|event| event.name.as_ref().is_none_or(|found| found == name.as_bytes()))
            );
            balanced_but_at_the_ends(&events);
            found += events.len();
        }
    }
    assert!(found > 1000, "{found}");
    step(&setup.place("stop"));
    assert!(child.wait().unwrap().success());
}

/// Tests a signal handler that writes events and interrupts other events. The events of the handler are then counted as
/// lost.
#[test]
fn a_handler_traces_in_the_middle_of_events() {
    const TEST: &str = "a_handler_traces_in_the_middle_of_events";
    const SLICES: u64 = 200_000;
    static HANDLED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    extern "C" fn on_signal(_: libc::c_int) {
        atrace_begin(AtraceTag::App, "handler's");
        atrace_end(AtraceTag::App);
        HANDLED.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    if is_program(TEST) {
        perfetto::connect();
        atrace_instant(AtraceTag::App, "first");
        let interval = libc::timeval { tv_sec: 0, tv_usec: 100 };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        let off = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let stop = libc::itimerval { it_interval: off, it_value: off };
        // SAFETY: the handler only traces, which a handler may do. The timers are initialized.
        unsafe {
            libc::signal(libc::SIGALRM, on_signal as *const () as libc::sighandler_t);
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
        }
        for number in 0..SLICES {
            atrace_begin(AtraceTag::App, "program's");
            atrace_end(AtraceTag::App);
            if number % 500 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        // SAFETY: the timer is initialized.
        unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const stop, std::ptr::null_mut()) };
        // A handler may still be running on another thread.
        std::thread::sleep(Duration::from_millis(50));
        let handled = HANDLED.load(std::sync::atomic::Ordering::Relaxed);
        assert!(handled > 100);
        let told = format!("{} {handled}", perfetto::status().lost());
        std::fs::write(place("lost"), told).unwrap();
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let trace = setup.traced();
    let told = std::fs::read_to_string(setup.place("lost")).unwrap();
    let (lost, handled) = told.split_once(' ').unwrap();
    let (lost, handled): (u64, u64) = (lost.parse().unwrap(), handled.parse().unwrap());
    let events = trace.events();
    balanced(&events);
    assert_eq!(events.len() as u64 + lost, 1 + 2 * SLICES + 2 * handled);
    is_accepted(&trace, &setup);
}

/// Tests a program that closes descriptors that it did not open. The socket is not in the program's descriptor table.
#[test]
fn the_socket_is_out_of_the_programs_reach() {
    const TEST: &str = "the_socket_is_out_of_the_programs_reach";
    if is_program(TEST) {
        perfetto::connect();
        atrace_instant(AtraceTag::App, "before");
        // SAFETY: nothing uses the closed descriptors.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
        std::thread::sleep(Duration::from_millis(20));
        assert!(perfetto::status().is_connected());
        atrace_instant(AtraceTag::App, "after");
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let names: Vec<_> = setup.traced().events().into_iter().filter_map(|event| event.name).collect();
    assert_eq!(names, [b"before".to_vec(), b"after".to_vec()]);
}

/// Tests that names of one mebibyte are cut at a character boundary, without other effects.
#[test]
fn huge_names_are_cut() {
    const TEST: &str = "huge_names_are_cut";
    if is_program(TEST) {
        perfetto::connect();
        let huge = "\u{e9}".repeat(1 << 19);
        for _ in 0..20 {
            atrace_begin(AtraceTag::App, &huge);
            atrace::atrace_async_for_track_begin(AtraceTag::App, &huge, &huge, 1);
            atrace::atrace_int(AtraceTag::App, &huge, 7);
            atrace::atrace_async_for_track_end(AtraceTag::App, &huge, 1);
            atrace_end(AtraceTag::App);
            std::thread::sleep(Duration::from_millis(20));
        }
        report_losses();
        return;
    }
    let Some((setup, trace, events, lost)) = traced_with_losses(TEST) else { return };
    assert_eq!(events.len() as u64 + lost, 100);
    for event in &events {
        if let Some(name) = &event.name {
            // The names were a mebibyte long before they were cut.
            assert!((3001..=64 << 10).contains(&name.len()));
            assert!(str::from_utf8(name).unwrap().chars().all(|one| one == '\u{e9}'));
        }
    }
    is_accepted(&trace, &setup);
}

/// Tests a program that executes another program. The earlier events are in the trace, and the new program is a
/// separate producer.
#[test]
fn a_program_that_executes_another() {
    const TEST: &str = "a_program_that_executes_another";
    if is_program(TEST) {
        perfetto::connect();
        let is_second = std::env::var_os("SECOND").is_some();
        atrace_instant(AtraceTag::App, if is_second { "second" } else { "first" });
        if !is_second {
            let mut again = std::process::Command::new(std::env::current_exe().unwrap());
            again.args([TEST, "--exact", "--nocapture", "--test-threads=1"]).env("SECOND", "");
            panic!("{}", std::os::unix::process::CommandExt::exec(&mut again));
        }
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let trace = setup.traced();
    let mut names: Vec<_> = trace.events().into_iter().filter_map(|event| event.name).collect();
    names.sort();
    assert_eq!(names, [b"first".to_vec(), b"second".to_vec()]);
    is_accepted(&trace, &setup);
}

/// Tests eight sessions at once, which is the maximum. Each session gets the events that it asks for.
#[test]
fn eight_sessions_at_once() {
    const TEST: &str = "eight_sessions_at_once";
    if is_program(TEST) {
        perfetto::connect();
        assert_eq!(perfetto::status().sessions(), 8);
        for (tag, name) in [(AtraceTag::App, "app"), (AtraceTag::View, "view")] {
            for _ in 0..500 {
                atrace_begin(tag, name);
                atrace_end(tag);
            }
        }
        // In addition to the eight sessions, the program makes a recording itself.
        let recording = perfetto::record_to(place("own")).unwrap();
        atrace_instant(AtraceTag::App, "last");
        recording.finish().unwrap();
        return;
    }
    let Some(setup) = Setup::start(TEST) else { return };
    let wanted = |number: usize| if number.is_multiple_of(2) { "app" } else { "view" };
    let config = |number| Config {
        buffer_kib: 1024,
        enabled: vec![wanted(number)],
        disabled: vec!["*"],
        ..Config::default()
    };
    let mut sessions: Vec<_> = (0..4).map(|number| Session::start(&setup.service, &config(number))).collect();
    // The service allows five sessions per user. The other sessions belong to a second user, which a thread of this
    // test becomes.
    for place in [setup.directory(), &setup.service.consumers()] {
        std::fs::set_permissions(place, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    std::thread::scope(|scope| {
        let others = scope.spawn(|| {
            // SAFETY: the system call changes the user of this thread only.
            if unsafe { libc::syscall(libc::SYS_setresuid, -1, 54_321, -1) } != 0 {
                return Vec::new();
            }
            (4..8).map(|number| Session::start(&setup.service, &config(number))).collect()
        });
        sessions.extend(others.join().unwrap());
    });
    if sessions.len() < 8 {
        // Does not use `eprintln!`, because libtest hides its output.
        let _ = writeln!(std::io::stderr(), "skipped: only root can be another user");
        return;
    }
    let status = setup.program().status().unwrap();
    assert!(status.success());
    for (number, session) in sessions.into_iter().enumerate() {
        let trace = session.stop();
        let events = trace.events();
        assert_eq!(balanced(&events), 500);
        assert!(events.iter().all(|event| event.categories.iter().all(|found| found == wanted(number))));
        assert_eq!(events.iter().any(|event| event.kind == 3), wanted(number) == "app");
        assert_eq!(trace.losses(), Losses::default());
    }
    let own = Trace::open(&setup.place("own"));
    assert_eq!(own.events().len(), 1);
}

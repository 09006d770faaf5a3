//! Tests Perfetto's own SDK as a producer of this workspace's service. The SDK offers no memory, and spreads
//! packets over several chunks. It writes to the same tracks as this workspace's producer.
#![cfg(not(no_tracing))]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use atrace::{AtraceTag, atrace_instant};
use atrace_cli::service::{Report, Service, Storage};
use atrace_real_service::{Losses, Trace, is_program, processed, program};

/// Records the program that `command` starts with this workspace's service, until the program has written this number
/// of events. Then kills the program and ends the service.
fn recorded(command: &mut Command, events: u64) -> (Report, Trace, Child, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (directory.path().join("socket"), directory.path().join("trace"));
    let listener = UnixListener::bind(&socket).unwrap();
    let keep = Storage::File { file: File::create(&path).unwrap(), max: None };
    let service = Service::start(listener, atrace_sys::process::user(), keep).unwrap();
    let mut child = command.env("PERFETTO_PRODUCER_SOCK_NAME", &socket).spawn().unwrap();
    while service.events() < events {
        assert_eq!(child.try_wait().unwrap(), None, "the program ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    (service.finish(), Trace::open(&path), child, directory)
}

/// Returns the path of the program with Google's SDK, or prints that the test is skipped.
fn sdk() -> Option<&'static std::path::Path> {
    let program = program();
    if program.is_none() {
        // Does not use `eprintln!`, because libtest hides its output.
        let _ = writeln!(std::io::stderr(), "skipped: needs the feature `real`");
    }
    program
}

/// Tests a process that writes events with this workspace's producer, and then executes a program that uses the SDK.
/// This producer and the SDK must describe the same process.
#[test]
fn the_sdk_and_this_producer_write_to_the_same_tracks() {
    const ROLE: &str = "the_sdk_and_this_producer_write_to_the_same_tracks";
    let Some(program) = sdk() else { return };
    if is_program(ROLE) {
        atrace_instant(AtraceTag::App, "ours");
        panic!("{}", Command::new(program).args(["produce", "2"]).exec());
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([ROLE, "--exact", "--nocapture"]);
    command.env("ATRACE_TEST_PROGRAM", ROLE).env("ATRACE_BACKEND", "perfetto");
    let (report, trace, child, directory) = recorded(&mut command, 5);
    assert_eq!(report.counts.producers, 2, "{report:?}");
    let pid = child.id().into();
    let (processes, threads) = trace.tracks_of(pid);
    assert_eq!(processes.len(), 1, "{processes:x?}");
    let process = processes.into_iter().next().unwrap();
    // The two threads are the test's thread and the main thread of the program with the SDK.
    assert_eq!(threads.len(), 2, "{threads:x?}");
    assert!(threads.contains(&(process ^ pid, pid)), "{threads:x?}");
    assert!(threads.iter().all(|(track, thread)| *track == process ^ thread), "{threads:x?}");
    let statements = [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*), count(distinct upid) from slice s join thread_track t on t.id = s.track_id
         join thread using (utid) where s.name in ('ours', 'sdk slice')",
    ];
    if let Some(answers) = processed(&directory.path().join("trace"), &statements) {
        let rows: Vec<_> = answers.iter().map(|it| it.split_once("\"rows\":").unwrap().1).collect();
        assert_eq!(rows, ["[]}", "[[3,1]]}"]);
    }
}

#[test]
fn perfettos_sdk_is_recorded_by_this_service() {
    const EVENTS: usize = 2000;
    let Some(program) = sdk() else { return };
    let mut command = Command::new(program);
    let (report, trace, _, directory) =
        recorded(command.args(["produce", &EVENTS.to_string()]), 2 * EVENTS as u64);
    assert_eq!(
        (report.counts.producers, report.counts.losses, report.counts.invalid),
        (1, 0, 0),
        "{report:?}"
    );
    assert_eq!(report.cut_off, []);
    assert_eq!(report.counts.events, 2 * EVENTS as u64);
    assert!(report.counts.patches > 0, "nothing was mended: {report:?}");
    assert_eq!((trace.events().len(), trace.losses()), (2 * EVENTS, Losses::default()));
    let statements = [
        "select name, value from stats where severity in ('error', 'data_loss') and value > 0",
        "select count(*) from slice where name = 'sdk slice' and dur >= 0",
        "select count(*) from slice join args using (arg_set_id) where flat_key = 'debug.text' and length(string_value) = 20000",
        "select count(*) from slice join args using (arg_set_id) where flat_key = 'debug.number'",
    ];
    if let Some(answers) = processed(&directory.path().join("trace"), &statements) {
        let rows: Vec<_> = answers.iter().map(|it| it.split_once("\"rows\":").unwrap().1).collect();
        assert_eq!(rows, ["[]}", "[[2000]]}", "[[20]]}", "[[1980]]}"]);
    }
}

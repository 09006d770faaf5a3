//! Tests Perfetto's own SDK and two copies of this workspace's library in one process, on the same threads, in the
//! same session: the trace has one process and one track for each thread, and the slices nest as in the program.
#![cfg(all(not(no_tracing), not(target_feature = "crt-static")))]

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use atrace_cli::service::{Service, Storage};
use atrace_real_service::{Config, Session, Setup, WRONG, processed, program};

/// The number of rounds of slices that a thread writes.
const ROUNDS: usize = 1000;
/// The number of threads that write rounds of slices: two in the program, two in its child.
const THREADS: usize = 4;

/// The number of slices that the two copies of the library write, in both processes together, for the comparison of
/// their clock with the SDK's clock.
const TICKS: usize = 2 * 2 * 1000;

/// Runs the program, which has the SDK and two copies of this library. When the program and its child have written
/// their slices, kills the program. Prints the program's output about the clocks. Returns the program's process id.
fn run(program: &Path, producers: &Path, directory: &Path) -> u32 {
    // The dynamic linker loads the library a second time if it is in another file.
    let plugin = std::env::current_exe().unwrap().with_file_name("libatrace_plugin.so");
    let other = directory.join("other.so");
    std::fs::copy(&plugin, &other).unwrap();
    let mut command = Command::new(program);
    command.args(["both", &ROUNDS.to_string()]).args([&plugin, &other]);
    command.env("PERFETTO_PRODUCER_SOCK_NAME", producers).env("ATRACE_BACKEND", "perfetto");
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut done = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        done += usize::from(line == "done");
        if done == 2 {
            break;
        }
        // Does not use `println!`, because libtest hides its output.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    assert_eq!(done, 2, "{:?}", child.wait());
    child.kill().unwrap();
    child.wait().unwrap();
    child.id()
}

/// Checks, by the trace processor, a trace of the program with the process id `pid` and of its child.
fn check(trace: &Path, pid: u32) {
    let processes = "select count(*), count(distinct pid), sum(pid = PID) from process where upid in
        (select upid from thread join thread_track using (utid) join slice on slice.track_id = thread_track.id)";
    let threads = "select count(distinct thread_track.id), count(distinct utid), count(distinct tid)
        from slice join thread_track on thread_track.id = track_id join thread using (utid)";
    let slices = "select name, count(*), sum(dur > 0) from slice group by name order by name";
    let nested =
        "select count(*) from slice a join slice b on b.id = a.parent_id join slice c on c.id = b.parent_id
        join slice d on d.id = c.parent_id
        where (a.name, b.name, c.name, d.name) = ('inner', 'other', 'ours', 'sdk') and d.parent_id is null";
    let processes = processes.replace("PID", &pid.to_string());
    let Some(answers) = processed(trace, &[WRONG, &processes, threads, slices, nested]) else { return };
    let rows: Vec<_> = answers.iter().map(|answer| answer.split_once("\"rows\":").unwrap().1).collect();
    let rounds = THREADS * ROUNDS;
    let of = |name, count| format!("[\"{name}\",{count},{count}]");
    let names = [
        of("forked", 1),
        of("inner", rounds),
        of("other", rounds),
        of("our work", THREADS),
        of("ours", rounds),
        of("sdk", rounds),
        of("sdk work", THREADS),
        of("tick", TICKS),
    ];
    assert_eq!(
        rows[..4],
        [
            "[]}",
            // The two processes are the program and its child.
            "[[2,2,1]]}",
            &format!("[[{THREADS},{THREADS},{THREADS}]]}}"),
            &format!("[{}]}}", names.join(",")),
        ]
    );
    assert_eq!(rows[4], format!("[[{rounds}]]}}"));
}

/// The number and the value of the field `enable_thread_time_sampling` in `TrackEventConfig`.
const THREAD_TIME: (u32, u64) = (8, 1);

/// Tests that the SDK and both copies of the library write to the same tracks. The session also asks for the processor
/// time of the threads: all events have this time, and the times are consistent.
#[test]
fn all_write_to_the_same_tracks_by_perfettos_service() {
    const TEST: &str = "all_write_to_the_same_tracks_by_perfettos_service";
    let Some(setup) = Setup::start(TEST) else { return };
    let config = Config { track_event: vec![THREAD_TIME], ..Config::default() };
    let session = Session::start(&setup.service, &config);
    let pid = run(program().unwrap(), &setup.service.producers(), setup.directory());
    let trace = session.stop();
    trace.save(&setup.place("trace")).unwrap();
    check(&setup.place("trace"), pid);
    let all = "select count(*), count(thread_dur), sum(thread_dur between 0 and dur + 1000000) from slice";
    // The slices `our work` and `sdk work` contain 20 ms of running and 20 ms of sleep. The SDK's slice begins before
    // the library's slice, and ends after it.
    let work = "select count(*), sum(o.thread_dur >= 20e6), sum(o.thread_dur <= s.thread_dur),
        sum(o.dur - o.thread_dur >= 19e6) from slice o join slice s on s.id = o.parent_id
        where o.name = 'our work' and s.name = 'sdk work'";
    let Some(answers) = setup.rows(&trace, &[all, work]) else { return };
    let slices = 4 * THREADS * ROUNDS + 2 * THREADS + TICKS + 1;
    assert_eq!(answers, [format!("[[{slices},{slices},{slices}]]"), "[[4,4,4,4]]".to_owned()]);
}

#[test]
fn all_write_to_the_same_tracks_by_this_service() {
    let Some(program) = program() else {
        // Does not use `eprintln!`, because libtest hides its output.
        let _ = writeln!(std::io::stderr(), "skipped: needs the feature `real`");
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let (socket, path) = (directory.path().join("socket"), directory.path().join("trace"));
    let keep = Storage::File { file: File::create(&path).unwrap(), max: None };
    let listener = UnixListener::bind(&socket).unwrap();
    let service = Service::start(listener, atrace_sys::process::user(), keep).unwrap();
    let pid = run(program, &socket, directory.path());
    let report = service.finish();
    // Nothing was lost, and no packet was invalid.
    assert_eq!((report.counts.losses, report.counts.invalid), (0, 0), "{report:?}");
    check(&path, pid);
}

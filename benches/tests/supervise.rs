//! Tests that no resource of a bench remains, however the bench ends.
//!
//! This test does not use libtest, for two reasons: the binary runs itself as a bench, which `HELPER` selects, and a
//! supervised process must have only one thread.

#[path = "../../atrace/tests/common/buffer.rs"]
#[allow(unreachable_pub, reason = "other test programs use it, too")]
mod buffer;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use self::buffer::Buffer;
use atrace::control::{Control, Properties, ThisProcess};
use atrace_benches::harness::reader::{Reader, Reading};
use atrace_benches::harness::{Session, child, supervise};
use atrace_benches::row::{Row, Sink};
use atrace_benches::stats::Interval;
use atrace_cli::tracefs::Instance;
use rustix::process::{Pid, Signal, getpid, kill_process};

const HELPER: &str = "ATRACE_BENCHES_TEST_HELPER";

fn main() -> ExitCode {
    match std::env::var(HELPER) {
        Ok(helper) => supervise::run(|session| bench(&helper, &session)),
        Err(_) => {
            tests();
            ExitCode::SUCCESS
        }
    }
}

/// Does the work of the bench in the supervised process.
fn bench(helper: &str, session: &Session) -> ExitCode {
    match helper {
        "processes" => return report_rows(session),
        "reader" => return read(session),
        _ => {}
    }
    let env = |name| std::env::var(name).unwrap_or_default();
    let marker = env("ATRACE_MARKER");
    assert_eq!(session.marker.as_deref(), Some(std::path::Path::new(&marker)));
    assert_eq!(fs::read_dir("/proc/self/task").unwrap().count(), 1);
    println!("backend {}", env("ATRACE_BACKEND"));
    println!("properties {}", env("ATRACE_PROPERTIES"));
    println!("marker {marker}");
    println!("pid {}", std::process::id());
    let message = format!("E|{}", std::process::id());
    let write =
        || fs::OpenOptions::new().write(true).open(&marker).unwrap().write_all(message.as_bytes()).unwrap();
    match session.sink() {
        Sink::Tracefs => {
            assert_eq!(session.wrote(write).unwrap(), Some(1));
            assert_eq!(session.messages().unwrap().unwrap(), [message.as_bytes()]);
        }
        Sink::File => assert_eq!(session.wrote(write).unwrap(), Some(message.len() as u64)),
        _ => assert_eq!(session.wrote(write).unwrap(), None),
    }
    if session.sink() != Sink::Null {
        assert_eq!(session.wrote(|| ()).unwrap(), Some(0));
    }
    // Behaves like a real bench, which leaves files in its directories, and keeps its marker open until it ends.
    if helper != "switch" {
        fs::write(env("ATRACE_PROPERTIES"), "left behind").unwrap();
    }
    let _open = fs::OpenOptions::new().write(true).open(&marker).unwrap();
    println!("ready");
    if helper != "sleep" {
        // Waits until stdin is closed, because the process must exist while the test looks for the files of the bench.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
    }
    match helper {
        "fine" => {}
        "seven" => return ExitCode::from(7),
        "panic" => panic!("on purpose"),
        "abort" => std::process::abort(),
        "kill" => kill_process(getpid(), Signal::KILL).unwrap(),
        "sleep" => std::thread::sleep(Duration::from_secs(600)),
        "switch" => {
            let control = Control::open().unwrap();
            std::mem::forget(control.enable(ThisProcess).unwrap());
            assert_eq!(control.patterns().len(), 2);
            kill_process(getpid(), Signal::KILL).unwrap();
        }
        other => panic!("no helper is called {other}"),
    }
    ExitCode::SUCCESS
}

/// A run of this binary as a bench, and its output.
struct Run {
    parent: Child,
    said: Vec<String>,
    stdout: io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Run {
    /// Starts this binary as a bench, which `helper` selects, and waits until the bench is ready.
    fn start(helper: &str, sink: &str) -> Self {
        // Resets the signals, because the new process would inherit that this process ignores them, for example under
        // `nohup`.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP,INT,TERM").arg(std::env::current_exe().unwrap()).arg("--bench");
        command.env(HELPER, helper).env("ATRACE_BENCH_SINK", sink);
        command.env("ATRACE_BACKEND", "none").env_remove("ATRACE_PROPERTIES");
        #[expect(clippy::zombie_processes, reason = "if the bench is not ready, the test fails")]
        let mut parent =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(parent.stdout.take().unwrap()).lines();
        let mut said = Vec::new();
        while let Some(line) = stdout.next().transpose().unwrap() {
            if line == "ready" {
                return Self { parent, said, stdout };
            }
            said.push(line);
        }
        panic!("{helper} on {sink} is not ready: {said:?}");
    }

    fn word(&self, name: &str) -> &str {
        let value = self.said.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {:?}", self.said))
    }

    /// Returns the paths that must not exist after the run: the directories of the events' sink and of the properties.
    fn things(&self) -> Vec<PathBuf> {
        let properties = PathBuf::from(self.word("properties")).parent().unwrap().to_owned();
        let mut things = vec![properties];
        let marker = PathBuf::from(self.word("marker"));
        if !marker.starts_with("/dev") && !everyones(&marker) {
            things.push(marker.parent().unwrap().to_owned());
        }
        things
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.parent), signal).unwrap();
    }

    fn end(mut self) -> ExitStatus {
        let start = Instant::now();
        drop(self.parent.stdin.take());
        self.stdout.by_ref().for_each(drop);
        let status = self.parent.wait().unwrap();
        assert!(start.elapsed() < Duration::from_secs(300), "the helper ended by itself");
        status
    }
}

/// Whether benches write to the ring buffer of the whole system, which is the only ring buffer that Android's libcutils
/// can use.
const SHARES_ITS_BUFFER: bool = cfg!(all(target_os = "android", not(target_feature = "crt-static")));

/// A guard that switches the ring buffer of the whole system off until the guard is dropped.
struct Off(Option<Instance>);

impl Off {
    fn new() -> Self {
        let Ok(top) = atrace_cli::tracefs::root().and_then(Instance::attach) else { return Self(None) };
        let was_on = fs::read_to_string(top.path().join("tracing_on")).unwrap().trim() == "1";
        top.set_tracing_on(false).unwrap();
        Self(was_on.then_some(top))
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        if let Some(top) = &self.0 {
            top.set_tracing_on(true).unwrap();
        }
    }
}

/// Returns whether a marker belongs to the ring buffer of the whole system.
fn everyones(marker: &Path) -> bool {
    marker.parent().is_some_and(|parent| parent.ends_with("tracing"))
}

/// Returns whether the ring buffer of the whole system is on. Returns `None` if the run uses another buffer.
fn is_on(run: &Run) -> Option<bool> {
    let marker = PathBuf::from(run.word("marker"));
    everyones(&marker).then(|| fs::read_to_string(marker.with_file_name("tracing_on")).unwrap().trim() == "1")
}

/// Runs this binary as a bench (a helper) and calls `act`. Returns the exit status of the helper, after checking that
/// no resource of the bench remains.
fn ended(helper: &str, sink: &str, act: impl FnOnce(&Run)) -> Option<i32> {
    let run = Run::start(helper, sink);
    assert_eq!(run.word("backend"), "");
    let things = run.things();
    let pid = run.word("pid").to_owned();
    assert!(things.iter().all(|thing| thing.exists()), "{things:?}");
    assert_ne!(is_on(&run), Some(false));
    let switch = is_on(&run).map(|_| PathBuf::from(run.word("marker")).with_file_name("tracing_on"));
    act(&run);
    let status = run.end();
    if let Some(switch) = switch {
        assert_eq!(fs::read_to_string(&switch).unwrap().trim(), "0", "{helper} left {}", switch.display());
    }
    assert!(things.iter().all(|thing| !thing.exists()), "{helper} on {sink} left one of {things:?}");
    assert!(!is_running(&pid), "{helper} on {sink} left process {pid}");
    status.code()
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn tests() {
    let mut sinks = vec!["file", "null"];
    match Buffer::create("atrace-benches-test") {
        Ok(_) => sinks.push("tracefs"),
        Err(e) => eprintln!("skipped the sink tracefs: {e}"),
    }
    // The buffer is off before each bench, and must be off again after it.
    let _off = SHARES_ITS_BUFFER.then(Off::new);
    let nothing = |_: &Run| ();
    for &sink in &sinks {
        assert_eq!(ended("fine", sink, nothing), Some(0));
        assert_eq!(ended("seven", sink, nothing), Some(7));
        assert_eq!(ended("panic", sink, nothing), Some(101));
        assert_eq!(ended("abort", sink, nothing), Some(128 + 6));
        assert_eq!(ended("kill", sink, nothing), Some(128 + 9));
        assert_eq!(ended("sleep", sink, |run| run.signal(Signal::INT)), Some(130));
        assert_eq!(ended("sleep", sink, |run| run.signal(Signal::TERM)), Some(143));
        assert_eq!(ended("sleep", sink, |run| run.signal(Signal::HUP)), Some(129));
        println!("supervise: nothing is left of any end on {sink}");
    }

    what_a_killed_bench_switched_is_switched_back();
    println!("supervise: what a killed bench left switched on is switched off");

    the_parent_sleeps_while_the_child_runs();
    println!("supervise: the parent uses no CPU time");

    if sinks.contains(&"tracefs") && !SHARES_ITS_BUFFER {
        what_a_killed_parent_leaves_is_swept();
        println!("supervise: the next run sweeps what a killed one left");
    }

    a_child_reports_its_rows();
    println!("child: its rows are its parent's");

    a_reader_takes_what_a_program_writes();
    println!("reader: it takes what programs write");

    a_reader_ends_with_who_started_it();
    println!("reader: it ends with who started it");

    a_wrong_sink_is_an_error();
}

fn the_parent_sleeps_while_the_child_runs() {
    let run = Run::start("sleep", "null");
    let ticks = || {
        let stat = fs::read_to_string(format!("/proc/{}/stat", run.parent.id())).unwrap();
        let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').map(String::from).collect();
        // `utime` and `stime` are the fields 14 and 15 of `/proc/PID/stat`, which are the fields 12 and 13 after the
        // name.
        (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap(), fields[0].clone())
    };
    until("the sleep of the parent", || ticks().1 == "S");
    let before = ticks().0;
    std::thread::sleep(Duration::from_millis(300));
    let (after, state) = ticks();
    assert_eq!((after - before, &state[..]), (0, "S"));
    run.signal(Signal::TERM);
    run.end();
}

fn what_a_killed_bench_switched_is_switched_back() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("properties");
    let control = match cfg!(target_os = "android") {
        true => Control::open().unwrap(),
        false => Control::from(Properties::open_path(&store).unwrap()),
    };
    let someone_else = control.enable("someone else").unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--bench").env(HELPER, "switch").env("ATRACE_BENCH_SINK", "null");
    let output = command.env("ATRACE_PROPERTIES", &store).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 9), "{output:?}");
    assert_eq!(control.patterns(), [b"someone else"]);
    drop(someone_else);
}

fn what_a_killed_parent_leaves_is_swept() {
    let run = Run::start("sleep", "tracefs");
    let things = run.things();
    let child = run.word("pid").to_owned();
    run.signal(Signal::KILL);
    assert_eq!(run.end().signal(), Some(9));
    // The child is killed when its parent ends, so no process removes the child's tracefs instance.
    until("the end of the child", || !is_running(&child));
    assert!(things[1].exists());
    assert_eq!(ended("fine", "tracefs", |_| ()), Some(0));
    assert!(!things[1].exists());
    // The next run does not remove the temporary directories of a killed bench, so the test removes this one.
    fs::remove_dir_all(&things[0]).unwrap();
}

/// Does the work of a bench that starts its own binary as a child process, and gets rows (results) from the child.
fn report_rows(session: &Session) -> ExitCode {
    if session.args.mode.is_some() {
        println!("a line of the child");
        let marker = std::env::var("ATRACE_MARKER").unwrap();
        let one = Interval::around(1.0, 0.0);
        child::report(&[Row::new(format!("rust/{marker}"), one, session.sink())]).unwrap();
        return ExitCode::SUCCESS;
    }
    let rows = child::rows("any", &[("ATRACE_MARKER", "elsewhere")]).unwrap();
    assert_eq!((rows.len(), &rows[0].id[..], rows[0].sink), (1, "rust/elsewhere", Sink::Null));
    ExitCode::from(3)
}

fn a_child_reports_its_rows() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--bench").env(HELPER, "processes").env("ATRACE_BENCH_SINK", "null");
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}{stderr}");
    assert_eq!(said.matches("a line of the child\n").count(), 1, "{said}");
}

/// Does the work of a bench that starts a reader (a consumer of events), and a process that writes events for the
/// reader.
fn read(session: &Session) -> ExitCode {
    const EVENTS: u64 = 5000;
    if session.args.mode.is_none() {
        let reader = Reader::with_sessions(1).unwrap();
        println!("pid {}\nreader {}\nready", std::process::id(), reader.id());
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let status = child::in_mode("writes").unwrap().envs(reader.env()).status().unwrap();
        return ExitCode::from(u8::try_from(status.code().unwrap()).unwrap());
    }
    let reading = Reading::begin().unwrap();
    assert_eq!(reading.come_and_lost().unwrap(), (0, 0));
    (0..EVENTS).for_each(|_| atrace::atrace_begin(atrace::AtraceTag::App, "0123456789"));
    reading.wait_for([EVENTS; 2], 0).unwrap();
    assert_eq!(reading.come_and_lost().unwrap(), (EVENTS, 0));
    let too_many = reading.wait_for([EVENTS - 1; 2], 0).unwrap_err().to_string();
    assert_eq!(too_many, "4999 events were written, 5000 came, 0 were lost");
    assert!(reading.taken().unwrap().cpu > Duration::ZERO);
    ExitCode::from(3)
}

fn a_reader_takes_what_a_program_writes() {
    let run = Run::start("reader", "null");
    let reader = run.word("reader").to_owned();
    assert_eq!(run.end().code(), Some(3));
    assert!(!is_running(&reader));
}

fn a_reader_ends_with_who_started_it() {
    let run = Run::start("reader", "null");
    let [reader, bench] = ["reader", "pid"].map(|name| run.word(name).to_owned());
    assert!(is_running(&reader));
    run.signal(Signal::KILL);
    run.end();
    until("the end of the reader", || !is_running(&reader) && !is_running(&bench));
}

fn a_wrong_sink_is_an_error() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("--bench").env(HELPER, "fine").env("ATRACE_BENCH_SINK", "pipe");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("none of tracefs, file, null"));
}

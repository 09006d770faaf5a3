//! Gives a bench what it needs, and takes it away again however the bench ends.
//!
//! A bench that cleans up behind itself leaves its things behind when it is killed. So [`run`] runs
//! the program a second time, as a child that measures, while the first does nothing but wait, and
//! then removes the tracefs instance and the temporary directory. It hands on the signals that ask
//! it to end, and ends as the child did. The child does not outlive it, and what is left behind
//! when the first is killed too is swept by the next run.
//!
//! The child has one thread and no handlers: a second thread would make each of its system calls
//! on files dearer, and it is those that are measured.
//!
//! What the child finds in its environment:
//!
//! - `ATRACE_MARKER` names the sink: the marker of an instance of its own; without the rights for
//!   one, `/dev/null`, or as a test, where little is written, a temporary file. `ATRACE_BENCH_SINK`
//!   (`tracefs`, `file`, `null`) asks for one of them.
//! - `ATRACE_PROPERTIES` names a property store of its own, unless it was set already; then what a bench that
//!   was killed left switched on there is switched off.
//! - `ATRACE_BACKEND` is not set.
//! - On Android, unless statically linked: `ATRACE_MARKER` is the marker at the top of tracefs, the only one that the device's
//!   libcutils knows. Its ring buffer is everyone's: it is switched on as long as the bench runs, and emptied, and of what is in
//!   it only the messages of this process count.
//! - On Android, where a bench is started from a directory that it may not write to and by a runner
//!   that hands on no environment, `CRITERION_HOME`, `ATRACE_OVERHEAD_DIR` and `TMPDIR` are below
//!   `/data/local/tmp/atrace-bench`, or where that can't be, beside the program, unless they are set.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};

use atrace::control::Control;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::{Args, HELP};
use super::reader;
use super::session::{CHILD, Session};
use super::sink::{MARKER, PREFIX, Prepared, SINK};
use super::terminal::{complain, fail, say};
use crate::row::env_path;

const PROPERTIES: &str = "ATRACE_PROPERTIES";
const BACKEND: &str = "ATRACE_BACKEND";
const TMPDIR: &str = "TMPDIR";

/// Where a device lets the shell write and run.
const DEVICE_TEMP: &str = "/data/local/tmp";

/// From this signal on, the child is killed.
const PATIENCE: u32 = 3;

/// Runs `main_child` in a child process, with a sink of its own, and returns how it ended: with
/// what it returned, with 128 + n if signal n ended it, and as after such a signal if one asked
/// this process to end (130 for Ctrl-C).
///
/// For `--list` nothing is prepared: `main_child` runs here.
pub fn run(main_child: impl FnOnce(Session) -> ExitCode) -> ExitCode {
    let args = match Args::from_env() {
        Ok(args) => args,
        Err(e) => return fail(2, e),
    };
    if args.help {
        say(HELP);
        return ExitCode::SUCCESS;
    }
    if args.list {
        return main_child(Session::without_sink(args));
    }
    match Session::inherited(&args) {
        Ok(Some(session)) if session.args().mode.as_deref() == Some(reader::MODE) => match reader::run() {
            Ok(never) => match never {},
            Err(e) => fail(2, e),
        },
        Ok(Some(session)) => main_child(session),
        Ok(None) => supervise(&args).map_or_else(|e| fail(2, e), ExitCode::from),
        Err(e) => fail(2, e),
    }
}

fn supervise(args: &Args) -> io::Result<u8> {
    // Before there is anything to clean up, so that no signal comes between.
    let ends = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(ends.chain([SIGCHLD]))?;
    let exe = std::env::current_exe()?;
    let places = match cfg!(target_os = "android") {
        true => places(|| home(&exe, is_usable), |name| env_path(name).is_some()),
        false => Vec::new(),
    };
    let temp_root = places.iter().find(|(name, _)| *name == TMPDIR).map(|(_, path)| path.clone());
    let temp = tempfile::Builder::new()
        .prefix("atrace-bench-")
        .tempdir_in(temp_root.unwrap_or_else(std::env::temp_dir))?;
    let prepared = Prepared::new(args, temp.path())?;
    // A store that outlives this run must not keep what a killed bench switched on.
    let is_shared = cfg!(target_os = "android") || std::env::var_os(PROPERTIES).is_some();
    let _switches = is_shared.then(Switches::note).flatten();

    let mut command = Command::new(exe);
    command.args(std::env::args_os().skip(1)).env(CHILD, std::process::id().to_string());
    if !args.test && !std::env::args_os().any(|arg| arg == "--bench") {
        // Criterion reads the command line too, and would only test.
        command.arg("--bench");
    }
    command.envs(places);
    command.env(SINK, prepared.sink.to_string()).env(MARKER, &prepared.marker).env_remove(BACKEND);
    if std::env::var_os(PROPERTIES).is_none() {
        command.env(PROPERTIES, temp.path().join("properties"));
    }
    let mut child = command.spawn()?;
    wait(&mut child, &mut signals)
    // The instance goes, then the directory.
}

/// The app patterns of a property store, to which it is brought back when this is dropped.
struct Switches {
    control: Control,
    before: Vec<String>,
}

impl Switches {
    /// None where there are no properties: then nobody can switch them either.
    fn note() -> Option<Self> {
        let control = Control::open().ok()?;
        Some(Self { before: control.patterns(), control })
    }
}

impl Drop for Switches {
    fn drop(&mut self) {
        for pattern in self.control.patterns() {
            if self.before.contains(&pattern) {
                continue;
            }
            match self.control.disable(&pattern) {
                Ok(switched) => switched.keep(),
                Err(e) => complain(format_args!("{pattern} is still switched on: {e}")),
            }
        }
    }
}

/// Returns where a bench on a device keeps its results: the first of two places that is `usable`.
fn home(exe: &Path, usable: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let shell = Path::new(DEVICE_TEMP).join(PREFIX);
    let beside = exe.parent().map(|dir| dir.join(PREFIX));
    [Some(shell), beside].into_iter().flatten().find(|dir| usable(dir))
}

/// Whether `dir` can be made, if it is not there, and written to.
fn is_usable(dir: &Path) -> bool {
    std::fs::create_dir_all(dir).is_ok() && tempfile::tempfile_in(dir).is_ok()
}

/// Returns what a bench on a device finds in its environment beside what is set. Only if something is not,
/// `home` is asked.
fn places(
    home: impl FnOnce() -> Option<PathBuf>,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, PathBuf)> {
    let all = [("CRITERION_HOME", "criterion"), ("ATRACE_OVERHEAD_DIR", "overhead"), (TMPDIR, "")];
    let unset: Vec<_> = all.into_iter().filter(|(name, _)| !is_set(name)).collect();
    if unset.is_empty() {
        return Vec::new();
    }
    let home = home();
    unset.into_iter().filter_map(|(name, part)| Some((name, home.as_ref()?.join(part)))).collect()
}

/// Waits for the child, handing on what this process is asked, and returns the exit status.
fn wait(child: &mut Child, signals: &mut Signals) -> io::Result<u8> {
    let pid = Pid::from_child(child);
    let mut asked = 0;
    let mut first = None;
    for signal in signals.forever() {
        if signal == SIGCHLD {
            // Also sent when the child merely stops.
            if let Some(status) = child.try_wait()? {
                return Ok(first.map_or_else(|| code(status), by_signal));
            }
            continue;
        }
        first.get_or_insert(signal);
        asked += 1;
        let signal = match signal {
            _ if asked >= PATIENCE => Signal::KILL,
            SIGINT => Signal::INT,
            SIGHUP => Signal::HUP,
            _ => Signal::TERM,
        };
        // It may be gone: then its SIGCHLD is on its way.
        let _ = kill_process(pid, signal);
    }
    // Signals are never closed.
    child.wait().map(code)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| status.signal().map(by_signal)).unwrap_or(1)
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Whether whoever started this process wants it to ignore `signal`, as `nohup` does.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.unwrap_or(0) >> (signal - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(101 << 8)), 101);
        assert_eq!(code(ExitStatus::from_raw(9)), 137);
        assert_eq!(by_signal(SIGINT), 130);
    }

    #[test]
    fn ignored_signals_are_known() {
        // Rust programs ignore this one.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(signal_hook::consts::SIGUSR2));
    }

    #[test]
    fn a_device_keeps_results_where_it_can() {
        let exe = Path::new("/x/deps/bench");
        let (shell, beside) = (Path::new("/data/local/tmp/atrace-bench"), Path::new("/x/deps/atrace-bench"));
        assert_eq!(home(exe, |_| true).as_deref(), Some(shell));
        assert_eq!(home(exe, |dir| dir != shell).as_deref(), Some(beside));
        assert_eq!(home(exe, |_| false), None);

        let temp = tempfile::tempdir().unwrap();
        let new = temp.path().join("a/b");
        assert!(is_usable(&new) && is_usable(&new));
        std::fs::write(temp.path().join("file"), "").unwrap();
        assert!(!is_usable(&temp.path().join("file/b")));
    }

    #[test]
    fn what_is_set_stays() {
        let names = |set: &'static [&str]| {
            let all = places(|| Some("/h".into()), |name| set.contains(&name));
            all.into_iter().map(|(name, path)| format!("{name}={}", path.display())).collect::<Vec<_>>()
        };
        let all = ["CRITERION_HOME=/h/criterion", "ATRACE_OVERHEAD_DIR=/h/overhead", "TMPDIR=/h/"];
        assert_eq!(names(&[]), all);
        assert_eq!(names(&["CRITERION_HOME", "TMPDIR"]), all[1..2]);
        // Nothing is made on a device for those who need nothing.
        assert!(places(|| panic!("asked"), |_| true).is_empty());
        assert!(places(|| None, |_| false).is_empty());
    }
}

//! Prepares the resources of a bench, and removes them when the bench ends, even if it is killed.
//!
//! A killed process cannot clean up. So [`run`] starts the program again as a child process, which measures. The first
//! process, the supervisor, only waits for the child, and then removes the tracefs instance and the temporary
//! directory. It forwards to the child any signal that asks it to end, and ends with the exit status of the child. The
//! child is killed when the supervisor ends. If the supervisor itself is killed, the next run removes the remaining
//! instance, and the temporary directory stays.
//!
//! The child begins with one thread, and handles no signals: the handling would need a second thread, which would make
//! the child's system calls on files more expensive. The benches measure these calls.
//!
//! The supervisor sets the child's environment:
//!
//! - `ATRACE_MARKER` names the sink: the marker of a tracefs instance that is made for the bench. If the supervisor
//!   lacks the rights to make an instance, the sink is `/dev/null` or, in a test, which writes little, a temporary
//!   file. A user can set `ATRACE_BENCH_SINK` (`tracefs`, `file`, `null`) to select a sink.
//! - `ATRACE_PROPERTIES` names a new property store, unless the variable is already set. If it is set, and on Android,
//!   the store outlives the bench, so the supervisor removes the app patterns that the child has left in the store.
//! - `ATRACE_BACKEND` is removed from the environment.
//! - On Android, `ATRACE_MARKER` names the marker at the top of tracefs, unless the bench is statically linked. This is
//!   the only marker to which the device's libcutils writes. The ring buffer of this marker is shared with the whole
//!   system. The bench switches the buffer on while it runs, and empties it. Only the messages of the bench's process
//!   are counted.
//! - On Android, where a bench may start in a directory without write access, `CRITERION_HOME` and
//!   `ATRACE_OVERHEAD_DIR` are set to places below `/data/local/tmp/atrace-bench`, unless they are set already.

use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitCode, ExitStatus};

use atrace::control::Control;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::args::{Args, HELP};
use super::output::{complain, fail, say};
use super::reader;
use super::session::{CHILD, MARKER, Prepared, SINK, Session};
use crate::row::env_path;

const PROPERTIES: &str = "ATRACE_PROPERTIES";
const BACKEND: &str = "ATRACE_BACKEND";

/// The environment variables that name directories for results, and their values on an Android device: directories to
/// which the shell may write.
const PLACES: [(&str, &str); 2] = [
    ("CRITERION_HOME", "/data/local/tmp/atrace-bench/criterion"),
    ("ATRACE_OVERHEAD_DIR", "/data/local/tmp/atrace-bench/overhead"),
];

/// The supervisor kills the child when the supervisor has got this number of signals that ask it to end.
const PATIENCE: u32 = 3;

/// Runs `main_child` in a child process with a sink that is prepared for it. Returns the exit code of `main_child`, or
/// 128 + n if signal n ended the child. If a signal asked this process to end, the result is 128 + the number of that
/// signal (130 for Ctrl-C).
///
/// For `--list`, nothing is prepared, and `main_child` runs in this process.
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
    let run = || match Session::inherited(&args)? {
        Some(_) if args.mode.as_deref() == Some(reader::MODE) => match reader::run()? {},
        Some(session) => Ok(main_child(session)),
        None => supervise(&args).map(ExitCode::from),
    };
    run().unwrap_or_else(|e: io::Error| fail(2, e))
}

fn supervise(args: &Args) -> io::Result<u8> {
    // Signals are handled before the first resource is made, so that no signal can prevent the cleanup.
    let ends = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(ends.chain([SIGCHLD]))?;
    let temp = tempfile::Builder::new().prefix("atrace-bench-").tempdir()?;
    let prepared = Prepared::new(args, temp.path())?;
    // If the property store outlives this run, tracing must not stay switched on there for a bench that was killed.
    let is_shared = cfg!(target_os = "android") || std::env::var_os(PROPERTIES).is_some();
    let _switches = is_shared.then(Switches::note).flatten();

    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(CHILD, std::process::id().to_string());
    if !args.test && !std::env::args_os().any(|arg| arg == "--bench") {
        // Criterion also parses the command line. Without this flag, it would run its cases as tests and not measure.
        command.arg("--bench");
    }
    let is_unset = |(name, _): &(&str, &str)| cfg!(target_os = "android") && env_path(name).is_none();
    command.envs(PLACES.into_iter().filter(is_unset));
    command.env(SINK, prepared.sink.to_string()).env(MARKER, &prepared.marker).env_remove(BACKEND);
    if std::env::var_os(PROPERTIES).is_none() {
        command.env(PROPERTIES, temp.path().join("properties"));
    }
    let mut child = command.spawn()?;
    wait(&mut child, &mut signals)
    // When the function returns, the tracefs instance is removed first, and then the temporary directory.
}

/// The app patterns of a property store (they name the programs that are traced) at the time when this value was made.
/// When the value is dropped, app patterns that were added since then are removed from the store.
struct Switches {
    control: Control,
    before: Vec<Vec<u8>>,
}

impl Switches {
    /// Stores the current app patterns. Returns `None` if there are no properties; tracing can then not be switched on
    /// anyway.
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
                Err(e) => complain(format_args!("{} is still switched on: {e}", pattern.escape_ascii())),
            }
        }
    }
}

/// Waits for the child, forwards signals to it, and returns the exit status.
fn wait(child: &mut Child, signals: &mut Signals) -> io::Result<u8> {
    let pid = Pid::from_child(child);
    let mut asked = 0;
    let mut first = None;
    for signal in signals.forever() {
        if signal == SIGCHLD {
            // SIGCHLD is also sent when the child merely stops.
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
        // An error is ignored: if the child has already ended, its SIGCHLD will arrive.
        let _ = kill_process(pid, signal);
    }
    // This is never reached, because the iterator over signals never ends.
    child.wait().map(code)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| status.signal().map(by_signal)).unwrap_or(1)
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Returns whether this process ignores `signal`, as it does SIGHUP if it was started by `nohup`.
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
        // Rust's runtime ignores SIGPIPE in every program.
        assert!(is_ignored(signal_hook::consts::SIGPIPE));
        assert!(!is_ignored(signal_hook::consts::SIGUSR2));
    }
}

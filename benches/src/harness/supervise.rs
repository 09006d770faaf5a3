//! Prepares the resources of a bench, and removes them however the bench ends.
//!
//! A killed bench cannot clean up. So [`run`] starts the program again as a child, which measures. The first process,
//! the supervisor, only waits, and then removes the tracefs instance and the temporary directory. It forwards signals
//! that ask it to end, and ends with the exit status of the child. The child is killed when the supervisor ends. If
//! the supervisor is killed, too, the next run removes the remaining instance, and the temporary directory stays.
//!
//! The child begins with one thread, and has no handlers for these signals: a second thread would make the child's
//! system calls on files more expensive, and the benches measure these calls.
//!
//! The supervisor sets the child's environment:
//!
//! - `ATRACE_MARKER` names the sink: the marker of a separate instance or, without the rights to make an instance,
//!   `/dev/null`; in a test, which writes little, it names a temporary file. `ATRACE_BENCH_SINK` (`tracefs`, `file`,
//!   `null`) selects a sink.
//! - `ATRACE_PROPERTIES` names a separate property store, unless the variable was set already. In that case, and on
//!   Android, the supervisor removes the patterns that its child has left in the store.
//! - `ATRACE_BACKEND` is removed.
//! - On Android, unless statically linked: `ATRACE_MARKER` is the marker at the top of tracefs, the only marker that
//!   the device's libcutils knows. The ring buffer of that marker is shared with the whole system. The bench switches
//!   the buffer on while it runs, and empties it; only messages of this process count.
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

/// The variables that name directories for results, and their values on a device, where the shell may write.
const PLACES: [(&str, &str); 2] = [
    ("CRITERION_HOME", "/data/local/tmp/atrace-bench/criterion"),
    ("ATRACE_OVERHEAD_DIR", "/data/local/tmp/atrace-bench/overhead"),
];

/// The number of signals after which the child is killed.
const PATIENCE: u32 = 3;

/// Runs `main_child` in a child process with its own sink. Returns the exit code of `main_child`, or 128 + n if signal
/// n ended the child. If a signal asked this process to end, the result is 128 + the number of that signal (130 for
/// Ctrl-C).
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
    // Before there is anything to clean up, so that no signal is missed.
    let ends = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
    let mut signals = Signals::new(ends.chain([SIGCHLD]))?;
    let temp = tempfile::Builder::new().prefix("atrace-bench-").tempdir()?;
    let prepared = Prepared::new(args, temp.path())?;
    // A property store that outlives this run must not keep what a killed bench has switched on.
    let is_shared = cfg!(target_os = "android") || std::env::var_os(PROPERTIES).is_some();
    let _switches = is_shared.then(Switches::note).flatten();

    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).env(CHILD, std::process::id().to_string());
    if !args.test && !std::env::args_os().any(|arg| arg == "--bench") {
        // Criterion parses the command line, too, and would only test without this flag.
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
    // The instance is removed first, then the directory.
}

/// The app patterns of a property store. When this value is dropped, the patterns that were added since are removed.
struct Switches {
    control: Control,
    before: Vec<Vec<u8>>,
}

impl Switches {
    /// Stores the present patterns. Returns `None` if there are no properties, so that tracing can't be switched.
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
        // The child may have ended: then its SIGCHLD will arrive.
        let _ = kill_process(pid, signal);
    }
    // Unreachable: the signals are never closed.
    child.wait().map(code)
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| status.signal().map(by_signal)).unwrap_or(1)
}

fn by_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Returns whether this process was started with `signal` ignored, as with `nohup`.
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
}

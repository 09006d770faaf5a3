//! One run of a program, from its start to its end, and the resources that the run used.
//!
//! The program has its own process group. All processes of the group are killed if the program does not end in time, or
//! if the command is asked to end. The program's stdin is empty. Its output is read and not stored, except for a hash
//! of stdout, and the last bytes of stdout and of stderr.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{ErrorKind, PipeReader, Read as _};
use std::os::unix::prelude::*;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use atrace_sys::usage::{self, Instructions, Usage};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group, test_kill_process};

use crate::command::program::{Signals, has_ended};
use crate::command::terminal::{Failure, Result, failed};
use crate::escape::shown;

/// The maximum number of bytes of stdout that are stored. The limit for stderr is the same.
const KEPT: usize = 8 << 10;
/// The maximum duration of one wait for the program. A signal, or the end of the program, ends the wait earlier.
const LOOK: Duration = Duration::from_millis(20);

/// Environment variables for the program: each variable is set or, if it has no value, removed.
pub(super) type Variables = Vec<(&'static str, Option<OsString>)>;

/// The resources that one run used, and its output.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) wall_ns: f64,
    pub(super) usage: Usage,
    pub(super) instructions: Option<u64>,
    pub(super) status: ExitStatus,
    /// A hash of the run's stdout, and the length of stdout in bytes.
    pub(super) printed: (u64, u64),
    /// The last bytes of the run's stdout. `errors` has the last bytes of its stderr.
    pub(super) output: Vec<u8>,
    pub(super) errors: Vec<u8>,
    /// Whether processes of the program's group were still alive after the program's end.
    pub(super) left: bool,
}

/// Builds the command of a program.
pub(super) fn command(program: &[OsString], variables: &Variables) -> Command {
    let mut command = Command::new(program.first().map_or("".as_ref(), OsString::as_os_str));
    command.args(program.iter().skip(1)).stdin(Stdio::null()).process_group(0);
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Returns a function that makes the error for a program that could not be started.
pub(super) fn not_started(program: &[OsString]) -> impl FnOnce(std::io::Error) -> Failure {
    let name = shown(program.first().map_or(&b""[..], |name| name.as_bytes())).to_string();
    move |e| {
        let (status, hint) = match e.kind() {
            ErrorKind::NotFound => (127, " (a shell's command line: sh -c '…')"),
            _ => (126, ""),
        };
        Failure::new(format!("{name}: {e}{hint}")).with_status(status)
    }
}

/// Runs the program to its end. If the program has not ended after `limit`, kills it and returns an error, whose text
/// begins with the first text of `late` and ends with the second. Also kills all processes that the program leaves in
/// its group.
pub(super) fn run(
    program: &[OsString],
    variables: &Variables,
    signals: &Signals,
    limit: Duration,
    late: [&str; 2],
) -> Result<Run> {
    let mut outputs = [Output::default(), Output::default()];
    let mut command = command(program, variables);
    command.stdout(outputs[0].pipe()?).stderr(outputs[1].pipe()?);
    signals.pass_on(&mut command);
    let counter = Instructions::of_children().ok();
    let start = Instant::now();
    let child = command.spawn().map_err(not_started(program))?;
    // `command` still holds the writing ends of the pipes, which would keep the pipes open.
    drop(command);
    let pid = Pid::from_child(&child);
    let mut stopped = Ok(());
    let end = loop {
        let readers = outputs.iter().filter_map(|output| Some(output.reader.as_ref()?.as_fd()));
        let mut asked = no_signal(signals, readers, LOOK);
        let end = has_ended(pid).then(Instant::now);
        outputs.iter_mut().for_each(Output::drain);
        if end.is_none() && start.elapsed() > limit {
            let ([begin, end], seconds) = (late, limit.as_secs_f64());
            let text = format!("{begin} had not ended after {seconds} s and was killed{end}");
            asked = asked.and(Err(Failure::new(text)));
        }
        if asked.is_err() && stopped.is_ok() {
            kill(pid, Signal::KILL)?;
            stopped = asked;
        }
        if let Some(end) = end {
            break end;
        }
    };
    let (status, usage) = usage::wait(child.id()).map_err(failed("waiting for the program"))?;
    let left = kill_process_group(pid, Signal::KILL).is_ok();
    stopped?;
    let [stdout, stderr] = outputs;
    Ok(Run {
        wall_ns: end.duration_since(start).as_secs_f64() * 1e9,
        usage,
        instructions: counter.and_then(|counter| counter.read().ok()).filter(|count| *count > 0),
        status: ExitStatus::from_raw(status),
        printed: (stdout.hash.finish(), stdout.len),
        output: stdout.end,
        errors: stderr.end,
        left,
    })
}

/// Sends the signal to a child's group and, if the child has left its group, to the child itself. Call this before the
/// child is waited for.
pub(super) fn kill(pid: Pid, signal: Signal) -> Result {
    // The result is ignored, because this call succeeds even if only other processes of the group got the signal.
    let _ = kill_process_group(pid, signal);
    let is_member = getpgid(Some(pid)) == Ok(pid);
    let sent = if is_member { test_kill_process(pid) } else { kill_process(pid, signal) };
    let number = pid.as_raw_nonzero();
    sent.map_err(failed(format!("the program, process {number}, can't be ended")))
}

/// The output of a program on one stream.
#[derive(Default)]
struct Output {
    reader: Option<PipeReader>,
    hash: DefaultHasher,
    len: u64,
    end: Vec<u8>,
}

impl Output {
    /// Creates the pipe that receives the program's output.
    fn pipe(&mut self) -> Result<Stdio> {
        let (reader, writer) = std::io::pipe()?;
        fcntl_setfl(&reader, OFlags::NONBLOCK).map_err(failed("making a pipe for the output"))?;
        self.reader = Some(reader);
        Ok(writer.into())
    }

    /// Reads the output that is available. (The output can't be read to its end, because a process that outlives the
    /// program may hold the pipe open.)
    fn drain(&mut self) {
        let mut bytes = [0; 64 << 10];
        // The number of reads is limited, because a program may print as fast as this loop reads. The limit is enough
        // for a full pipe, which holds a megabyte at most.
        for _ in 0..64 {
            let Some(reader) = &mut self.reader else { return };
            match reader.read(&mut bytes) {
                Ok(0) => self.reader = None,
                Ok(len) => {
                    self.hash.write(&bytes[..len]);
                    self.len += len as u64;
                    self.end.extend(&bytes[len.saturating_sub(KEPT)..len]);
                    self.end.drain(..self.end.len().saturating_sub(KEPT));
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.reader = None,
            }
        }
    }
}

/// Waits until `time` is over, one of `fds` is ready, or a child process ends. Returns an error if a signal arrives.
pub(super) fn no_signal<'fd>(
    signals: &'fd Signals,
    fds: impl IntoIterator<Item = BorrowedFd<'fd>>,
    time: Duration,
) -> Result {
    match signals.wait(fds, time)?.0 {
        Some(came) => Err(Failure::new("ended by a signal").with_status(128 + came.signal.as_raw() as u8)),
        None => Ok(()),
    }
}

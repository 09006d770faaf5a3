//! One run of a program, from its start to its end, and the resources that it used.
//!
//! The program has a process group of its own, which is killed if it does not end in time or the command is asked to
//! end. The program's stdin is empty. Its output is read and not stored, except for a hash of stdout and the
//! beginning of stderr.

use std::ffi::OsString;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{ErrorKind, PipeReader, Read as _};
use std::os::unix::prelude::*;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use atrace_sys::usage::{self, Instructions, Usage};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::command::program::{FAILED, Signals};
use crate::command::terminal::{Failure, Result, failed};
use crate::escape::shown;

/// The maximum number of bytes of stderr that are stored.
const KEPT: usize = 8 << 10;
/// The maximum duration of one wait for the program. A signal, or the end of the program, ends the wait earlier.
const LOOK: Duration = Duration::from_millis(20);

/// Environment variables for the program: each variable is set or, if it has no value, removed.
pub(super) type Variables = Vec<(&'static str, Option<OsString>)>;

/// The resources that one run used, and its output.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) wall_ns: f64,
    pub(super) usage: Usage,
    pub(super) instructions: Option<u64>,
    pub(super) status: ExitStatus,
    /// A hash of the run's stdout, and the length of stdout in bytes.
    pub(super) printed: (u64, u64),
    /// The beginning of the run's stderr.
    pub(super) errors: Vec<u8>,
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

/// Runs the program to its end, or until `limit` has passed.
pub(super) fn run(
    program: &[OsString],
    variables: &Variables,
    signals: &Signals,
    limit: Duration,
) -> Result<Run> {
    let (mut stdout, mut stderr) = (Output::default(), Output::default());
    let mut command = command(program, variables);
    command.stdout(stdout.pipe()?).stderr(stderr.pipe()?);
    signals.pass_on(&mut command);
    let counter = Instructions::of_children().ok();
    let start = Instant::now();
    let child = command.spawn().map_err(not_started(program))?;
    // The command holds the pipes' other ends.
    drop(command);
    let pid = pid(child.id())?;
    let (ended, end) = std::io::pipe()?;
    let waiter = std::thread::spawn(move || {
        // `NOWAIT`, because the usage is read before the process is gone.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), how).is_err_and(|e| e == Errno::INTR) {}
        let now = Instant::now();
        drop(end);
        now
    });
    let mut stopped = None;
    let mut is_over = false;
    while !is_over {
        is_over = read_until(&mut stdout, &mut stderr, &ended)?;
        let came = signals.wait(None, Duration::ZERO)?.0;
        if stopped.is_none() && (came.is_some() || start.elapsed() > limit) {
            let _ = kill_process_group(pid, Signal::KILL);
            stopped = Some(came);
        }
    }
    let end = waiter.join().map_err(|_| Failure::new("waiting for the program"))?;
    let (status, usage) = usage::wait(child.id()).map_err(failed("waiting for the program"))?;
    stdout.drain();
    stderr.drain();
    match stopped {
        Some(Some(came)) => {
            let status = 128 + came.signal.as_raw() as u8;
            return Err(Failure::new("ended by a signal").with_status(status));
        }
        Some(None) => {
            return Err(Failure::new(format!(
                "the program had not ended after {} s and was killed: give it more --time; for a service, which does not \
                 end, use --switch with --unit",
                limit.as_secs_f64()
            ))
            .with_status(FAILED));
        }
        None => {}
    }
    Ok(Run {
        wall_ns: end.duration_since(start).as_secs_f64() * 1e9,
        usage,
        instructions: counter.and_then(|counter| counter.read().ok()).filter(|count| *count > 0),
        status: ExitStatus::from_raw(status),
        printed: (stdout.hash.finish(), stdout.len),
        errors: stderr.start,
    })
}

/// Returns the process id of a child.
pub(super) fn pid(child: u32) -> Result<Pid> {
    let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| Failure::new("the program has no process id"))
}

/// The output of a program on one stream.
#[derive(Default)]
struct Output {
    reader: Option<PipeReader>,
    hash: DefaultHasher,
    len: u64,
    start: Vec<u8>,
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
        // Not for ever, as a program may print as fast as this reads. A pipe holds a megabyte at most.
        for _ in 0..64 {
            let Some(reader) = &mut self.reader else { return };
            match reader.read(&mut bytes) {
                Ok(0) => self.reader = None,
                Ok(len) => {
                    self.hash.write(&bytes[..len]);
                    self.len += len as u64;
                    self.start.extend(&bytes[..len.min(KEPT - self.start.len())]);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(_) => self.reader = None,
            }
        }
    }
}

/// Waits for output, and reads it. Returns whether the program has ended.
fn read_until(stdout: &mut Output, stderr: &mut Output, ended: &PipeReader) -> Result<bool> {
    let open = [&*stdout, &*stderr].into_iter().filter_map(|output| output.reader.as_ref());
    let fds = std::iter::once(ended.as_fd()).chain(open.map(AsFd::as_fd)).collect::<Vec<_>>();
    let mut places: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut places, Timespec::try_from(LOOK).ok().as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(e) => return Err(failed("waiting for the program")(e)),
    }
    let is_over = !places[0].revents().is_empty();
    stdout.drain();
    stderr.drain();
    Ok(is_over)
}

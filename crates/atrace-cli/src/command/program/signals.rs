//! The signals that ask this command to end.
//!
//! A handler writes each signal to a pipe, so that the main thread can wait for signals with `poll` (the *self-pipe
//! trick*).
//!
//! # The end of a child process
//!
//! SIGCHLD, which announces the end of a child process, is caught in the same way, so the end of a child ends a wait.
//! If this command was started with SIGCHLD ignored, the kernel would not keep the exit status of a child process. The
//! handler prevents this. With [`Signals::pass_on`], a program that the command starts still inherits that SIGCHLD is
//! ignored.
//!
//! # The witness
//!
//! The witness is a process that shows whether a signal was sent to this command alone, or to its whole process group.
//!
//! The program is in the command's process group, as every process of a shell's job is. So the terminal's keys, job
//! control and pipes work. A signal to the group reaches the program directly. A signal to the command alone must be
//! forwarded to the program. The signal itself does not show whether it was sent to the group or to the command alone.
//!
//! A third process in the group, the witness, reports to the command each signal that the witness receives. If the
//! command and the witness have both received a signal, the signal was sent to the group. If no report comes, the
//! command asks the witness. The witness first reports all signals that it has received, and then answers. So the
//! result is right even if the witness was not scheduled for a while.
//!
//! If the program had a separate group instead, the command would have to give that group the terminal and take it
//! back, as a shell does (`tcsetpgrp`). The other programs of a pipe (`atrace run … | less`) would lose the terminal.

use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use atrace_sys::fork::{Generation, generation};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::{Errno, read, write};
use rustix::process::Signal;

use crate::command::terminal::{Failure, Result, failed};
use crate::process::Process;

const ENDS: [Signal; 4] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT];

/// The maximum length of the pause that replaces a wait if a system call filter refuses `poll`.
const REST: Duration = Duration::from_millis(50);

/// A signal that was caught, and whether a process has sent the signal. A signal that no process has sent comes from
/// the kernel, usually because a key of the terminal was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caught {
    pub(crate) signal: Signal,
    pub(crate) from_process: bool,
}

/// The signals that this process catches. A program that this process starts inherits no handlers.
pub(crate) struct Signals {
    pipe: PipeReader,
    pub(crate) caught: Vec<Signal>,
    /// Whether this process was started with SIGCHLD ignored.
    ignores_children: bool,
}

impl Signals {
    /// Catches SIGCHLD, the signals that ask a process to end, and the signal `other`, if one is given. A signal that
    /// asks a process to end and that this process ignores, for example under `nohup`, stays ignored.
    pub(crate) fn catch(other: Option<Signal>) -> Result<Self> {
        let ignored = Process::this().ignored_signals();
        let is_ignored = |signal: &Signal| ignored >> (signal.as_raw() - 1) & 1 == 1;
        let ends = ENDS.into_iter().filter(|signal| !is_ignored(signal));
        let all = Self::of(ends.chain(other).chain([Signal::CHILD]))?;
        Ok(Self { ignores_children: is_ignored(&Signal::CHILD), ..all })
    }

    /// Makes the program of `command` ignore SIGCHLD if this process was started with SIGCHLD ignored.
    #[allow(unsafe_code, reason = "a signal is ignored between fork and exec")]
    pub(crate) fn pass_on(&self, command: &mut Command) {
        if self.ignores_children {
            let ignore = || {
                // SAFETY: SIG_IGN is no function.
                unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
                Ok(())
            };
            // SAFETY: `signal` may be called between fork and exec.
            unsafe { command.pre_exec(ignore) };
        }
    }

    #[allow(unsafe_code, reason = "a handler may do little, which the compiler does not know")]
    pub(crate) fn of(signals: impl IntoIterator<Item = Signal>) -> Result<Self> {
        let (pipe, end) = std::io::pipe()?;
        for end in [pipe.as_fd(), end.as_fd()] {
            fcntl_setfl(end, OFlags::NONBLOCK).map_err(failed("making a pipe for signals"))?;
        }
        let (end, mut caught) = (Arc::new(end), signals.into_iter().collect::<Vec<_>>());
        for signal in &caught {
            let (number, end) = (signal.as_raw(), Arc::clone(&end));
            // SAFETY: the handler makes one call, `write` on a non-blocking pipe, which is async-signal-safe. The
            // handler allocates nothing, takes no lock, and does not panic. `signal_hook_registry` restores errno after
            // the handler.
            let done = unsafe {
                signal_hook_registry::register_sigaction(number, move |info| {
                    // `si_code` is positive if the kernel sent the signal, and not a process.
                    let _ = write(&*end, &[number as u8, u8::from(info.si_code <= 0)]);
                })
            };
            done.map_err(failed("catching signals"))?;
        }
        caught.retain(|signal| *signal != Signal::CHILD);
        Ok(Self { pipe, caught, ignores_children: false })
    }

    /// Waits until a signal arrives, a child process ends, one of `fds` is ready, or the time is over. Returns the
    /// signal, if one other than SIGCHLD arrived, and whether the last of `fds` is ready.
    pub(crate) fn wait<'fd>(
        &'fd self,
        fds: impl IntoIterator<Item = BorrowedFd<'fd>>,
        time: Duration,
    ) -> Result<(Option<Caught>, bool)> {
        let descriptors: Vec<_> = std::iter::once(self.pipe.as_fd()).chain(fds).collect();
        let is_ready = is_ready(&descriptors, time).map_err(failed("waiting for signals"))?;
        let is_ready = descriptors.len() > 1 && is_ready;
        // If another signal came together with SIGCHLD, that signal is returned now, because it may have killed the
        // program.
        loop {
            let mut bytes = [0; 2];
            let signal = match read(&self.pipe, &mut bytes) {
                Ok(2) => Signal::from_named_raw(bytes[0].into()),
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => None,
                Err(e) => return Err(failed("reading a signal")(e)),
            };
            if signal != Some(Signal::CHILD) {
                let from_process = bytes[1] == 1;
                return Ok((signal.map(|signal| Caught { signal, from_process }), is_ready));
            }
        }
    }
}

/// Waits until a descriptor is ready or the time is over. Returns whether the last descriptor is ready.
fn is_ready(descriptors: &[BorrowedFd<'_>], timeout: Duration) -> rustix::io::Result<bool> {
    let mut places: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    match poll(&mut places, Timespec::try_from(timeout).ok().as_ref()) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok(false),
        // A system call filter may deny `poll`. The caller then checks after a pause whether the event that it waits
        // for has occurred.
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => {
            std::thread::sleep(timeout.min(REST));
            return Ok(false);
        }
        Err(e) => return Err(e),
    }
    Ok(places.last().is_some_and(|place| !place.revents().is_empty()))
}

/// How long to wait for the witness's report after a signal has reached this command, before the command asks the
/// witness. The report may come late, because a sender may signal one process of the group after the other.
const GRACE: Duration = Duration::from_millis(100);

/// How long to wait for the witness's answer. A witness that is stopped does not answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The byte with which the witness answers. No signal has this number.
const ANSWER: u8 = 0;

/// How long a report is valid. If a signal is sent twice, this process may receive it only once, while the witness
/// reports it twice. The second report must not count for a later signal.
const FRESH: Duration = Duration::from_millis(300);

#[derive(clap::Args, Debug)]
pub(crate) struct WitnessArgs {
    /// The numbers of the signals that the witness reports.
    #[arg(required = true)]
    signals: Vec<i32>,
}

/// The witness's main function: reports each signal as a byte on stdout, and answers each input on stdin, until stdin
/// ends.
pub(crate) fn witness_main(args: &WitnessArgs) -> Result {
    let signals = Signals::of(args.signals.iter().filter_map(|&number| Signal::from_named_raw(number)))?;
    let (stdin, mut stdout) = (std::io::stdin(), std::io::stdout());
    let mut say = |byte| stdout.write_all(&[byte]).and_then(|()| stdout.flush());
    // The first answer tells the command that the witness's signal handlers are installed.
    say(ANSWER)?;
    loop {
        let (mut came, is_asked) = signals.wait(Some(stdin.as_fd()), Duration::from_secs(3600))?;
        if is_asked && read(&stdin, &mut [0; 64]).map_err(failed("reading the command's question"))? == 0 {
            return Ok(());
        }
        while let Some(Caught { signal, .. }) = came {
            say(signal.as_raw() as u8)?;
            (came, _) = signals.wait(None, Duration::ZERO)?;
        }
        if is_asked {
            say(ANSWER)?;
        }
    }
}

/// The command's handle of the witness: the child process, and the reports that it sends.
pub(crate) struct Witness {
    child: Child,
    reports: ChildStdout,
    /// The signals that the witness has reported, and when the reports arrived.
    reported: Vec<(u8, Instant)>,
    by: Generation,
}

impl Witness {
    /// Starts the witness. This must happen before the program is started. Returns `None` if no signals are caught.
    /// Returns an error if one of the caught signals, except SIGUSR1, arrives before the witness is ready. The error
    /// has the exit status of a program that was killed by this signal.
    pub(crate) fn start(signals: &Signals) -> Result<Option<Self>> {
        let numbers: Vec<_> = signals.caught.iter().map(|signal| signal.as_raw().to_string()).collect();
        if numbers.is_empty() {
            return Ok(None);
        }
        let this = std::env::current_exe().map_err(failed("finding this command itself"))?;
        let mut command = Command::new(this);
        command.arg("__witness").args(numbers);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed("starting a witness of signals"))?;
        let Some(reports) = child.stdout.take() else { return Ok(None) };
        let mut witness = Self { child, reports, reported: Vec::new(), by: generation() };
        let ready = witness.reports.read_exact(&mut [0]);
        // A signal that arrives now can't be forwarded, because the program is not started yet. If the witness has
        // ended, a signal to the group has killed the witness, and the same signal is about to arrive here.
        let (patience, start) = (if ready.is_ok() { Duration::ZERO } else { GRACE }, Instant::now());
        let mut came = signals.wait(None, patience)?.0;
        // The end of the witness (SIGCHLD) ends a wait, too. Then the command waits again for the signal.
        while came.is_none() && start.elapsed() < patience {
            came = signals.wait(None, patience.saturating_sub(start.elapsed()))?.0;
        }
        if let Some(came) = came.filter(|came| came.signal != Signal::USR1) {
            let status = 128 + came.signal.as_raw() as u8;
            return Err(Failure::new("ended by a signal, before the program was started").with_status(status));
        }
        ready.map_err(failed("waiting for the witness of signals"))?;
        Ok(Some(witness))
    }

    /// Returns whether the signal that has just arrived was sent to the whole group.
    pub(crate) fn saw(&mut self, signal: Signal) -> bool {
        let signal = signal.as_raw() as u8;
        self.hears(&[signal], GRACE) == Some(signal)
            || self.asks() && self.hears(&[signal, ANSWER], PATIENCE) == Some(signal)
    }

    /// Asks the witness, which first reports its signals and then answers. Returns false if the witness has ended.
    fn asks(&mut self) -> bool {
        self.reported.retain(|(byte, _)| *byte != ANSWER);
        self.child.stdin.as_mut().is_some_and(|input| input.write_all(&[ANSWER]).is_ok())
    }

    /// Waits until the witness has sent one of the bytes in `awaited`. Returns the first such byte that has arrived,
    /// and forgets all bytes that are equal to it. Returns `None` if the time is over, or the witness has ended.
    fn hears(&mut self, awaited: &[u8], patience: Duration) -> Option<u8> {
        let start = Instant::now();
        loop {
            let is_there = self.listen(patience.saturating_sub(start.elapsed()));
            let byte = self.reported.iter().map(|(byte, _)| *byte).find(|byte| awaited.contains(byte));
            if byte.is_some() {
                self.reported.retain(|(other, _)| Some(*other) != byte);
                return byte;
            }
            if !is_there || start.elapsed() >= patience {
                return None;
            }
        }
    }

    /// Reads the reports that have arrived, and forgets the old ones. Don't call this after a signal has arrived and
    /// before `saw` was called for it: if this process was not scheduled for a while, the report of that signal may be
    /// old already, and would be forgotten.
    pub(crate) fn look(&mut self) {
        self.listen(Duration::ZERO);
        self.reported.retain(|(_, at)| at.elapsed() < FRESH);
    }

    /// Waits for a report. Returns false if the witness has ended.
    fn listen(&mut self, patience: Duration) -> bool {
        let is_ready = is_ready(&[self.reports.as_fd()], patience).unwrap_or(false);
        if !is_ready {
            return true;
        }
        let mut bytes = [0; 64];
        match self.reports.read(&mut bytes) {
            Ok(0) | Err(_) => false,
            Ok(len) => {
                let now = Instant::now();
                self.reported.extend(bytes.iter().take(len).map(|byte| (*byte, now)));
                true
            }
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        if self.by == generation() {
            // `kill` sends SIGKILL, which also ends a witness that is stopped.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

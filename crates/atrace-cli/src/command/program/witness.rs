//! The witness: a process that shows whether a signal was sent to this command alone, or to its whole process group.
//!
//! # The problem
//!
//! The program is in the command's process group, as every process of a shell's job is. So the terminal's keys, job
//! control and pipes work. A signal to the group reaches the program directly. A signal to the command alone must be
//! forwarded. A signal does not tell which of the two it was.
//!
//! # How it works
//!
//! A third process in the group, the witness, reports each signal that it gets to the command. If the witness got the
//! signal, too, it was sent to the group.
//!
//! # Why not a separate group
//!
//! The command would have to give the program's group the terminal and take it back, as a shell does (`tcsetpgrp`).
//! The other programs of a pipe (`atrace run … | less`) would lose the terminal.

use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use atrace_sys::fork::{Generation, generation};
use rustix::process::Signal;

use crate::command::program::signals::{Signals, is_ready};
use crate::command::terminal::{Failure, Result, failed};

/// How long to wait for the witness's report after a signal has reached this command.
const GRACE: Duration = Duration::from_millis(100);

/// How long a report is kept. If two equal signals merge into one here, one of their reports is left over, and must
/// not count for a later signal.
const FRESH: Duration = Duration::from_millis(300);

#[derive(clap::Args, Debug)]
pub(crate) struct WitnessArgs {
    /// The signals to report.
    #[arg(required = true)]
    signals: Vec<i32>,
}

/// The witness's main function: reports each signal as a byte, until its input ends.
pub(crate) fn main(args: &WitnessArgs) -> Result<()> {
    let signals = Signals::of(args.signals.iter().filter_map(|&number| Signal::from_named_raw(number)))?;
    let mut stdout = std::io::stdout();
    // The first byte tells that the handlers are installed.
    stdout.write_all(&[0])?;
    stdout.flush()?;
    loop {
        let (came, is_over) = signals.wait(Some(&std::io::stdin()), Duration::from_secs(3600))?;
        if is_over {
            return Ok(());
        }
        if let Some(came) = came {
            stdout.write_all(&[came.signal.as_raw() as u8])?;
            stdout.flush()?;
        }
    }
}

/// The command's handle of the witness.
#[derive(Debug)]
pub(crate) struct Witness {
    child: Child,
    reports: ChildStdout,
    /// The reported signals, and when their reports arrived.
    reported: Vec<(u8, Instant)>,
    by: Generation,
}

impl Witness {
    /// Starts the witness. This must happen before the program is started. Returns `None` if no signals are caught.
    /// If one of the signals arrives in the meantime, returns an error with the exit status of a program that was
    /// killed by it.
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
        // There is no program yet that the signal could be forwarded to. If the witness has ended, a signal to the
        // group killed it, and the same signal is about to arrive here.
        let patience = if ready.is_ok() { Duration::ZERO } else { GRACE };
        if let (Some(came), _) = signals.wait(None::<&ChildStdout>, patience)?
            && came.signal != Signal::USR1
        {
            let status = 128 + came.signal.as_raw() as u8;
            return Err(Failure::new("ended by a signal, before the program was started").with_status(status));
        }
        ready.map_err(failed("waiting for the witness of signals"))?;
        Ok(Some(witness))
    }

    /// Tells whether the signal that has just arrived was sent to the group.
    pub(crate) fn saw(&mut self, signal: Signal) -> bool {
        let start = Instant::now();
        loop {
            let is_there = self.listen(GRACE.saturating_sub(start.elapsed()));
            self.reported.retain(|(_, at)| at.elapsed() < FRESH);
            let before = self.reported.len();
            self.reported.retain(|(number, _)| i32::from(*number) != signal.as_raw());
            if self.reported.len() < before {
                return true;
            }
            if !is_there || start.elapsed() >= GRACE {
                return false;
            }
        }
    }

    /// Reads the reports that have arrived.
    pub(crate) fn look(&mut self) {
        self.listen(Duration::ZERO);
        self.reported.retain(|(_, at)| at.elapsed() < FRESH);
    }

    /// Waits for a report. Returns false if the witness has ended.
    fn listen(&mut self, patience: Duration) -> bool {
        let is_ready = is_ready([Some(self.reports.as_fd())], patience).unwrap_or(false);
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
            // SIGKILL, because the witness may be stopped.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

//! The program as a child process of the command: it is started through `stage`, and waited for.
//!
//! # Signals
//!
//! A signal that asks the command to end is meant for the program, too. If it was sent to the whole process group
//! (`witness`), the program has received it already; otherwise [`wait`] forwards it.
//!
//! # Waiting
//!
//! A thread waits for the program's end with `waitid` and closes a pipe then, so that the main thread can wait for
//! signals and for the end at once.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, kill_process, waitid};

use crate::command::caller::Caller;
use crate::command::program::signals::Signals;
use crate::command::program::witness::Witness;
use crate::command::terminal::{Failure, Result, failed};

/// The exit status if the command itself fails. `env`, `nohup` and similar commands use the same number.
pub(crate) const FAILED: u8 = 125;

/// The maximum time between two calls of `look`.
const LOOK: Duration = Duration::from_millis(250);

/// A program to start, and its environment.
pub(crate) struct Program<'a> {
    command: &'a [OsString],
    marker: Option<&'a Path>,
    /// The directory of the buffer for names of processes.
    names: Option<&'a Path>,
    /// Environment variables to set, or to remove if they have no value.
    variables: Vec<(&'a str, Option<&'a Path>)>,
    /// The user that the program runs as, if not the user of this process.
    user: Option<&'a Caller>,
}

impl<'a> Program<'a> {
    /// A program that writes to this marker and is switched by this property store.
    pub(crate) fn of_kernel(
        command: &'a [OsString],
        marker: &'a Path,
        names: Option<&'a Path>,
        store: &'a Path,
        user: Option<&'a Caller>,
    ) -> Self {
        let variables = vec![("ATRACE_PROPERTIES", Some(store)), ("ATRACE_BACKEND", None)];
        Self { command, marker: Some(marker), names, variables, user }
    }

    /// A program that connects to the service at this socket.
    pub(crate) fn of_service(command: &'a [OsString], socket: &'a Path, user: Option<&'a Caller>) -> Self {
        let backend = Some(Path::new("perfetto"));
        let variables = vec![
            ("PERFETTO_PRODUCER_SOCK_NAME", Some(socket)),
            ("ATRACE_BACKEND", backend),
            ("ATRACE_MARKER", None),
        ];
        Self { command, marker: None, names: None, variables, user }
    }

    /// Starts the program. Returns when it was executed, or failed to.
    pub(crate) fn start(&self) -> Result<Child> {
        let this = std::env::current_exe().map_err(failed("finding this command itself"))?;
        let (mut errors, report) = std::io::pipe()?;
        fcntl_setfd(&report, FdFlags::empty()).map_err(failed("sharing a pipe"))?;
        let mut command = Command::new(this);
        command.arg("__become").arg("--report").arg(report.as_raw_fd().to_string());
        if let Some(marker) = self.marker {
            command.arg("--marker").arg(marker);
        }
        if let Some(names) = self.names {
            command.arg("--names").arg(names);
        }
        if let Some(user) = self.user {
            let groups: Vec<_> = user.groups.iter().map(u32::to_string).collect();
            command.arg("--uid").arg(user.uid.to_string()).arg("--gid").arg(user.gid.to_string());
            command.arg("--groups").arg(groups.join(","));
            for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND", "PKEXEC_UID"] {
                command.env_remove(name);
            }
            if let Some((name, home)) = &user.known {
                command.env("USER", name).env("LOGNAME", name).env("HOME", home);
            }
        }
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child =
            command.arg("--").args(self.command).spawn().map_err(failed("starting the program"))?;
        drop(report);
        let mut error = String::new();
        let _ = errors.read_to_string(&mut error);
        match error.split_once(' ') {
            None => Ok(child),
            Some((status, text)) => {
                let _ = child.wait();
                Err(Failure::new(text).with_status(status.parse().unwrap_or(FAILED)))
            }
        }
    }
}

/// Waits for the program. Forwards the signals of this process, and calls `look` from time to time. The argument of
/// `look` tells whether SIGUSR1 came, which is not forwarded.
pub(crate) fn wait(
    child: &mut Child,
    signals: &Signals,
    mut witness: Option<Witness>,
    mut look: impl FnMut(bool) -> Result<()>,
) -> Result<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new("the program has no number"))?;
    let (ended, end) = std::io::pipe()?;
    std::thread::spawn(move || {
        // `NOWAIT` leaves the program as a zombie, so its process id is not reused before it is waited for.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), how).is_err_and(|e| e == Errno::INTR) {}
        drop(end);
    });
    for looks in 0_u32.. {
        // The first calls of `look` follow each other quickly, so that processes with a short life are seen.
        let (came, is_over) =
            signals.wait(Some(&ended), Duration::from_millis(1 << looks.min(16)).min(LOOK))?;
        let asks = came.is_some_and(|came| came.signal == Signal::USR1);
        if let Some(came) = came.filter(|_| !asks) {
            let is_groups = witness.as_mut().is_some_and(|witness| witness.saw(came.signal));
            // The terminal sends its signals to all processes of its foreground job, so they are not forwarded. A
            // signal that a process sent to the group has reached the program, unless the program has left the group.
            if came.from_process && !(is_groups && getpgid(Some(pid)) == Ok(getpgrp())) {
                let _ = kill_process(pid, came.signal);
            }
        }
        if is_over || has_ended(pid) {
            break;
        }
        if let Some(witness) = &mut witness {
            witness.look();
        }
        look(asks)?;
    }
    child.wait().map_err(failed("waiting for the program"))
}

/// Tells whether the program has ended, without waiting. Used in case the pipe can't be waited for.
fn has_ended(pid: Pid) -> bool {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(pid), how), Ok(Some(_)))
}

/// Returns the exit status in a shell's form: for a program that was killed by a signal, 128 plus the signal's
/// number.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

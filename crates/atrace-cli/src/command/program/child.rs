//! The program as a child process of the command: started (through `stage`), and waited for.

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

/// The exit status where this command itself fails, as other commands that start one have it.
pub(crate) const FAILED: u8 = 125;

/// How often the program is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// The program, and what it is given.
pub(crate) struct Program<'a> {
    command: &'a [OsString],
    marker: Option<&'a Path>,
    /// The directory of the buffer for names.
    names: Option<&'a Path>,
    /// Variables of its environment; those without a value it is not to have.
    variables: Vec<(&'a str, Option<&'a Path>)>,
    /// Who it runs as, if not the user of this process.
    user: Option<&'a Caller>,
}

impl<'a> Program<'a> {
    /// One that writes to this marker, by this property store.
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

    /// One that finds this socket's service.
    pub(crate) fn of_service(command: &'a [OsString], socket: &'a Path, user: Option<&'a Caller>) -> Self {
        let backend = Some(Path::new("perfetto"));
        let variables = vec![
            ("PERFETTO_PRODUCER_SOCK_NAME", Some(socket)),
            ("ATRACE_BACKEND", backend),
            ("ATRACE_MARKER", None),
        ];
        Self { command, marker: None, names: None, variables, user }
    }

    /// Starts the program.
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

/// Waits for the program, hands on the signals of this process, and calls `look` from time to time, with whether SIGUSR1
/// came: that, where it is caught, is for this process.
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
        // Leaves it to be waited for, so that its number stays its own until then.
        let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(pid), how).is_err_and(|e| e == Errno::INTR) {}
        drop(end);
    });
    for looks in 0_u32.. {
        // Early looks come soon, so that programs that do not live long are seen.
        let (came, is_over) =
            signals.wait(Some(&ended), Duration::from_millis(1 << looks.min(16)).min(LOOK))?;
        let asks = came.is_some_and(|came| came.signal == Signal::USR1);
        if let Some(came) = came.filter(|_| !asks) {
            let is_groups = witness.as_mut().is_some_and(|witness| witness.saw(came.signal));
            // What the terminal sends is for those who are in its job; what a process sends to a group reaches the
            // program if it has not left that.
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

/// Whether the program has ended, for where nothing can be waited for. It is still to be waited for.
fn has_ended(pid: Pid) -> bool {
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    matches!(waitid(WaitId::Pid(pid), how), Ok(Some(_)))
}

/// The exit status as a shell tells it: 128 and the number of the signal that ended the program.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

//! The program as a child process of the command: how it is started, and how the command waits for its end.
//!
//! # Signals
//!
//! A signal that asks the command to end must reach the program, too. If the signal was sent to the whole process group
//! (see [`Witness`]), a program that is still in the group has received it already. Otherwise [`wait`] forwards the
//! signal to the program.
//!
//! # Waiting
//!
//! When the program ends, the command gets SIGCHLD, which ends its wait for signals. [`wait`] then asks the kernel
//! whether the program has ended.
//!
//! # The stage
//!
//! The process that `atrace run` starts (`__become`, the *stage*) is another instance of `atrace`, which prepares
//! itself and then executes the program. If the recording has a marker, the stage opens the marker, so that the program
//! inherits the descriptor. If the program is to run as the user who called sudo, the stage changes its ids to those of
//! that user and the user's groups. The stage writes errors to the pipe whose descriptor is the argument of `--report`.
//! The pipe is closed when the program is executed, so the command notices that the program has started.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, getpgrp, kill_process, waitid};

use crate::command::buffer::Names;
use crate::command::caller::{Caller, take_on};
use crate::command::program::signals::Signals;
use crate::command::program::signals::Witness;
use crate::command::terminal::{Failure, Result, failed, shown_path};
use crate::escape::shown;

/// The exit status if the command itself fails, and not the program. `env`, `nohup` and similar commands use the same
/// exit status.
pub(crate) const FAILED: u8 = 125;

/// The maximum time between two calls of the argument `look` of [`wait`].
const LOOK: Duration = Duration::from_millis(250);

/// Starts the program as `user` or, if `user` is `None`, as the user of this process. Returns when the program was
/// executed, or could not be executed.
///
/// `signals` are the signals that this process catches. `arguments` are the arguments of the stage, the process that
/// executes the program. `variables` are the program's environment variables: each is set or, if it has no value,
/// removed.
pub(crate) fn start(
    program: &[OsString],
    user: Option<&Caller>,
    signals: &Signals,
    arguments: &[(&str, Option<&Path>)],
    variables: &[(&str, Option<&Path>)],
) -> Result<Child> {
    let this = std::env::current_exe().map_err(failed("finding this command itself"))?;
    let (mut errors, report) = std::io::pipe()?;
    fcntl_setfd(&report, FdFlags::empty()).map_err(failed("sharing a pipe"))?;
    let mut command = Command::new(this);
    command.arg("__become").arg("--report").arg(report.as_raw_fd().to_string());
    for (name, value) in arguments {
        command.args(value.map(|value| [name.as_ref(), value.as_os_str()]).into_iter().flatten());
    }
    if let Some(user) = user {
        let ids: Vec<_> = std::iter::once(&user.uid).chain(&user.groups).map(u32::to_string).collect();
        command.arg("--ids").arg(ids.join(","));
        for name in ["SUDO_UID", "SUDO_GID", "SUDO_USER", "SUDO_COMMAND", "PKEXEC_UID"] {
            command.env_remove(name);
        }
        if let Some((name, home)) = &user.known {
            command.env("USER", name).env("LOGNAME", name).env("HOME", home);
        }
    }
    for (name, value) in variables {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    signals.pass_on(&mut command);
    let mut child = command.arg("--").args(program).spawn().map_err(failed("starting the program"))?;
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

/// Waits until the program has ended. Forwards the signals that this process has received and the program has not, and
/// calls `look` at intervals. The argument of `look` is true if SIGUSR1 has arrived, which is not forwarded. Returns
/// the program's exit status, and whether a signal asked this command to end.
pub(crate) fn wait(
    child: &mut Child,
    signals: &Signals,
    mut witness: Option<Witness>,
    mut look: impl FnMut(bool),
) -> Result<(ExitStatus, bool)> {
    let mut is_asked = false;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Failure::new("the program has no process id"))?;
    for looks in 0_u32.. {
        // The first calls of `look` follow each other quickly, so that `look` also sees processes that end soon.
        let (came, _) = signals.wait(None, Duration::from_millis(1 << looks.min(16)).min(LOOK))?;
        let asks = came.is_some_and(|came| came.signal == Signal::USR1);
        if let Some(came) = came.filter(|_| !asks) {
            is_asked = true;
            let is_groups = witness.as_mut().is_some_and(|witness| witness.saw(came.signal));
            // The terminal sends its signals to all processes of its foreground job, so they are not forwarded. A
            // signal that a process sent to the group has reached the program, unless the program has left the group.
            if came.from_process && !(is_groups && getpgid(Some(pid)) == Ok(getpgrp())) {
                let _ = kill_process(pid, came.signal);
            }
        }
        if has_ended(pid) {
            break;
        }
        if let Some(witness) = &mut witness {
            witness.look();
        }
        look(asks);
    }
    Ok((child.wait().map_err(failed("waiting for the program"))?, is_asked))
}

/// Returns whether the program has ended, or can't be waited for. Returns at once.
pub(crate) fn has_ended(pid: Pid) -> bool {
    // `NOWAIT` leaves the program as a zombie, so its process id is not reused before it is waited for.
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    !matches!(waitid(WaitId::Pid(pid), how), Ok(None))
}

/// Returns the exit status in a shell's form: for a program that was killed by a signal, 128 plus the signal's
/// number.
pub(crate) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

/// The lowest number that the marker's descriptor gets in the program. Programs rarely use such high numbers for their
/// own descriptors.
pub(crate) const MARKER_FD: RawFd = 100;

#[derive(clap::Args, Debug)]
pub(crate) struct StageArgs {
    #[arg(long)]
    pub(crate) report: RawFd,
    #[arg(long)]
    pub(crate) marker: Option<PathBuf>,
    #[arg(long)]
    pub(crate) names: Option<PathBuf>,
    /// The id of the user as whom the program runs, and after it the ids of the user's groups, the primary group first.
    #[arg(long, value_delimiter = ',')]
    pub(crate) ids: Vec<u32>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Prepares this process and executes the program in it. Returns only if that fails.
#[allow(unsafe_code, reason = "a descriptor comes from another process as a number")]
pub(crate) fn become_main(args: &StageArgs) -> ExitCode {
    // SAFETY: the command that started this process created the pipe and passed this number. Nothing else in this
    // process uses or closes the descriptor.
    let mut report = unsafe { File::from_raw_fd(args.report) };
    let Err(failure) = fcntl_setfd(&report, FdFlags::CLOEXEC)
        .map_err(failed("keeping the pipe for error reports open"))
        .and_then(|()| become_program(args));
    let _ = write!(report, "{} {failure}", failure.status);
    ExitCode::from(failure.status)
}

fn become_program(args: &StageArgs) -> Result<std::convert::Infallible> {
    let named =
        args.marker.as_ref().map(|marker| inherit(marker).map_err(failed(shown_path(marker)))).transpose()?;
    if let Some(names) = &args.names {
        Names::begin(names).map_err(failed(shown_path(names)))?;
    }
    if let [uid, groups @ ..] = &*args.ids {
        // The call changes the ids of this thread, which is the only thread of the process.
        take_on(*uid, groups, true)
            .map_err(|e| Failure::new(format!("becoming user {uid}: {e}")).with_status(125))?;
    }
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::new("no program"))?;
    let mut command = Command::new(program);
    command.args(rest).envs(named.map(|named| ("ATRACE_MARKER", named)));
    let error = command.exec();
    let (status, hint) = match error.kind() {
        io::ErrorKind::NotFound if !args.ids.is_empty() => {
            (127, " (sudo changes PATH: give the program's full path)")
        }
        io::ErrorKind::NotFound => (127, ""),
        _ => (126, ""),
    };
    Err(Failure::new(format!("{}: {error}{hint}", shown(program.as_bytes()))).with_status(status))
}

/// Opens the marker, so that the program inherits the descriptor. Returns the value of `ATRACE_MARKER` for the program:
/// `fd:`, the descriptor's number, and the device and inode of the marker's file.
fn inherit(marker: &Path) -> io::Result<String> {
    let flags = OFlags::APPEND.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(marker)?;
    let data = file.metadata()?;
    // If the limit for descriptors is too low for `MARKER_FD`, any free number is taken.
    let fd = fcntl_dupfd_cloexec(&file, MARKER_FD).or_else(|_| fcntl_dupfd_cloexec(&file, 3))?;
    // Without the flag `FD_CLOEXEC`, the program inherits the descriptor.
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(format!("fd:{}:{}:{}", fd.into_raw_fd(), data.dev(), data.ino()))
}

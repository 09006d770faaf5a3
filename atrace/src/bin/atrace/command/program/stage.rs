//! What `atrace run` starts: itself, to become the program.
//!
//! Here, between the fork and the program, the marker is opened to be inherited, the caller's rights are
//! taken on, and the signals are given back. An error goes to the pipe that the descriptor names; the pipe is
//! closed when the program starts.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use atrace::shown::shown;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use crate::command::buffer::names::Names;
use crate::command::program::signals;
use crate::command::terminal::{Failure, Result, failed, place};

/// The number that the program inherits the marker under, or the next that is free: beyond those that
/// programs count on.
pub(crate) const MARKER_FD: RawFd = 100;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) report: RawFd,
    #[arg(long)]
    pub(crate) marker: PathBuf,
    #[arg(long)]
    pub(crate) names: Option<PathBuf>,
    #[arg(long)]
    pub(crate) uid: Option<u32>,
    #[arg(long, default_value_t = 0)]
    pub(crate) gid: u32,
    #[arg(long, value_delimiter = ',')]
    pub(crate) groups: Vec<u32>,
    #[arg(long, value_delimiter = ',')]
    pub(crate) unblock: Vec<i32>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Becomes the program; returns only if that fails.
pub(crate) fn main(args: &Args) -> ExitCode {
    let mut report = match report(args.report) {
        Ok(report) => report,
        Err(e) => {
            crate::command::terminal::say(e);
            return ExitCode::from(125);
        }
    };
    let Err(failure) = become_program(args);
    let _ = write!(report, "{} {failure}", failure.status);
    ExitCode::from(failure.status)
}

/// The pipe, under a number that the program does not inherit.
fn report(fd: RawFd) -> Result<File> {
    let report = OpenOptions::new().write(true).open(format!("/proc/self/fd/{fd}"));
    let report = report.map_err(failed("opening the way to report errors"))?;
    let _ = nix::unistd::close(fd);
    Ok(report)
}

fn become_program(args: &Args) -> Result<std::convert::Infallible> {
    let named = inherit(&args.marker).map_err(failed(place(&args.marker)))?;
    if let Some(names) = &args.names {
        Names::begin(names).map_err(failed(place(names)))?;
    }
    if let Some(uid) = args.uid {
        take_on(uid, args.gid, &args.groups)
            .map_err(|e| Failure::new(format!("becoming user {uid}: {e}")).with_status(125))?;
    }
    signals::release(&args.unblock)?;
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::new("no program"))?;
    let error = Command::new(program).args(rest).env("ATRACE_MARKER", named).exec();
    let (status, hint) = match error.kind() {
        io::ErrorKind::NotFound if args.uid.is_some() => {
            (127, " (sudo sets PATH anew: name the program with its path)")
        }
        io::ErrorKind::NotFound => (127, ""),
        _ => (126, ""),
    };
    Err(Failure::new(format!("{}: {error}{hint}", shown(program.as_bytes()))).with_status(status))
}

/// Opens the marker so that the program has it open, and returns how it is told so.
fn inherit(marker: &std::path::Path) -> io::Result<String> {
    let file = OpenOptions::new().write(true).custom_flags(nix::libc::O_APPEND).open(marker)?;
    let data = file.metadata()?;
    // Not F_DUPFD_CLOEXEC: the program keeps it. Where the limit is low, wherever there is room.
    let fd = fcntl(&file, FcntlArg::F_DUPFD(MARKER_FD)).or_else(|_| fcntl(&file, FcntlArg::F_DUPFD(3)))?;
    Ok(format!("fd:{fd}:{}:{}", data.dev(), data.ino()))
}

fn take_on(uid: u32, gid: u32, groups: &[u32]) -> nix::Result<()> {
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    setgroups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)
}

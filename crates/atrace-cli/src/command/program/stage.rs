//! The process that `atrace run` starts: another instance of `atrace`, which prepares itself and then executes the
//! program.
//!
//! It opens the marker, if there is one, so that the program inherits it, and takes on the caller's user and groups.
//! It writes errors to the pipe that `--report` names. The pipe is closed when the program is executed, so the
//! command knows that the program has started.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{FromRawFd as _, IntoRawFd as _, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::escape::shown;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::command::buffer::Names;
use crate::command::caller::UNCHANGED;
use crate::command::terminal::{Failure, Result, failed, shown_path};

/// The lowest number for the marker's descriptor in the program. It lies above the numbers that programs commonly
/// use.
pub(crate) const MARKER_FD: RawFd = 100;

#[derive(clap::Args, Debug)]
pub(crate) struct StageArgs {
    #[arg(long)]
    pub(crate) report: RawFd,
    #[arg(long)]
    pub(crate) marker: Option<PathBuf>,
    #[arg(long)]
    pub(crate) names: Option<PathBuf>,
    #[arg(long)]
    pub(crate) uid: Option<u32>,
    #[arg(long, default_value_t = 0)]
    pub(crate) gid: u32,
    #[arg(long, value_delimiter = ',')]
    pub(crate) groups: Vec<u32>,
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

/// Becomes the program. Returns only if that fails.
#[allow(unsafe_code, reason = "a descriptor comes from another process as a number")]
pub(crate) fn main(args: &StageArgs) -> ExitCode {
    // SAFETY: the command that started this process created the pipe and passed this number. Nothing else in this
    // process uses or closes the descriptor.
    let mut report = unsafe { File::from_raw_fd(args.report) };
    let Err(failure) = fcntl_setfd(&report, FdFlags::CLOEXEC)
        .map_err(failed("keeping the way to report errors"))
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
    if let Some(uid) = args.uid {
        take_on(uid, args.gid, &args.groups)
            .map_err(|e| Failure::new(format!("becoming user {uid}: {e}")).with_status(125))?;
    }
    let (program, rest) = args.command.split_first().ok_or_else(|| Failure::new("no program"))?;
    let mut command = Command::new(program);
    command.args(rest).envs(named.map(|named| ("ATRACE_MARKER", named)));
    let error = command.exec();
    let (status, hint) = match error.kind() {
        io::ErrorKind::NotFound if args.uid.is_some() => {
            (127, " (sudo sets PATH anew: name the program with its path)")
        }
        io::ErrorKind::NotFound => (127, ""),
        _ => (126, ""),
    };
    Err(Failure::new(format!("{}: {error}{hint}", shown(program.as_bytes()))).with_status(status))
}

/// Opens the marker for the program to inherit. Returns the value of `ATRACE_MARKER` for it.
fn inherit(marker: &Path) -> io::Result<String> {
    let flags = OFlags::APPEND.bits().cast_signed();
    let file = OpenOptions::new().write(true).custom_flags(flags).open(marker)?;
    let data = file.metadata()?;
    // If the limit for descriptors is low, any free number is taken.
    let fd = fcntl_dupfd_cloexec(&file, MARKER_FD).or_else(|_| fcntl_dupfd_cloexec(&file, 3))?;
    // The program inherits the descriptor.
    fcntl_setfd(&fd, FdFlags::empty())?;
    Ok(format!("fd:{}:{}:{}", fd.into_raw_fd(), data.dev(), data.ino()))
}

/// Takes on a user and groups, irrevocably. This sets the ids of the calling thread only, which is the only one of
/// this process.
fn take_on(uid: u32, gid: u32, groups: &[u32]) -> rustix::io::Result<()> {
    if [uid, gid].contains(&UNCHANGED) {
        return Err(Errno::INVAL);
    }
    let groups: Vec<_> = groups.iter().copied().map(Gid::from_raw).collect();
    set_thread_groups(&groups)?;
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

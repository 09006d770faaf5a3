//! A directory for one execution of `atrace run`, `atrace cost` or `atrace record` (a *run*). The directory is private
//! to the command's user, is in memory (on Android in `/data/local/tmp`), and is removed at the end of the command.
//!
//! # Content and owner
//!
//! A directory holds either the service's socket or the program's property store. The socket's directory belongs to the
//! user of this process, so that no other user can replace the socket. If the program runs as another user, only that
//! user may connect to the socket.
//!
//! # Names and locks
//!
//! The directory's name is unpredictable, so no other user can create it first. The command holds a lock on the
//! directory while it runs. Unlike a process id in the name, a lock also works across PID namespaces. If a directory is
//! not locked, its command was killed, and the next command of the same user removes the directory. Directories with
//! such a name that belong to other users are not touched.
//!
//! # The property store
//!
//! The program's property store enables all tags for all programs. `atrace cost` disables all tags in its store. If the
//! program runs as another user, the store belongs to that user, and this process never opens it.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, read_dir, set_permissions, symlink_metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt as _, lchown};
use std::os::unix::net::UnixListener;
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atrace_sys::fork::{Generation, generation};
use atrace_sys::privsep::{User, Worker, answers};
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use crate::command::caller::Caller;
use crate::command::file::chance;
use crate::command::stores::{self, Store, Work};
use crate::command::terminal::{Failure, Result, failed, say, shown_path};
use crate::escape::shown;

/// The start of the path of a run's directory. The process id of the command and a random number follow.
#[cfg(not(target_os = "android"))]
const PREFIX: &str = "/dev/shm/atrace-run-";
#[cfg(target_os = "android")]
const PREFIX: &str = "/data/local/tmp/atrace-run-";

/// The time limit for removing the directories of killed commands. After this time, the remaining directories are left
/// to the next command.
const SWEEP: Duration = Duration::from_millis(500);

/// The directory of this run. Dropping the `RunDirectory` removes the directory.
pub(crate) struct RunDirectory {
    path: PathBuf,
    /// The open directory, which holds the lock.
    _lock: File,
    by: Generation,
}

impl RunDirectory {
    /// Creates the directory. Also removes the directories of killed commands that belong to this process's user or to
    /// `user`.
    pub(crate) fn make(user: Option<&Caller>) -> Result<Self> {
        let caller = user.map(|user| User { uid: user.uid, gid: user.gid });
        let sweeps = [Some(User::present()), caller]
            .into_iter()
            .flatten()
            .map(|owner| Worker::start(owner, SWEEP, || sweep_of(owner.uid)));
        answers(sweeps.flatten().collect());
        let mut path;
        for _ in 0..100 {
            path = PathBuf::from(format!("{PREFIX}{}-{:016x}", std::process::id(), chance()));
            let made = DirBuilder::new().mode(0o700).create(&path).and_then(|()| lock(&path));
            match made.map_err(|e| (e.kind(), e)) {
                Ok(Some(lock)) => return Ok(Self { path, _lock: lock, by: generation() }),
                // Another command, which removes the directories of killed commands, locked this new directory first.
                // That command removes the directory, unless its time limit (`SWEEP`) has passed.
                Ok(None) => _ = std::fs::remove_dir(&path),
                Err((ErrorKind::NotFound | ErrorKind::AlreadyExists, _)) => {}
                Err((_, e)) => return Err(failed(format!("making a directory, {}", shown_path(&path)))(e)),
            }
        }
        Err(Failure::new(format!("making a directory {PREFIX}…: other processes removed it each time")))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if self.by == generation() {
            // `remove_dir_all` follows no symbolic links. So it removes nothing outside the directory, even if the
            // program's user owns the directory and has put links into it.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// The socket at which the service listens. Dropping the `ServiceSocket` removes the socket.
pub(crate) struct ServiceSocket {
    pub(crate) path: PathBuf,
    _directory: RunDirectory,
}

impl ServiceSocket {
    /// Creates the socket for programs of `user` or, if `user` is `None`, of this process's user.
    pub(crate) fn make(user: Option<&Caller>) -> Result<(Self, UnixListener)> {
        let directory = RunDirectory::make(user)?;
        let socket = directory.path.join("producers");
        let listen = || -> io::Result<UnixListener> {
            let listener = UnixListener::bind(&socket)?;
            set_permissions(&socket, Permissions::from_mode(0o600))?;
            if let Some(user) = user {
                lchown(&socket, Some(user.uid), Some(user.gid))?;
                set_permissions(&directory.path, Permissions::from_mode(0o711))?;
            }
            Ok(listener)
        };
        let problem = |e: io::Error| {
            Failure::new(format!("listening at {}: {}", shown_path(&socket), shown(&e.to_string())))
        };
        let listener = listen().map_err(problem)?;
        Ok((Self { path: socket, _directory: directory }, listener))
    }
}

/// Locks a directory. Returns `None` if another process holds the lock or has removed the directory.
fn lock(path: &Path) -> io::Result<Option<File>> {
    let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
    let directory = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok((directory.metadata()?.nlink() > 0).then_some(directory)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Removes the directories that killed commands of the user `uid` have left. The result is always empty. It has this
/// type because the function runs in a child process, which must return bytes.
fn sweep_of(uid: u32) -> Vec<u8> {
    let (directory, prefix) = PREFIX.rsplit_once('/').unwrap_or_default();
    for entry in read_dir(directory).into_iter().flatten().flatten() {
        let (name, path) = (entry.file_name(), entry.path());
        if name.as_encoded_bytes().starts_with(prefix.as_bytes())
            && symlink_metadata(&path).is_ok_and(|data| data.is_dir() && data.uid() == uid)
            && let Ok(Some(_lock)) = lock(&path)
        {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
    Vec::new()
}

/// The maximum size, in KiB, of the memory that a program shares with the service.
pub(crate) const LARGEST: u64 = 32768;

/// Returns the value of `ATRACE_SHMEM_KB` for a program: the value that the user has set or, if the user has set none,
/// [`LARGEST`]. The maximum costs little, because pages that are never touched take no memory.
pub(crate) fn memory_kb() -> OsString {
    let asked = std::env::var_os("ATRACE_SHMEM_KB").filter(|size| !size.is_empty());
    asked.unwrap_or_else(|| LARGEST.to_string().into())
}

/// The name of the store in the directory of the run.
const STORE: &str = "properties";

pub(crate) struct ProgramStore {
    store: Store,
    _directory: RunDirectory,
}

impl ProgramStore {
    pub(crate) fn make(user: Option<&Caller>) -> Result<Self> {
        let directory = RunDirectory::make(user)?;
        let path = &directory.path;
        let problem = |e: &str| {
            let path = shown_path(path);
            Failure::new(format!("making a property store for the program, {path}: {}", shown(e)))
        };
        if let Some(user) = user {
            // The directory was just created and is empty, so it contains nothing of another user.
            lchown(path, Some(user.uid), Some(user.gid)).map_err(|e| problem(&e.to_string()))?;
        }
        let user = user.map(|user| User { uid: user.uid, gid: user.gid });
        let store = Store::of_program(user, path.join(STORE));
        for (_, made) in stores::perform([&store], |_| Work::All(true)) {
            made.map_err(|e| problem(&e))?;
        }
        Ok(Self { store, _directory: directory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.store.path
    }

    /// Switches tracing off in the store. `atrace run` does this after the program has ended, for the program's
    /// children that still run; `atrace cost` does it before the program starts.
    pub(crate) fn switch_off(&self) {
        for (_, closed) in stores::perform([&self.store], |_| Work::All(false)) {
            if let Err(e) = closed {
                say(format_args!("switching off what is left of the program: {}", shown(&e)));
            }
        }
    }
}

//! The directory of a run: nobody's but its user's, in memory, gone with the command.
//!
//! The socket of the service lies there. Where the program is another user's than this process, the directory stays
//! root's, so that nobody replaces the socket; that user may use it, and no other.

use std::fs::{DirBuilder, Permissions, set_permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _, lchown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use atrace::shown::shown;
use atrace_sys::fork::{Generation, generation};

use crate::command::caller::Caller;
use crate::command::processes::Process;
use crate::command::stores::remove;
use crate::command::terminal::{Failure, Result, failed, shown_path};

/// What such a directory begins with; the number of the process that made it follows.
#[cfg(not(target_os = "android"))]
const PREFIX: &str = "/dev/shm/atrace-run-";
#[cfg(target_os = "android")]
const PREFIX: &str = "/data/local/tmp/atrace-run-";

/// Makes the directory of this run, and removes those of commands that were killed.
pub(crate) fn make_directory() -> Result<PathBuf> {
    sweep();
    let mut directory = PathBuf::from(format!("{PREFIX}{}", std::process::id()));
    for number in 1..100 {
        match DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            // Somebody has put one there.
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                directory = PathBuf::from(format!("{PREFIX}{}-{number}", std::process::id()));
            }
            Err(e) => return Err(failed(format!("making a directory, {}", shown_path(&directory)))(e)),
        }
    }
    Err(Failure::new(format!("{}: somebody has taken all names", shown_path(&directory))))
}

/// Where the service listens. Dropped, it is gone.
pub(crate) struct ServicePlace {
    directory: PathBuf,
    socket: PathBuf,
    by: Generation,
}

impl ServicePlace {
    /// Makes it, for programs of this user, or of the user of this process.
    pub(crate) fn make(user: Option<&Caller>) -> Result<(Self, UnixListener)> {
        let directory = make_directory()?;
        let socket = directory.join("producers");
        let place = Self { directory, socket, by: generation() };
        let listen = || -> std::io::Result<UnixListener> {
            let listener = UnixListener::bind(&place.socket)?;
            set_permissions(&place.socket, Permissions::from_mode(0o600))?;
            if let Some(user) = user {
                lchown(&place.socket, Some(user.uid), Some(user.gid))?;
                set_permissions(&place.directory, Permissions::from_mode(0o711))?;
            }
            Ok(listener)
        };
        let problem = |e: std::io::Error| {
            Failure::new(format!("listening at {}: {}", shown_path(&place.socket), shown(&e.to_string())))
        };
        let listener = listen().map_err(problem)?;
        Ok((place, listener))
    }

    /// The path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for ServicePlace {
    fn drop(&mut self) {
        if self.by == generation() {
            remove(&self.directory);
        }
    }
}

/// Removes the directories of commands that were killed.
fn sweep() {
    let Some((directory, prefix)) = PREFIX.rsplit_once('/') else { return };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = |name: &str| name.strip_prefix(prefix)?.split('-').next()?.parse().ok();
        let pid = name.to_str().and_then(maker);
        if pid.is_some_and(|pid| pid == std::process::id() || !Process(pid).exists()) {
            remove(&entry.path());
        }
    }
}

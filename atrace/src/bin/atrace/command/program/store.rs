//! The property store of the program alone, with everything on. Where the program is another user's, so is the store,
//! and this process never opens it.

use std::fmt::Display;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt as _, lchown};
use std::path::PathBuf;

use atrace::shown::shown;
use atrace_sys::errand::User;
use atrace_sys::fork::{Generation, generation};

use crate::command::caller::Caller;
use crate::command::processes::Process;
use crate::command::stores::{Work, perform_one, remove};
use crate::command::terminal::{Failure, Result, say, shown_path};

/// What the directory of such a store begins with; the number of the process that made it follows.
const PREFIX: &str = "/dev/shm/atrace-run-";

pub(crate) struct ProgramStore {
    directory: PathBuf,
    user: Option<User>,
    by: Generation,
}

impl ProgramStore {
    pub(crate) fn make(user: Option<&Caller>) -> Result<Self> {
        sweep();
        let directory = PathBuf::from(format!("{PREFIX}{}", std::process::id()));
        let problem = |e: &dyn Display| {
            let (path, e) = (shown_path(&directory), e.to_string());
            Failure::new(format!("making a property store for the program, {path}: {}", shown(&e)))
        };
        DirBuilder::new().mode(0o700).create(&directory).map_err(|e| problem(&e))?;
        let user = user.map(|user| User { uid: user.uid, gid: user.gid });
        let store = Self { directory: directory.clone(), user, by: generation() };
        if let Some(user) = user {
            // Empty, and just made: nobody else could put another one there.
            lchown(&directory, Some(user.uid), Some(user.gid)).map_err(|e| problem(&e))?;
        }
        perform_one(user, &store.path(), Work::All(true)).map_err(|e| problem(&e))?;
        Ok(store)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.join("properties")
    }

    /// Switches everything off again, for what children of the program are still there.
    pub(crate) fn close(self) {
        if let Err(e) = perform_one(self.user, &self.path(), Work::All(false)) {
            say(format_args!("switching off what is left of the program: {}", shown(&e)));
        }
    }
}

impl Drop for ProgramStore {
    fn drop(&mut self) {
        if self.by == generation() {
            remove(&self.directory);
        }
    }
}

/// Removes the stores of recordings that were killed.
fn sweep() {
    let Some((directory, prefix)) = PREFIX.rsplit_once('/') else { return };
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(prefix)?.parse().ok());
        if pid.is_some_and(|pid| pid == std::process::id() || !Process(pid).exists()) {
            remove(&entry.path());
        }
    }
}

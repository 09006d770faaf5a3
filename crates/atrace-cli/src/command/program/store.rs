//! The property store of the started program, with all tags and all programs switched on. If the program runs as
//! another user, the store belongs to that user, and this process never opens it.

use std::fmt::Display;
use std::os::unix::fs::lchown;
use std::path::PathBuf;

use crate::escape::shown;
use atrace_sys::errand::User;

use crate::command::caller::Caller;
use crate::command::program::run_directory::RunDirectory;
use crate::command::stores::{Work, perform_one};
use crate::command::terminal::{Failure, Result, say, shown_path};

/// The store's name in the directory of the run.
const STORE: &str = "properties";

pub(crate) struct ProgramStore {
    directory: RunDirectory,
    user: Option<User>,
}

impl ProgramStore {
    pub(crate) fn make(user: Option<&Caller>) -> Result<Self> {
        let directory = RunDirectory::make(user)?;
        let problem = |e: &dyn Display| {
            let (path, e) = (shown_path(directory.path()), e.to_string());
            Failure::new(format!("making a property store for the program, {path}: {}", shown(&e)))
        };
        let user = user.map(|user| User { uid: user.uid, gid: user.gid });
        if let Some(user) = user {
            // The directory was just created and is empty, so it contains nothing of another user.
            lchown(directory.path(), Some(user.uid), Some(user.gid)).map_err(|e| problem(&e))?;
        }
        perform_one(user, &directory.path().join(STORE), Work::All(true)).map_err(|e| problem(&e))?;
        Ok(Self { directory, user })
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join(STORE)
    }

    /// Switches everything off again, for children of the program that still run.
    pub(crate) fn close(self) {
        if let Err(e) = perform_one(self.user, &self.path(), Work::All(false)) {
            say(format_args!("switching off what is left of the program: {}", shown(&e)));
        }
    }
}

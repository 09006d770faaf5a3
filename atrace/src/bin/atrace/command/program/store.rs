//! The property store of the program alone, with everything on. Where the program is another user's, so is the store,
//! and this process never opens it.

use std::fmt::Display;
use std::os::unix::fs::lchown;
use std::path::PathBuf;

use atrace::shown::shown;
use atrace_sys::errand::User;
use atrace_sys::fork::{Generation, generation};

use crate::command::caller::Caller;
use crate::command::program::place::make_directory;
use crate::command::stores::{Work, perform_one, remove};
use crate::command::terminal::{Failure, Result, say, shown_path};

pub(crate) struct ProgramStore {
    directory: PathBuf,
    user: Option<User>,
    by: Generation,
}

impl ProgramStore {
    pub(crate) fn make(user: Option<&Caller>) -> Result<Self> {
        let directory = make_directory()?;
        let problem = |e: &dyn Display| {
            let (path, e) = (shown_path(&directory), e.to_string());
            Failure::new(format!("making a property store for the program, {path}: {}", shown(&e)))
        };
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

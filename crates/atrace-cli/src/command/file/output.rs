//! Writes the file to which a recording is saved. The file appears complete, or not at all.
//!
//! # How it works
//!
//! The file is written under a temporary name in its final directory, and renamed at the end. So neither a full disk
//! nor a signal leaves an incomplete file, and an existing file is replaced only if the user has given `--force`. If a
//! killed command left a temporary file, the next command that writes to the directory removes that file. Only a file
//! that is a valid trace at any moment (`is_live`) is kept, and gets a name that is not hidden.
//!
//! # Which symbolic links are followed
//!
//! The rules depend on the user for whom the file is written:
//!
//! - For an ordinary user, the file system's usual rules apply. With `--force`, a link with the file's name is
//!   followed, and the link's target is replaced.
//! - Under sudo, the file is created, renamed and removed with the rights of the user who called sudo. So even if a
//!   path contains unexpected links, it leads only to places where that user could write anyway. In directories that
//!   only root can change, root's rights are used.
//! - If root calls the command without sudo, a link with the file's name is not followed: `--force` replaces the link.
//!   A directory in which every user may replace files is refused. In a directory to which other users may write,
//!   another user's file is not replaced, unless that user owns the directory. If the sysctls `fs.protected_symlinks`
//!   and `fs.protected_regular` are set, a shell's `>` also refuses such a file.
//!
//! All calls that create, rename or remove a file are relative to a descriptor of the directory. Files that a command
//! with root's rights writes have the mode 0600, so only their owner and root can read them.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::fchown;
use std::path::{Path, PathBuf};

use crate::escape::shown;
use atrace_sys::fork::{Generation, generation};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::command::caller::Caller;
use crate::command::file::target::{Existing, Target, open_directory, parent, roots_own, unwritable};
use crate::command::terminal::{Failure, Result, failed, shown_path};

/// A file that is being written. If the `Output` is dropped before [`finish`](Self::finish) was called, the file is
/// removed.
#[derive(Debug)]
pub(crate) struct Output {
    target: Target,
    temporary: OsString,
    /// The file. It is locked while it is written, so that no other command takes it for a leftover of a killed
    /// command. (On a file system without locks, it is written without a lock.)
    file: File,
    /// The user with whose rights the directory must be accessed, or `None` for the user of this process.
    actor: Option<Caller>,
    is_live: bool,
    is_moved: bool,
    by: Generation,
}

impl Output {
    /// Creates the temporary file. This is done before there is data to write, so that problems are reported early.
    /// `is_live` means that the file is a valid trace at any moment. Such a file is not removed if the command is
    /// killed, or if the file can't be moved to its final name.
    pub(crate) fn create(
        path: &Path,
        existing: Existing,
        owner: Option<&Caller>,
        is_live: bool,
    ) -> Result<Self> {
        let roots = owner.and_then(|_| roots_own(parent(path)));
        let actor = owner.filter(|_| roots.is_none()).cloned();
        let by_root = geteuid().is_root();
        let work = || {
            let target = match roots {
                Some(directory) => Target::of_root(directory, path, existing)?,
                None if by_root && owner.is_none() => {
                    let directory = open_directory(parent(path)).map_err(unwritable(path))?;
                    Target::of_root(directory, path, existing)?
                }
                None => Target::of_user(path, existing)?,
            };
            target.sweep();
            let (temporary, file) = target.make_temporary(by_root, is_live).map_err(unwritable(path))?;
            Ok((target, temporary, file))
        };
        let (target, temporary, file) = match &actor {
            Some(actor) => actor.act(work).map_err(|e| {
                Failure::new(format!(
                    "{e}\natrace: the file is written with the rights of user {}, who called sudo",
                    actor.uid
                ))
            })?,
            None => work()?,
        };
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        let output = Self { target, temporary, file, actor, is_live, is_moved: false, by: generation() };
        if let Some(owner) = owner {
            let problem = format!("giving {} to user {}", shown_path(path), owner.uid);
            fchown(&output.file, Some(owner.uid), Some(owner.gid)).map_err(failed(problem))?;
        }
        Ok(output)
    }

    /// Returns the path in the form in which the user gave it.
    pub(crate) fn named(&self) -> &Path {
        &self.target.named
    }

    /// Returns another handle of the file, for writing.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Makes sure that the data is on the disk, and moves the file to its final name. If that fails, a file that was
    /// created with `is_live` stays under its temporary name.
    pub(crate) fn finish(mut self) -> Result<PathBuf> {
        self.is_moved = self.is_live;
        let done = self.file.sync_data().map_err(Failure::from);
        match done.and_then(|()| self.act(|| self.target.put(&self.temporary))) {
            Ok(path) => {
                self.is_moved = true;
                Ok(path)
            }
            Err(e) if self.is_live => {
                let left = shown(self.temporary.as_bytes());
                Err(Failure::new(format!("{e}\natrace: the complete recording is in {left}")))
            }
            Err(e) => Err(e),
        }
    }

    fn act<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        match &self.actor {
            Some(actor) => actor.act(work),
            None => work(),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.is_moved && self.by == generation() {
            let _ = self.act(|| Ok(self.target.remove(&self.temporary)?));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        drop(Output::create(&path, Existing::Refuse, None, false).unwrap());
        assert_eq!(names(place.path()), [""; 0]);
        let output = Output::create(&path, Existing::Refuse, None, false).unwrap();
        output.file().unwrap().write_all(b"text").unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"text".to_vec(), vec!["out".into()]));
    }

    #[test]
    fn nothing_is_replaced_unasked() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        fs::write(&path, "mine").unwrap();
        let refused = Output::create(&path, Existing::Refuse, None, false).unwrap_err().to_string();
        assert!(refused.contains("exists already") && refused.contains("--force"), "{refused}");
        // Another program creates the file after `Output::create` and before `finish`.
        fs::remove_file(&path).unwrap();
        let output = Output::create(&path, Existing::Refuse, None, false).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(output.finish().unwrap_err().to_string().contains("exists already"));
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"mine".to_vec(), vec!["out".into()]));
        let output = Output::create(&path, Existing::Replace, None, false).unwrap();
        output.file().unwrap().write_all(b"new").unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_file_that_was_not_named_takes_a_free_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out.pftrace");
        let save = || {
            let output = Output::create(&path, Existing::Number, None, true).unwrap();
            output.finish().unwrap().file_name().unwrap().to_owned()
        };
        assert_eq!([save(), save(), save()], ["out.pftrace", "out.2.pftrace", "out.3.pftrace"]);
        // The unfinished file of a command that can't be running any more also gets a numbered name.
        fs::write(place.path().join(".out.pftrace.4294967295"), "trace").unwrap();
        assert_eq!(save(), "out.5.pftrace");
        assert_eq!(fs::read(place.path().join("out.4.pftrace")).unwrap(), b"trace");
        assert_eq!(names(place.path()).len(), 5);
    }

    #[test]
    fn only_files_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/null"), place.path()] {
            let refused = Output::create(path, Existing::Replace, None, false).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path().join("file"), &link).unwrap();
        fs::write(place.path().join("file"), "old").unwrap();
        Output::create(&link, Existing::Replace, None, false).unwrap().finish().unwrap();
        // Root replaces links, whoever owns them, and even root's own links. Other users write through their links.
        let (replaced, text) = if geteuid().is_root() { (true, "old") } else { (false, "") };
        assert_eq!(fs::symlink_metadata(&link).unwrap().is_file(), replaced);
        assert_eq!(fs::read_to_string(place.path().join("file")).unwrap(), text);
        let missing = Output::create(&place.path().join("no/out"), Existing::Refuse, None, false)
            .unwrap_err()
            .to_string();
        assert!(missing.contains("can't write to") && missing.contains("-o"), "{missing}");
    }
}

//! Operations on files relative to an open directory, so that no process can exchange the directory meanwhile; and
//! locks of files.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};

use super::file::{open_in, path_of};
use super::{Errno, c, check};

/// Opens a file of a directory. A file that is created (`O_CREAT`) gets the mode 0600.
///
/// A symbolic link is refused. Opening never waits, neither for the peer of a FIFO nor for a terminal.
pub(crate) fn open_at(directory: &File, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
    Ok(open_in(directory.as_raw_fd(), name, flags)?)
}

/// Creates a file without a name in a directory, with mode 0600.
pub(crate) fn open_unnamed(directory: &File) -> io::Result<File> {
    Ok(open_in(directory.as_raw_fd(), c".", libc::O_RDWR | libc::O_TMPFILE)?)
}

/// Gives a name to a file that has no name. Returns `EEXIST` if the name already exists. Allocates.
pub(crate) fn name_at(directory: &File, file: &File, name: &CStr) -> io::Result<()> {
    // The file is linked by its path in `/proc`: before Linux 6.10, only privileged processes may link a file by its
    // descriptor (AT_EMPTY_PATH).
    link((libc::AT_FDCWD, &path_of(file)?), (directory.as_raw_fd(), name), libc::AT_SYMLINK_FOLLOW)
}

/// Removes a file of a directory.
pub(crate) fn unlink_at(directory: &File, name: &CStr) -> io::Result<()> {
    Ok(check(c::unlinkat(directory.as_raw_fd(), name.into(), 0)).map(drop)?)
}

/// Renames a file within a directory. Returns `EEXIST` if the new name already exists.
pub(crate) fn rename_at(directory: &File, from: &CStr, to: &CStr) -> io::Result<()> {
    // The system call is made by its number, because some C libraries lack the function.
    match c::renameat2(directory.as_raw_fd(), from, to, libc::RENAME_NOREPLACE) {
        // The kernel (before 3.15), the file system or a seccomp filter does not support the call: use link and unlink
        // instead.
        Err(Errno(libc::ENOSYS | libc::EINVAL | libc::EPERM)) => link_and_unlink(directory, from, to),
        renamed => Ok(renamed.map(drop)?),
    }
}

fn link_and_unlink(directory: &File, from: &CStr, to: &CStr) -> io::Result<()> {
    link((directory.as_raw_fd(), from), (directory.as_raw_fd(), to), 0)?;
    unlink_at(directory, from)
}

fn link(from: (RawFd, &CStr), to: (RawFd, &CStr), flags: libc::c_int) -> io::Result<()> {
    Ok(check(c::linkat(from.0, from.1.into(), to.0, to.1.into(), flags)).map(drop)?)
}

/// Locks an open file if its lock is free. Returns whether the lock was free.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, libc::LOCK_EX | libc::LOCK_NB) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Unlocks a file, even if forked children have a copy of the descriptor.
pub(crate) fn unlock(file: &File) {
    // This can't fail for a file that could be locked.
    let _ = flock(file, libc::LOCK_UN);
}

fn flock(file: &File, operation: libc::c_int) -> io::Result<()> {
    Ok(check(c::flock(file.as_raw_fd(), operation)).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn moving_a_file_replaces_nothing() {
        type Move = fn(&File, &CStr, &CStr) -> io::Result<()>;
        let ways: [Move; 2] = [rename_at, link_and_unlink];
        for way in ways {
            let place = tempfile::tempdir().unwrap();
            let (from, to) = (place.path().join("from"), place.path().join("to"));
            let directory = File::open(place.path()).unwrap();
            std::fs::write(&from, "new").unwrap();
            std::fs::write(&to, "old").unwrap();
            assert_eq!(way(&directory, c"from", c"to").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read(&to).unwrap(), b"old");
            std::fs::remove_file(&to).unwrap();
            way(&directory, c"from", c"to").unwrap();
            assert_eq!(std::fs::read(&to).unwrap(), b"new");
            assert!(!from.exists());
        }
    }
}

//! The system calls that the standard library does not offer, as safe functions.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

use super::area::Area;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the effective user id.
pub(super) fn geteuid() -> u32 {
    // SAFETY: it has no preconditions and can't fail.
    unsafe { libc::geteuid() }
}

/// Returns the largest file that this process may write; beyond it, the kernel would send SIGXFSZ.
pub(super) fn file_size_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the pointer is to a live rlimit. On failure it stays at "no limit".
    unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    // As wide as u64 on most systems, but not on all.
    #[allow(clippy::unnecessary_cast)]
    let limit = limit.rlim_cur as u64;
    limit
}

/// Opens a path as it is, with the flags given and `O_CLOEXEC`.
pub(super) fn open(path: &CStr, flags: libc::c_int) -> io::Result<File> {
    open_at_raw(libc::AT_FDCWD, path, flags)
}

/// Opens a file of a directory, or creates it with mode 0600.
///
/// A symbolic link is refused, and nothing is waited for: neither the other end of a FIFO nor a terminal.
pub(super) fn open_at(directory: &File, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    open_at_raw(directory.as_raw_fd(), name, flags | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
}

fn open_at_raw(directory: libc::c_int, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    loop {
        // SAFETY: the name is a C string, and the mode is passed as openat expects it.
        let fd =
            unsafe { libc::openat(directory, name.as_ptr(), flags | libc::O_CLOEXEC, 0o600 as libc::c_uint) };
        match check(fd) {
            // SAFETY: the descriptor was just opened and belongs to nobody else.
            Ok(fd) => return Ok(unsafe { File::from_raw_fd(fd) }),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Creates a file of a directory that has no name yet, with mode 0600.
pub(super) fn open_unnamed(directory: &File) -> io::Result<File> {
    open_at_raw(directory.as_raw_fd(), c".", libc::O_RDWR | libc::O_TMPFILE)
}

/// Gives a file that has no name yet its first one, unless another file has it (`EEXIST`).
pub(super) fn name_at(directory: &File, file: &File, name: &CStr) -> io::Result<()> {
    // By its descriptor itself (AT_EMPTY_PATH) only privileged processes may.
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let (here, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: open descriptors and C strings.
    check(unsafe { libc::linkat(here, path.as_ptr(), directory.as_raw_fd(), name.as_ptr(), flags) }).map(drop)
}

/// Removes a file of a directory.
pub(super) fn unlink_at(directory: &File, name: &CStr) -> io::Result<()> {
    // SAFETY: the name is a C string, the descriptor is open.
    check(unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Renames a file within a directory unless the new name exists (`EEXIST`).
pub(super) fn rename_at(directory: &File, from: &CStr, to: &CStr) -> io::Result<()> {
    let directory = directory.as_raw_fd();
    // SAFETY: the arguments are those of renameat2(2): open descriptors, C strings, flags. It is called by
    // number because not every libc has the function.
    let result = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            directory,
            from.as_ptr(),
            directory,
            to.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        // The kernel (before 3.15), the file system or a seccomp filter does not know it: link and unlink.
        error if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM)) => {
            link_at(directory, from, to)
        }
        error => Err(error),
    }
}

fn link_at(directory: libc::c_int, from: &CStr, to: &CStr) -> io::Result<()> {
    // SAFETY: open descriptors and C strings.
    check(unsafe { libc::linkat(directory, from.as_ptr(), directory, to.as_ptr(), 0) })?;
    // SAFETY: as above.
    check(unsafe { libc::unlinkat(directory, from.as_ptr(), 0) }).map(drop)
}

/// Takes the lock of an open file if it is free; tells whether it was.
pub(super) fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open.
    match check(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Releases the lock, also for children that were forked meanwhile and hold a copy of the descriptor.
pub(super) fn unlock(file: &File) {
    // SAFETY: the descriptor is open. Unlocking can't fail on a file that could be locked.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
}

/// A shared mapping of a store, taken back when dropped.
pub(super) struct Map(NonNull<Area>);

// SAFETY: the mapping belongs to the process, not to a thread, and an Area consists of atomics.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps a file, which must have the size of an [`Area`], for reading or also for writing.
    pub(super) fn new(file: &File, writable: bool) -> io::Result<Self> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: the kernel chooses an address that nobody uses.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Area>(),
                protection,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(address.cast::<Area>()) {
            Some(area) if address != libc::MAP_FAILED => Ok(Self(area)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The mapped store. Storing to it where it was not mapped for writing would end the process.
    pub(super) fn area(&self) -> &Area {
        // SAFETY: the mapping has the size of an Area, the alignment of a page, and lives as long as `self`.
        // Any bytes are an Area, and as it consists of atomics other processes may write it.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`; references to it are bound to `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Area>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn moving_a_file_replaces_nothing() {
        type Move = fn(&File, &CStr, &CStr) -> io::Result<()>;
        let ways: [Move; 2] = [rename_at, |directory, from, to| link_at(directory.as_raw_fd(), from, to)];
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

//! Operations on files and descriptors: some that the standard library lacks, and some that do not use the C library,
//! so that a bare thread (`system/bare.rs`) can call them.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[cfg(not(bare))]
use super::check;
use super::{Errno, Result, c, futex, zeros};

/// An open file. Dropping the `Descriptor` closes the file without the C library, so that a bare thread can close it
/// (`system/bare.rs`).
#[derive(Debug)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Takes ownership of a descriptor that the kernel has just created.
    pub(crate) fn new(made: isize) -> Self {
        Self(made as RawFd)
    }
}

impl std::os::fd::AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0
    }
}

impl From<OwnedFd> for Descriptor {
    fn from(fd: OwnedFd) -> Self {
        Self(fd.into_raw_fd())
    }
}

impl From<Descriptor> for OwnedFd {
    fn from(descriptor: Descriptor) -> Self {
        // SAFETY: the descriptor is open, and this value no longer owns it.
        unsafe { Self::from_raw_fd(std::mem::ManuallyDrop::new(descriptor).0) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

/// Opens a path, with these flags and `O_CLOEXEC`.
pub(crate) fn open(path: &CStr, flags: libc::c_int) -> Result<File> {
    open_in(libc::AT_FDCWD, path, flags)
}

/// Opens an open file once more, even if the file's path now leads to another file. Allocates.
pub(crate) fn reopen(file: &File, flags: libc::c_int) -> Result<File> {
    open(&path_of(file)?, flags | libc::O_NOCTTY | libc::O_NONBLOCK)
}

pub(super) fn open_in(directory: RawFd, name: &CStr, flags: libc::c_int) -> Result<File> {
    Ok(OwnedFd::from(open_number(directory, name, flags)?).into())
}

/// Opens a path relative to a directory, with these flags and `O_CLOEXEC`. Does not use the C library.
#[inline(never)]
pub(crate) fn open_number(directory: RawFd, name: &CStr, flags: libc::c_int) -> Result<Descriptor> {
    let flags = flags | libc::O_CLOEXEC | libc::O_LARGEFILE;
    loop {
        // Unlike the C library's function, the system call is not a cancellation point.
        match c::openat(directory, name, flags, 0o600) {
            Err(Errno(libc::EINTR)) => {}
            opened => return opened.map(Descriptor::new),
        }
    }
}

/// Returns a path that leads to an open file. Allocates.
pub(super) fn path_of(file: &File) -> Result<CString> {
    CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|_| Errno(libc::EINVAL))
}

/// Creates a memory file that can be sealed. The system call is made by its number, because some C libraries
/// lack the function.
///
/// Linux before 3.17 has no memory files. On a host with such a kernel, this function creates a file in `/dev/shm` and
/// removes the file's name.
pub(crate) fn memory_file(name: &CStr) -> Result<Descriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    match c::memfd_create(name, flags.cast_signed()) {
        Err(Errno(libc::ENOSYS)) if cfg!(target_os = "linux") => unlinked_file(name),
        made => made.map(Descriptor::new),
    }
}

/// Returns whether the kernel has memory files and seals (Linux 3.17).
pub fn has_memory_files() -> bool {
    // The kernel defines no such flags, so no file is created.
    c::memfd_create(c"", -1) != Err(Errno(libc::ENOSYS))
}

#[cold]
fn unlinked_file(name: &CStr) -> Result<Descriptor> {
    use std::io::Write as _;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Other processes may already use some of the names.
    for _ in 0..100 {
        let mut path = [0; 128];
        let (name, pid) = (name.to_str().unwrap_or_default(), std::process::id());
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        // The last byte of `path` stays 0, so that the text is a C string.
        let _ = write!(&mut path[..127], "/dev/shm/{name}-{pid}-{number}");
        let Ok(path) = CStr::from_bytes_until_nul(&path) else { break };
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        match open_number(libc::AT_FDCWD, path, flags) {
            Err(Errno(libc::EEXIST)) => {}
            made => {
                let file = made?;
                c::unlink(path)?;
                return Ok(file);
            }
        }
    }
    Err(Errno(libc::EEXIST))
}

/// Writes zeroes to an empty file, so that a lack of memory is detected now. `/dev/shm` has a limited size: without
/// these zeroes, a later write to the mapped file could kill the process.
#[cold]
fn reserve(file: &Descriptor, size: usize) -> Result<()> {
    let zeroes = [0; 4096];
    let mut left = size;
    while left > 0 {
        match write(file.0, &zeroes[..left.min(zeroes.len())])? {
            0 => return Err(Errno(libc::ENOSPC)),
            written => left -= written,
        }
    }
    Ok(())
}

/// Returns whether this process may make a file of this size (`RLIMIT_FSIZE`). If not, an attempt to make the file
/// raises SIGXFSZ, even for a memory file.
pub fn may_have_size(size: usize) -> bool {
    super::soft_limit(libc::RLIMIT_FSIZE).is_none_or(|limit| size as u64 <= limit)
}

/// Creates a memory file whose size no process can change. On kernels without seals, this user and root can change the
/// size.
pub fn sealed_file(name: &CStr, size: usize) -> Result<Descriptor> {
    let file = set_length(memory_file(name)?, size)?;
    if !has_memory_files() {
        reserve(&file, size)?;
    }
    seal(&file)?;
    Ok(file)
}

/// Sets the length of a file. The error handling of std's `set_len` alone takes a third of a kilobyte of
/// code.
#[cfg(bare)]
fn set_length(file: Descriptor, size: usize) -> Result<Descriptor> {
    c::ftruncate(file.0, size)?;
    Ok(file)
}

#[cfg(not(bare))]
fn set_length(file: Descriptor, size: usize) -> Result<Descriptor> {
    let file = File::from(OwnedFd::from(file));
    file.set_len(size as u64).map_err(of_std)?;
    Ok(OwnedFd::from(file).into())
}

#[cfg(not(bare))]
fn of_std(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EINVAL))
}

/// Seals a memory file, so that its size can't change and no seal can be added. Does nothing on kernels without
/// seals.
pub(crate) fn seal(file: &Descriptor) -> Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    match control(file.as_raw_fd(), libc::F_ADD_SEALS, seals) {
        Err(_) if !has_memory_files() => Ok(()),
        sealed => sealed.map(drop),
    }
}

/// Returns the seals of a file.
///
/// On kernels without seals, a file that belongs to this user or to root counts as sealed, because this user and root
/// can end the process anyway.
pub(crate) fn seals(fd: RawFd) -> libc::c_int {
    let seals = control(fd, libc::F_GET_SEALS, 0).unwrap_or(0);
    let is_trusted = || stat(fd).is_ok_and(|data| [0, super::effective_ids().0].contains(&data.st_uid));
    if seals & libc::F_SEAL_SHRINK == 0 && !has_memory_files() && is_trusted() {
        return libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    }
    seals
}

/// Returns the size of a file that can't shrink.
///
/// # Errors
///
/// Returns EPERM if the file could shrink: a process that reads a mapped file behind the file's end is killed.
/// Otherwise returns the error of the system.
pub fn sealed_size(fd: RawFd) -> Result<usize> {
    if seals(fd) & libc::F_SEAL_SHRINK == 0 {
        return Err(Errno(libc::EPERM));
    }
    usize::try_from(stat(fd)?.st_size).map_err(|_| Errno(libc::EINVAL))
}

/// Returns the size of a memory file that can neither shrink nor grow. A file that is not a memory file is refused,
/// because reading a mapped page of such a file can fail.
///
/// # Errors
///
/// Returns the errors of [`sealed_size`], and EPERM if the file could grow or is not a memory file.
pub fn fixed_size(fd: RawFd) -> Result<usize> {
    const TMPFS: u64 = 0x0102_1994;
    let size = sealed_size(fd)?;
    let can_grow = seals(fd) & libc::F_SEAL_GROW == 0;
    if can_grow || file_system(fd) != Some(TMPFS) {
        return Err(Errno(libc::EPERM));
    }
    Ok(size)
}

/// Fills `buffer` from the start of a file. Returns the number of bytes that were read before the end of the file or
/// an error: 0 if the file can't be opened. Does not use the C library.
pub(crate) fn read_start(path: &CStr, buffer: &mut [u8]) -> usize {
    let Ok(file) = open_number(libc::AT_FDCWD, path, libc::O_RDONLY) else { return 0 };
    let mut length = 0;
    while length < buffer.len() {
        match c::read(file.0, &mut buffer[length..]) {
            Ok(got @ 1..) => length += got as usize,
            Err(Errno(libc::EINTR)) => {}
            _ => break,
        }
    }
    length
}

/// Writes to a descriptor. Returns how many bytes were written.
pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> Result<usize> {
    // Unlike the C library's function, the system call is not a cancellation point.
    #[cfg(not(miri))]
    let taken = c::write(fd, bytes)? as usize;
    // Miri supports only the C library's function, which std calls.
    #[cfg(miri)]
    let taken = {
        let file = std::mem::ManuallyDrop::new(File::from(OwnedFd::from(Descriptor(fd))));
        std::io::Write::write(&mut &*file, bytes).map_err(of_std)?
    };
    Ok(taken)
}

/// Waits until one of the descriptors is ready, for at most `timeout` (`None`: forever). Returns how many
/// descriptors are ready.
///
/// If the system denies the call, as a system call filter may, this sleeps up to 50 ms before it returns the error,
/// so that a caller that tries again does not spin.
pub(crate) fn poll(places: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<libc::c_int> {
    const REST: Duration = Duration::from_millis(50);
    let ready = poll_once(places, timeout);
    if ready.is_err_and(|error| error != Errno(libc::EINTR)) {
        // No thread wakes the sleepers of this word, so the wait is a sleep.
        let _ = futex::wait(&AtomicU32::new(0), 0, timeout.map_or(REST, |timeout| timeout.min(REST)));
    }
    ready
}

fn poll_once(places: &mut [libc::pollfd], timeout: Option<Duration>) -> Result<libc::c_int> {
    let mut timeout = timeout.map(futex::timespec);
    // Unlike the C library's function, the system call is not a cancellation point. On other architectures, only the C
    // library's function knows the width of the numbers in a time.
    #[cfg(bare)]
    let ready = c::ppoll(places, timeout.as_mut())? as libc::c_int;
    #[cfg(not(bare))]
    let timeout = timeout.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    #[cfg(not(bare))]
    // SAFETY: `places` has so many writable elements, and the time is valid or null.
    let ready = check(unsafe {
        libc::ppoll(places.as_mut_ptr(), places.len() as libc::nfds_t, timeout, std::ptr::null())
    })?;
    Ok(ready)
}

/// Closes a descriptor that this program owns and that no other code uses.
pub(crate) fn close(fd: RawFd) {
    #[cfg(not(miri))]
    let _ = c::close(fd);
    // Miri supports only the C library's function, which std calls.
    #[cfg(miri)]
    drop(OwnedFd::from(Descriptor(fd)));
}

/// Calls `fcntl(2)` with a command that takes a number.
pub(crate) fn control(fd: RawFd, command: libc::c_int, number: libc::c_int) -> Result<libc::c_int> {
    #[cfg(bare)]
    let answer = c::fcntl(fd, command, number)? as libc::c_int;
    #[cfg(not(bare))]
    // SAFETY: the arguments are numbers, and the commands are valid for any descriptor.
    let answer = check(unsafe { libc::fcntl(fd, command, number) })?;
    Ok(answer)
}

/// The C library's functions for a file's attributes, and the types of their results. In 32-bit programs, glibc's usual
/// functions fail for files of more than 2 GiB, and for files with large inode numbers.
#[cfg(all(target_env = "gnu", target_pointer_width = "32"))]
pub(crate) mod wide {
    pub(crate) use libc::{fstat64 as fstat, fstatfs64 as fstatfs, stat64 as stat, statfs64 as statfs};
}
#[cfg(not(all(target_env = "gnu", target_pointer_width = "32")))]
pub(crate) mod wide {
    #[cfg(not(bare))]
    pub(crate) use libc::fstat;
    pub(crate) use libc::{fstatfs, stat, statfs};
}

/// Returns the attributes of an open file.
pub(crate) fn stat(fd: RawFd) -> Result<wide::stat> {
    let mut found: wide::stat = zeros();
    #[cfg(bare)]
    c::fstat(fd, &mut found)?;
    #[cfg(not(bare))]
    // SAFETY: `found` is writable and of the right type. The call is valid for any descriptor.
    check(unsafe { wide::fstat(fd, &mut found) })?;
    Ok(found)
}

/// Returns the attributes of the file at a path. Follows symbolic links.
pub(crate) fn stat_path(path: &CStr) -> Result<wide::stat> {
    let mut found: wide::stat = zeros();
    // SAFETY: the path ends with a NUL, and `found` is writable and of the right type.
    super::check(unsafe { wide::stat(path.as_ptr(), &mut found) })?;
    Ok(found)
}

/// Returns the type (`f_type`) of the file system of an open file.
pub(crate) fn file_system(fd: RawFd) -> Option<u64> {
    let mut found: wide::statfs = zeros();
    // SAFETY: `found` is writable and of the right type. The call is valid for any descriptor.
    let is_found = unsafe { wide::fstatfs(fd, &mut found) } == 0;
    #[allow(clippy::unnecessary_cast, reason = "its width differs between systems; all types fit")]
    is_found.then_some(found.f_type as u64 & 0xffff_ffff)
}

/// Returns whether the process may access the files of a directory.
pub fn may_enter(directory: &CStr) -> bool {
    c::faccessat(libc::AT_FDCWD, directory, libc::X_OK).is_ok()
}

/// Returns whether a file exists at a path.
pub(crate) fn exists(path: &CStr) -> bool {
    c::faccessat(libc::AT_FDCWD, path, libc::F_OK).is_ok()
}

/// Returns whether a descriptor is a terminal.
pub(crate) fn is_terminal(fd: RawFd) -> bool {
    c::isatty(fd) == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that a 32-bit program, too, gets the attributes of a file of 3 GiB.
    #[test]
    #[cfg_attr(miri, ignore = "makes system calls")]
    fn a_large_file_has_attributes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(3 << 30).unwrap();
        let path = CString::new(file.path().as_os_str().as_encoded_bytes()).unwrap();
        for found in [stat(file.as_file().as_raw_fd()), stat_path(&path)] {
            assert_eq!(found.unwrap().st_size, 3 << 30);
        }
        assert!(file_system(file.as_file().as_raw_fd()).is_some());
    }
}

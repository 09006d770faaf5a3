//! Files and descriptors, where the standard library does not offer the call.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, RawFd};
use std::time::Duration;

use super::c::{self, Call};
use super::{Plain, check, futex, zeros};

/// Takes a descriptor over that the system has just made.
pub(crate) fn owned(made: impl TryInto<RawFd>) -> io::Result<File> {
    match made.try_into() {
        // SAFETY: new, and nobody else's.
        Ok(fd) if fd >= 0 => Ok(unsafe { File::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens a path as it is, with the flags given and `O_CLOEXEC`.
pub(crate) fn open(path: &CStr, flags: libc::c_int) -> io::Result<File> {
    open_in(libc::AT_FDCWD, path, flags)
}

/// Opens once more the very file that a descriptor is of, whatever its path means by now. Allocates.
pub(crate) fn reopen(file: &File, flags: libc::c_int) -> io::Result<File> {
    open(&path_of(file)?, flags | libc::O_NOCTTY | libc::O_NONBLOCK)
}

#[inline(never)]
pub(super) fn open_in(directory: RawFd, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    let flags = flags | libc::O_CLOEXEC | libc::O_LARGEFILE;
    let name = c::address(name.to_bytes_with_nul());
    loop {
        // By number it is no cancellation point.
        match Call::OPENAT.call([directory as isize, name, flags as isize, 0o600]) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            opened => return owned(opened?),
        }
    }
}

pub(super) fn path_of(file: &File) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// Makes a file in memory alone, which can be sealed. By number: not every libc has the function.
pub(crate) fn memory_file(name: &CStr) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    owned(Call::MEMFD_CREATE.call([c::address(name.to_bytes_with_nul()), flags as isize])?)
}

/// Makes a memory file of a size that nobody can change.
pub(crate) fn sealed_file(name: &CStr, size: usize) -> io::Result<File> {
    let file = memory_file(name)?;
    // Of std's `set_len` the errors alone are a third of a kilobyte.
    // SAFETY: numbers.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), size as libc::off_t) })?;
    seal(&file)?;
    Ok(file)
}

/// Has the size of a memory file stay as it is, and this rule, too.
pub(crate) fn seal(file: &File) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    control(file.as_raw_fd(), libc::F_ADD_SEALS, seals).map(drop)
}

/// How large a file is that can't shrink; EPERM where it could, as to read what is gone would end the process.
pub(crate) fn sealed_size(fd: RawFd) -> io::Result<usize> {
    let seals = control(fd, libc::F_GET_SEALS, 0).unwrap_or(0);
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    usize::try_from(stat(fd)?.st_size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Fills `buffer` from the start of a file; returns how much there was, 0 on any error.
pub(crate) fn read_start(path: &CStr, buffer: &mut [u8]) -> usize {
    let Ok(mut file) = open(path, libc::O_RDONLY) else { return 0 };
    let mut length = 0;
    while length < buffer.len() {
        match file.read(&mut buffer[length..]) {
            Ok(0) => break,
            Ok(got) => length += got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    length
}

/// Writes to a descriptor; returns how much was taken.
pub(crate) fn write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // By number it is no cancellation point.
    #[cfg(not(miri))]
    let taken = Call::WRITE.call([fd as isize, c::address(bytes), bytes.len() as isize])?;
    // Miri knows only the function.
    #[cfg(miri)]
    // SAFETY: readable memory of that length.
    let taken = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Waits until one of the descriptors is ready, at most so long (`None`: without end); returns how many are.
pub(crate) fn poll(places: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<libc::c_int> {
    let count = libc::nfds_t::try_from(places.len()).unwrap_or(0);
    let timeout = timeout.map(futex::timespec);
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: so many writable places, and a time or null.
    check(unsafe { libc::ppoll(places.as_mut_ptr(), count, timeout, std::ptr::null()) })
}

/// Closes a descriptor that is this program's and nobody else knows.
pub(crate) fn close(fd: RawFd) {
    // SAFETY: a number. (Declared by another crate than libc, compilers warn of a symbol that std uses.)
    unsafe { libc::close(fd) };
}

/// `fcntl(2)` of a command that takes a number.
pub(crate) fn control(fd: RawFd, command: libc::c_int, number: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: numbers; any descriptor may be asked about.
    check(unsafe { libc::fcntl(fd, command, number) })
}

// SAFETY: zeros are numbers.
unsafe impl Plain for libc::stat {}
// SAFETY: as above.
unsafe impl Plain for libc::statfs {}

/// The attributes of an open file.
pub(crate) fn stat(fd: RawFd) -> io::Result<libc::stat> {
    let mut found = zeros();
    // SAFETY: `found` is writable and of the right type; any descriptor may be asked about.
    check(unsafe { libc::fstat(fd, &mut found) }).map(|_| found)
}

/// The kind (`f_type`) of file system that an open file is in.
pub(crate) fn file_system(fd: RawFd) -> Option<u64> {
    let mut found: libc::statfs = zeros();
    // SAFETY: `found` is writable and of the right type; any descriptor may be asked about.
    let is_found = unsafe { libc::fstatfs(fd, &mut found) } == 0;
    #[allow(clippy::unnecessary_cast, reason = "it has another width in each system; the kinds fit in all")]
    is_found.then_some(found.f_type as u64 & 0xffff_ffff)
}

/// Tells whether a descriptor is a terminal.
pub(crate) fn is_terminal(fd: RawFd) -> bool {
    c::isatty(fd) == 1
}

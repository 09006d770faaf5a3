//! Files and descriptors, where the standard library does not offer the call.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, IntoRawFd as _, OwnedFd, RawFd};
use std::time::Duration;

use super::bare;
use super::c::{self, Call};
use super::{Plain, check, futex, zeros};

/// An open file, closed without the C library when this is dropped: also by a bare thread (`system/bare.rs`).
#[derive(Debug)]
pub struct Descriptor(RawFd);

impl Descriptor {
    /// Takes a descriptor over that the kernel has just made for this program.
    pub(crate) fn new(made: isize) -> Self {
        Self(made as RawFd)
    }
}

impl std::os::fd::AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: it is open for as long as this lives.
        unsafe { BorrowedFd::borrow_raw(self.0) }
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
        // SAFETY: open, and nobody else's from now on.
        unsafe { Self::from_raw_fd(std::mem::ManuallyDrop::new(descriptor).0) }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        close(self.0);
    }
}

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

pub(super) fn open_in(directory: RawFd, name: &CStr, flags: libc::c_int) -> io::Result<File> {
    owned(open_number(directory, name, flags)?)
}

#[inline(never)]
fn open_number(directory: RawFd, name: &CStr, flags: libc::c_int) -> io::Result<isize> {
    let flags = flags | libc::O_CLOEXEC | libc::O_LARGEFILE;
    let name = c::address(name.to_bytes_with_nul());
    loop {
        // By number it is no cancellation point.
        match Call::OPENAT.call([directory as isize, name, flags as isize, 0o600]) {
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            opened => return opened,
        }
    }
}

pub(super) fn path_of(file: &File) -> io::Result<CString> {
    Ok(CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?)
}

/// Makes a file in memory alone, which can be sealed. By number: not every libc has the function.
pub(crate) fn memory_file(name: &CStr) -> io::Result<Descriptor> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    Call::MEMFD_CREATE.call([c::address(name.to_bytes_with_nul()), flags as isize]).map(Descriptor::new)
}

/// Makes a memory file of a size that nobody can change.
pub fn sealed_file(name: &CStr, size: usize) -> io::Result<Descriptor> {
    let file = memory_file(name)?;
    set_length(file.as_raw_fd(), size)?;
    seal(&file)?;
    Ok(file)
}

/// Of std's `set_len` the errors alone are a third of a kilobyte.
#[cfg(bare)]
fn set_length(fd: RawFd, size: usize) -> io::Result<()> {
    Call::FTRUNCATE.call([fd as isize, size as isize]).map(drop)
}

#[cfg(not(bare))]
fn set_length(fd: RawFd, size: usize) -> io::Result<()> {
    // SAFETY: numbers.
    check(unsafe { libc::ftruncate(fd, size as libc::off_t) }).map(drop)
}

/// Has the size of a memory file stay as it is, and this rule, too.
pub(crate) fn seal(file: &Descriptor) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    control(file.as_raw_fd(), libc::F_ADD_SEALS, seals).map(drop)
}

/// Tells how large a file is that can't shrink.
///
/// # Errors
///
/// EPERM where it could shrink, as to read what is gone would end the process; or what failed.
pub fn sealed_size(fd: RawFd) -> io::Result<usize> {
    let seals = control(fd, libc::F_GET_SEALS, 0).unwrap_or(0);
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    usize::try_from(stat(fd)?.st_size).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}

/// As [`sealed_size`], of a file that can't grow either, and is of memory alone: of another one a page may be missing.
///
/// # Errors
///
/// As [`sealed_size`]; EPERM where it is another file.
pub fn fixed_size(fd: RawFd) -> io::Result<usize> {
    const TMPFS: u64 = 0x0102_1994;
    let size = sealed_size(fd)?;
    let can_grow = control(fd, libc::F_GET_SEALS, 0)? & libc::F_SEAL_GROW == 0;
    if can_grow || file_system(fd) != Some(TMPFS) {
        return Err(io::Error::from_raw_os_error(libc::EPERM));
    }
    Ok(size)
}

/// Fills `buffer` from the start of a file; returns how much there was, 0 on any error. Without the C library.
pub(crate) fn read_start(path: &CStr, buffer: &mut [u8]) -> usize {
    let Ok(file) = open_number(libc::AT_FDCWD, path, libc::O_RDONLY).map(Descriptor::new) else { return 0 };
    let mut length = 0;
    while length < buffer.len() {
        let rest = &mut buffer[length..];
        let numbers =
            [file.0 as isize, rest.as_mut_ptr().expose_provenance() as isize, rest.len() as isize, 0, 0, 0];
        // SAFETY: writable memory of that length.
        match c::answer(unsafe { bare::call(libc::SYS_read, numbers) }) {
            Ok(got @ 1..) => length += got as usize,
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            _ => break,
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

/// Waits until one of the descriptors is ready, at most so long (`None`: without end); returns how many are. Where the system
/// denies the call, as a filter of system calls may, it sleeps a little before it says so: who asks again does not spin.
pub(crate) fn poll(places: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<libc::c_int> {
    const REST: Duration = Duration::from_millis(50);
    let ready = poll_once(places, timeout);
    if let Err(error) = &ready
        && error.raw_os_error() != Some(libc::EINTR)
    {
        rest(timeout.map_or(REST, |timeout| timeout.min(REST)));
    }
    ready
}

fn poll_once(places: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<libc::c_int> {
    let count = libc::nfds_t::try_from(places.len()).unwrap_or(0);
    let mut timeout = timeout.map(futex::timespec);
    let timeout = timeout.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // By number it is no cancellation point; where a time has two widths, only the function knows which it is.
    #[cfg(bare)]
    // SAFETY: so many writable places, and a time, which the kernel may write to, or null.
    let ready = unsafe {
        let timeout = timeout.expose_provenance() as isize;
        let places = places.as_mut_ptr().expose_provenance() as isize;
        c::answer(bare::call(libc::SYS_ppoll, [places, count as isize, timeout, 0, 0, 0]))? as libc::c_int
    };
    #[cfg(not(bare))]
    // SAFETY: so many writable places, and a time or null.
    let ready = check(unsafe { libc::ppoll(places.as_mut_ptr(), count, timeout, std::ptr::null()) })?;
    Ok(ready)
}

/// Sleeps so long, or until a signal comes.
fn rest(time: Duration) {
    let time = futex::timespec(time);
    #[cfg(bare)]
    // SAFETY: a time; what is left of it goes nowhere.
    unsafe {
        bare::call(libc::SYS_nanosleep, [(&raw const time).expose_provenance() as isize, 0, 0, 0, 0, 0])
    };
    #[cfg(not(bare))]
    // SAFETY: as above.
    unsafe {
        libc::nanosleep(&raw const time, std::ptr::null_mut())
    };
}

/// Closes a descriptor that is this program's and nobody else knows.
pub(crate) fn close(fd: RawFd) {
    #[cfg(not(miri))]
    let _ = Call::CLOSE.call([fd as isize]);
    // Miri knows only the function.
    #[cfg(miri)]
    // SAFETY: a number. (Declared by another crate than libc, compilers warn of a symbol that std uses.)
    unsafe {
        libc::close(fd)
    };
}

/// `fcntl(2)` of a command that takes a number.
pub(crate) fn control(fd: RawFd, command: libc::c_int, number: libc::c_int) -> io::Result<libc::c_int> {
    #[cfg(bare)]
    let answer = Call::FCNTL.call([fd as isize, command as isize, number as isize])? as libc::c_int;
    #[cfg(not(bare))]
    // SAFETY: numbers; any descriptor may be asked about.
    let answer = check(unsafe { libc::fcntl(fd, command, number) })?;
    Ok(answer)
}

// SAFETY: zeros are numbers.
unsafe impl Plain for libc::stat {}
// SAFETY: as above.
unsafe impl Plain for libc::statfs {}

/// The attributes of an open file.
pub(crate) fn stat(fd: RawFd) -> io::Result<libc::stat> {
    let mut found: libc::stat = zeros();
    #[cfg(bare)]
    // SAFETY: `found` is writable and of the kernel's type; any descriptor may be asked about.
    c::answer(unsafe { bare::call(c::FSTAT, [fd as isize, (&raw mut found).addr() as isize, 0, 0, 0, 0]) })?;
    #[cfg(not(bare))]
    // SAFETY: `found` is writable and of the right type; any descriptor may be asked about.
    check(unsafe { libc::fstat(fd, &mut found) })?;
    Ok(found)
}

/// The attributes of what a path leads to.
pub(crate) fn stat_path(path: &CStr) -> io::Result<libc::stat> {
    let mut found: libc::stat = zeros();
    // SAFETY: a C string; `found` is writable and of the right type.
    check(unsafe { libc::stat(path.as_ptr(), &mut found) })?;
    Ok(found)
}

/// The kind (`f_type`) of file system that an open file is in.
pub(crate) fn file_system(fd: RawFd) -> Option<u64> {
    let mut found: libc::statfs = zeros();
    // SAFETY: `found` is writable and of the right type; any descriptor may be asked about.
    let is_found = unsafe { libc::fstatfs(fd, &mut found) } == 0;
    #[allow(clippy::unnecessary_cast, reason = "it has another width in each system; the kinds fit in all")]
    is_found.then_some(found.f_type as u64 & 0xffff_ffff)
}

/// Tells whether what is in a directory can be looked at.
pub(crate) fn may_enter(directory: &CStr) -> bool {
    let name = c::address(directory.to_bytes_with_nul());
    Call::FACCESSAT.call([libc::AT_FDCWD as isize, name, libc::X_OK as isize]).is_ok()
}

/// Tells whether a descriptor is a terminal.
pub(crate) fn is_terminal(fd: RawFd) -> bool {
    c::isatty(fd) == 1
}

//! Opens a marker, and determines the file to which a descriptor refers.

use std::ffi::CStr;
use std::fmt;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use super::{Identity, MARKER_PATHS, MarkerKind};
pub(super) use crate::system::file::close;
use crate::system::{self, Errno, file, soft_limit};

/// The `f_type` of tracefs, from `linux/magic.h`.
const TRACEFS: u64 = 0x7472_6163;
/// The `f_type` of debugfs, from `linux/magic.h`.
const DEBUGFS: u64 = 0x6462_6720;

/// The highest descriptor number that this library requests. The length of the kernel's table of descriptors depends on
/// the highest number in use: if the highest number is 4095, the table has 32 KiB.
const HIGHEST: u64 = 4095;

/// The result of [`open_checked`] and [`inherit_checked`]. Its descriptor belongs to this library.
pub(super) struct Opened {
    pub(super) fd: i32,
    pub(super) kind: MarkerKind,
    pub(super) identity: Identity,
}

/// The identity that is used for a file of tracefs if the system does not show the file's device and inode to this
/// process.
const UNSEEN: Identity = Identity { device: 0, inode: 0 };

/// Returns the device, inode and mode of an open descriptor; for a file of tracefs whose attributes may not be read,
/// device and inode are 0.
pub(crate) fn identity_of(fd: i32) -> Option<(Identity, u32)> {
    match file::stat(fd) {
        // The types of the fields differ between systems: on 32-bit Android, st_dev and st_ino have 64 bits; on all
        // other systems, they fit into u64.
        #[allow(clippy::unnecessary_cast)]
        Ok(stat) => Some((Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }, stat.st_mode)),
        // Android lets every process write to the marker, but lets only few processes read its attributes (SELinux:
        // `w_file_perms`).
        Err(error) => {
            let is_unseen = error == Errno(libc::EACCES) && on_tracefs(fd);
            is_unseen.then_some((UNSEEN, REGULAR))
        }
    }
}

/// Returns whether a descriptor refers to the file with this identity and, if that is a regular file, whether
/// writing to it may raise a signal.
pub(super) fn look(fd: i32, kind: MarkerKind, identity: Identity) -> DescriptorCheck {
    // If the process may not read the attributes, it does not try again, because the system logs each denial.
    let is_ours = if identity == UNSEEN {
        on_tracefs(fd)
    } else {
        identity_of(fd).is_some_and(|(found, _)| found == identity)
    };
    match kind {
        _ if !is_ours => DescriptorCheck::Another,
        MarkerKind::File if has_size_limit() => DescriptorCheck::Limited,
        _ => DescriptorCheck::Ours,
    }
}

/// The result of checking whether a descriptor refers to the marker.
pub(super) enum DescriptorCheck {
    Ours,
    /// The descriptor refers to the marker, which is a regular file, and the process has a file size limit. A message
    /// that exceeded the limit would raise a signal, so no message may be written.
    Limited,
    /// The descriptor refers to another file, or is closed.
    Another,
}

/// Opens `path` for writing, if the file is of a kind that can neither block nor raise a signal. The result
/// is never the descriptor `not`.
///
/// This allocates nothing, because code that writes an event may have to open the marker again.
pub(super) fn open_checked(path: &CStr, not: Option<i32>) -> Result<Opened, Fault> {
    // The type is checked before the file is opened, because even opening a pipe has an effect on the pipe's reader.
    match file::stat_path(path) {
        // The type of `st_mode` differs between systems.
        #[allow(clippy::unnecessary_cast)]
        Ok(stat) => check_type(stat.st_mode as u32)?,
        // The process may not read the attributes. Android denies this to most processes, but lets them open the
        // marker, so the kernel's own paths are opened nevertheless.
        Err(Errno(libc::EACCES)) if MARKER_PATHS.contains(&path) => {}
        Err(reason) => return Err(Fault::system(reason)),
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_NOCTTY | libc::O_NONBLOCK;
    let file = file::open(path, flags).map_err(Fault::system)?;
    let (kind, identity) = check_open(file.as_raw_fd())?;
    let fd = match duplicate_high(file.as_raw_fd(), not) {
        Ok(fd) => fd,
        Err(error) if Some(file.as_raw_fd()) == not => return Err(Fault::system(error)),
        Err(_) => file.into_raw_fd(),
    };
    Ok(Opened { fd, kind, identity })
}

/// Duplicates an inherited descriptor, if it refers to the expected file. The result is never the descriptor
/// `not`. This allocates nothing.
pub(super) fn inherit_checked(fd: i32, expected: Identity, not: Option<i32>) -> Result<Opened, Fault> {
    match identity_of(fd) {
        None => return Err(Fault::NotOpen),
        Some((identity, _)) if identity != expected => return Err(Fault::Reused),
        Some(_) => {}
    }
    if !file::control(fd, libc::F_GETFL, 0).is_ok_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY) {
        return Err(Fault::ReadOnly);
    }
    let (kind, identity) = check_open(fd)?;
    let fd = duplicate_high(fd, not).map_err(Fault::system)?;
    Ok(Opened { fd, kind, identity })
}

/// The reason why a file can't be the marker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// The system returned this errno.
    System(i32),
    /// The file is of this kind, and writing to such a file could block or raise a signal.
    Kind(&'static str),
    /// The file is a regular file, and there is a limit to the size of files.
    Limited,
    /// No file is open with this descriptor.
    NotOpen,
    /// The descriptor refers to another file.
    Reused,
    ReadOnly,
}

impl Fault {
    /// Returns the errno of the system, or 0 if there is none.
    pub(super) fn code(self) -> i32 {
        if let Self::System(code) = self { code } else { 0 }
    }

    const fn system(Errno(code): Errno) -> Self {
        Self::System(code)
    }
}

impl fmt::Display for Fault {
    /// Formats the reason, as a text that follows the name of the file in an error message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(code) => write!(f, ": {}", Errno(*code)),
            Self::Kind(kind) => write!(f, " is {kind}, which could block or signal the program"),
            Self::Limited => f.write_str(
                " is a regular file and this process has a file size limit (ulimit -f), past which writing would raise SIGXFSZ",
            ),
            Self::NotOpen => f.write_str(" is not open in this process"),
            Self::Reused => {
                f.write_str(" refers to another file than the one that was named (its number was reused)")
            }
            Self::ReadOnly => f.write_str(" is not open for writing"),
        }
    }
}

/// Duplicates a descriptor to the highest free number that the soft limit allows, at most [`HIGHEST`]. A program that
/// closes all descriptors and then opens files gets the lowest numbers, and therefore does not reuse this high number.
///
/// Returns an error if no descriptor is free, or if only the descriptor `not` is free.
pub(crate) fn duplicate_high(fd: i32, not: Option<i32>) -> system::Result<i32> {
    let limit = soft_limit(libc::RLIMIT_NOFILE).map_or(HIGHEST, |limit| limit.saturating_sub(1).min(HIGHEST));
    let mut error = Errno(libc::EMFILE);
    for number in (0..=limit as i32).rev() {
        if Some(number) == not || file::control(number, libc::F_GETFD, 0).is_ok() {
            continue;
        }
        // The kernel uses this number or, if another thread has taken it meanwhile, a higher number.
        match file::control(fd, libc::F_DUPFD_CLOEXEC, number) {
            Ok(own) if Some(own) == not => close(own),
            Ok(own) => return Ok(own),
            Err(reason) => error = reason,
        }
    }
    Err(error)
}

use mode::{BLOCK, CHARACTER, DIRECTORY, FORMAT, PIPE, REGULAR, SOCKET};

#[allow(clippy::unnecessary_cast, reason = "on 32-bit Android these have 16 bits, but a mode has 32")]
mod mode {
    pub(super) const FORMAT: u32 = libc::S_IFMT as u32;
    pub(super) const REGULAR: u32 = libc::S_IFREG as u32;
    pub(super) const CHARACTER: u32 = libc::S_IFCHR as u32;
    pub(super) const PIPE: u32 = libc::S_IFIFO as u32;
    pub(super) const SOCKET: u32 = libc::S_IFSOCK as u32;
    pub(super) const DIRECTORY: u32 = libc::S_IFDIR as u32;
    pub(super) const BLOCK: u32 = libc::S_IFBLK as u32;
}

/// Accepts regular files and character devices, and returns an error for others.
fn check_type(mode: u32) -> Result<(), Fault> {
    Err(Fault::Kind(match mode & FORMAT {
        REGULAR | CHARACTER => return Ok(()),
        PIPE => "a pipe",
        SOCKET => "a socket",
        DIRECTORY => "a directory",
        BLOCK => "a block device",
        _ => "no regular file",
    }))
}

/// Returns the kind and the identity of an open file, if writing to it is allowed.
fn check_open(fd: i32) -> Result<(MarkerKind, Identity), Fault> {
    let Some((identity, mode)) = identity_of(fd) else {
        return Err(file::stat(fd).err().map_or(Fault::NotOpen, Fault::system));
    };
    check_type(mode)?;
    if on_tracefs(fd) {
        return Ok((MarkerKind::Tracefs, identity));
    }
    if mode & FORMAT == CHARACTER {
        if file::is_terminal(fd) {
            return Err(Fault::Kind("a terminal"));
        }
        return Ok((MarkerKind::Device, identity));
    }
    if has_size_limit() {
        return Err(Fault::Limited);
    }
    Ok((MarkerKind::File, identity))
}

/// Returns whether the process has a limit to the size of files. With such a limit, writing to a regular file may raise
/// a signal.
fn has_size_limit() -> bool {
    soft_limit(libc::RLIMIT_FSIZE).is_some()
}

/// Returns whether an open descriptor refers to a file of tracefs or debugfs.
pub(crate) fn on_tracefs(fd: i32) -> bool {
    matches!(file::file_system(fd), Some(TRACEFS | DEBUGFS))
}

#[cfg(all(test, target_os = "linux", target_pointer_width = "64", not(miri)))]
mod tests {
    use super::*;

    /// Makes the system refuse `F_GETFD` to the calling thread, so that the thread can't find out which descriptor
    /// numbers are in use. The thread also gets its own table of descriptors (`CLONE_FILES`).
    fn see_no_numbers() {
        let op = |code: u32, k: u32, jf: u8| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let (load, equals) = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ);
        let mut filter = [
            op(load, 0, 0), // The number of the system call.
            op(equals, libc::SYS_fcntl as u32, 3),
            op(load, 24, 0), // The second argument of the system call.
            op(equals, libc::F_GETFD as u32, 1),
            op(libc::BPF_RET, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0),
            op(libc::BPF_RET, libc::SECCOMP_RET_ALLOW, 0),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: `program` points to the live filter and has its length.
        unsafe {
            assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
            assert_eq!(set, 0);
        }
    }

    /// Tests the case that other threads take the numbers that a search has found free. The kernel then returns the
    /// forbidden number, which must not be the result.
    #[test]
    fn a_number_that_must_not_be_used_is_not_the_result_when_others_are_faster() {
        std::thread::spawn(|| {
            see_no_numbers();
            let file = std::fs::File::open("/dev/null").unwrap();
            let fd = file.as_raw_fd();
            let limit =
                soft_limit(libc::RLIMIT_NOFILE).map_or(HIGHEST, |limit| (limit - 1).min(HIGHEST)) as i32;
            while file::control(fd, libc::F_DUPFD_CLOEXEC, 0).is_ok_and(|number| number < limit) {}
            close(limit);
            assert_eq!(duplicate_high(fd, None), Ok(limit));
            close(limit);
            assert_eq!(duplicate_high(fd, Some(limit)), Err(Errno(libc::EMFILE)));
        })
        .join()
        .unwrap();
    }
}

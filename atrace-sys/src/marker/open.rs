//! Opening a marker, and telling what stands at a descriptor's number.

use std::ffi::CStr;

use super::{Identity, MARKER_PATHS, MarkerError, MarkerKind, error, failed};
use crate::process;

/// `f_type` of tracefs and debugfs, from `linux/magic.h`.
const TRACEFS: u64 = 0x7472_6163;
const DEBUGFS: u64 = 0x6462_6720;

/// The highest number that is taken: the kernel keeps a table as long as the highest, 32 KiB for this one.
const HIGHEST: i32 = 4095;

/// What [`open_checked`] and [`inherit_checked`] found, with a descriptor of our own.
pub(super) struct Opened {
    pub(super) fd: i32,
    pub(super) kind: MarkerKind,
    pub(super) identity: Identity,
}

pub(super) fn close(fd: i32) {
    // SAFETY: only called with descriptors this module opened and nobody else knows.
    unsafe { libc::close(fd) };
}

/// Of a file of tracefs that may not be looked at.
const UNSEEN: Identity = Identity { device: 0, inode: 0 };

fn identity_from(stat: &libc::stat) -> Identity {
    // The types differ between systems: 32-bit Android has a 64-bit st_dev and inode, others what u64 holds.
    #[allow(clippy::unnecessary_cast)]
    Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
}

fn mode_of(stat: &libc::stat) -> u32 {
    stat.st_mode
}

/// The device, inode and mode of an open descriptor; of a file of tracefs that may not be looked at, zeros.
pub(super) fn identity_of(fd: i32) -> Option<(Identity, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is writable and of the right type; any descriptor number is allowed.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        // Android lets every process write to the marker, but few look at its attributes (SELinux:
        // `w_file_perms`).
        let unseen = process::errno() == libc::EACCES && on_tracefs(fd);
        return unseen.then_some((UNSEEN, REGULAR));
    }
    // SAFETY: fstat succeeded (and zeroes are a valid stat anyway).
    let stat = unsafe { stat.assume_init() };
    Some((identity_from(&stat), mode_of(&stat)))
}

/// Whether a descriptor is this file; if so, and it is a regular one, whether writing to it may signal.
pub(super) fn look(fd: i32, kind: MarkerKind, identity: Identity) -> Found {
    // What may not be looked at is not asked for its attributes each time: the system keeps a record of that.
    let is_ours = if identity == UNSEEN {
        on_tracefs(fd)
    } else {
        identity_of(fd).is_some_and(|(found, _)| found == identity)
    };
    match kind {
        _ if !is_ours => Found::Another,
        MarkerKind::File if has_size_limit() => Found::Limited,
        _ => Found::Ours,
    }
}

/// What stands at a number.
pub(super) enum Found {
    Ours,
    /// A file that must not be written while there is a size limit.
    Limited,
    /// Something of the host's, or nothing.
    Another,
}

/// Opens `path` for writing if it is a kind of file that can neither block nor signal; not at the number `not`.
pub(super) fn open_checked(path: &CStr, not: Option<i32>) -> Result<Opened, MarkerError> {
    let shown = path.to_string_lossy();
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // Before opening: even to open a pipe changes what its reader sees.
    // SAFETY: a C string and a writable stat.
    if unsafe { libc::stat(path.as_ptr(), stat.as_mut_ptr()) } == 0 {
        // SAFETY: stat succeeded.
        check_type(mode_of(&unsafe { stat.assume_init() }))
            .or_else(|kind| error(format!("{shown} is {kind}, which could block or signal the program")))?;
    } else if process::errno() != libc::EACCES || !MARKER_PATHS.contains(&path) {
        // Where only looking is denied, as by Android to most processes, the kernel's own place may be opened
        // all the same.
        return failed(&shown);
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a C string; no O_CREAT, so no mode is needed.
    let fd = unsafe { libc::open(path.as_ptr(), flags) };
    if fd < 0 {
        return failed(&shown);
    }
    match check_open(fd, &shown) {
        Ok((kind, identity)) => match duplicate_high(fd, not) {
            Some(own) => {
                close(fd);
                Ok(Opened { fd: own, kind, identity })
            }
            None => Ok(Opened { fd, kind, identity }),
        },
        Err(reason) => {
            close(fd);
            Err(reason)
        }
    }
}

/// Takes a duplicate of an inherited descriptor if it is the file it is said to be; not at the number `not`.
pub(super) fn inherit_checked(fd: i32, expected: Identity, not: Option<i32>) -> Result<Opened, MarkerError> {
    let shown = format!("fd:{fd}");
    match identity_of(fd) {
        None => return error(format!("{shown} is not open in this process")),
        Some((identity, _)) if identity != expected => {
            return error(format!(
                "{shown} is another file than the one it was named for (its number was reused)"
            ));
        }
        Some(_) => {}
    }
    // SAFETY: F_GETFL has no preconditions.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 || flags & libc::O_ACCMODE == libc::O_RDONLY {
        return error(format!("{shown} is not open for writing"));
    }
    let (kind, identity) = check_open(fd, &shown)?;
    match duplicate_high(fd, not) {
        Some(own) => Ok(Opened { fd: own, kind, identity }),
        None => failed(&shown),
    }
}

/// Duplicates a descriptor to the highest free number that the soft limit allows, [`HIGHEST`] at most: programs
/// that close everything and open files of their own get the lowest. `None`, with errno, where none but `not` is
/// free.
pub(crate) fn duplicate_high(fd: i32, not: Option<i32>) -> Option<i32> {
    let limit = soft_limit(libc::RLIMIT_NOFILE)
        .map_or(HIGHEST + 1, |limit| i32::try_from(limit).unwrap_or(i32::MAX).min(HIGHEST + 1));
    (0..limit).rev().filter(|number| Some(*number) != not).find_map(|number| {
        // SAFETY: asks about a number, then duplicates an open descriptor to it, or to a higher one if another
        // thread was faster.
        let own = unsafe {
            if libc::fcntl(number, libc::F_GETFD) >= 0 {
                return None;
            }
            libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, number)
        };
        if own >= 0 && Some(own) == not {
            close(own);
            return None;
        }
        (own >= 0).then_some(own)
    })
}

use mode::{BLOCK, CHARACTER, DIRECTORY, FORMAT, PIPE, REGULAR, SOCKET};

#[allow(
    clippy::unnecessary_cast,
    reason = "these have 16 bits on 32-bit Android, where a stat's mode has 32"
)]
mod mode {
    pub(super) const FORMAT: u32 = libc::S_IFMT as u32;
    pub(super) const REGULAR: u32 = libc::S_IFREG as u32;
    pub(super) const CHARACTER: u32 = libc::S_IFCHR as u32;
    pub(super) const PIPE: u32 = libc::S_IFIFO as u32;
    pub(super) const SOCKET: u32 = libc::S_IFSOCK as u32;
    pub(super) const DIRECTORY: u32 = libc::S_IFDIR as u32;
    pub(super) const BLOCK: u32 = libc::S_IFBLK as u32;
}

/// Accepts regular files and character devices; else names what it is.
fn check_type(mode: u32) -> Result<(), &'static str> {
    match mode & FORMAT {
        REGULAR | CHARACTER => Ok(()),
        PIPE => Err("a pipe"),
        SOCKET => Err("a socket"),
        DIRECTORY => Err("a directory"),
        BLOCK => Err("a block device"),
        _ => Err("no regular file"),
    }
}

/// What an open descriptor is, if it may be written to.
fn check_open(fd: i32, shown: &str) -> Result<(MarkerKind, Identity), MarkerError> {
    let Some((identity, mode)) = identity_of(fd) else {
        return failed(shown);
    };
    check_type(mode)
        .or_else(|kind| error(format!("{shown} is {kind}, which could block or signal the program")))?;
    if on_tracefs(fd) {
        return Ok((MarkerKind::Tracefs, identity));
    }
    if mode & FORMAT == CHARACTER {
        // SAFETY: isatty accepts any descriptor.
        if unsafe { libc::isatty(fd) } == 1 {
            return error(format!("{shown} is a terminal, which could block or signal the program"));
        }
        return Ok((MarkerKind::Device, identity));
    }
    if has_size_limit() {
        return error(format!(
            "{shown} is a regular file and this process has a file size limit (ulimit -f), past which writing would raise SIGXFSZ"
        ));
    }
    Ok((MarkerKind::File, identity))
}

/// Whether a regular file that grows would raise a signal at some size.
fn has_size_limit() -> bool {
    soft_limit(libc::RLIMIT_FSIZE).is_some()
}

/// A limit of this process; `None` where there is none.
pub(crate) fn soft_limit(of: Resource) -> Option<libc::rlim_t> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable and of the right type. On failure it stays at "no limit".
    unsafe { libc::getrlimit(of, &mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The type of `RLIMIT_…`, another in each libc.
#[cfg(target_env = "gnu")]
type Resource = libc::__rlimit_resource_t;
#[cfg(not(target_env = "gnu"))]
type Resource = libc::c_int;

/// Tells whether an open descriptor is a file of tracefs, or of debugfs.
pub(crate) fn on_tracefs(fd: i32) -> bool {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `stat` is writable and of the right type.
    if unsafe { libc::fstatfs(fd, stat.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: fstatfs succeeded. The field's type differs between systems; both numbers fit in all of them.
    #[allow(clippy::unnecessary_cast)]
    let kind = unsafe { stat.assume_init() }.f_type as u64 & 0xffff_ffff;
    kind == TRACEFS || kind == DEBUGFS
}

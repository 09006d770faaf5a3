//! The kernel's `trace_marker`: find it, open it, write to it; and the stand-ins a test or bench names
//! instead.
//!
//! One `write(2)` is one event. The call is made without libc where that is simple (x86_64, aarch64), for two
//! reasons that matter to a library that lives in other people's programs: `write()` of a libc is a
//! cancellation point, at which `pthread_cancel` would unwind through the caller, and it sets errno.
//!
//! What may be written to: a file of tracefs (or debugfs, on old kernels), a regular file, a character device
//! that is no terminal. A pipe or socket could block its host or raise a signal, so it is refused.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::process::{self, Undisturbed};
use crate::thread;
use crate::word::AtomicRef;

/// Where the marker is looked for, in this order: tracefs as mounted today, then within debugfs (Linux before
/// 4.1, Android before 12).
pub const MARKER_PATHS: [&CStr; 2] =
    [c"/sys/kernel/tracing/trace_marker", c"/sys/kernel/debug/tracing/trace_marker"];

/// The lowest number our descriptor gets, where the limit of the process allows it.
///
/// Programs that close everything at their start and open their own files then reuse the lowest numbers; a
/// marker among those would have its events written into their files.
pub(crate) const LOWEST_FD: i32 = 200;

/// `f_type` of tracefs and debugfs, from `linux/magic.h`.
const TRACEFS: u64 = 0x7472_6163;
const DEBUGFS: u64 = 0x6462_6720;

/// What kind of file a [`Marker`] writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MarkerKind {
    /// The kernel's ring buffer, through tracefs or debugfs.
    Tracefs,
    /// A regular file: messages follow each other without a separator.
    File,
    /// A character device, such as `/dev/null`.
    Device,
}

/// Why no marker could be opened.
#[derive(Debug)]
pub struct MarkerError(String);

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MarkerError {}

fn error<T>(text: impl Into<String>) -> Result<T, MarkerError> {
    Err(MarkerError(text.into()))
}

/// Who is told of failures.
static TOLD: AtomicRef<fn()> = AtomicRef::new(&NOBODY);
static NOBODY: fn() = || {};

/// Has `told` called when messages could not be written: by any marker, after 1, 2, 4, 8 … of them, on the
/// thread whose message it was.
pub fn on_failure(told: &'static fn()) {
    TOLD.set(told);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

#[derive(Debug)]
enum Source {
    Path(CString),
    /// A descriptor that the starting program left open for us.
    Inherited(i32),
}

/// An open marker.
///
/// All methods may be called from any thread, and in a forked child. Dropping it closes it; one that events
/// go to is kept until the process ends.
#[derive(Debug)]
pub struct Marker {
    fd: AtomicI32,
    kind: MarkerKind,
    source: Source,
    identity: Identity,
    dropped: AtomicU64,
    last_error: AtomicI32,
}

impl Marker {
    /// Opens the kernel's marker, at the first of [`MARKER_PATHS`] that can be opened.
    ///
    /// # Errors
    ///
    /// Says for each place why not, and what would give access.
    pub fn open() -> Result<Self, MarkerError> {
        let mut reasons = Vec::new();
        for path in MARKER_PATHS {
            match Self::open_path(path.to_owned()) {
                Ok(marker) => return Ok(marker),
                Err(reason) => reasons.push(reason.0),
            }
        }
        // SAFETY: no preconditions.
        let hint = if unsafe { libc::geteuid() } == 0 {
            "mount tracefs with: mount -t tracefs nodev /sys/kernel/tracing"
        } else {
            "only root and its group may write there: run as root"
        };
        error(format!("{}; {hint}", reasons.join("; ")))
    }

    /// Opens what `ATRACE_MARKER` names: a path, or `fd:N:DEV:INO`, an inherited descriptor and the device
    /// and inode (`st_dev`, `st_ino`, decimal) it must have.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the value: not there, not writable, another file than the one named, or a kind
    /// of file that could block or signal.
    pub fn open_named(value: &OsStr) -> Result<Self, MarkerError> {
        if let Some(rest) = value.as_bytes().strip_prefix(b"fd:") {
            return Self::inherit(&String::from_utf8_lossy(rest));
        }
        match CString::new(value.as_bytes()) {
            Ok(path) => Self::open_path(path),
            Err(_) => error("the path of the marker contains a NUL byte"),
        }
    }

    fn open_path(path: CString) -> Result<Self, MarkerError> {
        let (fd, kind, identity) = open_checked(&path, LOWEST_FD)?;
        Ok(Self::new(fd, kind, identity, Source::Path(path)))
    }

    fn inherit(spec: &str) -> Result<Self, MarkerError> {
        let mut parts = spec.split(':');
        let parsed = (|| {
            let fd: i32 = parts.next()?.parse().ok().filter(|fd| *fd >= 0)?;
            let device = parts.next()?.parse().ok()?;
            let inode = parts.next()?.parse().ok()?;
            parts.next().is_none().then_some((fd, Identity { device, inode }))
        })();
        let Some((fd, identity)) = parsed else {
            return error(format!(
                "fd:{spec} is not of the form fd:N:DEV:INO (a descriptor, its st_dev and st_ino, all decimal)"
            ));
        };
        let (own, kind) = inherit_checked(fd, identity, LOWEST_FD)?;
        Ok(Self::new(own, kind, identity, Source::Inherited(fd)))
    }

    fn new(fd: i32, kind: MarkerKind, identity: Identity, source: Source) -> Self {
        #[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
        GUARD_RETURNS.store(crate::returns::are_costly(), Ordering::Relaxed);
        Self {
            fd: AtomicI32::new(fd),
            kind,
            source,
            identity,
            dropped: AtomicU64::new(0),
            last_error: AtomicI32::new(0),
        }
    }

    /// The kind of file it writes to.
    pub fn kind(&self) -> MarkerKind {
        self.kind
    }

    /// The path it was opened at, or `fd:N` for an inherited descriptor.
    pub fn describe(&self) -> String {
        self.place().to_string()
    }

    /// The descriptor that it writes to now, and the device and inode of its file, as `N:DEV:INO`.
    pub fn identity(&self) -> impl fmt::Display + use<> {
        struct Shown(i32, Identity);
        impl fmt::Display for Shown {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:{}:{}", self.0, self.1.device, self.1.inode)
            }
        }
        Shown(self.fd.load(Ordering::Relaxed), self.identity)
    }

    /// The path it was opened at, or `fd:N` for an inherited descriptor; allocates nothing.
    pub fn place(&self) -> impl fmt::Display + '_ {
        struct Shown<'a>(&'a Source);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.0 {
                    Source::Path(path) => fmt::Display::fmt(&OsStr::from_bytes(path.to_bytes()).display(), f),
                    Source::Inherited(fd) => write!(f, "fd:{fd}"),
                }
            }
        }
        Shown(&self.source)
    }

    /// How many messages could not be written, and the errno of the last failure (0: none).
    pub fn failures(&self) -> (u64, i32) {
        (self.dropped.load(Ordering::Relaxed), self.last_error.load(Ordering::Relaxed))
    }

    /// Writes one message as one event, and tells whether the kernel took it whole.
    ///
    /// Never blocks, signals or touches errno. A failed write drops this message only; when the descriptor
    /// turns out to have been closed by the host, the marker is opened again and the message written.
    #[inline(always)]
    pub fn write(&self, message: &[u8]) -> bool {
        let fd = self.fd.load(Ordering::Relaxed);
        let written = write_once(fd, message);
        written == message.len() as isize || self.write_again(fd, message, written)
    }

    #[cold]
    #[inline(never)]
    fn write_again(&self, mut fd: i32, message: &[u8], mut written: isize) -> bool {
        let _undisturbed = Undisturbed::new();
        let mut code = 0;
        // Interrupted, closed by the host, closed again while we reopened: more than a few times is no
        // accident.
        for _ in 0..4 {
            if written == message.len() as isize {
                return true;
            }
            code = if written < 0 { -written as i32 } else { libc::ENOSPC };
            match code {
                libc::EINTR => {}
                // Also what tracefs says while `tracing_on` is 0: then the descriptor is still the file we
                // opened.
                libc::EBADF => match self.reopen(fd) {
                    Some(new) => fd = new,
                    None => break,
                },
                _ => break,
            }
            written = write_once(fd, message);
        }
        self.last_error.store(code, Ordering::Relaxed);
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        // The first, and ever fewer.
        if dropped.is_power_of_two() {
            TOLD.get()();
        }
        false
    }

    /// After EBADF: the descriptor to go on with, or none where ours is open and the event was refused by the
    /// kernel.
    fn reopen(&self, stale: i32) -> Option<i32> {
        if thread::has_left_descriptors() {
            return None; // What this thread opens, no other thread has.
        }
        let present = self.fd.load(Ordering::Relaxed);
        if present != stale {
            return Some(present); // Another thread has done it.
        }
        if identity_of(stale).is_some_and(|(identity, _)| identity == self.identity) {
            return None;
        }
        // Not the number that the stale one had: a thread that still knows it would take the new one for it.
        let lowest = LOWEST_FD.max(stale.saturating_add(1));
        let new = match &self.source {
            Source::Path(path) => match open_checked(path, lowest) {
                Ok((fd, kind, identity)) if kind == self.kind && identity == self.identity => fd,
                Ok((fd, ..)) => {
                    close(fd); // Another file stands there now: not what the user named.
                    return None;
                }
                Err(_) => return None,
            },
            Source::Inherited(fd) => inherit_checked(*fd, self.identity, lowest).ok()?.0,
        };
        match self.fd.compare_exchange(stale, new, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Some(new),
            Err(faster) => {
                close(new);
                Some(faster)
            }
        }
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let fd = *self.fd.get_mut();
        // The host may have closed it, and have another file at its number.
        if identity_of(fd).is_some_and(|(identity, _)| identity == self.identity) {
            close(fd);
        }
    }
}

fn close(fd: i32) {
    // SAFETY: only called with descriptors this module opened and nobody else knows.
    unsafe { libc::close(fd) };
}

fn last_error() -> std::io::Error {
    std::io::Error::from_raw_os_error(process::errno())
}

fn identity_from(stat: &libc::stat) -> Identity {
    // The types differ between systems: 32-bit Android has a 64-bit st_dev and inode, others what u64 holds.
    #[allow(clippy::unnecessary_cast)]
    Identity { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
}

fn mode_of(stat: &libc::stat) -> u32 {
    stat.st_mode
}

/// The device, inode and mode of an open descriptor; of a file of tracefs that may not be looked at, zeros.
fn identity_of(fd: i32) -> Option<(Identity, u32)> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is writable and of the right type; any descriptor number is allowed.
    if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
        // Android lets every process write to the marker, but few look at its attributes (SELinux:
        // `w_file_perms`).
        let unseen = process::errno() == libc::EACCES && on_tracefs(fd);
        return unseen.then_some((Identity { device: 0, inode: 0 }, REGULAR));
    }
    // SAFETY: fstat succeeded (and zeroes are a valid stat anyway).
    let stat = unsafe { stat.assume_init() };
    Some((identity_from(&stat), mode_of(&stat)))
}

/// Opens `path` for writing if it is a kind of file that can neither block nor signal.
fn open_checked(path: &CStr, lowest: i32) -> Result<(i32, MarkerKind, Identity), MarkerError> {
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
        return error(format!("{shown}: {}", last_error()));
    }
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOCTTY | libc::O_NONBLOCK;
    // SAFETY: a C string; no O_CREAT, so no mode is needed.
    let fd = unsafe { libc::open(path.as_ptr(), flags) };
    if fd < 0 {
        return error(format!("{shown}: {}", last_error()));
    }
    match check_open(fd, &shown) {
        Ok((kind, identity)) => match duplicate(fd, lowest) {
            Some(own) => {
                close(fd);
                Ok((own, kind, identity))
            }
            None => Ok((fd, kind, identity)),
        },
        Err(reason) => {
            close(fd);
            Err(reason)
        }
    }
}

/// Takes a duplicate of an inherited descriptor if it is the file it is said to be.
fn inherit_checked(fd: i32, expected: Identity, lowest: i32) -> Result<(i32, MarkerKind), MarkerError> {
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
    let (kind, _) = check_open(fd, &shown)?;
    match duplicate(fd, lowest) {
        Some(own) => Ok((own, kind)),
        None => error(format!("{shown}: {}", last_error())),
    }
}

/// Duplicates a descriptor to a number from `lowest` on, which programs don't reuse; or to another, if that
/// can't be had.
fn duplicate(fd: i32, lowest: i32) -> Option<i32> {
    [lowest, LOWEST_FD, 0].into_iter().find_map(|lowest| {
        // SAFETY: duplicates an open descriptor.
        let own = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, lowest) };
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
        return error(format!("{shown}: {}", last_error()));
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
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` is writable and of the right type.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0
        && limit.rlim_cur != libc::RLIM_INFINITY
    {
        return error(format!(
            "{shown} is a regular file and this process has a file size limit (ulimit -f), past which writing would raise SIGXFSZ"
        ));
    }
    Ok((MarkerKind::File, identity))
}

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

/// Whether the first return after a system call is worth a guard: see [`crate::returns`].
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
static GUARD_RETURNS: AtomicBool = AtomicBool::new(false);

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let result: isize;
    // SAFETY: the kernel reads `message.len()` readable bytes; the call changes no memory of ours, and no
    // register but rax, rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_write => result,
            in("rdi") fd as isize,
            in("rsi") message.as_ptr(),
            in("rdx") message.len(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack, readonly),
        );
    }
    if GUARD_RETURNS.load(Ordering::Relaxed) {
        crate::returns::guard();
    }
    result
}

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let result: isize;
    // SAFETY: the kernel reads `message.len()` readable bytes; the call changes no memory of ours, and no
    // register but x0.
    unsafe {
        std::arch::asm!(
            "svc #0",
            in("x8") libc::SYS_write,
            inlateout("x0") fd as isize => result,
            in("x1") message.as_ptr(),
            in("x2") message.len(),
            options(nostack, readonly, preserves_flags),
        );
    }
    result
}

/// One `write(2)`: the number of bytes taken, or the negated errno. Leaves errno alone.
#[cfg(any(
    miri,
    not(any(all(target_arch = "x86_64", target_pointer_width = "64"), target_arch = "aarch64"))
))]
#[inline(always)]
fn write_once(fd: i32, message: &[u8]) -> isize {
    let _errno = process::ErrnoGuard::new();
    // SAFETY: `message` is readable memory of that length; `syscall` is no cancellation point.
    #[cfg(not(miri))]
    let result = unsafe { libc::syscall(libc::SYS_write, fd, message.as_ptr(), message.len()) } as isize;
    // SAFETY: as above; Miri knows only the function.
    #[cfg(miri)]
    let result = unsafe { libc::write(fd, message.as_ptr().cast(), message.len()) };
    if result < 0 { -(process::errno() as isize) } else { result }
}

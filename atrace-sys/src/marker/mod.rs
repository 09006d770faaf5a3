//! The kernel's `trace_marker`: find it, open it, write to it; and the stand-ins a test or bench names
//! instead.
//!
//! One `write(2)` is one event. The call is made without libc where that is simple (x86_64, aarch64), for two
//! reasons that matter to a library that lives in other people's programs: `write()` of a libc is a
//! cancellation point, at which `pthread_cancel` would unwind through the caller, and it sets errno.
//!
//! What may be written to: a file of tracefs (or debugfs, on old kernels), a regular file, a character device
//! that is no terminal. A pipe or socket could block its host or raise a signal, so it is refused.
//!
//! A host may close our descriptor and have its number again for a file of its own. So the number is one that
//! programs reach last, and whether it still is our file is looked at now and then (`marker/write.rs`), and whenever
//! a write is answered as no marker answers.

#[cfg(not(no_tracing))]
pub(crate) mod open;
#[cfg(all(
    feature = "guard-returns",
    not(no_tracing),
    target_arch = "x86_64",
    target_pointer_width = "64",
    not(miri)
))]
mod returns;
#[cfg(not(no_tracing))]
mod write;

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use self::open::{Fault, Opened, close, identity_of, inherit_checked, open_checked};
#[cfg(not(no_tracing))]
use self::write::returns_are_costly;
#[cfg(no_tracing)]
use crate::system::marker::{self as open, returns_are_costly};
use crate::word::AtomicRef;
use crate::{process, system};

/// Where the marker is looked for, in this order: tracefs as mounted today, then within debugfs (Linux before
/// 4.1, Android before 12).
pub const MARKER_PATHS: [&CStr; 2] =
    [c"/sys/kernel/tracing/trace_marker", c"/sys/kernel/debug/tracing/trace_marker"];

/// The command by which root mounts tracefs where it is looked for first.
pub const MOUNT_COMMAND: &str = "mount -t tracefs nodev /sys/kernel/tracing";

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
pub struct MarkerError {
    text: String,
    /// What the system said, or 0.
    code: i32,
}

impl MarkerError {
    /// Tells whether it may be otherwise soon: there was no descriptor or memory to be had.
    pub fn may_pass(&self) -> bool {
        process::may_pass(self.code)
    }
}

impl fmt::Display for MarkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for MarkerError {}

pub(crate) fn error<T>(text: impl Into<String>) -> Result<T, MarkerError> {
    Err(MarkerError { text: text.into(), code: 0 })
}

impl MarkerError {
    fn new(place: &str, fault: Fault) -> Self {
        let code = fault.code();
        Self { text: format!("{place}{fault}"), code }
    }
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
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
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
    /// The number that is written to; or one that must not be before it was looked at, every bit inverted.
    fd: AtomicI32,
    kind: MarkerKind,
    source: Source,
    identity: Identity,
    /// Whether the first return after a system call is worth a guard: see `marker/returns.rs`.
    guards_returns: bool,
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
        let mut reasons = String::new();
        for path in MARKER_PATHS {
            match Self::open_path(path.to_owned()) {
                Ok(marker) => return Ok(marker),
                Err(reason) if reason.may_pass() => return Err(reason),
                Err(reason) => {
                    reasons.push_str(&reason.text);
                    reasons.push_str("; ");
                }
            }
        }
        reasons.push_str(&if system::effective_ids().0 == 0 {
            format!("mount tracefs with: {MOUNT_COMMAND}")
        } else {
            "only root and its group may write there: run as root".to_owned()
        });
        error(reasons)
    }

    /// Opens what `ATRACE_MARKER` names: a path, or `fd:N:DEV:INO`, an inherited descriptor and the device
    /// and inode (`st_dev`, `st_ino`, decimal) it must have.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the value: not there, not writable, another file than the one named, or a kind
    /// of file that could block or signal.
    pub fn open_named(value: &OsStr) -> Result<Self, MarkerError> {
        if let Some(rest) = value.as_encoded_bytes().strip_prefix(b"fd:") {
            return Self::inherit(&String::from_utf8_lossy(rest));
        }
        match CString::new(value.as_encoded_bytes()) {
            Ok(path) => Self::open_path(path),
            Err(_) => error("the path of the marker contains a NUL byte"),
        }
    }

    fn open_path(path: CString) -> Result<Self, MarkerError> {
        match open_checked(&path, None) {
            Ok(opened) => Ok(Self::new(opened, Source::Path(path))),
            Err(fault) => Err(MarkerError::new(&path.to_string_lossy(), fault)),
        }
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
        let opened = inherit_checked(fd, identity, None);
        let opened = opened.map_err(|fault| MarkerError::new(&format!("fd:{fd}"), fault))?;
        Ok(Self::new(opened, Source::Inherited(fd)))
    }

    fn new(opened: Opened, source: Source) -> Self {
        let Opened { fd, kind, identity } = opened;
        Self {
            fd: AtomicI32::new(fd),
            kind,
            source,
            identity,
            guards_returns: returns_are_costly(),
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
        Shown(number_of(self.fd.load(Ordering::Relaxed)), self.identity)
    }

    /// The path it was opened at, or `fd:N` for an inherited descriptor; allocates nothing.
    pub fn place(&self) -> impl fmt::Display + '_ {
        struct Shown<'a>(&'a Source);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                use fmt::Write as _;
                match self.0 {
                    // Not lossily in one piece: that may allocate, and a thread that has no allocator shows it, too.
                    Source::Path(path) => path.to_bytes().utf8_chunks().try_for_each(|chunk| {
                        f.write_str(chunk.valid())?;
                        if chunk.invalid().is_empty() { Ok(()) } else { f.write_char('\u{fffd}') }
                    }),
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
}

impl Drop for Marker {
    fn drop(&mut self) {
        let fd = number_of(*self.fd.get_mut());
        // The host may have closed it, and have another file at its number.
        if identity_of(fd).is_some_and(|(identity, _)| identity == self.identity) {
            close(fd);
        }
    }
}

/// The number, whether it must be looked at first or not.
fn number_of(fd: i32) -> i32 {
    if fd < 0 { !fd } else { fd }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn dropping_a_marker_closes_its_descriptor_and_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("marker");
        std::fs::write(&path, "").unwrap();
        let open = || Marker::open_named(path.as_os_str()).unwrap();
        let number = |marker: &Marker| marker.fd.load(Ordering::Relaxed);

        let marker = open();
        let own = number(&marker);
        drop(marker);
        assert_eq!(identity_of(own), None);

        // The host closes it, and has the number again.
        let marker = open();
        let own = number(&marker);
        let other = tempfile::tempfile().unwrap();
        // SAFETY: nobody but this marker knows the number.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), own) }, own);
        drop(marker);
        assert_eq!(identity_of(own), identity_of(other.as_raw_fd()));
        close(own);
    }
}

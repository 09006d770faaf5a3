//! Finds, opens and writes the kernel's `trace_marker`, or the file that a test or bench names in its place.
//!
//! # Writing
//!
//! One `write(2)` is one event. On x86_64 and aarch64 the system call is made without libc, for two reasons that matter
//! to a library inside other people's programs: a libc's `write()` is a cancellation point, where `pthread_cancel`
//! would unwind through the caller, and `write()` sets errno.
//!
//! # Which files are accepted
//!
//! The marker may be a file of tracefs (or debugfs, on old kernels), a regular file, or a character device that is
//! not a terminal. A pipe or a socket could block the program or raise a signal, so it is refused.
//!
//! # A descriptor in a foreign program
//!
//! The program may close the marker's descriptor and reuse its number for another file. So the marker gets a high
//! number, because the kernel gives out low numbers first. Whether the number still refers to the marker is checked at
//! every 256th event of a thread, at each switch of tracing, and when a write fails (`marker/write.rs`).

#[cfg(not(no_tracing))]
pub(crate) mod open;
#[cfg(not(no_tracing))]
mod write;

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use self::open::{Fault, Opened, close, identity_of, inherit_checked, open_checked};
#[cfg(no_tracing)]
use crate::system::marker as open;
use crate::word::AtomicRef;
use crate::{process, system};

/// The paths of the marker, in the order in which they are tried: first the path in tracefs, then the path in debugfs
/// (Linux before 4.1, Android before 12).
pub const MARKER_PATHS: [&CStr; 2] =
    [c"/sys/kernel/tracing/trace_marker", c"/sys/kernel/debug/tracing/trace_marker"];

/// The command with which root mounts tracefs, so that the first of the [`MARKER_PATHS`] exists.
pub const MOUNT_COMMAND: &str = "mount -t tracefs nodev /sys/kernel/tracing";

/// The kind of file that a [`Marker`] writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MarkerKind {
    /// The kernel's ring buffer, through tracefs or debugfs.
    Tracefs,
    /// A regular file. No separator is written between messages.
    File,
    /// A character device, such as `/dev/null`.
    Device,
}

/// The reason why no marker could be opened.
#[derive(Debug)]
pub struct MarkerError {
    text: String,
    /// The errno of the system, or 0 if there is none.
    code: i32,
}

impl MarkerError {
    /// Returns whether the reason is temporary, such as a lack of descriptors or memory.
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

#[cold]
#[inline(never)]
fn error(text: &dyn fmt::Display) -> Result<Marker, MarkerError> {
    Err(MarkerError { text: text.to_string(), code: 0 })
}

impl MarkerError {
    #[cold]
    #[inline(never)]
    fn new(place: &dyn fmt::Display, fault: Fault) -> Self {
        let code = fault.code();
        Self { text: format!("{place}{fault}"), code }
    }
}

/// The function that is called after failed writes to a marker.
static ON_FAILURE: AtomicRef<fn()> = AtomicRef::new(&IGNORE);
static IGNORE: fn() = || {};

/// Sets the callback for failed writes. The callback is called after 1, 2, 4, 8 … failures of a marker, on the
/// thread whose message failed.
pub fn on_failure(callback: &'static fn()) {
    ON_FAILURE.set(callback);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

#[derive(Debug)]
enum Source {
    Path(CString),
    /// The marker is a descriptor that was open when the program was executed.
    Inherited(i32),
}

/// An open marker.
///
/// Any thread may call all methods, even in a forked child. Dropping a marker closes its descriptor; the marker to
/// which events are written is never dropped.
#[derive(Debug)]
pub struct Marker {
    /// The descriptor. Its bits are inverted if the descriptor must be checked before the next write.
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
    /// Returns an error that says, for each path, why it could not be opened, and how to get access. If a path could
    /// not be opened for a temporary reason, returns only that reason.
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
        if system::effective_ids().0 == 0 {
            error(&format_args!("{reasons}mount tracefs with: {MOUNT_COMMAND}"))
        } else {
            error(&format_args!("{reasons}only root and its group may write there: run as root"))
        }
    }

    /// Opens the file that `ATRACE_MARKER` names: a path, or `fd:N:DEV:INO`. In the latter form, N is an inherited
    /// descriptor, and DEV and INO are the device and inode that it must have (`st_dev`, `st_ino`, decimal).
    ///
    /// # Errors
    ///
    /// Returns an error if the file does not exist, can't be written, is not the file that was named, or is of a kind
    /// that could block or raise a signal.
    pub fn open_named(value: &OsStr) -> Result<Self, MarkerError> {
        if let Some(rest) = value.as_encoded_bytes().strip_prefix(b"fd:") {
            return Self::inherit(&String::from_utf8_lossy(rest));
        }
        match CString::new(value.as_encoded_bytes()) {
            Ok(path) => Self::open_path(path),
            Err(_) => error(&"the path of the marker contains a NUL byte"),
        }
    }

    #[inline(never)]
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
            return error(&format_args!(
                "fd:{spec} is not of the form fd:N:DEV:INO (a descriptor, its st_dev and st_ino, all decimal)"
            ));
        };
        let opened = inherit_checked(fd, identity, None);
        let opened = opened.map_err(|fault| MarkerError::new(&format_args!("fd:{fd}"), fault))?;
        Ok(Self::new(opened, Source::Inherited(fd)))
    }

    fn new(opened: Opened, source: Source) -> Self {
        let Opened { fd, kind, identity } = opened;
        Self {
            fd: AtomicI32::new(fd),
            kind,
            source,
            identity,
            dropped: AtomicU64::new(0),
            last_error: AtomicI32::new(0),
        }
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> MarkerKind {
        self.kind
    }

    /// Returns the path of the marker, or `fd:N` for an inherited descriptor.
    pub fn describe(&self) -> String {
        self.place().to_string()
    }

    /// Returns the present descriptor, and the device and inode of its file, as `N:DEV:INO`.
    pub fn identity(&self) -> impl fmt::Display + use<> {
        struct Shown(i32, Identity);
        impl fmt::Display for Shown {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:{}:{}", self.0, self.1.device, self.1.inode)
            }
        }
        Shown(number_of(self.fd.load(Ordering::Relaxed)), self.identity)
    }

    /// Returns the path of the marker, or `fd:N` for an inherited descriptor. Allocates nothing.
    pub fn place(&self) -> impl fmt::Display + '_ {
        struct Shown<'a>(&'a Source);
        impl fmt::Display for Shown<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                use fmt::Write as _;
                match self.0 {
                    // The path is written in parts, because a lossy conversion of the whole path may allocate, and
                    // threads that must not allocate use this function.
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

    /// Returns the number of messages that could not be written, and the errno of the last failure, or 0 if there was
    /// no failure.
    pub fn failures(&self) -> (u64, i32) {
        (self.dropped.load(Ordering::Relaxed), self.last_error.load(Ordering::Relaxed))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        let fd = number_of(*self.fd.get_mut());
        // The program may have closed the descriptor, and have opened another file with its number.
        if identity_of(fd).is_some_and(|(identity, _)| identity == self.identity) {
            close(fd);
        }
    }
}

/// Returns the descriptor for a value of the field [`Marker::fd`], whose bits may be inverted.
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

        // The program closes the descriptor and reuses its number.
        let marker = open();
        let own = number(&marker);
        let other = tempfile::tempfile().unwrap();
        // SAFETY: only `marker` uses the descriptor `own`.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), own) }, own);
        drop(marker);
        assert_eq!(identity_of(own), identity_of(other.as_raw_fd()));
        close(own);
    }
}

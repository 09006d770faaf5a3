//! Instances of the kernel's trace buffer: how to create, read and remove an instance, and how to write to it.
//!
//! A tracefs *instance* is a separate ring buffer with its own `trace_marker`, clock, options and statistics. It is
//! separate from all other buffers of the machine. So a test can have an isolated [`Instance`], a benchmark can
//! fill a buffer that no other process reads, and a recording can start with an empty buffer.
//!
//! Only root can create an instance. The text of an error of this module says what failed and, in most cases, names the
//! file. The errors of [`root`] also suggest a remedy.
//!
//! Source: "Instances" in the kernel's `Documentation/trace/ftrace.rst`.
//!
//! # Examples
//!
//! ```no_run
//! use std::io::Write;
//!
//! use atrace_cli::tracefs::Instance;
//!
//! let instance = Instance::create("doc")?;
//! std::fs::OpenOptions::new().write(true).open(instance.marker_path())?.write_all(b"B|1|hello")?;
//! let marker = instance.markers()?.next().expect("one event was written");
//! assert_eq!(marker.payload, b"B|1|hello");
//! instance.remove()?;
//! # Ok::<(), std::io::Error>(())
//! ```

mod instance;
pub(crate) mod markers;
#[cfg(test)]
pub(crate) mod tests;

/// The same five events as three kernels print them: a kernel before 4.13, with five characters for the thread id and
/// without process ids; a kernel before 5.10, with process ids; and a kernel since 5.16, with seven characters for the
/// thread id and a fifth flag.
#[cfg(test)]
pub(crate) const TEXTS: [&str; 3] =
    [include_str!("texts/3.10.txt"), include_str!("texts/5.4.txt"), include_str!("texts/6.18.txt")];

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use atrace_sys::marker::{MARKER_PATHS, MOUNT_COMMAND};

use crate::escape::shown;

pub use self::instance::{Instance, Stats, Swept, sweep};
pub(crate) use self::instance::{instances, read_at_once, sweep_where};
pub use self::markers::{Marker, Markers};

/// The option that makes an instance receive a copy of each message written to the top-level marker (Linux 6.16).
pub const COPY: &str = "copy_trace_marker";

/// Returns whether the kernel can copy messages of the top-level marker to an instance. `directory` is the directory of
/// tracefs or of an instance.
pub(crate) fn can_copy(directory: &Path) -> bool {
    directory.join("options").join(COPY).exists()
}

/// Returns the directory where tracefs is mounted.
///
/// # Errors
///
/// Returns `NotFound` if tracefs is not mounted, and `PermissionDenied` if this process may not access it. The text of
/// the error suggests a remedy.
pub fn root() -> io::Result<PathBuf> {
    let mut denied = None;
    // The directories where tracefs may be mounted, the usual directory first.
    let mounts = MARKER_PATHS.into_iter().filter_map(|marker| marker.to_str().ok()?.rsplit_once('/'));
    for (mount, _) in mounts {
        match fs::metadata(Path::new(mount).join("trace_marker")) {
            Ok(_) => return Ok(PathBuf::from(mount)),
            Err(e) if e.kind() == ErrorKind::PermissionDenied => denied = denied.or(Some(mount)),
            Err(_) => {}
        }
    }
    Err(match denied {
        Some(mount) => io::Error::new(
            ErrorKind::PermissionDenied,
            format!("no permission to use {mount}: run this as root (sudo)"),
        ),
        None => io::Error::new(
            ErrorKind::NotFound,
            format!("tracefs is not mounted: run as root: {MOUNT_COMMAND}"),
        ),
    })
}

/// Adds the operation and the file to an error of the kernel.
fn context(e: io::Error, what: &str, path: &Path) -> io::Error {
    io::Error::new(e.kind(), format!("{what} {}: {e}", shown(path.as_os_str().as_bytes())))
}

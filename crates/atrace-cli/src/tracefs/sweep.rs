//! Removes the instances of processes that ended without removing them.
//!
//! The name of an instance contains the id of the process that created it. If no process has this id, the instance is
//! removed. An instance whose files are still open can't be removed, so an instance in use is never lost.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{context, root};

/// The kernel's error for an instance that is being removed. The number is the same on every architecture.
const ENODEV: i32 = 19;

/// The result of [`sweep`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The instances that were removed.
    pub removed: Vec<PathBuf>,
    /// The instances whose creator has ended but that another process still holds open.
    pub busy: Vec<PathBuf>,
}

/// Removes the instances that [`Instance::create`](super::Instance::create) made with this prefix and whose process
/// no longer exists.
///
/// A process in another PID namespace looks as if it did not exist: its instance survives only while its files are
/// open. Use a separate prefix for programs that run in containers.
///
/// # Errors
///
/// The errors of [`root`], or the kernel's error.
pub fn sweep(prefix: &str) -> io::Result<Swept> {
    sweep_where(prefix, |_| true)
}

/// Like [`sweep`], but removes only the instances for which `removable` returns true.
///
/// # Errors
///
/// The same as for [`sweep`].
pub fn sweep_where(prefix: &str, mut removable: impl FnMut(&Path) -> bool) -> io::Result<Swept> {
    let instances = root()?.join("instances");
    let mut swept = Swept::default();
    for entry in fs::read_dir(&instances).map_err(|e| context(e, "listing", &instances))? {
        let entry = entry.map_err(|e| context(e, "listing", &instances))?;
        let Some(pid) = entry.file_name().to_str().and_then(|name| maker(name, prefix)) else {
            continue;
        };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        if !removable(&path) {
            continue;
        }
        match fs::remove_dir(&path) {
            Ok(()) => swept.removed.push(path),
            Err(e) if e.kind() == ErrorKind::ResourceBusy => swept.busy.push(path),
            // Another process's sweep removed it already, or is just doing so.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(ENODEV) => {}
            Err(e) => return Err(context(e, "removing", &path)),
        }
    }
    Ok(swept)
}

/// Returns the id of the process that created the instance `name`, if the name's prefix is exactly `prefix`.
pub(super) fn maker(name: &str, prefix: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if digits(pid) && digits(n) { pid.parse().ok() } else { None }
}

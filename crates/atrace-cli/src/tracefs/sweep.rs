//! Removes the instances of processes that ended without removing them.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::{context, root};

/// What the kernel answers about an instance that is being removed, in every architecture.
const ENODEV: i32 = 19;

/// What [`sweep`] did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// The instances that are gone now.
    pub removed: Vec<PathBuf>,
    /// The instances whose maker is gone but that some process still holds open.
    pub busy: Vec<PathBuf>,
}

/// Removes the instances made by [`Instance::create`](super::Instance::create) with this prefix whose process no longer exists.
///
/// A process of another PID namespace looks as if it did not exist: its instance survives only while its
/// files are open. Give programs that run in containers a prefix of their own.
///
/// # Errors
///
/// What [`root`] says, or what the kernel answered.
pub fn sweep(prefix: &str) -> io::Result<Swept> {
    sweep_where(prefix, |_| true)
}

/// [`sweep`], of those instances only that `removable` says may go.
///
/// # Errors
///
/// As [`sweep`].
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
            // Another sweep was faster, or is at it.
            Err(e) if e.kind() == ErrorKind::NotFound || e.raw_os_error() == Some(ENODEV) => {}
            Err(e) => return Err(context(e, "removing", &path)),
        }
    }
    Ok(swept)
}

/// The process that made the instance called `name`, if its prefix is exactly `prefix`.
pub(super) fn maker(name: &str, prefix: &str) -> Option<u32> {
    let (pid, n) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?;
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if digits(pid) && digits(n) { pid.parse().ok() } else { None }
}

//! The processes of this machine, as far as /proc shows them.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use atrace_sys::process::matches;

/// A process, which may end at any moment: what can't be read any more is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process(pub(crate) u32);

/// All processes but this one, by their numbers.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| Some(Process(entry.file_name().to_str()?.parse().ok()?))).collect();
    all.retain(|process| process.0 != std::process::id());
    all.sort();
    all
}

impl Process {
    fn path(self) -> PathBuf {
        Path::new("/proc").join(self.0.to_string())
    }

    pub(crate) fn exists(self) -> bool {
        self.path().exists()
    }

    /// The user it runs as.
    pub(crate) fn uid(self) -> Option<u32> {
        fs::metadata(self.path()).ok().map(|data| data.uid())
    }

    /// Its name as the app patterns see it: argv\[0\]. None for threads of the kernel.
    pub(crate) fn argv0(self) -> Option<CString> {
        let text = fs::read(self.path().join("cmdline")).ok()?;
        let name = text.split(|&byte| byte == 0).next()?;
        // As long as the library reads it, and one line.
        let name = name.get(..name.len().min(4095))?;
        let end = name.iter().position(|&byte| byte == b'\n').map_or(name.len(), |at| at + 1);
        CString::new(name.get(..end)?).ok().filter(|name| !name.is_empty())
    }

    /// Whether an app pattern means it.
    pub(crate) fn matches(self, pattern: &str) -> bool {
        let Ok(pattern) = CString::new(pattern) else { return false };
        self.argv0().is_some_and(|name| matches(&pattern, &name))
    }

    /// A variable of its environment, as it was when it started.
    pub(crate) fn variable(self, name: &str) -> Option<OsString> {
        let text = fs::read(self.path().join("environ")).ok()?;
        let value = text
            .split(|&byte| byte == 0)
            .find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=").map(<[u8]>::to_vec))?;
        Some(OsString::from_vec(value)).filter(|value| !value.as_bytes().is_empty())
    }

    /// The files it has open.
    pub(crate) fn files(self) -> impl Iterator<Item = PathBuf> {
        let entries = fs::read_dir(self.path().join("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok())
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argv0() {
            Some(name) => write!(f, "{} ({})", self.0, atrace::shown::shown(name.as_bytes())),
            None => write!(f, "{}", self.0),
        }
    }
}

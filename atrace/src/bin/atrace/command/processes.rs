//! The processes of this machine, as far as /proc shows them.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use atrace::shown::shown;
use atrace_sys::process::matches;

/// The kind of value, in what the kernel tells a program that it starts, that says so; in every architecture.
const AT_SECURE: usize = 23;

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
        self.descriptors().map(|(_, path)| path)
    }

    /// The same with their numbers.
    pub(crate) fn descriptors(self) -> impl Iterator<Item = (u32, PathBuf)> {
        let entries = fs::read_dir(self.path().join("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
        })
    }

    /// One of its files in `/proc`.
    pub(crate) fn read(self, file: &str) -> Vec<u8> {
        fs::read(self.path().join(file)).unwrap_or_default()
    }

    /// Where one of its links in `/proc` leads to; nothing of it is opened.
    pub(crate) fn read_link(self, file: &str) -> Option<PathBuf> {
        fs::read_link(self.path().join(file)).ok()
    }

    /// Whether it was started with more rights than who started it had (`AT_SECURE`).
    pub(crate) fn is_elevated(self) -> bool {
        const WORD: usize = size_of::<usize>();
        let words = self.read("auxv");
        let mut words = words
            .chunks_exact(WORD)
            .map(|word| word.try_into().map(usize::from_ne_bytes).unwrap_or_default());
        // Pairs of a kind and a value. A process of another word size is not understood, and none of ours.
        while let (Some(kind), Some(value)) = (words.next(), words.next()) {
            if kind == AT_SECURE {
                return value != 0;
            }
        }
        false
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argv0() {
            Some(name) => write!(f, "{} ({})", self.0, shown(name.to_bytes())),
            None => write!(f, "{}", self.0),
        }
    }
}

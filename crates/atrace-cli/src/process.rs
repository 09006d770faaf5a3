//! Reads what `/proc` says of a process, for the doctor and the command.
//!
//! A process may end at any moment, so every value may be missing. The process' user controls the content and length of
//! most files, so each is read up to a limit. Links are read but not followed.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// How much is read of the files of a process, and of how many descriptors.
const CMDLINE: u64 = 4095;
const SMALL: u64 = 1 << 16;
const ENVIRONMENT: u64 = 1 << 20;
const MAPS: u64 = 4 << 20;
const DESCRIPTORS: usize = 1 << 16;

/// The kind of value, in what the kernel tells a program that it starts, that says so; in every architecture.
const AT_SECURE: usize = 23;

/// A process by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// One of its files in `/proc`.
    pub(crate) fn path(self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.0.to_string()).join(file)
    }

    pub(crate) fn exists(self) -> bool {
        self.path("").exists()
    }

    /// The user it runs as.
    pub(crate) fn uid(self) -> Option<u32> {
        fs::metadata(self.path("")).ok().map(|data| data.uid())
    }

    /// Reads one of its files.
    pub(crate) fn read(self, file: &str) -> Option<Vec<u8>> {
        let most = match file {
            "cmdline" => CMDLINE,
            "environ" => ENVIRONMENT,
            "maps" => MAPS,
            _ => SMALL,
        };
        let mut text = Vec::new();
        File::open(self.path(file)).ok()?.take(most).read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// Where one of its links leads to.
    pub(crate) fn read_link(self, file: &str) -> Option<PathBuf> {
        fs::read_link(self.path(file)).ok()
    }

    /// What the kernel says of it; that is not its user's word.
    pub(crate) fn status(self) -> Option<Status> {
        Some(Status(String::from_utf8_lossy(&self.read("status")?).into_owned()))
    }

    /// Its name as the app patterns see it: argv\[0\], of which the first line counts. None for threads of the kernel.
    pub(crate) fn argv0(self) -> Option<CString> {
        let text = self.read("cmdline")?;
        let name = text.split(|&byte| byte == 0).next()?;
        let end = name.iter().position(|&byte| byte == b'\n').map_or(name.len(), |at| at + 1);
        CString::new(name.get(..end)?).ok().filter(|name| !name.is_empty())
    }

    /// The variables that it was started with.
    pub(crate) fn environment(self) -> Environment {
        Environment(self.read("environ").unwrap_or_default())
    }

    /// The numbers of its descriptors, and what they lead to.
    pub(crate) fn descriptors(self) -> std::io::Result<impl Iterator<Item = (u32, PathBuf)>> {
        let entries = fs::read_dir(self.path("fd"))?.take(DESCRIPTORS).flatten();
        Ok(entries.filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
        }))
    }

    /// Whether it was started with more rights than who started it had (`AT_SECURE`).
    pub(crate) fn is_elevated(self) -> bool {
        let words = self.read("auxv").unwrap_or_default();
        let (words, _) = words.as_chunks::<{ size_of::<usize>() }>();
        // Pairs of a kind and a value. A process of another word size is not understood, and none of ours.
        let mut pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(usize::from_ne_bytes));
        pairs.any(|[kind, value]| kind == AT_SECURE && value != 0)
    }
}

/// What `/proc/PID/status` says. A name with line ends is escaped there.
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        Some(self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim())
    }

    /// The numbers of a line.
    pub(crate) fn numbers(&self, key: &str) -> Vec<u32> {
        let text = self.get(key).unwrap_or_default();
        text.split_whitespace().map_while(|number| number.parse().ok()).collect()
    }
}

/// The variables of a process.
pub(crate) struct Environment(Vec<u8>);

impl Environment {
    /// The value of a variable that is not empty, nor longer than a path can be.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|&byte| byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(value).filter(|value| !value.is_empty() && value.len() <= 4096)
    }
}

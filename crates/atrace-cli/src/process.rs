//! Lists the processes of this machine, and reads the files in `/proc` about a process, for `atrace doctor` and the
//! other subcommands.
//!
//! A process may end at any moment, so every value may be missing. The process's user controls the content and length
//! of most of these files, so each file is read only up to a limit. Symbolic links are read but not followed.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};

use crate::escape::shown;

/// The maximum number of bytes that are read of a process's `cmdline`.
const CMDLINE: u64 = 4095;
/// The maximum number of bytes that are read of any other file of a process in `/proc`.
const SMALL: u64 = 1 << 16;
/// The maximum number of bytes that are read of a process's `environ`.
const ENVIRONMENT: u64 = 1 << 20;
/// The maximum number of bytes that are read of a process's `maps`.
const MAPS: u64 = 4 << 20;
/// The maximum number of a process's descriptors that are listed.
const DESCRIPTORS: usize = 1 << 16;

/// The type of the auxiliary vector's entry that says whether a program runs in secure mode
/// (`getauxval(3)`). The number is the same on every architecture.
const AT_SECURE: usize = 23;

/// A process, identified by its process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Process(pub(crate) u32);

impl Process {
    pub(crate) fn this() -> Self {
        Self(std::process::id())
    }

    /// Returns the path of one of the process's files in `/proc`.
    pub(crate) fn path(self, file: &str) -> PathBuf {
        Path::new("/proc").join(self.0.to_string()).join(file)
    }

    pub(crate) fn exists(self) -> bool {
        self.path("").exists()
    }

    /// Returns the id of the user as whom the process runs.
    pub(crate) fn uid(self) -> Option<u32> {
        fs::metadata(self.path("")).ok().map(|data| data.uid())
    }

    /// Reads one of the process's files in `/proc`, up to the size limit for this file.
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

    /// Returns the target of a symbolic link in the process's directory in `/proc`.
    pub(crate) fn read_link(self, file: &str) -> Option<PathBuf> {
        fs::read_link(self.path(file)).ok()
    }

    /// Reads `/proc/PID/status`. The kernel writes this file, so its values can be trusted, except for the process's
    /// name.
    pub(crate) fn status(self) -> Option<Status> {
        Some(Status(String::from_utf8_lossy(&self.read("status")?).into_owned()))
    }

    /// Returns the name that is compared with app patterns: the first line of argv\[0\], including its line end.
    /// Returns `None` if there is no name, as for a thread of the kernel.
    pub(crate) fn argv0(self) -> Option<CString> {
        let text = self.read("cmdline")?;
        let name = text.split(|&byte| byte == 0).next()?;
        let end = name.iter().position(|&byte| byte == b'\n').map_or(name.len(), |at| at + 1);
        CString::new(name.get(..end)?).ok().filter(|name| !name.is_empty())
    }

    /// Returns the last path component of [`argv0`](Self::argv0).
    pub(crate) fn program_name(self) -> Option<String> {
        Some(self.argv0()?.to_string_lossy().rsplit('/').next()?.to_owned())
    }

    /// Returns the environment variables with which the process was started.
    pub(crate) fn environment(self) -> Environment {
        Environment(self.read("environ").unwrap_or_default())
    }

    /// Returns the address at which the process's environment ends. When a process begins to execute a program, this
    /// function returns `None` until the kernel has stored the environment; until then, `environ` is empty, too. Also
    /// returns `None` for threads of the kernel, for processes that have ended, and for processes that this user may
    /// not examine.
    pub(crate) fn environment_end(self) -> Option<u64> {
        let stat = String::from_utf8_lossy(&self.read("stat")?).into_owned();
        // The address is the 51st value. The second value is the name, which may contain parentheses. All other values
        // except the third are numbers.
        let (_, behind_name) = stat.rsplit_once(") ")?;
        behind_name.split(' ').nth(51 - 3)?.trim().parse().ok().filter(|end| *end != 0)
    }

    /// Returns the numbers of the process's descriptors, and the files to which they refer.
    pub(crate) fn descriptors(self) -> std::io::Result<impl Iterator<Item = (u32, PathBuf)>> {
        let entries = fs::read_dir(self.path("fd"))?.take(DESCRIPTORS).flatten();
        Ok(entries.filter_map(|entry| {
            Some((entry.file_name().to_str()?.parse().ok()?, fs::read_link(entry.path()).ok()?))
        }))
    }

    /// Returns whether the process, at its start, got more rights than the process that started it (`AT_SECURE`).
    pub(crate) fn is_elevated(self) -> bool {
        let words = self.read("auxv").unwrap_or_default();
        let (words, _) = words.as_chunks::<{ size_of::<usize>() }>();
        // The vector consists of pairs of a type and a value. Processes with another word size than this process are
        // not supported.
        let mut pairs = words.as_chunks::<2>().0.iter().map(|pair| pair.map(usize::from_ne_bytes));
        pairs.any(|[kind, value]| kind == AT_SECURE && value != 0)
    }

    /// Returns whether an app pattern matches the process's name.
    pub(crate) fn matches(self, pattern: &str) -> bool {
        self.argv0().is_some_and(|name| matches(pattern.as_bytes(), name.to_bytes()))
    }

    /// Returns the value that an environment variable had when the process was started.
    pub(crate) fn variable(self, name: &str) -> Option<OsString> {
        self.environment().get(name).map(|value| OsString::from_vec(value.to_vec()))
    }

    /// Returns the set of signals that the process ignores: bit N - 1 is signal N.
    pub(crate) fn ignored_signals(self) -> u64 {
        let mask = self.status().and_then(|status| u64::from_str_radix(status.get("SigIgn")?, 16).ok());
        mask.unwrap_or(0)
    }
}

/// The content of `/proc/PID/status`. The kernel escapes line ends in the process's name.
pub(crate) struct Status(String);

impl Status {
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        Some(self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?.trim())
    }

    /// Returns the numbers in the line of `/proc/PID/status` that begins with this key.
    pub(crate) fn numbers(&self, key: &str) -> Vec<u32> {
        let text = self.get(key).unwrap_or_default();
        text.split_whitespace().map_while(|number| number.parse().ok()).collect()
    }
}

/// The environment variables of a process.
pub(crate) struct Environment(Vec<u8>);

impl Environment {
    /// Returns the value of a variable, or `None` if the variable is missing, empty, or longer than `PATH_MAX`.
    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|&byte| byte == 0);
        let value = entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        Some(value).filter(|value| !value.is_empty() && value.len() <= 4096)
    }
}

/// Returns whether an app pattern matches a name: the whole name or, on a host, its last path component.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let texts = CString::new(pattern).ok().zip(CString::new(name).ok());
    texts.is_some_and(|(pattern, name)| atrace_sys::process::matches_name(&pattern, &name))
}

/// Returns all processes except this one, sorted by their process ids.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| Some(Process(entry.file_name().to_str()?.parse().ok()?)));
    let mut all: Vec<_> = all.filter(|process| *process != Process::this()).collect();
    all.sort();
    all
}

/// Returns the other processes that have a file in this directory open. The result lacks processes that this user
/// may not examine.
pub(crate) fn holders(directory: &Path) -> Vec<Process> {
    let holds = |process: &Process| {
        process.descriptors().is_ok_and(|mut all| all.any(|(_, file)| file.starts_with(directory)))
    };
    all().into_iter().filter(holds).collect()
}

/// Returns the names and ids of the processes that have a file in this directory open, as text.
pub(crate) fn name_holders(directory: &Path) -> String {
    let found: Vec<_> = holders(directory).iter().map(Process::to_string).collect();
    if found.is_empty() { "a process that can't be seen from here".to_owned() } else { found.join(", ") }
}

/// Returns the running processes that match one of the patterns.
pub(crate) fn matching(patterns: &[String]) -> Vec<Process> {
    let mut all = all();
    all.retain(|process| patterns.iter().any(|pattern| process.matches(pattern)));
    all
}

/// Returns a message that no process matches the patterns. The message also names processes with similar names.
pub(crate) fn none_matches(patterns: &[String]) -> String {
    let mut text = format!("no running process matches {}", shown(&patterns.join(" or ")));
    let like = |process: &Process| {
        let name = process.argv0()?.to_string_lossy().into_owned();
        let is_like = |pattern: &String| {
            let inner = pattern.trim_matches('*').rsplit('/').next().unwrap_or_default().to_owned();
            !inner.is_empty() && name.contains(&inner)
        };
        patterns.iter().any(is_like).then(|| format!("{} ({})", process.0, shown(&name)))
    };
    let similar: Vec<_> = all().iter().filter_map(like).take(5).collect();
    if !similar.is_empty() {
        text += "; the pattern must match the whole name as the program was started, or its last part; '*' is any text: ";
        text += &similar.join(", ");
    }
    text
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argv0() {
            Some(name) => write!(f, "{} ({})", self.0, shown(name.to_bytes())),
            None => write!(f, "{}", self.0),
        }
    }
}

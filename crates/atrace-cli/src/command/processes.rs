//! The processes of this machine, as the command lists them.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use crate::escape::shown;
use atrace_sys::process::matches;

pub(crate) use crate::process::Process;

/// All processes but this one, by their numbers.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| Some(Process(entry.file_name().to_str()?.parse().ok()?))).collect();
    all.retain(|process| *process != Process::this());
    all.sort();
    all
}

/// The processes that have a file of this directory open, as far as can be seen.
pub(crate) fn holders(directory: &Path) -> Vec<Process> {
    let holds = |process: &Process| {
        process.descriptors().is_ok_and(|mut all| all.any(|(_, file)| file.starts_with(directory)))
    };
    all().into_iter().filter(holds).collect()
}

/// The same in words.
pub(crate) fn name_holders(directory: &Path) -> String {
    let found: Vec<_> = holders(directory).iter().map(Process::to_string).collect();
    if found.is_empty() { "a process that can't be seen from here".to_owned() } else { found.join(", ") }
}

/// The running processes that some of the patterns mean.
pub(crate) fn matching(patterns: &[String]) -> Vec<Process> {
    let mut all = all();
    all.retain(|process| patterns.iter().any(|pattern| process.matches(pattern)));
    all
}

/// That a pattern matches nothing, and what was perhaps meant.
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
        text.push_str(&format!(
            "; the pattern must match the whole name as the program was started, '*' any text: {}",
            similar.join(", ")
        ));
    }
    text
}

impl Process {
    /// Whether an app pattern means it.
    pub(crate) fn matches(self, pattern: &str) -> bool {
        let Ok(pattern) = CString::new(pattern) else { return false };
        self.argv0().is_some_and(|name| matches(&pattern, &name))
    }

    /// A variable of its environment, as it was when it started.
    pub(crate) fn variable(self, name: &str) -> Option<OsString> {
        self.environment().get(name).map(|value| OsString::from_vec(value.to_vec()))
    }

    /// The signals that it ignores, a bit each.
    pub(crate) fn ignored_signals(self) -> u64 {
        let status = self.status();
        let mask = status.as_ref().and_then(|status| status.get("SigIgn"));
        mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
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

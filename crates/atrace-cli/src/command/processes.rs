//! The processes of this machine, as the command lists them.

use std::ffi::{CString, OsString};
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;

use crate::escape::shown;
use atrace_sys::process::matches;

pub(crate) use crate::process::Process;

/// Returns all processes except this one, by their process ids.
pub(crate) fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<_> =
        entries.filter_map(|entry| Some(Process(entry.file_name().to_str()?.parse().ok()?))).collect();
    all.retain(|process| *process != Process::this());
    all.sort();
    all
}

/// Returns the processes that have a file in this directory open. Processes that this user may not examine are
/// missing.
pub(crate) fn holders(directory: &Path) -> Vec<Process> {
    let holds = |process: &Process| {
        process.descriptors().is_ok_and(|mut all| all.any(|(_, file)| file.starts_with(directory)))
    };
    all().into_iter().filter(holds).collect()
}

/// Returns the same processes as text.
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

/// Says that no process matches the patterns, and names similar processes.
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
    /// Tells whether an app pattern matches the process's name.
    pub(crate) fn matches(self, pattern: &str) -> bool {
        let Ok(pattern) = CString::new(pattern) else { return false };
        self.argv0().is_some_and(|name| matches(&pattern, &name))
    }

    /// Returns a variable of the environment that the process was started with.
    pub(crate) fn variable(self, name: &str) -> Option<OsString> {
        self.environment().get(name).map(|value| OsString::from_vec(value.to_vec()))
    }

    /// Returns the set of signals that the process ignores: bit N - 1 is signal N.
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

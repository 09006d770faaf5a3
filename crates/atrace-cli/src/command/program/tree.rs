//! Examines the processes of a running program, to find the processes whose events can't be recorded, and the reasons.
//!
//! # The problem
//!
//! A process may close all descriptors that it inherited, including the marker's descriptor. Without special rights,
//! such a process can't open the marker again, and no other process can do this for it. So the command prints a message
//! that names such a process. A process may also lack the environment variables, or ignore them because it has elevated
//! rights.
//!
//! # How it works
//!
//! The command examines all processes of the program at intervals, through `/proc`. It notices neither a process that
//! starts and ends between two checks, nor that a process closed the marker after the last check. In these cases, the
//! command reports that no event was lost, although events may be lost. The list of mapped files and the environment of
//! a process take the longest to read. They are read only if the process does not have the marker open, or if no event
//! was recorded so far.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::escape::shown;

use super::child::MARKER_FD;
use crate::process::Process;

/// The maximum number of processes that a message names.
const NAMED: usize = 5;

/// The checks take at most 1/`SHARE` of the time. If this required an interval longer than [`REST`] between two checks,
/// the interval is `REST`, and the checks take more of the time.
const SHARE: u32 = 20;
/// The longest interval between two checks.
const REST: Duration = Duration::from_millis(500);

/// The reason why the events of a process are not recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Closed,
    Environment,
    Elevated,
    User(u32),
}

#[derive(Debug, Default)]
struct Observed {
    name: String,
    program: PathBuf,
    uid: u32,
    looks: u32,
    had_marker: bool,
    uses_atrace: bool,
    reason: Option<Reason>,
}

/// The processes of a program that were seen so far, and what is known about them.
#[derive(Default)]
pub(crate) struct Tree {
    marker: PathBuf,
    /// The number of the marker's descriptor in the process in which the marker was found last.
    number: u32,
    /// The path of the program's property store.
    store: Vec<u8>,
    uid: u32,
    observed: BTreeMap<u32, Observed>,
    threads: HashSet<u32>,
    next: Option<Instant>,
}

impl Tree {
    /// Creates a `Tree` for a program that writes to `marker`, uses the property store `store`, and runs as the user
    /// `uid`.
    pub(crate) fn new(marker: PathBuf, store: &Path, uid: u32) -> Self {
        let store = store.as_os_str().as_bytes().to_vec();
        Self { marker, number: MARKER_FD.unsigned_abs(), store, uid, ..Self::default() }
    }

    /// Examines the processes to which the threads in `living` belong. `is_silent` means that no event was recorded so
    /// far.
    pub(crate) fn look(&mut self, living: &[u32], is_silent: bool) {
        let start = Instant::now();
        if self.next.is_some_and(|next| start < next) {
            return;
        }
        self.threads.retain(|thread| living.contains(thread));
        for &pid in living {
            if !self.threads.contains(&pid) {
                self.examine(pid, is_silent);
            }
        }
        self.next = start.checked_add((start.elapsed() * SHARE).min(REST));
    }

    fn examine(&mut self, pid: u32, is_silent: bool) {
        let process = Process(pid);
        let Some(status) = process.status() else { return };
        let (leader, uid) = (status.numbers("Tgid"), status.numbers("Uid"));
        let (&[leader], &[_, uid, ..]) = (&*leader, &*uid) else { return };
        if leader != pid {
            self.threads.insert(pid);
            return;
        }
        let has_marker = self.has_marker(process);
        // When a process ends, its memory is released before its files are closed, and `exe` exists only as long as the
        // memory. So if `exe` exists now, the list of open files that was just read was complete.
        let Some(program) = process.read_link("exe") else { return };
        let seen = self.observed.entry(pid).or_default();
        seen.looks += 1;
        let is_another = seen.program != program || seen.uid != uid;
        (seen.program, seen.uid) = (program, uid);
        seen.had_marker |= has_marker;
        if has_marker && seen.reason == Some(Reason::Closed) {
            seen.reason = None;
        }
        let is_lost = !has_marker && seen.reason != Some(Reason::Closed);
        if !(is_lost || is_silent && (is_another || seen.looks.is_power_of_two())) {
            return;
        }
        let maps = process.read("maps").unwrap_or_default();
        let environment = process.environment();
        if process.read_link("exe").is_none() {
            return;
        }
        if let Some(name) = process.argv0() {
            seen.name = shown(name.to_bytes()).to_string();
        }
        seen.uses_atrace = contains(&maps, &self.store);
        seen.reason = if seen.uses_atrace {
            (!has_marker).then_some(Reason::Closed)
        } else if process.is_elevated() {
            Some(Reason::Elevated)
        } else if environment.get("ATRACE_MARKER").is_none() {
            Some(Reason::Environment)
        } else if uid != self.uid {
            Some(Reason::User(uid))
        } else {
            (!has_marker).then_some(Reason::Closed)
        };
    }

    fn has_marker(&mut self, process: Process) -> bool {
        let is_marker = |path: &PathBuf| *path == self.marker;
        if process.read_link(&format!("fd/{}", self.number)).as_ref().is_some_and(is_marker) {
            return true;
        }
        let found = process.descriptors().ok().and_then(|mut all| all.find(|(_, path)| is_marker(path)));
        if let Some((number, _)) = &found {
            self.number = *number;
        }
        found.is_some()
    }

    /// Returns a message about the processes that have closed the marker, or `None` if there are none. Only processes
    /// that use ATrace, or had the marker open at an earlier check, are included.
    pub(crate) fn lost(&self) -> Option<String> {
        self.closed(|seen| seen.uses_atrace || seen.had_marker)
    }

    fn closed(&self, of: impl Fn(&Observed) -> bool) -> Option<String> {
        let names = self.names(|seen| seen.reason == Some(Reason::Closed) && of(seen))?;
        Some(format!(
            "{names} closed the descriptor of the marker ({}): events after that are lost; keep the descriptor open",
            self.number
        ))
    }

    /// Returns messages that explain why no event was recorded.
    pub(crate) fn silence(&self) -> Vec<String> {
        let reasons: BTreeSet<_> = self.observed.values().filter_map(|seen| seen.reason).collect();
        let mut lines: Vec<_> = reasons.into_iter().filter_map(|reason| self.reason(reason)).collect();
        if lines.is_empty() {
            lines.push(match self.names(|seen| seen.uses_atrace) {
                Some(names) => format!("{names} wrote no event, although tracing was on"),
                None => "the program wrote none: it does not use ATrace, or ended before it could".to_owned(),
            });
        }
        lines
    }

    fn reason(&self, reason: Reason) -> Option<String> {
        let names = self.names(|seen| seen.reason == Some(reason))?;
        let why = match reason {
            Reason::Closed => return self.closed(|_| true),
            Reason::Environment => {
                "was started without ATRACE_MARKER in its environment, as env -i, sudo and su do: \
                keep ATRACE_MARKER and ATRACE_PROPERTIES"
                    .to_owned()
            }
            Reason::Elevated => {
                "has elevated rights (a set-user-ID program or one with capabilities) and ignores \
                ATRACE_MARKER: start it as the user whose rights it takes on"
                    .to_owned()
            }
            Reason::User(uid) => format!(
                "became user {uid}, who can't read the properties of user {}: run it as that user, or have it trace \
                 before",
                self.uid
            ),
        };
        Some(format!("{names} {why}"))
    }

    fn names(&self, of: impl Fn(&Observed) -> bool) -> Option<String> {
        let found: Vec<_> = self.observed.iter().filter(|(_, seen)| of(seen)).collect();
        let mut names: Vec<_> =
            found.iter().take(NAMED).map(|(pid, seen)| format!("{pid} ({})", seen.name)).collect();
        if found.len() > NAMED {
            names.push(format!("{} more", found.len() - NAMED));
        }
        (!names.is_empty()).then(|| names.join(", "))
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && text.windows(part.len()).any(|window| window == part)
}

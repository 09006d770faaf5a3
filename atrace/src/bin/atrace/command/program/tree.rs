//! The processes of a program, looked at while they run: which of them can't be recorded, and why.
//!
//! A process that closes the marker's descriptor can't be helped: without rights it can't open the marker again,
//! and what it holds nobody else can give back to it. So it is told of. What lives shorter than the time between
//! two looks is not seen.

use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atrace::shown::shown;

use crate::command::processes::Process;

/// How many processes are told of by name.
const TOLD: usize = 5;

/// The part of the time that looking may take, one in so many; but it is done as often as this.
const SHARE: u32 = 20;
const REST: Duration = Duration::from_millis(500);

/// Why nothing of a process is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Closed,
    Environment,
    Elevated,
    User(u32),
}

#[derive(Debug, Default)]
struct Seen {
    name: String,
    program: PathBuf,
    uid: u32,
    looks: u32,
    had_marker: bool,
    uses_atrace: bool,
    reason: Option<Reason>,
}

/// What was seen of them.
#[derive(Debug)]
pub(crate) struct Tree {
    marker: PathBuf,
    /// The number that the marker was found under last.
    number: u32,
    /// The path of the property store.
    store: Vec<u8>,
    uid: u32,
    seen: BTreeMap<u32, Seen>,
    threads: HashSet<u32>,
    next: Option<Instant>,
}

impl Tree {
    /// Of a program that is to write to this marker, by this store, as this user.
    pub(crate) fn new(marker: PathBuf, store: &Path, uid: u32) -> Self {
        let store = store.as_os_str().as_bytes().to_vec();
        let (seen, threads) = (BTreeMap::new(), HashSet::new());
        Self {
            marker,
            number: crate::command::program::stage::MARKER_FD.unsigned_abs(),
            store,
            uid,
            seen,
            threads,
            next: None,
        }
    }

    /// Looks at the threads with these numbers; `is_silent` while none has written anything.
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
        let Some(status) = Status::of(process) else { return };
        if status.leader != pid {
            self.threads.insert(pid);
            return;
        }
        let has_marker = self.has_marker(process);
        // Its memory goes before its files: what has memory had files when they were looked at.
        let Some(program) = process.read_link("exe") else { return };
        let seen = self.seen.entry(pid).or_default();
        seen.looks += 1;
        let is_another = seen.program != program || seen.uid != status.uid;
        (seen.program, seen.uid) = (program, status.uid);
        seen.had_marker |= has_marker;
        if has_marker && seen.reason == Some(Reason::Closed) {
            seen.reason = None;
        }
        let is_lost = !has_marker && seen.reason != Some(Reason::Closed);
        if !(is_lost || is_silent && (is_another || seen.looks.is_power_of_two())) {
            return;
        }
        let maps = process.read("maps");
        let environment = process.read("environ");
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
        } else if !environment.split(|&byte| byte == 0).any(|entry| entry.starts_with(b"ATRACE_MARKER=")) {
            Some(Reason::Environment)
        } else if status.uid != self.uid {
            Some(Reason::User(status.uid))
        } else {
            (!has_marker).then_some(Reason::Closed)
        };
    }

    fn has_marker(&mut self, process: Process) -> bool {
        let is_marker = |path: &PathBuf| *path == self.marker;
        if process.read_link(&format!("fd/{}", self.number)).as_ref().is_some_and(is_marker) {
            return true;
        }
        let found = process.descriptors().find(|(_, path)| is_marker(path));
        if let Some((number, _)) = &found {
            self.number = *number;
        }
        found.is_some()
    }

    /// That processes which use the marker, or had it, have lost it.
    pub(crate) fn lost(&self) -> Option<String> {
        self.closed(|seen| seen.uses_atrace || seen.had_marker)
    }

    fn closed(&self, of: impl Fn(&Seen) -> bool) -> Option<String> {
        let names = self.names(|seen| seen.reason == Some(Reason::Closed) && of(seen))?;
        Some(format!(
            "{names} closed the descriptor of the marker ({}): what was traced after that is lost; keep it open",
            self.number
        ))
    }

    /// Why nothing was written.
    pub(crate) fn silence(&self) -> Vec<String> {
        let mut reasons: Vec<_> = self.seen.values().filter_map(|seen| seen.reason).collect();
        reasons.sort();
        reasons.dedup();
        let mut lines: Vec<_> = reasons.into_iter().filter_map(|reason| self.reason(reason)).collect();
        if lines.is_empty() {
            lines.push(match self.names(|seen| seen.uses_atrace) {
                Some(names) => format!("{names} traced nothing, although tracing was on"),
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
                ATRACE_MARKER: start it as the user whose rights it takes"
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

    fn names(&self, of: impl Fn(&Seen) -> bool) -> Option<String> {
        let found: Vec<_> = self.seen.iter().filter(|(_, seen)| of(seen)).collect();
        let mut names: Vec<_> =
            found.iter().take(TOLD).map(|(pid, seen)| format!("{pid} ({})", seen.name)).collect();
        if found.len() > TOLD {
            names.push(format!("{} more", found.len() - TOLD));
        }
        (!names.is_empty()).then(|| names.join(", "))
    }
}

/// What `/proc/PID/status` says.
struct Status {
    leader: u32,
    uid: u32,
}

impl Status {
    fn of(process: Process) -> Option<Self> {
        let text = process.read("status");
        // A name with line ends is escaped there.
        let text = String::from_utf8_lossy(&text);
        let field = |name: &str, at: usize| {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().nth(at)?.parse().ok()
        };
        Some(Self { leader: field("Tgid:", 0)?, uid: field("Uid:", 1)? })
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    !part.is_empty() && text.windows(part.len()).any(|window| window == part)
}

/// The time from the start to the next look, so that programs that do not live long are seen.
pub(crate) fn patience(looks: u32, most: Duration) -> Duration {
    Duration::from_millis(1 << looks.min(16)).min(most)
}

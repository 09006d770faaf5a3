//! Explains why no event is recorded: checks every step between an event and the trace, and says how to repair
//! each fault.
//!
//! ```
//! let report = atrace_cli::doctor::examine_program(Some("/usr/bin/my_service"));
//! println!("{report}"); // a line for each check, and after each failed one a line that says how to repair it
//! if !report.arrives() {
//!     // An event that such a program writes now would not arrive.
//! }
//! ```
//!
//! # What the doctor sees
//!
//! A process publishes the state of its tracing in a page that other processes can read (`atrace_sys::state`). The page
//! exists after the first event or after `atrace_init`. It is missing if the process has closed all its descriptors or
//! runs with `ATRACE_STATE=none`, and on Android it never exists. Without the page, the doctor can only examine the
//! environment, the threads and the files of the process.
//!
//! # Privilege separation
//!
//! Root does not trust the process of another user. A child process with the ids of that user examines the process, its
//! files and its property store (`atrace_sys::privsep`). The child has one second for its work, and answers with bytes,
//! which are parsed with bounds checks. A file that the process names is opened for writing only if it is a marker on
//! tracefs, and is never created. Texts are [escaped](crate::escape::shown), and the arguments of suggested commands
//! are [quoted](crate::escape::quoted) for a shell.
//!
//! # Modules
//!
//! - `look` collects the facts about a process, and the states of many processes' connections to Perfetto's service;
//!   `facts` encodes and decodes the facts, and parses the published state;
//! - `service` checks the connection to Perfetto's service; `sink` and `properties` check ATrace: where events
//!   go and whether a test event arrives, and whether the properties enable events;
//! - `report` holds the findings.

mod facts;
mod look;
mod properties;
mod report;
mod service;
mod sink;

use std::time::Duration;

use atrace_sys::memory::has_memory_files;
use atrace_sys::privsep::{PATIENCE, User};

use self::facts::{Facts, Published};
pub use self::look::{ConnectionStates, connection_states};
pub(crate) use self::look::{is_state, user};
pub(crate) use self::properties::tag_names;
pub use self::report::{Finding, Level, Report, Topic};
use crate::escape::shown;
use crate::process::{Process, Status};

/// Examines a running process.
///
/// The examination does not disturb the process. To test whether an event arrives, the calling process itself writes an
/// instant to the same ring buffer, if it has the permission to do so.
///
/// As root, this function forks: see `atrace_sys::privsep`.
pub fn examine(pid: u32) -> Report {
    examine_as(pid, &mut PATIENCE.clone(), false)
}

/// Does the same as [`examine`], within the time that is `left`. The durations of pauses and, as root, of collecting
/// the facts are subtracted from this time.
pub(crate) fn examine_within(pid: u32, left: &mut Duration) -> Report {
    examine_as(pid, left, true)
}

fn examine_as(pid: u32, left: &mut Duration, charges_pauses: bool) -> Report {
    let mut report = Report::default();
    let Some(status) = Process(pid).status() else {
        report.bad(Topic::Process, format!("there is no process {pid}"), "pgrep -af NAME");
        return report;
    };
    let facts = match look::facts(pid, &status, left) {
        Ok(facts) => facts,
        Err(e) => {
            let text = format!("the facts that user {} may see are not known: {e}", uid_of(&status));
            let mend = "run `atrace doctor` again; if the facts stay unknown, let the program's user run it";
            report.bad(Topic::State, text, mend);
            return report;
        }
    };
    let name = facts.get("name").map(<[u8]>::to_vec);
    let mut patient =
        Patient { pid, name, facts, is_new: false, left: *left, charges_pauses, is_final: false };
    if !patient.lives(&status, &mut report) {
        return report;
    }
    let published = patient.state(&status, &mut report);
    let report = patient.report(published, report);
    *left = patient.left;
    report
}

/// Examines whether a program could be traced if the calling process started it now, with its own user and environment.
/// `argv0` is the program's name. Without a name, every pattern counts as one that matches the program. If `atrace run`
/// can record the program, faults that prevent its events from reaching ATrace are only notes.
pub fn examine_program(argv0: Option<&str>) -> Report {
    let (pid, name) = (std::process::id(), argv0.map(|name| name.as_bytes().to_vec()));
    let facts = look::own();
    let mut patient =
        Patient { pid, name, facts, is_new: true, left: PATIENCE, charges_pauses: false, is_final: false };
    let published = patient.facts.published();
    patient.report(published, Report::default())
}

/// The process that is examined.
struct Patient {
    pid: u32,
    name: Option<Vec<u8>>,
    facts: Facts,
    /// Whether the process does not exist yet. In that case the facts describe the calling process, except for the
    /// name.
    is_new: bool,
    /// The time that is left for collecting facts.
    left: Duration,
    /// Whether the pauses before facts are collected again are subtracted from the time that is left.
    charges_pauses: bool,
    /// Whether an attempt to collect the facts again has failed. Then the facts stay as they are.
    is_final: bool,
}

fn uid_of(status: &Status) -> String {
    look::user(status).map_or("?".to_owned(), |user| user.uid.to_string())
}

impl Patient {
    /// Examines first the Perfetto backend, which needs no special rights, and then ATrace's backend.
    fn report(&mut self, published: Option<Published>, mut report: Report) -> Report {
        if !self.by_service(published.as_ref(), &mut report) {
            self.by_atrace(published.as_ref(), &mut report);
        }
        if self.is_new && !report.arrives() && service::can_run() {
            report.forgive();
            report.good(Topic::Event, "an event of a program that `atrace run -- CMD` starts arrives");
        }
        report
    }

    /// Examines ATrace's backend.
    fn by_atrace(&mut self, published: Option<&Published>, report: &mut Report) {
        let marker = match published {
            Some(published) => self.sink(published, report),
            None => self.unknown_sink(report),
        };
        self.properties(report);
        if let Some(published) = published {
            self.follows(published, report);
        }
        self.event(published.is_some(), marker, report);
    }

    /// Collects the facts once more after a pause. If the collection fails, the old facts are kept, and later calls do
    /// nothing.
    fn look_again(&mut self, pause: Duration) {
        if self.is_final || self.left.is_zero() {
            return;
        }
        std::thread::sleep(pause);
        if self.charges_pauses {
            self.left = self.left.saturating_sub(pause);
        }
        match Process(self.pid).status().map(|status| look::facts(self.pid, &status, &mut self.left)) {
            Some(Ok(facts)) => self.facts = facts,
            _ => self.is_final = true,
        }
    }

    fn lives(&self, status: &Status, report: &mut Report) -> bool {
        let state = status.get("State").unwrap_or("?");
        let name = self.name.as_ref().map_or("no name".to_owned(), |name| format!("\"{}\"", shown(name)));
        let text = format!("process {}, {name}, state {state}", self.pid);
        match state.as_bytes().first() {
            Some(b'T' | b't') => {
                let text = format!("{text}: it is stopped, and writes nothing");
                report.bad(Topic::Process, text, format!("kill -CONT {}", self.pid));
            }
            Some(b'Z' | b'X') => {
                report.bad(Topic::Process, format!("{text}: it has ended"), "start it again");
                return false;
            }
            _ => report.good(Topic::Process, text),
        }
        true
    }

    /// Reports whether the process publishes its state, and returns the state.
    fn state(&self, status: &Status, report: &mut Report) -> Option<Published> {
        let unseen = self.facts.number("unseen").map(std::io::Error::from_raw_os_error);
        let published = self.facts.published();
        match (unseen, &published) {
            _ if cfg!(target_os = "android") && self.pid != std::process::id() => {
                report.note(Topic::State, "on Android a process publishes no state: where its events go, and what it has read, can't be seen");
            }
            (Some(e), _) if !has_memory_files() => {
                let text = format!(
                    "its published state can't be read ({e}): this kernel (before 3.17) has no memory files, and shows less of \
                     processes"
                );
                report.note(Topic::State, text);
            }
            (Some(e), _) if User::present().uid == 0 => {
                let text = format!(
                    "its published state can't be read even by its own user, {} ({e}), and root does not read it instead: its rights are mixed, or it may not be traced",
                    uid_of(status)
                );
                let mend =
                    "start it without file capabilities or set-user-id, or have it print atrace::sink()";
                report.bad(Topic::State, text, mend);
            }
            (Some(e), _) => {
                let user = uid_of(status);
                let text = format!("its published state can't be read ({e}): it is for user {user} and root");
                report.bad(Topic::State, text, format!("sudo atrace doctor {}", self.pid));
            }
            (None, None) => {
                let text = "it publishes no state: it does not use this library, wrote no event yet, closed its \
                            descriptors, or runs with ATRACE_STATE=none";
                report.bad(Topic::State, text, "have it begin with atrace::atrace_init()");
            }
            (None, Some(_)) if self.facts.is("is_parents") => {
                let text =
                    "it was forked, and has written no event since: the following state is its parent's";
                report.note(Topic::State, text);
            }
            (None, Some(published)) => {
                report.good(Topic::State, format!("atrace {}", published.get("version").unwrap_or("?")));
            }
        }
        published
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_with_a_limit_pay_for_pauses() {
        const PAUSE: Duration = Duration::from_millis(2);
        for (charges_pauses, left) in [(false, PATIENCE), (true, PATIENCE - PAUSE)] {
            let (pid, facts) = (std::process::id(), Facts::default());
            let mut patient = Patient {
                pid,
                name: None,
                facts,
                is_new: false,
                left: PATIENCE,
                charges_pauses,
                is_final: false,
            };
            patient.look_again(PAUSE);
            assert!(patient.left == left && !patient.is_final, "{:?}", patient.left);
        }
    }
}

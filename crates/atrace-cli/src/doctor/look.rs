//! Collects the facts about a process with the rights of the process's user. This module changes nothing in other
//! processes.
//!
//! If the caller is root (not on Android), a [`Worker`] collects the facts: a child process with the ids of the
//! process's user. If that user is root, too, the work is still done in a child process. Other callers, and a process
//! that examines itself, collect the facts without a child process.
//!
//! The user of the examined process controls most of the data that is read. So each file is read up to a fixed size,
//! and a file that could block, or that has an unexpected type, is not opened.
//!
//! # Connections
//!
//! Many processes publish the state of their connection to Perfetto's service. [`connection_states`] collects these
//! states. For each user, a child process with the user's ids (not on Android) reads the states of the user's processes
//! (`privsep`). So a user with many processes, or with processes that block the reader, can't hide the processes of
//! other users. The users with the lowest ids come first. The result lists the users that were not reached in time.
//!
//! The answer of a child process may be false, because the examined user may control the child, which has the user's
//! ids. From the answer of a child, only the states of processes about which this child was asked are accepted.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atrace::control::{Control, Error};
use atrace_sys::privsep::{ANSWER_MAX, Answer, Failure, User, Worker, parse};
use atrace_sys::properties::{FLAGS, Properties};
use atrace_sys::state::NAME;
use atrace_sys::{probe, process};

use super::facts::{Facts, Published as Lines};
use crate::privsep;
use crate::process::{Process, Status};

/// The maximum number of threads of a process that are examined.
const THREADS: usize = 1 << 16;
/// The maximum number of state pages that are read for a process. A process has its own page and the pages
/// that it inherited by `fork`.
const STATES: usize = 64;

/// The state of tracing that a process publishes; `None` if the process publishes no state; or an errno if the process
/// can't be examined.
pub(super) type Page = Result<Option<Published>, i32>;

/// The state that a process publishes.
pub(super) struct Published {
    text: Vec<u8>,
    /// Whether the state was published by the process's parent.
    is_parents: bool,
    /// Whether the process has the state of another process, which it inherited by a fork.
    is_forked: bool,
}

/// Returns the user whose ids the child process needs to examine a process: the first user id and the first group id of
/// the process that are not root's. If a process has only root's ids, returns root.
///
/// If a process has the ids of several users, the kernel may refuse each of these users access to the process.
pub(crate) fn user(status: &Status) -> Option<User> {
    let id = |key| {
        let ids = status.numbers(key);
        ids.iter().copied().find(|id| *id != 0).or(ids.first().copied())
    };
    Some(User { uid: id("Uid")?, gid: id("Gid")? })
}

/// Collects the facts about a process. If the caller is root, a child process collects the facts (not on Android), and
/// the time that this takes is subtracted from `left`.
pub(super) fn facts(pid: u32, status: &Status, left: &mut Duration) -> Result<Facts, Failure> {
    if pid == std::process::id() {
        return Ok(own());
    }
    let user = user(status).ok_or(Failure::Ended(0))?;
    let numbers = status.get("NSpid").map_or_else(|| pid.to_string(), str::to_owned);
    if User::present().uid != 0 || cfg!(target_os = "android") {
        return Ok(of(pid, user.uid, &numbers));
    }
    let start = Instant::now();
    let worker = Worker::start(user, *left, || of(pid, user.uid, &numbers).bytes());
    let answer = worker.and_then(Worker::answer);
    *left = left.saturating_sub(start.elapsed());
    let answer = answer?;
    Facts::parse(&answer).ok_or(Failure::Ended(0))
}

/// Collects the facts about the calling process.
pub(super) fn own() -> Facts {
    let pid = std::process::id();
    atrace::atrace_init();
    let page = Ok(Some(Published { text: atrace::state_page(), is_parents: false, is_forked: false }));
    let variable = |name: &str| process::variable(name).map(OsStringExt::into_vec);
    complete(pid, User::present().uid, page, variable)
}

/// Collects the facts about another process.
fn of(pid: u32, uid: u32, numbers: &str) -> Facts {
    let environment = Process(pid).environment();
    complete(pid, uid, page(pid, numbers), |name| environment.get(name).map(<[u8]>::to_vec))
}

fn complete(pid: u32, uid: u32, page: Page, variable: impl Fn(&str) -> Option<Vec<u8>>) -> Facts {
    let mut facts = Facts::default();
    if let Some(name) = Process(pid).argv0() {
        facts.add("name", name.to_bytes());
    }
    for name in ["ATRACE_BACKEND", "ATRACE_MARKER", "ATRACE_PROPERTIES"] {
        variable(name).into_iter().for_each(|value| facts.add(name, value));
    }
    match page {
        Ok(Some(published)) => {
            facts.add("page", published.text);
            facts.note("is_parents", published.is_parents);
            facts.note("is_forked", published.is_forked);
        }
        Ok(None) => {}
        Err(errno) => facts.add("unseen", errno.to_string()),
    }
    facts.note("has_marker", facts.get("ATRACE_MARKER").is_some_and(|marker| as_path(marker).exists()));
    let mut names = thread_names(pid);
    facts.note("has_watch", names.iter().any(|name| name == b"atrace-watch\n"));
    names.sort_unstable();
    facts.note("has_namesakes", names.windows(2).any(|two| two[0] == two[1]));
    let state = facts.published().unwrap_or_default();
    descriptor(pid, &state, &mut facts);
    let place = state.get("properties").map(str::as_bytes).or(facts.get("ATRACE_PROPERTIES"));
    let place = place.map_or_else(|| Properties::path_for_uid(uid), |place| as_path(place).to_owned());
    store(pid, &place, &mut facts);
    facts
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

/// Returns whether the target of a descriptor has the name of a file with the state that a process publishes.
pub(crate) fn is_state(target: &Path) -> bool {
    // The second name is used on kernels without memory files.
    let names = [format!("/memfd:{NAME} "), format!("/dev/shm/{NAME}-")];
    names.iter().any(|name| target.as_os_str().as_bytes().starts_with(name.as_bytes()))
}

/// Finds and reads the state that a process publishes.
pub(super) fn page(pid: u32, numbers: &str) -> Page {
    let process = Process(pid);
    let descriptors = match process.descriptors() {
        Ok(descriptors) => descriptors,
        Err(e) => return Err(e.raw_os_error().unwrap_or(0).max(1)),
    };
    let files = descriptors.filter(|(_, to)| is_state(to));
    let texts: Vec<_> = files
        .take(STATES)
        .filter_map(|(fd, _)| probe::read_state(&process.path(&format!("fd/{fd}"))))
        .collect();
    // A process in a nested PID namespace has several ids, and its state has one of them.
    let is_own = |text: &Vec<u8>| {
        let state = Lines::parse(text);
        state.get("pid").is_some_and(|pid| numbers.split_whitespace().any(|number| number == pid))
    };
    let (own, others): (Vec<_>, Vec<_>) = texts.into_iter().partition(is_own);
    let (is_parents, is_forked) = (own.is_empty(), !others.is_empty());
    let text = own.into_iter().chain(others).next();
    Ok(text.map(|text| Published { text, is_parents, is_forked }))
}

/// Collects the facts about the marker's descriptor from `/proc`.
fn descriptor(pid: u32, state: &Lines, facts: &mut Facts) {
    let Some((fd, identity)) = state.marker() else { return };
    let own = Process(pid).path(&format!("fd/{fd}"));
    let is_it = |path: &Path| fs::metadata(path).is_ok_and(|data| (data.dev(), data.ino()) == identity);
    let place = state.get("place").unwrap_or_default();
    let place = match place.strip_prefix("fd:").map(str::parse::<u32>) {
        Some(Ok(number)) => Process(pid).path(&format!("fd/{number}")),
        _ => PathBuf::from(place),
    };
    if let Ok(link) = fs::read_link(&own) {
        facts.add("link", link.as_os_str().as_bytes());
    }
    facts.note("is_it", is_it(&own));
    facts.note("is_place", is_it(&place));
    facts.note("has_place", place.exists());
}

fn thread_names(pid: u32) -> Vec<Vec<u8>> {
    let process = Process(pid);
    let threads = fs::read_dir(process.path("task")).into_iter().flatten().flatten().take(THREADS);
    threads
        .filter_map(|thread| process.read(&format!("task/{}/comm", thread.file_name().to_str()?)))
        .collect()
}

/// Collects the facts about the property store that the process uses. Creates no store.
fn store(pid: u32, place: &Path, facts: &mut Facts) {
    facts.add("store", place.as_os_str().as_bytes());
    if cfg!(target_os = "linux") {
        let deleted = [b" ", place.as_os_str().as_bytes(), b" (deleted)"].concat();
        let maps = Process(pid).read("maps").unwrap_or_default();
        facts.note("is_stale", maps.split(|&byte| byte == b'\n').any(|line| line.ends_with(&deleted)));
        if fs::symlink_metadata(place).is_err() {
            let denied =
                |parent: &Path| fs::read_dir(parent).is_err_and(|e| e.kind() == ErrorKind::PermissionDenied);
            return facts.note("is_hidden", place.parent().is_some_and(denied));
        }
    }
    facts.note("is_there", true);
    let opened = if cfg!(target_os = "android") {
        Control::open()
    } else {
        Properties::open_existing(place).map(Control::from).map_err(Error::from)
    };
    match opened {
        Ok(control) => {
            let properties = control.properties();
            if let Ok(Some(value)) = properties.get(FLAGS) {
                facts.add("flags", value.as_bytes());
            }
            control.patterns().iter().for_each(|pattern| facts.add("pattern", pattern));
            if let Some(property) = properties.find(FLAGS) {
                facts.add("serial", property.serial().to_string());
            }
        }
        Err(e) => facts.add("fault", e.to_string()),
    }
}

/// The maximum length of the text of one process in an answer, in bytes.
const TEXT_MAX: usize = 512;
/// The maximum number of processes of one user in an answer.
const PROCESSES_MAX: usize = 1000;

/// The states of the connections of several processes to Perfetto's service.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ConnectionStates {
    /// The text that each process published last, by process id. Processes that have never asked for a connection, and
    /// processes that the caller may not examine, are not in this map.
    pub known: BTreeMap<u32, String>,
    /// The users whose processes were not all examined, with the reasons.
    pub missed: BTreeMap<u32, String>,
}

/// The processes of one user, each with its ids in all PID namespaces.
type Processes = Vec<(u32, String)>;

/// Collects the states of the connections of these processes to Perfetto's service. `patience` returns the time limit
/// for the processes of a user.
///
/// Except on Android, this function forks: see `atrace_sys::privsep`. Callers other than root get only the states of
/// their own user's processes.
pub fn connection_states(pids: &[u32], patience: impl Fn(u32) -> Duration) -> ConnectionStates {
    let mut states = ConnectionStates::default();
    let present = User::present();
    let mut users: BTreeMap<u32, (User, Processes)> = BTreeMap::new();
    for &pid in pids {
        let Some(status) = Process(pid).status() else { continue };
        let Some(user) = user(&status).filter(|user| [0, user.uid].contains(&present.uid)) else {
            continue;
        };
        let numbers = status.get("NSpid").map_or_else(|| pid.to_string(), str::to_owned);
        users.entry(user.uid).or_insert_with(|| (user, Vec::new())).1.push((pid, numbers));
    }
    let users: Vec<_> = users.into_values().collect();
    if cfg!(target_os = "android") {
        for (user, processes) in users {
            states.take(user.uid, &processes, &answer_of(&processes, patience(user.uid)));
        }
        return states;
    }
    privsep::ask(
        &users,
        |(user, _)| (*user, patience(user.uid)),
        |(_, processes), left| answer_of(processes, left * 3 / 4),
        ["other users took too long to answer", "their answers took too long"],
        |(user, processes), answer, _| match answer {
            Ok(answer) => states.take(user.uid, processes, &answer),
            Err(why) => _ = states.missed.insert(user.uid, why),
        },
    );
    states
}

impl ConnectionStates {
    /// Adds the answer of a user's child process. A text about a process that the child was not asked about is ignored.
    fn take(&mut self, uid: u32, processes: &Processes, answer: &[u8]) {
        let parts = parse(answer).unwrap_or_default();
        let Some((is_whole, parts)) = parts.split_first() else {
            self.missed.insert(uid, "their answer can't be parsed".to_owned());
            return;
        };
        if *is_whole != [1] {
            self.missed.insert(uid, "there are too many".to_owned());
        }
        for (pid, text) in parts.iter().filter_map(|part| part.split_first_chunk::<4>()) {
            let pid = u32::from_le_bytes(*pid);
            if processes.iter().any(|(asked, _)| *asked == pid) {
                self.known.insert(pid, String::from_utf8_lossy(text).into_owned());
            }
        }
    }
}

/// Returns the answer of a user's child process: whether it is complete, and then the id and the text of each
/// process.
fn answer_of(processes: &Processes, patience: Duration) -> Vec<u8> {
    let start = Instant::now();
    let (mut found, mut length, mut is_whole) = (Vec::new(), 0, true);
    for (pid, numbers) in processes {
        is_whole = start.elapsed() < patience && found.len() < PROCESSES_MAX && length < ANSWER_MAX / 2;
        if !is_whole {
            break;
        }
        let Ok(Some(Published { text, is_parents: false, .. })) = page(*pid, numbers) else { continue };
        if let Some(said) = Lines::parse(&text).get("perfetto") {
            let part = [&pid.to_le_bytes(), &said.as_bytes()[..said.len().min(TEXT_MAX)]].concat();
            length += part.len() + 4;
            found.push(part);
        }
    }
    let mut answer = Answer::default();
    answer.add([u8::from(is_whole)]);
    found.into_iter().for_each(|part| _ = answer.add(part));
    answer.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_speaks_of_its_users_processes_only() {
        let processes = vec![(7, String::new()), (8, String::new())];
        let take = |bytes: &[u8]| {
            let mut states = ConnectionStates::default();
            states.take(1000, &processes, bytes);
            states
        };
        let mut answer = Answer::default();
        answer.add([1]).add(b"\x07\0\0\0connected\xff").add(b"\x09\0\0\0forged").add(b"\x07\0");
        let bytes = answer.bytes();
        let ConnectionStates { known, missed } = take(&bytes);
        assert_eq!(known, BTreeMap::from([(7, "connected\u{fffd}".to_owned())]));
        assert!(missed.is_empty(), "{missed:?}");
        for wrong in [&b""[..], &bytes[1..], b"\x01\0\0\0\0"] {
            let ConnectionStates { known, missed } = take(wrong);
            assert!(known.is_empty() && missed.contains_key(&1000), "{known:?} {missed:?}");
        }
    }
}

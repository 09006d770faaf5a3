//! Collects the state of many processes' connections to Perfetto's service, as the processes publish it.
//!
//! # Fairness
//!
//! A child process for each user takes on that user's ids and reads the states of that user's processes
//! (`atrace_sys::errand`). Each child has its own time limit, and sixteen children run at once, the lowest user ids
//! first. So a user with many processes, or with processes that block the reader, can't hide the processes of other
//! users. There is a limit for all users together; users that were not reached in time are listed.
//!
//! # Trust
//!
//! An answer is the word of its user. It counts for the processes that this child was asked about, and for no others.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atrace_sys::errand::{ANSWER_MAX, Errand, User, Words, answers, parse};

use super::facts::Page;
use super::look;
use super::published::Published;
use crate::process::Process;

/// How many users' children run at once.
const TOGETHER: usize = 16;
/// No further child is started after this time: a person can own thousands of user ids.
const LONGEST: Duration = Duration::from_secs(10);
/// The limits for the text of one process in bytes, and for the processes of one user. They keep an answer short.
const TEXT_MAX: usize = 512;
const PROCESSES_MAX: usize = 1000;

/// The states of processes' connections to Perfetto's service.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Standings {
    /// The text that each process published last, by process id. Processes that never asked for a service, or that
    /// the caller may not examine, are missing.
    pub known: BTreeMap<u32, String>,
    /// The users whose processes were not all examined, and why.
    pub missed: BTreeMap<u32, String>,
}

/// The processes of one user, each with its ids in all PID namespaces.
type Processes = Vec<(u32, String)>;

/// Collects the states of the connections of these processes to Perfetto's service. `patience` returns the time limit
/// for the processes of a user.
///
/// As root, this function forks: see `atrace_sys::errand`. Other callers see their own processes only.
pub fn standings(pids: &[u32], patience: impl Fn(u32) -> Duration) -> Standings {
    let mut standings = Standings::default();
    let (start, present) = (Instant::now(), User::present());
    let mut users: BTreeMap<u32, (User, Processes)> = BTreeMap::new();
    for &pid in pids {
        let Some(status) = Process(pid).status() else { continue };
        let Some(user) = look::user(&status).filter(|user| [0, user.uid].contains(&present.uid)) else {
            continue;
        };
        let numbers = status.get("NSpid").map_or_else(|| pid.to_string(), str::to_owned);
        users.entry(user.uid).or_insert_with(|| (user, Vec::new())).1.push((pid, numbers));
    }
    let users: Vec<_> = users.into_values().collect();
    for users in users.chunks(TOGETHER) {
        let mut asked = Vec::new();
        for (user, processes) in users {
            let left = patience(user.uid);
            let begun = if start.elapsed() > LONGEST {
                Err("other users took too long to answer".to_owned())
            } else if left.is_zero() {
                Err("their answers took too long".to_owned())
            } else if cfg!(target_os = "android") {
                standings.take(user.uid, processes, &answer_of(processes, left));
                continue;
            } else {
                Errand::start(*user, left, || answer_of(processes, left * 3 / 4)).map_err(|e| e.to_string())
            };
            match begun {
                Ok(errand) => asked.push((user.uid, processes, errand)),
                Err(why) => _ = standings.missed.insert(user.uid, why),
            }
        }
        let (whose, errands): (Vec<_>, Vec<_>) =
            asked.into_iter().map(|(uid, processes, errand)| ((uid, processes), errand)).unzip();
        for ((uid, processes), (answer, _)) in whose.into_iter().zip(answers(errands)) {
            match answer {
                Ok(answer) => standings.take(uid, processes, &answer),
                Err(e) => _ = standings.missed.insert(uid, e.to_string()),
            }
        }
    }
    standings
}

impl Standings {
    /// Takes the answer of a user's child. It may contain texts for the processes of that user only.
    fn take(&mut self, uid: u32, processes: &Processes, answer: &[u8]) {
        let words = parse(answer).unwrap_or_default();
        let Some((is_whole, words)) = words.split_first() else {
            self.missed.insert(uid, "their answer can't be understood".to_owned());
            return;
        };
        if *is_whole != [1] {
            self.missed.insert(uid, "there are too many".to_owned());
        }
        for (pid, text) in words.iter().filter_map(|word| word.split_first_chunk::<4>()) {
            let pid = u32::from_le_bytes(*pid);
            if processes.iter().any(|(asked, _)| *asked == pid) {
                self.known.insert(pid, String::from_utf8_lossy(text).into_owned());
            }
        }
    }
}

/// Encodes an answer: whether it is complete, then for each process its id and its text.
fn answer_of(processes: &Processes, patience: Duration) -> Vec<u8> {
    let start = Instant::now();
    let (mut found, mut length, mut is_whole) = (Vec::new(), 0, true);
    for (pid, numbers) in processes {
        is_whole = start.elapsed() < patience && found.len() < PROCESSES_MAX && length < ANSWER_MAX / 2;
        if !is_whole {
            break;
        }
        let Page::Text { text, is_parents: false } = look::page(*pid, numbers) else { continue };
        if let Some(said) = Published::parse(&text).get("perfetto") {
            let word = [&pid.to_le_bytes(), &said.as_bytes()[..said.len().min(TEXT_MAX)]].concat();
            length += word.len() + 4;
            found.push(word);
        }
    }
    let mut words = Words::default();
    words.add([u8::from(is_whole)]);
    found.into_iter().for_each(|word| _ = words.add(word));
    words.bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_speaks_of_its_users_processes_only() {
        let processes = vec![(7, String::new()), (8, String::new())];
        let take = |bytes: &[u8]| {
            let mut standings = Standings::default();
            standings.take(1000, &processes, bytes);
            standings
        };
        let mut words = Words::default();
        words.add([1]).add(b"\x07\0\0\0connected\xff").add(b"\x09\0\0\0forged").add(b"\x07\0");
        let bytes = words.bytes();
        let Standings { known, missed } = take(&bytes);
        assert_eq!(known, BTreeMap::from([(7, "connected\u{fffd}".to_owned())]));
        assert!(missed.is_empty(), "{missed:?}");
        for wrong in [&b""[..], &bytes[1..], b"\x01\0\0\0\0"] {
            let Standings { known, missed } = take(wrong);
            assert!(known.is_empty() && missed.contains_key(&1000), "{known:?} {missed:?}");
        }
    }
}

//! `atrace status`: shows what is switched on, and in which processes.

use std::ffi::CString;
use std::time::Instant;

use crate::consumer::{Consumer, State};
use crate::doctor::{self, Standings};
use crate::escape::shown;
use atrace::AtraceTag;
use atrace_perfetto::socket;
use atrace_sys::errand::PATIENCE;

use crate::command::processes::Process;
use crate::command::stores::{self, Content, Follower};
use crate::command::terminal::{Result, print, shown_path};
use crate::command::{notes, processes};

pub(crate) fn main() -> Result<()> {
    let running = notes::sweep();
    let processes: Vec<_> = processes::all().into_iter().map(Follower::of).collect();
    for store in stores::all([])? {
        let Content { patterns, tags } = &store.content;
        print(&format!("{}: {}", store.owner(), shown_path(&store.path)));
        print(&format!("  tags: {}", if tags.is_empty() { "none".to_owned() } else { names(*tags) }));
        if patterns.is_empty() {
            print("  patterns: none");
        }
        let followers: Vec<_> = processes.iter().filter(|process| store.is_of(process)).collect();
        let (start, mut is_late) = (Instant::now(), false);
        for (index, pattern) in patterns.iter().enumerate() {
            // A recording adds its pattern after those that are listed already, so the last entries are the
            // recordings'.
            let later = patterns[index + 1..].iter().filter(|other| *other == pattern).count();
            let why = match running.of(&store, pattern).nth(later) {
                Some(pid) => format!(": on because recording {pid} runs"),
                None => String::new(),
            };
            print(&format!("  pattern {}{why}", shown(pattern)));
            let pattern = CString::new(pattern.as_str()).unwrap_or_default();
            for follower in &followers {
                // The users choose the patterns and names, and may choose some that take long to compare.
                if !is_late && start.elapsed() > PATIENCE {
                    is_late = true;
                    print("    (not all processes were looked at: there are too many, or too many patterns)");
                }
                if is_late {
                    break;
                }
                if follower.matches(&pattern) {
                    print(&format!("    {}", follower.process));
                }
            }
        }
    }
    print_service();
    let pids: Vec<_> = processes.iter().map(|follower| follower.process.0).collect();
    let Standings { known, missed, .. } = doctor::standings(&pids, stores::left);
    for (pid, standing) in known {
        let standing = standing.trim_start_matches("Perfetto's service: ");
        print(&format!("  {}: {}", Process(pid), shown(standing)));
    }
    for (uid, why) in missed {
        print(&format!("  (not all processes of user {uid} were asked: {})", shown(&why)));
    }
    Ok(())
}

/// Prints whether Perfetto's system service runs, and the producers that are connected to it.
fn print_service() {
    let (place, _) = socket::consumers();
    let place = shown(place.as_encoded_bytes()).to_string();
    let state = match Consumer::connect() {
        Ok(mut consumer) => consumer.state(),
        Err(refused) => return print(&format!("Perfetto's service: none at {place}: {refused}")),
    };
    let State { producers, sessions, .. } = match state {
        Ok(state) => state,
        Err(e) => return print(&format!("Perfetto's service: {place}: it does not answer: {e}")),
    };
    print(&format!("Perfetto's service: {place}"));
    print(&format!("  sessions: {sessions}"));
    for (name, user) in producers {
        print(&format!("  producer {}, of user {user}", shown(&name)));
    }
}

fn names(tags: AtraceTag) -> String {
    let names: Vec<_> = tags.iter_names().map(|(name, _)| name).collect();
    names.join(", ")
}

//! `atrace on` and `atrace off` add and remove patterns in the users' property stores. `atrace status` shows the
//! patterns and tags that are on, and the processes that they match.

use std::ffi::CString;
use std::time::Instant;

use atrace_perfetto::socket;
use atrace_sys::privsep::PATIENCE;
use rustix::fs::{Access, access};
use rustix::process::geteuid;

use crate::command::notes;
use crate::command::stores::{self, Content, ProcessData, Store, Work, check_all};
use crate::command::terminal::{Failure, Result, print, say, shown_path};
use crate::consumer::{Consumer, State};
use crate::doctor::{self, ConnectionStates, tag_names};
use crate::escape::shown;
use crate::process::{self, Process, matching, none_matches};
use crate::tracefs;

#[derive(clap::Args, Debug)]
pub(crate) struct SwitchArgs {
    /// A pattern for the names of programs as they were started (argv[0]): `*` matches any text; the pattern may match
    /// the whole name or, except on Android, the part after the last `/`
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
}

pub(crate) fn on(args: &SwitchArgs) -> Result {
    check_all(&args.patterns)?;
    let running = notes::sweep();
    let matching = matching(&args.patterns);
    let stores = stores::all(matching.iter().filter_map(|process| process.uid()))?;
    // A pattern that is listed already is not added again. The entries of running recordings do not count, because they
    // are removed when the recordings end.
    let once = |store: &Store| {
        let beside = |pattern: &String| (pattern.clone(), running.of(store, pattern).count());
        Work::Enable(args.patterns.iter().map(beside).collect())
    };
    let mut reached = Vec::new();
    for (store, result) in stores::perform(&stores, once) {
        match result {
            Ok(_) => reached.push(store),
            Err(e) => stores::refuse(store, &e)?,
        }
    }
    let (meant, others): (Vec<_>, Vec<_>) = matching
        .into_iter()
        .map(ProcessData::of)
        .partition(|process| reached.iter().any(|store| store.is_of(process)));
    for data in &meant {
        print(&format!("on: {}", data.process));
    }
    if meant.is_empty() {
        match others.first() {
            None => say(none_matches(&args.patterns)),
            Some(ProcessData { process, .. }) => {
                let own = geteuid();
                let is_foreign = !own.is_root() && process.uid() != Some(own.as_raw());
                // If the process is not another user's, the reason was printed above: the store could not be changed.
                let why = if is_foreign { ": only root can switch programs of other users" } else { "" };
                say(format_args!("{process} matches, but its tracing was not switched on{why}"));
            }
        }
        say("programs of that name that start from now on will trace");
    }
    let marker = tracefs::root().and_then(|root| Ok(access(root.join("trace_marker"), Access::WRITE_OK)?));
    if let (Err(e), false) = (marker, cfg!(target_os = "android")) {
        say(format_args!(
            "the events of your programs go nowhere, because the kernel's marker can't be written to: {e}; without root, \
             `atrace run` records a program"
        ));
    }
    Ok(())
}

pub(crate) fn off(args: &SwitchArgs) -> Result {
    notes::sweep();
    let stores = stores::all([])?;
    let mut unknown = Vec::new();
    for pattern in &args.patterns {
        let listed: Vec<_> = stores.iter().filter(|store| store.content.count(pattern) > 0).collect();
        if listed.is_empty() {
            unknown.push(in_quotes(pattern));
        }
        for (store, result) in stores::perform(listed, |_| Work::Disable(pattern.clone())) {
            match result {
                Ok(_) => print(&format!("off: {} for {}", shown(pattern), store.owner())),
                Err(e) => stores::refuse(store, &e)?,
            }
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let mut present: Vec<_> = stores
        .iter()
        .flat_map(|store| &store.content.patterns)
        .filter(|it| !args.patterns.contains(it))
        .map(|pattern| in_quotes(pattern))
        .collect();
    present.sort();
    present.dedup();
    let present = if present.is_empty() { "nothing".to_owned() } else { present.join(", ") };
    Err(Failure::new(format!("{} is not switched on; switched on: {present}", unknown.join(", "))))
}

fn in_quotes(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

pub(crate) fn status() -> Result {
    let running = notes::sweep();
    let processes: Vec<_> = process::all().into_iter().map(ProcessData::of).collect();
    for store in stores::all([])? {
        let Content { patterns, tags } = &store.content;
        print(&format!("{}: {}", store.owner(), shown_path(&store.path)));
        print(&format!("  tags: {}", tag_names(*tags)));
        if patterns.is_empty() {
            print("  patterns: none");
        }
        let of_store: Vec<_> = processes.iter().filter(|process| store.is_of(process)).collect();
        let (start, mut is_late) = (Instant::now(), false);
        for (index, pattern) in patterns.iter().enumerate() {
            // A recording appends its pattern to the list. So if a pattern is listed several times, the last entries
            // are those of running recordings.
            let later = patterns[index + 1..].iter().filter(|other| *other == pattern).count();
            let why = match running.of(&store, pattern).nth(later) {
                Some(pid) => format!(": on because recording {pid} runs"),
                None => String::new(),
            };
            print(&format!("  pattern {}{why}", shown(pattern)));
            let pattern = CString::new(pattern.as_str()).unwrap_or_default();
            for data in &of_store {
                // Users choose the patterns and the names of processes, and may choose texts that take long to compare.
                if is_late {
                    break;
                }
                is_late = start.elapsed() > PATIENCE;
                if is_late {
                    print("    (not all processes were checked: there are too many processes or patterns)");
                } else if data.matches(&pattern) {
                    print(&format!("    {}", data.process));
                }
            }
        }
    }
    print_service();
    let pids: Vec<_> = processes.iter().map(|data| data.process.0).collect();
    let ConnectionStates { known, missed, .. } = doctor::connection_states(&pids, stores::left);
    for (pid, state) in known {
        let state = state.trim_start_matches("Perfetto's service: ");
        print(&format!("  {}: {}", Process(pid), shown(state)));
    }
    for (uid, why) in missed {
        print(&format!("  (not all processes of user {uid} were asked: {})", shown(&why)));
    }
    Ok(())
}

/// Prints whether Perfetto's system service runs, and which producers are connected to it.
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

//! `atrace on`, `off` and `status`.

use std::ffi::CString;
use std::time::Instant;

use atrace::AtraceTag;
use atrace::shown::shown;
use atrace_sys::errand::PATIENCE;

use crate::command::notes::ledger;
use crate::command::processes::{self, Process};
use crate::command::stores::content::Content;
use crate::command::stores::errands::Work;
use crate::command::stores::store::{self, Seen, Store};
use crate::command::terminal::{Failure, Result, say};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A pattern for the names of programs as they were started (argv[0]): `*` matches any text
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
}

pub(crate) fn on(args: &Args) -> Result<()> {
    for pattern in &args.patterns {
        check(pattern)?;
    }
    let running = ledger::sweep();
    let matching = matching(&args.patterns);
    let stores = store::all(matching.iter().filter_map(|process| process.uid()))?;
    // Twice listed, it would have to be switched off twice; what a recording switched on goes with it.
    let fresh = |store: &Store| {
        let mut fresh: Vec<String> = Vec::new();
        for pattern in &args.patterns {
            let is_on = store.content.count(pattern) > running.of(store, pattern).count();
            if !is_on && !fresh.contains(pattern) {
                fresh.push(pattern.clone());
            }
        }
        fresh
    };
    let mut reached = Vec::new();
    for (store, result) in store::perform(&stores, |store| Work::Enable(fresh(store))) {
        match result {
            Ok(_) => reached.push(store),
            Err(e) => store::refuse(store, &e)?,
        }
    }
    let mut meant: Vec<_> = matching.into_iter().map(Seen::of).collect();
    meant.retain(|process| reached.iter().any(|store| store.is_of(process)));
    for seen in &meant {
        print(&format!("on: {}", seen.process));
    }
    if meant.is_empty() {
        say(nobody(&args.patterns, "no running process"));
        say("programs of that name that start from now on will trace");
    }
    Ok(())
}

pub(crate) fn off(args: &Args) -> Result<()> {
    ledger::sweep();
    let stores = store::all([])?;
    let mut unknown = Vec::new();
    for pattern in &args.patterns {
        let listed: Vec<_> = stores.iter().filter(|store| store.content.count(pattern) > 0).collect();
        if listed.is_empty() {
            unknown.push(in_quotes(pattern));
        }
        for (store, result) in store::perform(listed, |_| Work::Disable(pattern.clone())) {
            match result {
                Ok(_) => print(&format!("off: {} for {}", shown(pattern), store.owner())),
                Err(e) => store::refuse(store, &e)?,
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
    Err(Failure::new(format!("{} is not switched on; what is: {present}", unknown.join(", "))))
}

fn in_quotes(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

/// What is wrong with a pattern, before anything is switched.
pub(crate) fn check(pattern: &str) -> Result<()> {
    const MAX: usize = atrace_sys::properties::VALUE_MAX;
    if pattern.is_empty() {
        return Err(Failure::new("an empty pattern matches no process"));
    }
    if pattern.len() > MAX {
        let start = (pattern.len() - (MAX - 1)..pattern.len()).find(|&at| pattern.is_char_boundary(at));
        let end = start.and_then(|start| pattern.get(start..)).unwrap_or_default();
        return Err(Failure::new(format!(
            "a pattern has at most {MAX} bytes, this has {}: give its end, as '*{}'",
            pattern.len(),
            shown(end)
        )));
    }
    crate::command::stores::pattern::check(pattern)
}

/// The running processes that some of the patterns mean.
pub(crate) fn matching(patterns: &[String]) -> Vec<Process> {
    let mut all = processes::all();
    all.retain(|process| patterns.iter().any(|pattern| process.matches(pattern)));
    all
}

/// That a pattern matches nothing, and what was perhaps meant.
pub(crate) fn nobody(patterns: &[String], who: &str) -> String {
    let mut text = format!("{who} matches {}", shown(&patterns.join(" or ")));
    let like = |process: &Process| {
        let name = process.argv0()?.to_string_lossy().into_owned();
        let is_like = |pattern: &String| {
            let inner = pattern.trim_matches('*').rsplit('/').next().unwrap_or_default().to_owned();
            !inner.is_empty() && name.contains(&inner)
        };
        patterns.iter().any(is_like).then(|| format!("{} ({})", process.0, shown(&name)))
    };
    let similar: Vec<_> = processes::all().iter().filter_map(like).take(5).collect();
    if !similar.is_empty() {
        text.push_str(&format!(
            "; the pattern must match the whole name as the program was started, '*' any text: {}",
            similar.join(", ")
        ));
    }
    text
}

pub(crate) fn status() -> Result<()> {
    let running = ledger::sweep();
    let processes: Vec<_> = processes::all().into_iter().map(Seen::of).collect();
    for store in store::all([])? {
        let Content { patterns, tags } = &store.content;
        print(&format!("{}: {}", store.owner(), store.path.display()));
        print(&format!("  tags: {}", if tags.is_empty() { "none".to_owned() } else { names(*tags) }));
        if patterns.is_empty() {
            print("  patterns: none");
        }
        let followers: Vec<_> = processes.iter().filter(|process| store.is_of(process)).collect();
        let (start, mut is_late) = (Instant::now(), false);
        for (index, pattern) in patterns.iter().enumerate() {
            // A recording adds its own to what is listed already.
            let later = patterns[index + 1..].iter().filter(|other| *other == pattern).count();
            let why = match running.of(&store, pattern).nth(later) {
                Some(pid) => format!(": on because recording {pid} runs"),
                None => String::new(),
            };
            print(&format!("  pattern {}{why}", shown(pattern)));
            let pattern = CString::new(pattern.as_str()).unwrap_or_default();
            for seen in &followers {
                // Patterns and names that take long to compare are their user's.
                if !is_late && start.elapsed() > PATIENCE {
                    is_late = true;
                    print("    (not all processes were looked at: there are too many, or too many patterns)");
                }
                if is_late {
                    break;
                }
                if seen.matches(&pattern) {
                    print(&format!("    {}", seen.process));
                }
            }
        }
    }
    Ok(())
}

fn names(tags: AtraceTag) -> String {
    let names: Vec<_> = tags.iter_names().map(|(name, _)| name).collect();
    names.join(", ")
}

/// To stdout; who does not read it misses it.
pub(crate) fn print(line: &str) {
    crate::command::terminal::print(line);
}

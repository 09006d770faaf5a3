//! `atrace on`, `off` and `status`.

use atrace::AtraceTag;

use super::failure::{Failure, Result, say};
use super::processes::{self, Process};
use super::stores::{self, Store};

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
    let matching = matching(&args.patterns);
    let stores = stores::all(matching.iter().filter_map(|process| process.uid()))?;
    let mut done = Vec::new();
    for pattern in &args.patterns {
        // Twice listed, it would have to be switched off twice.
        let fresh: Vec<_> = stores.iter().filter(|store| !is_on(store, pattern)).collect();
        for store in fresh {
            done.push(
                store.control.enable(pattern).map_err(|e| Failure::new(format!("{}: {e}", store.owner())))?,
            );
        }
    }
    done.into_iter().for_each(atrace::control::Switched::keep);
    let reached: Vec<_> =
        matching.into_iter().filter(|process| stores.iter().any(|store| store.is_of(*process))).collect();
    for process in &reached {
        print(&format!("on: {process}"));
    }
    if reached.is_empty() {
        say(nobody(&args.patterns, "no running process"));
        say("programs of that name that start from now on will trace");
    }
    Ok(())
}

fn is_on(store: &Store, pattern: &str) -> bool {
    store.control.patterns().iter().any(|other| other == pattern)
}

pub(crate) fn off(args: &Args) -> Result<()> {
    let stores = stores::all([])?;
    let mut unknown = Vec::new();
    for pattern in &args.patterns {
        let listed: Vec<_> = stores.iter().filter(|store| is_on(store, pattern)).collect();
        if listed.is_empty() {
            unknown.push(format!("{pattern:?}"));
        }
        for store in listed {
            let switched = store.control.disable(pattern);
            switched.map_err(|e| Failure::new(format!("{}: {e}", store.owner())))?.keep();
            print(&format!("off: {pattern} for {}", store.owner()));
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    let mut present: Vec<_> = stores
        .iter()
        .flat_map(|store| store.control.patterns())
        .map(|pattern| format!("{pattern:?}"))
        .collect();
    present.sort();
    present.dedup();
    let present = if present.is_empty() { "nothing".to_owned() } else { present.join(", ") };
    Err(Failure::new(format!("{} is not switched on; what is: {present}", unknown.join(", "))))
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
            "a pattern has at most {MAX} bytes, this has {}: give its end, as '*{end}'",
            pattern.len()
        )));
    }
    super::pattern::check(pattern)
}

/// The running processes that some of the patterns mean.
pub(crate) fn matching(patterns: &[String]) -> Vec<Process> {
    let mut all = processes::all();
    all.retain(|process| patterns.iter().any(|pattern| process.matches(pattern)));
    all
}

/// That a pattern matches nothing, and what was perhaps meant.
pub(crate) fn nobody(patterns: &[String], who: &str) -> String {
    let mut text = format!("{who} matches {}", patterns.join(" or "));
    let like = |process: &Process| {
        let name = process.argv0()?.to_string_lossy().into_owned();
        let is_like = |pattern: &String| {
            let inner = pattern.trim_matches('*').rsplit('/').next().unwrap_or_default().to_owned();
            !inner.is_empty() && name.contains(&inner)
        };
        patterns.iter().any(is_like).then(|| format!("{} ({name})", process.0))
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
    let processes = processes::all();
    for store in stores::all([])? {
        let patterns = store.control.patterns();
        let tags = store.control.tags();
        print(&format!("{}: {}", store.owner(), store.path.display()));
        print(&format!("  tags: {}", if tags.is_empty() { "none".to_owned() } else { names(tags) }));
        if patterns.is_empty() {
            print("  patterns: none");
        }
        for pattern in patterns {
            print(&format!("  pattern {pattern}"));
            let meant = processes.iter().filter(|it| it.matches(&pattern) && store.is_of(**it));
            meant.for_each(|process| print(&format!("    {process}")));
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
    super::failure::print(line);
}

//! `atrace on` and `atrace off`: switch patterns in the users' property stores.

use crate::escape::shown;

use crate::command::notes;
use crate::command::processes::{matching, none_matches};
use crate::command::stores::{self, Follower, Store, Work, check_all};
use crate::command::terminal::{Failure, Result, print, say};

#[derive(clap::Args, Debug)]
pub(crate) struct SwitchArgs {
    /// A pattern for the names of programs as they were started (argv[0]): `*` matches any text
    #[arg(required = true, value_name = "PATTERN")]
    patterns: Vec<String>,
}

pub(crate) fn on(args: &SwitchArgs) -> Result<()> {
    check_all(&args.patterns)?;
    let running = notes::sweep();
    let matching = matching(&args.patterns);
    let stores = stores::all(matching.iter().filter_map(|process| process.uid()))?;
    // A pattern that is listed twice would have to be switched off twice. The entries of running recordings do not
    // count, because they are removed when the recordings end.
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
    let mut meant: Vec<_> = matching.into_iter().map(Follower::of).collect();
    meant.retain(|process| reached.iter().any(|store| store.is_of(process)));
    for follower in &meant {
        print(&format!("on: {}", follower.process));
    }
    if meant.is_empty() {
        say(none_matches(&args.patterns));
        say("programs of that name that start from now on will trace");
    }
    Ok(())
}

pub(crate) fn off(args: &SwitchArgs) -> Result<()> {
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
    Err(Failure::new(format!("{} is not switched on; what is: {present}", unknown.join(", "))))
}

fn in_quotes(text: &str) -> String {
    format!("\"{}\"", shown(text))
}

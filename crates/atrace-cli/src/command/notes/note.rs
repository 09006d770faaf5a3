//! The note of this command, and the cleanup for killed commands.

use std::fs::File;
use std::path::Path;

use crate::escape::shown;
use atrace_sys::fork::{Generation, generation};

use crate::command::caller::Caller;
use crate::command::notes::folder::{Folder, Writer, boot};
use crate::command::notes::text::{Destination, NoteText, NotedPattern, SAVED, UNDONE, done_line};
use crate::command::stores::{self, Store, Work};
use crate::command::terminal::{Result, failed, say};

/// The note of this command. When it is dropped, everything that it switched on is switched off again. A forked child
/// that drops its copy changes nothing.
pub(crate) struct Note {
    folder: Folder,
    name: String,
    entries: Vec<NotedPattern>,
    by: Generation,
    _lock: File,
}

impl Note {
    /// Writes the note, with the file to save the recording to.
    pub(crate) fn write(output: &Path, owner: Option<&Caller>) -> Result<Self> {
        let what = || format!("writing down in {} what is recorded", Folder::path().display());
        let output = std::path::absolute(output).map_err(failed(what()))?;
        let output = Destination { path: output, owner: owner.map(|owner| (owner.uid, owner.gid)) };
        let folder = Folder::make().map_err(failed(what()))?;
        let text = format!("{}\n{}", boot(), output.line());
        let (name, lock) = folder.write(&text).map_err(failed(what()))?;
        Ok(Self { folder, name, entries: Vec::new(), by: generation(), _lock: lock })
    }

    /// Notes the patterns, then switches them on. If this fails for the store of another user, a message says so, and
    /// the rest is not affected.
    pub(crate) fn switch_on(&mut self, patterns: &[String], stores: &[Store]) -> Result<()> {
        // The contents are read again, because other commands may have switched patterns in the meantime.
        for (store, now) in stores::perform(stores, |_| Work::Look) {
            let now = now.as_ref().unwrap_or(&store.content);
            let entry = |pattern: &String| NotedPattern::new(store, now.count(pattern), pattern);
            self.entries.extend(patterns.iter().map(entry));
        }
        let lines: String = self.entries.iter().map(NotedPattern::line).collect();
        self.folder.add(&self.name, &lines).map_err(failed("writing down what is switched on"))?;
        // The patterns are listed once more, even if they are listed already.
        let enable = || patterns.iter().map(|pattern| (pattern.clone(), usize::MAX)).collect();
        let (mut done, mut refused) = (String::new(), Ok(()));
        for (store, result) in stores::perform(stores, |_| Work::Enable(enable())) {
            // After an error it is unknown whether the patterns are on, so the entries keep their count.
            if let Err(e) = result {
                refused = refused.and(stores::refuse(store, &e));
                continue;
            }
            done += &done_line(store.uid, &store.path);
            self.entries.iter_mut().filter(|entry| entry.is_of(store)).for_each(NotedPattern::done);
        }
        let _ = self.folder.add(&self.name, &done);
        refused
    }

    /// Switches off what this command switched on. If that fails, the next command tries it again.
    pub(crate) fn switch_off(&mut self) {
        if !self.entries.is_empty() && take_back(&self.entries) {
            self.entries.clear();
            let _ = self.folder.add(&self.name, &format!("{UNDONE}\n"));
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if self.by == generation() {
            self.switch_off();
            strike(&self.folder, &self.name, SAVED, self.entries.is_empty());
        }
    }
}

/// Cancels a part of a note. A note with nothing left to do is removed.
fn strike(folder: &Folder, name: &str, part: &str, was_all: bool) {
    if was_all {
        folder.remove(name);
    } else {
        let _ = folder.add(name, &format!("{part}\n"));
    }
}

/// Switches off what a recording switched on. Reports failures, and returns whether there were none.
fn take_back(entries: &[NotedPattern]) -> bool {
    let mut stores: Vec<Store> = Vec::new();
    for entry in entries {
        if !stores.iter().any(|store| entry.is_of(store)) {
            stores.push(match entry.uid {
                Some(uid) => Store::of_user(uid),
                None => Store::at(entry.path.clone()),
            });
        }
    }
    let patterns = |store: &Store| {
        let of_store = entries.iter().filter(|entry| entry.is_of(store));
        of_store.map(|entry| (entry.pattern.clone(), entry.before)).collect()
    };
    let mut is_clean = true;
    for (store, result) in stores::perform(&stores, |store| Work::TakeBack(patterns(store))) {
        if let Err(e) = result {
            is_clean = false;
            say(format_args!("not switched off again, {}: {}", store.owner(), shown(&e)));
        }
    }
    is_clean
}

/// The patterns that are on because of running recordings.
#[derive(Default)]
pub(crate) struct Running(Vec<(u32, NotedPattern)>);

impl Running {
    /// Returns the ids of the recordings that have switched on this pattern in this store.
    pub(crate) fn of<'a>(&'a self, store: &'a Store, pattern: &'a str) -> impl Iterator<Item = u32> + 'a {
        let is_meant = move |entry: &NotedPattern| entry.is_of(store) && entry.pattern == pattern;
        self.0.iter().filter(move |(_, entry)| is_meant(entry)).map(|(pid, _)| *pid)
    }
}

/// Switches off the patterns that killed recordings left on, and reports it. Returns the patterns of the recordings
/// that still run.
pub(crate) fn sweep() -> Running {
    let mut running = Running::default();
    let Ok(folder) = Folder::open() else { return running };
    for (name, writer) in folder.notes() {
        let claim = if writer.lives() { None } else { folder.claim(&name) };
        let text = folder.read(&name);
        if claim.is_none() {
            let entries = text.unwrap_or_default().entries;
            running.0.extend(entries.into_iter().map(|entry| (writer.pid, entry)));
            continue;
        }
        match text.filter(|text| text.boot == boot()) {
            Some(text) => undo(&folder, &name, writer, &text),
            None => folder.remove(&name),
        }
    }
    running
}

fn undo(folder: &Folder, name: &str, writer: Writer, text: &NoteText) {
    if !text.entries.is_empty() {
        take_back(&text.entries);
        let mut patterns: Vec<_> =
            text.entries.iter().map(|entry| shown(&entry.pattern).to_string()).collect();
        patterns.sort();
        patterns.dedup();
        say(format_args!(
            "switched off what was left on, as recording {} was killed: {}",
            writer.pid,
            patterns.join(", ")
        ));
    }
    if text.output.is_none() || !text.entries.is_empty() {
        strike(folder, name, UNDONE, text.output.is_none());
    }
}

/// Returns the commands that were killed before they saved their recording, and the files to save to.
pub(crate) fn unsaved() -> Vec<(u32, Destination)> {
    let Ok(folder) = Folder::open() else { return Vec::new() };
    let is_dead = |name: &str, writer: Writer| !writer.lives() && folder.claim(name).is_some();
    let dead = folder.notes().into_iter().filter(|(name, writer)| is_dead(name, *writer));
    let output = |name: &str| folder.read(name).filter(|text| text.boot == boot())?.output;
    dead.filter_map(|(name, writer)| Some((writer.pid, output(&name)?))).collect()
}

/// Cancels the outputs of killed commands.
pub(crate) fn forget(pids: &[u32]) {
    let Ok(folder) = Folder::open() else { return };
    for (name, writer) in folder.notes() {
        if pids.contains(&writer.pid)
            && !writer.lives()
            && let Some(_claim) = folder.claim(&name)
            && let Some(text) = folder.read(&name)
            && text.output.is_some()
        {
            strike(&folder, &name, SAVED, text.entries.is_empty());
        }
    }
}

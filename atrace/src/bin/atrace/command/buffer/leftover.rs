//! What recordings have left whose command died: swept when the next one begins.
//!
//! A buffer with events in it is saved first: to the place that the dead command had noted, by the same rules as
//! it would have been, or else to root's own directory. One that a process still writes to is left for later,
//! and one that could not be saved is marked and stays until somebody has brought it to a file.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use atrace::tracefs::{self, Instance};
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Uid, User, geteuid};

use crate::command::buffer::names;
use crate::command::buffer::ring::{PREFIX, save_from};
use crate::command::caller::Caller;
use crate::command::file::output::Output;
use crate::command::notes::journal::{self, Noted};
use crate::command::processes::{self, Process};
use crate::command::terminal::{Result, failed, place, say, word};

/// The mark of a recording that could not be saved: it is stopped, and its buffer does not overwrite.
const MARK: &str = "options/overwrite";

/// Saves and removes what killed recordings have left, and says what can't be.
pub(crate) fn sweep() -> Result<()> {
    let mut dead = Vec::new();
    let swept = tracefs::sweep_where(PREFIX, |path| {
        dead.extend(maker(path));
        let may_go = save(path);
        may_go.unwrap_or_else(|e| {
            say(e);
            false
        })
    })?;
    if !swept.removed.is_empty() {
        // What a killed `record` may have left, see `Top::silence`.
        let _ = Instance::attach(tracefs::root()?)?.set_option(tracefs::COPY, true);
    }
    for path in &swept.removed {
        say(format_args!("removed {}, which an earlier recording left", place(path)));
    }
    for path in &swept.busy {
        say(format_args!(
            "{} of an earlier recording is still held open by {}: a later one will remove it",
            place(path),
            holders(path),
        ));
    }
    let unsaved = unsaved()?;
    for path in &unsaved {
        say(format_args!(
            "{} still holds a recording that could not be saved: {}",
            place(path),
            rescue(path)
        ));
    }
    // The names are of use until the recording is saved.
    let is_left = |path: &Path| path.exists() && !unsaved.iter().any(|unsaved| unsaved == path);
    let left: Vec<_> =
        instances(PREFIX)?.iter().filter(|path| is_left(path)).filter_map(|path| maker(path)).collect();
    tracefs::sweep_where(names::PREFIX, |path| maker(path).is_none_or(|pid| !left.contains(&pid)))?;
    dead.iter().filter(|pid| !left.contains(pid)).for_each(|pid| journal::forget(*pid));
    Ok(())
}

/// Saves the recording whose command is dead, if there is one; then, or if there is none, its buffer may go.
fn save(path: &Path) -> Result<bool> {
    if is_unsaved(path) {
        return Ok(false);
    }
    // Of commands that start at once, one does it.
    let Ok(directory) = File::open(path) else { return Ok(true) };
    let Ok(_claim) = Flock::lock(directory, FlockArg::LockExclusiveNonblock) else { return Ok(false) };
    let Ok(instance) = Instance::attach(path) else { return Ok(true) };
    if instance.stats()?.entries == 0 {
        return Ok(true);
    }
    if fs::read_to_string(path.join("tracing_on")).is_ok_and(|text| text.trim() == "1") && is_held(path) {
        say(format_args!(
            "{} of an earlier recording is still written to by {}: a later one will save it",
            place(path),
            holders(path)
        ));
        return Ok(false);
    }
    // What filled it without being there, as `record` does.
    if path.join("options").join(tracefs::COPY).exists() {
        instance.set_option(tracefs::COPY, false)?;
    }
    instance.set_tracing_on(false)?;
    let pid = maker(path).unwrap_or_default();
    let names = names_of(pid)?;
    let saved = output(path, pid)
        .and_then(|output| save_from(&instance, output, names.len(), |process| names.get(&process).cloned()));
    match saved {
        Ok(saved) => {
            // For another command that comes before it is removed.
            instance.clear()?;
            say(format_args!(
                "saved {}: a recording whose command (process {pid}) was killed",
                place(&saved)
            ));
            Ok(true)
        }
        Err(e) => {
            say(format_args!("a recording whose command (process {pid}) was killed: {e}"));
            keep(instance);
            Ok(false)
        }
    }
}

/// Where the command was to save it, or root's own directory.
fn output(instance: &Path, pid: u32) -> Result<Output> {
    if let Some(Noted { path, owner }) = journal::of(pid) {
        let owner = owner.map(|(uid, gid)| Caller::of(uid, Some(gid))).transpose()?;
        match Output::make(&path, false, owner.as_ref()) {
            Ok(output) => return Ok(output),
            Err(e) => say(format_args!("a recording whose command (process {pid}) was killed: {e}")),
        }
    }
    let mut name = instance.file_name().unwrap_or_default().to_owned();
    name.push(".ftrace");
    let home = match User::from_uid(Uid::from_raw(0)) {
        Ok(Some(root)) if geteuid().is_root() => root.dir,
        _ => PathBuf::new(),
    };
    Output::make(&home.join(name), false, None)
}

fn names_of(pid: u32) -> Result<HashMap<u32, String>> {
    let mut all = HashMap::new();
    for path in instances(names::PREFIX)?.iter().filter(|path| maker(path) == Some(pid)) {
        if let Ok(instance) = Instance::attach(path) {
            all.extend(names::read(&instance));
        }
    }
    Ok(all)
}

/// The process that made an instance of ours, by its name: `PREFIX-PID-N`.
fn maker(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.rsplit('-').nth(1)?.parse().ok()
}

fn instances(prefix: &str) -> Result<Vec<PathBuf>> {
    let instances = tracefs::root()?.join("instances");
    let entries = fs::read_dir(&instances).map_err(failed(place(&instances)))?;
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.and_then(|name| name.strip_prefix(prefix)).is_some_and(|rest| rest.starts_with('-'))
    };
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_ours).collect())
}

fn unsaved() -> Result<Vec<PathBuf>> {
    Ok(instances(PREFIX)?.into_iter().filter(|path| is_unsaved(path)).collect())
}

fn is_unsaved(path: &Path) -> bool {
    fs::read_to_string(path.join(MARK)).is_ok_and(|text| text.trim() == "0")
}

/// Leaves an instance that could not be saved, marked so that nobody removes it.
pub(crate) fn keep(instance: Instance) -> PathBuf {
    let _ = instance.control(MARK, "0");
    let path = instance.path().to_owned();
    instance.keep();
    path
}

/// What brings an unsaved recording to a file.
pub(crate) fn rescue(path: &Path) -> String {
    format!("cat {} > FILE; rmdir {}", word(&path.join("trace")), word(path))
}

fn is_held(directory: &Path) -> bool {
    processes::all().into_iter().any(|process| has_open(process, directory))
}

fn has_open(process: Process, directory: &Path) -> bool {
    process.files().any(|file| file.starts_with(directory))
}

/// The processes that have a file of this directory open, as far as can be seen.
pub(crate) fn holders(directory: &Path) -> String {
    let all = processes::all().into_iter().filter(|process| has_open(*process, directory));
    let found: Vec<_> = all.map(|process| process.to_string()).collect();
    if found.is_empty() { "a process that can't be seen from here".to_owned() } else { found.join(", ") }
}

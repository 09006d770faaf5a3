//! Saves or removes the buffers that killed commands have left. This is done when the next recording with a buffer of
//! the kernel begins.
//!
//! A buffer with events is saved before it is removed, unless its events became packets during the recording. It is
//! saved to the file that the killed command's note names. If there is no note, or if that file exists already or can't
//! be created, the buffer is saved to root's home directory. A buffer to which a process still writes is left for a
//! later command. A buffer that can't be saved is marked, and stays until a user has saved and removed it.
//!
//! A recording in the top-level buffer is saved in the same way. Afterwards, the settings of that buffer are restored.
//! If the recording can't be saved, the buffer stays switched off, and the next recording tries again. If another
//! program has changed the buffer's settings after the command was killed, that program may use the buffer, so nothing
//! is saved or restored.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::tracefs::{self, Instance};
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use uzers::os::unix::UserExt as _;

use crate::command::buffer::copies::{self, copied};
use crate::command::buffer::ring::{NAMES, PREFIX, Processes, is_kept, keep, rescue, save_from};
use crate::command::buffer::top::{Silence, Top};
use crate::command::buffer::typed;
use crate::command::caller::Caller;
use crate::command::file::{Existing, Output};
use crate::command::notes::{self, Destination, LeftInTop};
use crate::command::terminal::{Failure, Result, say, shown_path};
use crate::process::{self, Process, holders, name_holders};

/// Saves and removes the buffers that killed recordings left, and reports buffers that could not be saved.
pub(crate) fn sweep() -> Result {
    let unsaved: Vec<_> = notes::unsaved().into_iter().map(|(pid, _)| pid).collect();
    let swept = tracefs::sweep_where(PREFIX, |path, pid| {
        save(path, pid).unwrap_or_else(|e| {
            say(e);
            false
        })
    })?;
    for path in &swept.removed {
        say(format_args!("removed {}, which an earlier recording left", shown_path(path)));
    }
    for path in &swept.busy {
        let (path, holders) = (shown_path(path), name_holders(path));
        say(format_args!(
            "{path} of an earlier recording is still held open by {holders}: a later one will remove it"
        ));
    }
    let (kept, left): (Vec<_>, Vec<_>) =
        tracefs::instances(PREFIX)?.into_iter().partition(|(_, path)| is_kept(path));
    for (pid, path) in kept {
        let copies = instance_of(copies::PREFIX, pid)?.filter(|copies| is_kept(copies.path()));
        let paths: Vec<_> = [&*path].into_iter().chain(copies.as_ref().map(Instance::path)).collect();
        let (path, rescue) = (shown_path(&path), rescue(&paths));
        say(format_args!("{path} still holds a recording that could not be saved: {rescue}"));
    }
    // The buffers with the names of processes and with copies of messages are needed until their recording is saved.
    let is_left = |pid: &u32| left.iter().any(|(left, _)| left == pid);
    tracefs::sweep_where(NAMES, |_, pid| !is_left(&pid))?;
    // Buffers whose events became packets need not be saved: the packets are in the killed command's hidden file.
    tracefs::sweep_where(typed::PREFIX, |_, _| true)?;
    let copies = tracefs::sweep_where(copies::PREFIX, |path, pid| !is_left(&pid) && !is_kept(path))?;
    if !swept.removed.is_empty() || !copies.removed.is_empty() {
        Silence::undo(&tracefs::root()?);
    }
    notes::forget(&unsaved.into_iter().filter(|pid| !is_left(pid)).collect::<Vec<_>>());
    notes::left_in_top().for_each(|left| restore_top(left).unwrap_or_else(say));
    Ok(())
}

/// Saves the recording that a killed command has left in the top-level buffer, and restores the buffer. If this fails,
/// the command's note stays, so that the next recording tries again.
fn restore_top(left: LeftInTop) -> Result {
    let pid = left.pid;
    if !Top::is_as_left(&left)? {
        left.done();
        say(format_args!(
            "another program has changed the kernel's top-level buffer since recording {pid} ended: what that recording left \
             there is neither saved nor restored"
        ));
        return Ok(());
    }
    let top = Top::left(&left)?;
    if top.instance.stats()?.entries > 0 {
        let output = output("atrace-recording".as_ref(), left.text.output.clone(), pid);
        let (count, name) = (process::all().len() * 2, |pid| Process(pid).program_name());
        match output.and_then(|output| save_from(&top.instance, None, output, count, name)) {
            Ok((saved, _)) => tell_saved(&saved, pid),
            Err(e) => {
                let trace = top.instance.path().join("trace");
                return Err(Failure::new(format!(
                    "{}: {e}\natrace: it is still in {}; make room, and the next recording saves it",
                    unsaved(pid),
                    shown_path(&trace)
                )));
            }
        }
    }
    top.restore()?;
    left.done();
    say(format_args!("restored the kernel's top-level buffer, which recording {pid} left changed"));
    Ok(())
}

fn tell_saved(path: &Path, pid: u32) {
    say(format_args!("saved {}: {}", shown_path(path), unsaved(pid)));
}

/// Returns a description, for messages, of a recording whose command was killed or could not save the recording.
fn unsaved(pid: u32) -> String {
    format!("a recording whose command (process {pid}) ended before it could save it")
}

/// Saves the recording of a killed command if its buffer has events. Returns whether the buffer may be removed.
fn save(path: &Path, pid: u32) -> Result<bool> {
    if is_kept(path) {
        return Ok(false);
    }
    // Several commands may start at once. The lock lets one of them save the recording.
    let Ok(directory) = File::open(path) else { return Ok(true) };
    if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(false);
    }
    let Ok(instance) = Instance::attach(path) else { return Ok(true) };
    let copies = instance_of(copies::PREFIX, pid)?;
    let has_copies = match &copies {
        Some(copies) => copies.stats()?.entries > 0,
        None => false,
    };
    if instance.stats()?.entries == 0 && !has_copies {
        return Ok(true);
    }
    if fs::read_to_string(path.join("tracing_on")).is_ok_and(|text| text.trim() == "1")
        && !holders(path).is_empty()
    {
        let (path, holders) = (shown_path(path), name_holders(path));
        say(format_args!(
            "{path} of an earlier recording is still written to by {holders}: a later one will save it"
        ));
        return Ok(false);
    }
    // Copies of messages to the top-level marker can still arrive in a buffer, although no process has the buffer open.
    // So the recording's buffer and its buffer for copies are switched off.
    for instance in [&instance].into_iter().chain(&copies) {
        if tracefs::can_copy(instance.path()) {
            instance.set_option(tracefs::COPY, false)?;
        }
        instance.set_tracing_on(false)?;
    }
    let processes = instance_of(NAMES, pid)?.map(|names| Processes::read(&names)).unwrap_or_default();
    let is_its = |process| processes.has(process);
    let copied = copies.as_ref().map(|copies| copied(copies, &is_its)).transpose()?;
    let name = |process| processes.name(process);
    let noted = notes::unsaved().into_iter().find(|(unsaved, _)| *unsaved == pid).map(|(_, noted)| noted);
    let output = output(path.file_name().unwrap_or_default(), noted, pid);
    let saved = output.and_then(|output| save_from(&instance, copied, output, processes.count(), name));
    match saved {
        Ok((saved, _)) => {
            // The buffer is cleared now, because another command may look at it, and save it again, before it is
            // removed.
            instance.clear()?;
            tell_saved(&saved, pid);
            Ok(true)
        }
        Err(e) => {
            say(format_args!("{}: {e}", unsaved(pid)));
            [instance].into_iter().chain(copies).for_each(|instance| _ = keep(instance));
            Ok(false)
        }
    }
}

/// Returns the file to which the killed command would have saved its recording or, if that file can't be created, a
/// file with the name `name` and the extension `.ftrace` in root's home directory.
fn output(name: &OsStr, noted: Option<Destination>, pid: u32) -> Result<Output> {
    if let Some(noted) = noted {
        let owner = noted.owner.map(|(uid, gid)| Caller::of(uid, Some(gid)));
        match Output::create(&noted.path, Existing::Refuse, owner.as_ref(), false) {
            Ok(output) => return Ok(output),
            Err(e) => say(format_args!("{}: {e}", unsaved(pid))),
        }
    }
    let mut name = name.to_owned();
    name.push(".ftrace");
    let home = match uzers::get_user_by_uid(0) {
        Some(root) if geteuid().is_root() => root.home_dir().to_owned(),
        _ => PathBuf::new(),
    };
    Output::create(&home.join(name), Existing::Number, None, false)
}

/// Returns the instance with this prefix that the command with the process id `pid` created.
fn instance_of(prefix: &str, pid: u32) -> Result<Option<Instance>> {
    let mut all = tracefs::instances(prefix)?.into_iter();
    Ok(all.find(|(maker, _)| *maker == pid).and_then(|(_, path)| Instance::attach(path).ok()))
}

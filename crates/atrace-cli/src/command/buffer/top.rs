//! The kernel's top-level buffer, which all users share. A recording uses this buffer only if no other process uses it,
//! and restores its settings afterwards.
//!
//! A recording changes the buffer's switch, clock, size and options. The old values are read first, are written to the
//! command's note, and are written back in reverse order when the [`Top`] is restored or dropped. If the command is
//! killed, the next recording saves the events and writes the old values back (`leftover`), unless another program uses
//! the buffer by then. To detect this, the note also has the settings with which the recording began. A forked child
//! that drops its copy of the [`Top`] changes nothing.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use crate::escape::shown;
use crate::tracefs::{self, Instance};
use atrace_sys::fork::{Generation, generation};

use crate::command::buffer::ring;
use crate::command::notes::{self, LeftInTop, Note, Settings};
use crate::command::terminal::{Failure, Result, failed, quoted_path, say, shown_path};

/// The top-level buffer while a recording uses it. Dropping the `Top` restores the settings that were changed, unless
/// the buffer has events that are not saved yet.
pub(crate) struct Top {
    pub(crate) instance: Instance,
    /// The files that are changed and their old contents, in the order of the changes.
    before: Settings,
    /// Whether the recorded events stay in the buffer, because they are not saved.
    is_kept: bool,
    /// The process that has to restore the buffer, or `None` if the buffer is restored already.
    by: Option<Generation>,
}

impl Top {
    /// Takes the buffer, to record into it. Returns an error if another process uses the buffer, or if the buffer has
    /// events and `discard` is false. Writes the values that must be restored to `note`. If a killed command has left
    /// changed values, these are restored first.
    pub(crate) fn take(discard: bool, note: Option<&Note>) -> Result<Self> {
        let root = tracefs::root()?;
        let instance = Instance::attach(&root)?;
        let (others, left): (Vec<_>, Vec<_>) =
            notes::in_top().into_iter().partition(|(_, left)| left.is_none());
        if let Some((pid, _)) = others.first() {
            return Err(Failure::new(format!(
                "recording {pid} uses the kernel's top-level buffer: wait until it has ended"
            )));
        }
        without_tracer(&root)?;
        if let Some(event) = read(&root.join("set_event")).unwrap_or_default().lines().next() {
            return Err(Failure::new(format!(
                "another program records events of the kernel ({}, …) in the top-level buffer: end that program, or run: echo > {}",
                shown(event),
                quoted_path(&root.join("set_event"))
            )));
        }
        let held = instance.stats()?.entries;
        if held > 0 && !discard {
            return Err(Failure::new(format!(
                "the kernel's top-level buffer holds {held} events, which this recording would discard: save {}, or give --discard",
                shown_path(&root.join("trace"))
            )));
        }
        for left in left.into_iter().filter_map(|(_, left)| left) {
            Self::left(&left)?.restore()?;
            left.done();
        }
        let mut top = Self { instance, before: Vec::new(), is_kept: false, by: Some(generation()) };
        for file in ["tracing_on", "trace_clock"] {
            top.note(root.join(file))?;
        }
        for option in ring::PROCESS_IDS {
            if top.instance.has_option(option) {
                top.note(root.join("options").join(option))?;
            }
        }
        let cpus = root.join("per_cpu");
        for cpu in fs::read_dir(&cpus).map_err(failed(shown_path(&cpus)))?.flatten() {
            top.note(cpu.path().join("buffer_size_kb"))?;
        }
        note.map_or(Ok(()), |note| note.change_top(&top.before))?;
        top.instance.set_tracing_on(false)?;
        Ok(top)
    }

    /// Switches the buffer on, for the recording. Writes the settings that the buffer has now to `note`.
    pub(crate) fn start(&self, note: Option<&Note>) -> Result {
        let root = self.instance.path();
        let changed = self.before.iter().map(|(path, _)| path.clone()).filter(|path| *path != switch(root));
        let set = changed.chain([root.join("set_event")]).map(|path| Ok((path.clone(), value(&path)?)));
        let set = set.collect::<Result<_>>()?;
        note.map_or(Ok(()), |note| note.set_top(&set))?;
        self.instance.set_tracing_on(true)?;
        Silence::lift(self.instance.path());
        Ok(())
    }

    /// Returns whether the buffer still has the settings that a killed command has left. If it has other settings,
    /// another program has changed them, and may use the buffer.
    pub(crate) fn is_as_left(left: &LeftInTop) -> Result<bool> {
        let root = tracefs::root()?;
        let (set, is_on) = (&left.text.set, is_on(&root)?);
        let has_events = !read(&root.join("set_event"))?.is_empty();
        // If the killed command's recording could not be saved, its events were disabled and the buffer was switched
        // off. This is no change by another program.
        let is_same = |(path, set): &(PathBuf, String)| {
            path.ends_with("set_event") && !has_events && !is_on || value(path).is_ok_and(|now| now == *set)
        };
        // A command clears the buffer and then restores its settings one by one, so it may have been killed after it
        // had restored only some of them.
        let is_idle = !is_on && !has_events && Instance::attach(&root)?.stats()?.entries == 0;
        let has_begun = !set.is_empty();
        Ok(without_tracer(&root).is_ok()
            && (is_idle || if has_begun { set.iter().all(is_same) } else { !is_on }))
    }

    /// Takes the buffer that a killed command has left, and stops the recording. The events stay in the buffer until
    /// [`restore`](Self::restore) is called.
    pub(crate) fn left(left: &LeftInTop) -> Result<Self> {
        let instance = Instance::attach(tracefs::root()?)?;
        instance.set_tracing_on(false)?;
        Ok(Self { instance, before: left.text.top.clone(), is_kept: true, by: Some(generation()) })
    }

    /// Leaves the recorded events in the buffer. The buffer is switched off, so that no later events overwrite them,
    /// and its settings are not restored.
    pub(crate) fn keep(mut self) {
        self.is_kept = true;
    }

    /// Clears the buffer, whose events are saved or not needed, and restores its settings. After an error the buffer is
    /// off. The caller must then leave the note, so that the next recording tries again.
    pub(crate) fn restore(mut self) -> Result {
        self.is_kept = false;
        self.put_back(true)
    }

    fn note(&mut self, path: PathBuf) -> Result {
        let value = value(&path)?;
        self.before.push((path, value));
        Ok(())
    }

    /// Restores the settings. If a setting can't be restored and `leaves_note` is true, the buffer stays off.
    fn put_back(&mut self, leaves_note: bool) -> Result {
        if self.by.take() != Some(generation()) {
            return Ok(()); // It is put back already, or this is a copy in a forked child.
        }
        self.instance.set_tracing_on(false)?;
        // All events can be disabled, because `take` checked that no other program had enabled events.
        self.instance.control("events/enable", "0")?;
        let filter = format!("events/{}/filter", ring::TEACHER);
        if self.instance.path().join(&filter).exists() {
            self.instance.control(&filter, "0")?;
        }
        if self.is_kept {
            return Ok(());
        }
        self.instance.clear()?;
        let mut problems = Vec::new();
        // The switch `tracing_on` was noted first, so it is written back last.
        for (path, value) in self.before.iter().rev() {
            if leaves_note && !problems.is_empty() && *path == switch(self.instance.path()) {
                break;
            }
            if let Err(e) = fs::write(path, value) {
                problems.push(format!("{}={}: {e}", shown_path(path), shown(value)));
            }
        }
        if is_on(self.instance.path()).unwrap_or(false) {
            Silence::lift(self.instance.path());
        }
        if problems.is_empty() {
            return Ok(());
        }
        Err(Failure::new(format!("putting the kernel's trace buffer back: {}", problems.join("; "))))
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        self.put_back(false).unwrap_or_else(say);
    }
}

/// Returns an error if another program has set a tracer, such as `function`, which writes to the top-level buffer.
fn without_tracer(root: &Path) -> Result {
    match read(&root.join("current_tracer")) {
        Ok(tracer) if tracer != "nop" => Err(Failure::new(format!(
            "another user of the kernel's trace buffer has set the tracer {}: end that program, or run: echo nop > {}",
            shown(&tracer),
            quoted_path(&root.join("current_tracer"))
        ))),
        _ => Ok(()),
    }
}

fn switch(root: &Path) -> PathBuf {
    root.join("tracing_on")
}

fn option(root: &Path) -> PathBuf {
    root.join("options").join(tracefs::COPY)
}

/// While a `Silence` exists, messages that are written to the top-level marker reach only instances, not the top-level
/// buffer. (A `Silence` loses its effect if another process switches the top-level buffer on.) If the messages also
/// went to the top-level buffer while this buffer is off, a write would return an error, although the message was
/// copied to the instances.
///
/// Several commands may have a `Silence` at once. Each command holds a shared lock on the file of the kernel's option
/// that decides whether the marker writes to the top-level buffer. The last command restores the option. If the last
/// command was killed, the next command restores the option ([`undo`](Self::undo)).
pub(crate) struct Silence {
    root: PathBuf,
    lock: File,
    by: Generation,
}

impl Silence {
    /// Makes the top-level marker write to instances only. Returns `None` if this is not needed: because the top-level
    /// buffer is on, or because another program has already made the marker write to instances only.
    pub(crate) fn start(root: PathBuf) -> Result<Option<Self>> {
        if is_on(&root)? {
            return Ok(None);
        }
        let path = option(&root);
        let lock = File::open(&path).map_err(failed(shown_path(&path)))?;
        let is_first = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_first && read(&path)? == "0" {
            return Ok(None);
        }
        // Another command that starts or ends has the exclusive lock for a moment. So the shared lock is tried
        // repeatedly.
        for _ in 0..100 {
            if flock(&lock, FlockOperation::NonBlockingLockShared).is_ok() {
                set(&root, false)?;
                let mut silence = Some(Self { root, lock, by: generation() });
                // If a `Top` has switched the buffer on just before the option was set, the option is restored (see
                // `lift`).
                Self::look(&mut silence);
                return Ok(silence);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(Failure::new(format!("somebody keeps {} locked", shown_path(&path))))
    }

    /// Makes the marker write to the top-level buffer again, if another process has switched that buffer on.
    pub(crate) fn look(this: &mut Option<Self>) {
        if let Some(silence) = this.take_if(|silence| is_on(&silence.root).unwrap_or(false)) {
            Self::lift(&silence.root);
        }
    }

    /// Makes the marker write to the top-level buffer again at once, although other commands have a `Silence`. Call
    /// this after the top-level buffer was switched on. Otherwise, the buffer would miss messages until the other
    /// commands call [`look`](Self::look). If a command gets a `Silence` at the same time, it sets the option and then
    /// calls `look`, so one of the two commands restores the option.
    fn lift(root: &Path) {
        let is_silenced = |lock: &File| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err();
        if File::open(option(root)).is_ok_and(|lock| is_silenced(&lock))
            && let Err(e) = set(root, true)
        {
            say(format_args!("putting the kernel's trace buffer back: {e}"));
        }
    }

    /// Restores the option that a killed command has changed, unless another command still has a `Silence`.
    pub(crate) fn undo(root: &Path) {
        if let Ok(lock) = File::open(option(root)) {
            restore(root, &lock);
        }
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        if self.by == generation() {
            restore(&self.root, &self.lock);
        }
    }
}

/// Makes the marker write to the top-level buffer again, if no other command holds a lock on the option.
fn restore(root: &Path, lock: &File) {
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        && let Err(e) = set(root, true)
    {
        say(format_args!("putting the kernel's trace buffer back: {e}"));
    }
}

fn set(root: &Path, copies: bool) -> Result {
    let path = option(root);
    fs::write(&path, if copies { "1" } else { "0" }).map_err(failed(shown_path(&path)))
}

fn is_on(root: &Path) -> Result<bool> {
    Ok(read(&switch(root))? != "0")
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(failed(shown_path(path)))
}

/// Returns the value of a setting, in the form in which the value can be written back to the setting's file.
fn value(path: &Path) -> Result<String> {
    let text = read(path)?;
    let between = |start, end| Some(text.split_once(start)?.1.split_once(end)?.0);
    // If a file lists several choices, the current choice is in brackets. A size `7 (expanded: 1408)` means that the
    // buffer gets the second size when it is first used.
    Ok(between("[", "]").or_else(|| between("expanded: ", ")")).unwrap_or(&text).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a directory that tests use in place of tracefs, with the files that they need.
    fn stand_in(tracing_on: &str, copies: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("options")).unwrap();
        fs::write(root.path().join("tracing_on"), tracing_on).unwrap();
        fs::write(option(root.path()), copies).unwrap();
        root
    }

    fn start(root: &tempfile::TempDir) -> Option<Silence> {
        Silence::start(root.path().to_owned()).unwrap()
    }

    fn copies(root: &tempfile::TempDir) -> String {
        read(&option(root.path())).unwrap()
    }

    #[test]
    fn the_last_of_several_restores_the_option() {
        let root = stand_in("0\n", "1\n");
        let (first, second) = (start(&root), start(&root));
        assert!(first.is_some() && second.is_some());
        assert_eq!(copies(&root), "0");
        drop(first);
        assert_eq!(copies(&root), "0");
        // `undo`, which restores the option after a killed command, does nothing while another command needs the option
        // off.
        Silence::undo(root.path());
        assert_eq!(copies(&root), "0");
        let third = start(&root);
        drop(second);
        assert_eq!(copies(&root), "0");
        drop(third);
        assert_eq!(copies(&root), "1");
    }

    #[test]
    fn it_ends_when_somebody_switches_the_buffer_on() {
        let root = stand_in("0\n", "1\n");
        let mut silence = start(&root);
        Silence::look(&mut silence);
        assert!(silence.is_some());
        fs::write(root.path().join("tracing_on"), "1\n").unwrap();
        Silence::look(&mut silence);
        assert!(silence.is_none());
        assert_eq!(copies(&root), "1");
    }

    #[test]
    fn whoever_switches_the_buffer_on_ends_the_silence_of_others_at_once() {
        let root = stand_in("0\n", "1\n");
        let silences = [start(&root), start(&root)];
        assert_eq!(copies(&root), "0");
        fs::write(root.path().join("tracing_on"), "1\n").unwrap();
        Silence::lift(root.path());
        assert_eq!(copies(&root), "1");
        drop(silences);
        assert_eq!(copies(&root), "1");
        // The option that copies messages is not restored if a user has switched it off.
        let root = stand_in("1\n", "0\n");
        Silence::lift(root.path());
        assert_eq!(copies(&root), "0");
    }

    #[test]
    fn nothing_is_changed_without_need() {
        let root = stand_in("1\n", "1\n");
        assert!(start(&root).is_none());
        assert_eq!(copies(&root), "1");
        // Nothing is changed if somebody else has already switched off the option that copies messages.
        let root = stand_in("0\n", "0\n");
        assert!(start(&root).is_none());
        assert_eq!(copies(&root), "0");
        // `undo` restores the option after a killed command.
        Silence::undo(root.path());
        assert_eq!(copies(&root), "1");
    }
}

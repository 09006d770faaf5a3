//! Notes for the next command, in case a command is killed. A note is a file. It has the patterns that must be switched
//! off, the path to which the command's recording must be saved, and the settings of the kernel's top-level buffer that
//! must be restored.
//!
//! # Format
//!
//! Before `run` and `record` switch on a pattern, or record the kernel's buffer as text, they write a note
//! `recording-PID-START`. Its lines are:
//!
//! 1. the machine's boot id;
//! 2. `output`: the file to which the recording must be saved;
//! 3. a line for each pattern that is about to be added to a store, with the number of times that the store listed the
//!    pattern before;
//! 4. `done`, after the patterns were added to a store;
//! 5. `top`: a file with a setting of the kernel's top-level buffer that is about to be changed, and its old content;
//! 6. `set`: a file with a setting of the top-level buffer, and its content when the recording begins;
//! 7. `undone`, which cancels the patterns of a store, or `saved`, which cancels the lines `output`, `top` and `set`.
//!
//! Paths, patterns and contents are in hexadecimal. A note is removed when everything that it lists is done. If a part
//! has failed, the note stays, and a later command tries again.
//!
//! # Recovery
//!
//! If a command finds a note whose writer has ended, the command locks the note and does what it lists: [`sweep`]
//! switches the patterns off, and `buffer::sweep` saves the recordings that [`unsaved`] and [`left_in_top`] return. A
//! note from before the last boot is removed, because its stores and buffers no longer exist.
//!
//! # The folder
//!
//! The notes of each user's commands are in a folder to which no other user can write. On Android, the folder of each
//! user, including root, is `/data/local/tmp/atrace-UID`. On other systems, root's folder is `/run/atrace`, and the
//! folder of another user is the folder of the user's property store, `/dev/shm/atrace-UID`. A command uses the folder
//! only if it belongs to the command's user and no other user has access.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::prelude::*;
use std::path::{Path, PathBuf};

use atrace_sys::fork::{Generation, generation};
use atrace_sys::properties::Properties;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

use crate::command::caller::Caller;
use crate::command::file::roots_own;
use crate::command::stores::{self, Store, Work};
use crate::command::terminal::{Result, failed, say};
use crate::escape::shown;
use crate::process::Process;

/// The maximum length of a note in bytes.
const LENGTH: u64 = 1 << 20;
/// The maximum number of notes that a command reads.
const MOST: usize = 1024;

const PREFIX: &str = "recording-";

/// The process that wrote a note. Process ids are reused, so the process is identified by its id and its start
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) pid: u32,
    start: u64,
}

impl Writer {
    fn of(pid: u32) -> Option<Self> {
        let stat = Process(pid).read("stat")?;
        // The process's name is in parentheses and may contain any byte. The start time is the 20th field after the
        // name.
        let start = String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    /// Parses the name of a note.
    fn of_name(name: &str) -> Option<Self> {
        let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The open folder with the notes. The descriptor keeps referring to this folder, even if another folder gets
/// its path.
pub(crate) struct Folder(File);

impl Folder {
    fn path() -> PathBuf {
        let uid = geteuid();
        if cfg!(target_os = "android") {
            return format!("/data/local/tmp/atrace-{uid}").into();
        }
        if uid.is_root() {
            return "/run/atrace".into();
        }
        let store = Properties::path_for_uid(uid.as_raw());
        store.parent().unwrap_or(&store).to_owned()
    }

    fn make() -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(Self::path()) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Self::open(),
        }
    }

    fn open() -> io::Result<Self> {
        let path = Self::path();
        let flags = (OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed();
        let folder = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        let (data, user) = (folder.metadata()?, geteuid());
        let is_on_roots_way = user.is_root() && !cfg!(target_os = "android");
        if data.uid() != user.as_raw()
            || data.mode() & 0o077 != 0
            || is_on_roots_way && roots_own(&path).is_none()
        {
            let text = format!("{} is not this user's alone: chmod it to 700, or remove it", path.display());
            return Err(io::Error::new(ErrorKind::PermissionDenied, text));
        }
        Ok(Self(folder))
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(name)
    }

    /// Returns the names of the notes and the processes that wrote them. If a process has ended, locks its note and
    /// also returns the lock, unless another process holds that lock.
    fn notes(&self) -> impl Iterator<Item = (String, Writer, Option<File>)> {
        let entries = fs::read_dir(self.file("")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let notes = names.filter_map(|name| Writer::of_name(&name).map(|writer| (name, writer)));
        notes.take(MOST).map(|(name, writer)| {
            let claim = if writer.lives() { None } else { self.claim(&name) };
            (name, writer, claim)
        })
    }

    fn open_note(&self, name: &str) -> io::Result<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(flags).open(self.file(name))
    }

    /// Reads a note. Returns `None` if the note is invalid, and an error if the note can't be read.
    fn read(&self, name: &str) -> io::Result<Option<NoteText>> {
        let mut text = Vec::new();
        self.open_note(name)?.take(LENGTH).read_to_end(&mut text)?;
        Ok(str::from_utf8(&text).ok().and_then(NoteText::parse))
    }

    /// Reads a note. Returns `None` if the note was not written since the last boot, is invalid, or can't be read.
    fn read_present(&self, name: &str) -> Option<NoteText> {
        self.read(name).ok()?.filter(|text| text.boot == boot())
    }

    /// Creates the note of this process. Returns the note's name and an open file that holds its lock. While the lock
    /// is held, no other command [claims](Self::claim) the note, not even a command in another PID namespace, which
    /// can't see this process.
    pub(crate) fn write(&self, text: &str) -> io::Result<(String, File)> {
        let this = Writer::of(std::process::id()).ok_or(ErrorKind::Unsupported)?;
        let name = format!("{PREFIX}{}-{}", this.pid, this.start);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file(&name))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(text.as_bytes())?;
        Ok((name, file))
    }

    /// Appends lines to a note.
    fn add(&self, name: &str, lines: &str) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(self.file(name));
        file.and_then(|mut file| file.write_all(lines.as_bytes()))
    }

    fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.file(name));
    }

    /// Locks a note for this command. The lock is held as long as the returned file is open. Returns `None` if the
    /// note's writer still holds the lock, or if another command has locked or removed the note.
    fn claim(&self, name: &str) -> Option<File> {
        let file = self.open_note(name).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        file.metadata().is_ok_and(|data| data.nlink() > 0).then_some(file)
    }
}

/// Returns the id of the machine's current boot.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The first word of a line which says that the patterns of a store were added.
const DONE: &str = "done";

/// The first word of a line which says that the patterns of a store were removed.
const UNDONE: &str = "undone";
/// The line which says that the recording of a note no longer has to be saved, and the top-level buffer no longer has
/// to be restored.
pub(crate) const SAVED: &str = "saved";

/// The first word of the line with the file to which the recording must be saved.
const OUTPUT: &str = "output";

/// The first word of a line with a file of the top-level buffer and its old content.
const TOP: &str = "top";

/// The first word of a line with a file of the top-level buffer and its content when the recording begins.
const SET: &str = "set";

/// Files of the top-level buffer, and their contents.
pub(crate) type Settings = Vec<(PathBuf, String)>;

/// An entry of a note: a pattern that the recording adds to a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NotedPattern {
    /// The user whose own store this is, or `None` if all users share the store (on Android) or an
    /// environment variable names it.
    pub(crate) uid: Option<u32>,
    pub(crate) path: PathBuf,
    /// The number of times that the store listed the pattern before the recording added it. The pattern is removed only
    /// if the store lists it more than this number of times. The number is 0 once it is known that the pattern was
    /// added.
    pub(crate) before: usize,
    pub(crate) pattern: String,
}

impl NotedPattern {
    fn is_of(&self, store: &Store) -> bool {
        self.uid == store.uid && self.path == store.path
    }

    fn line(&self) -> String {
        let (path, pattern) = (hex(self.path.as_os_str().as_bytes()), hex(self.pattern.as_bytes()));
        format!("{} {} {path} {pattern}\n", word(self.uid), self.before)
    }
}

/// Returns the line which says that the patterns of a store were added (`DONE`) or removed (`UNDONE`).
fn line_of_store(what: &str, store: &Store) -> String {
    format!("{what} {} {}\n", word(store.uid), hex(store.path.as_os_str().as_bytes()))
}

/// The file to which a recording must be saved; and the user and group that will own the file, if they differ from the
/// user and group of the process that saves the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) path: PathBuf,
    pub(crate) owner: Option<(u32, u32)>,
}

impl Destination {
    fn line(&self) -> String {
        let (uid, gid) = self.owner.unzip();
        format!("{OUTPUT} {} {} {}\n", word(uid), word(gid), hex(self.path.as_os_str().as_bytes()))
    }
}

/// The content of a note, without the lines that a later line cancels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoteText {
    /// The id of the boot in which the note was written.
    pub(crate) boot: String,
    pub(crate) output: Option<Destination>,
    pub(crate) entries: Vec<NotedPattern>,
    /// The files of the top-level buffer that the command has changed, and their old contents.
    pub(crate) top: Settings,
    /// The settings of the top-level buffer when the recording began, or no settings if the recording has not begun.
    pub(crate) set: Settings,
}

impl NoteText {
    /// Parses the complete lines of a note. Returns `None` if a line is invalid.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut parsed = Self { boot: lines.next()?.to_owned(), ..Self::default() };
        for line in lines {
            match *line.split(' ').collect::<Vec<_>>() {
                [DONE, uid, path] => {
                    let (uid, path) = (number(uid)?, path_of(path)?);
                    let of_store = |entry: &&mut NotedPattern| entry.uid == uid && entry.path == path;
                    parsed.entries.iter_mut().filter(of_store).for_each(|entry| entry.before = 0);
                }
                [UNDONE, uid, path] => {
                    let (uid, path) = (number(uid)?, path_of(path)?);
                    parsed.entries.retain(|entry| (entry.uid, &entry.path) != (uid, &path));
                }
                [SAVED] => {
                    parsed.output = None;
                    parsed.top.clear();
                    parsed.set.clear();
                }
                [TOP, path, before] => {
                    parsed.top.push((path_of(path)?, String::from_utf8(bytes(before)?).ok()?));
                }
                [SET, path, now] => {
                    parsed.set.push((path_of(path)?, String::from_utf8(bytes(now)?).ok()?));
                }
                [OUTPUT, uid, gid, path] => {
                    let path = path_of(path).filter(|path| path.is_absolute())?;
                    parsed.output = Some(Destination { path, owner: number(uid)?.zip(number(gid)?) });
                }
                [uid, before, path, pattern] => parsed.entries.push(NotedPattern {
                    uid: number(uid)?,
                    path: path_of(path)?,
                    before: before.parse().ok()?,
                    pattern: String::from_utf8(bytes(pattern)?).ok()?,
                }),
                _ => return None,
            }
        }
        Some(parsed)
    }

    /// Returns whether the note's recording must be saved, or the top-level buffer must be restored.
    fn has_recording(&self) -> bool {
        self.output.is_some() || !self.top.is_empty()
    }
}

/// Formats a number, or returns `-` for `None`.
fn word(number: Option<u32>) -> String {
    number.map_or("-".to_owned(), |number| number.to_string())
}

fn number(word: &str) -> Option<Option<u32>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn path_of(hex: &str) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes(hex)?).into())
}

/// The note of this command. Dropping the `Note` removes the patterns that the command has added, and cancels the lines
/// about the output and the top-level buffer. A forked child that drops its copy changes nothing.
pub(crate) struct Note {
    folder: Folder,
    name: String,
    entries: Vec<NotedPattern>,
    /// Whether the next command has to save the recording and to restore the top-level buffer.
    is_left: bool,
    by: Generation,
    _lock: File,
}

impl Note {
    /// Creates the note, with the path to which the recording must be saved.
    pub(crate) fn write(output: &Path, owner: Option<&Caller>) -> Result<Self> {
        let what = || format!("writing down in {} what is recorded", Folder::path().display());
        let output = std::path::absolute(output).map_err(failed(what()))?;
        let output = Destination { path: output, owner: owner.map(|owner| (owner.uid, owner.gid)) };
        let folder = Folder::make().map_err(failed(what()))?;
        let text = format!("{}\n{}", boot(), output.line());
        let (name, lock) = folder.write(&text).map_err(failed(what()))?;
        Ok(Self { folder, name, entries: Vec::new(), is_left: false, by: generation(), _lock: lock })
    }

    /// Adds the tracefs files of the top-level buffer that this command is about to change, and their present contents.
    /// By the note, a later command can restore these files if this command is killed.
    pub(crate) fn change_top(&self, before: &Settings) -> Result {
        self.add_settings(TOP, before)
    }

    /// Adds to the note the settings of the top-level buffer with which the recording begins. Call this before the
    /// recording begins.
    pub(crate) fn set_top(&self, set: &Settings) -> Result {
        self.add_settings(SET, set)
    }

    fn add_settings(&self, what: &str, settings: &Settings) -> Result {
        let line = |(path, text): &(PathBuf, String)| {
            format!("{what} {} {}\n", hex(path.as_os_str().as_bytes()), hex(text.as_bytes()))
        };
        let lines: String = settings.iter().map(line).collect();
        self.folder.add(&self.name, &lines).map_err(failed("writing down what is changed"))
    }

    /// Keeps the note when the `Note` is dropped, so that the next command saves the recording and restores the
    /// top-level buffer.
    pub(crate) fn leave(&mut self) {
        self.is_left = true;
    }

    /// Adds patterns to the note and then to the stores. `patterns` returns the patterns for a store. If the patterns
    /// can't be added to another user's store, a message says so, and the other stores are not affected.
    pub(crate) fn switch_on(&mut self, patterns: impl Fn(&Store) -> Vec<String>, stores: &[Store]) -> Result {
        // The contents are read again, because other commands may have switched patterns in the meantime.
        for (store, now) in stores::perform(stores, |_| Work::Look) {
            let now = now.as_ref().unwrap_or(&store.content);
            self.entries.extend(patterns(store).into_iter().map(|pattern| {
                let (uid, path, before) = (store.uid, store.path.clone(), now.count(&pattern));
                NotedPattern { uid, path, before, pattern }
            }));
        }
        let lines: String = self.entries.iter().map(NotedPattern::line).collect();
        self.folder.add(&self.name, &lines).map_err(failed("writing down what is switched on"))?;
        // The limit `usize::MAX` makes the store list each pattern once more, even if it is listed already.
        let enable = |store: &Store| patterns(store).into_iter().map(|it| (it, usize::MAX)).collect();
        let (mut done, mut refused) = (String::new(), Ok(()));
        for (store, result) in stores::perform(stores, |store| Work::Enable(enable(store))) {
            // After an error it is unknown whether the patterns were added to the store, so `before` is not set to 0.
            if let Err(e) = result {
                refused = refused.and(stores::refuse(store, &e));
                continue;
            }
            done += &line_of_store(DONE, store);
            self.entries.iter_mut().filter(|entry| entry.is_of(store)).for_each(|entry| entry.before = 0);
        }
        let _ = self.folder.add(&self.name, &done);
        refused
    }

    /// Removes from the stores the patterns that this command has added. If that fails, the next command tries it
    /// again.
    pub(crate) fn switch_off(&mut self) {
        self.entries = take_back(&self.folder, &self.name, &self.entries);
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        if self.by == generation() {
            self.switch_off();
            if !self.is_left {
                strike(&self.folder, &self.name, self.entries.is_empty());
            }
        }
    }
}

/// Cancels the lines `output`, `top` and `set` of a note. `was_all` means that no patterns are left in the note; the
/// whole note is then removed.
fn strike(folder: &Folder, name: &str, was_all: bool) {
    if was_all {
        folder.remove(name);
    } else {
        let _ = folder.add(name, &format!("{SAVED}\n"));
    }
}

/// Removes from the stores the patterns that a recording has added, and cancels them in its note. Prints failures, and
/// returns the patterns that could not be removed.
fn take_back(folder: &Folder, name: &str, entries: &[NotedPattern]) -> Vec<NotedPattern> {
    let mut stores: Vec<Store> = Vec::new();
    for entry in entries {
        if !stores.iter().any(|store| entry.is_of(store)) {
            stores.push(Store::of(entry.uid, entry.path.clone()));
        }
    }
    let patterns = |store: &Store| {
        let of_store = entries.iter().filter(|entry| entry.is_of(store));
        of_store.map(|entry| (entry.pattern.clone(), entry.before)).collect()
    };
    let (mut left, mut undone) = (entries.to_vec(), String::new());
    for (store, result) in stores::perform(&stores, |store| Work::TakeBack(patterns(store))) {
        if let Err(e) = result {
            say(format_args!("not switched off again, {}: {}", store.owner(), shown(&e)));
            continue;
        }
        left.retain(|entry| !entry.is_of(store));
        undone += &line_of_store(UNDONE, store);
    }
    if !undone.is_empty() {
        let _ = folder.add(name, &undone);
    }
    left
}

/// The patterns that running recordings have added to stores, with the process ids of the recordings.
#[derive(Default)]
pub(crate) struct Running(Vec<(u32, NotedPattern)>);

impl Running {
    /// Returns the process ids of the recordings that have added this pattern to this store.
    pub(crate) fn of<'a>(&'a self, store: &'a Store, pattern: &'a str) -> impl Iterator<Item = u32> + 'a {
        let of_it = self.0.iter().filter(move |(_, entry)| entry.is_of(store) && entry.pattern == pattern);
        of_it.map(|(pid, _)| *pid)
    }
}

/// Removes the patterns of recordings that were killed, and reports these patterns. Returns the patterns of the
/// recordings that still run.
pub(crate) fn sweep() -> Running {
    let mut running = Running::default();
    let Ok(folder) = Folder::open() else { return running };
    for (name, writer, claim) in folder.notes() {
        // If the note can't be read, it stays, and a later command tries again to read it.
        let Ok(text) = folder.read(&name) else { continue };
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
        if !take_back(folder, name, &text.entries).is_empty() {
            return; // A later command tries it again.
        }
        let mut patterns: Vec<_> =
            text.entries.iter().map(|entry| shown(&entry.pattern).to_string()).collect();
        patterns.sort();
        patterns.dedup();
        let (pid, patterns) = (writer.pid, patterns.join(", "));
        say(format_args!("switched off what was left on, as recording {pid} was killed: {patterns}"));
    }
    if !text.has_recording() {
        folder.remove(name);
    }
}

/// Returns the process ids of the commands that were killed before they saved their recording, and the files to which
/// the recordings must be saved. Recordings in the top-level buffer are not included.
pub(crate) fn unsaved() -> Vec<(u32, Destination)> {
    let Ok(folder) = Folder::open() else { return Vec::new() };
    let output = |name: &str| folder.read_present(name).filter(|text| text.top.is_empty())?.output;
    folder.notes().filter_map(|(name, writer, claim)| Some((writer.pid, claim.and(output(&name))?))).collect()
}

/// A recording in the kernel's top-level buffer whose command was killed or could not save the recording. No other
/// command gets this recording as long as the `LeftInTop` exists.
pub(crate) struct LeftInTop {
    pub(crate) pid: u32,
    pub(crate) text: NoteText,
    name: String,
    _claim: File,
}

impl LeftInTop {
    /// Cancels the part of the note about the top-level buffer. Call this after the recording was saved and the buffer
    /// was restored.
    pub(crate) fn done(self) {
        if let Ok(folder) = Folder::open() {
            strike(&folder, &self.name, self.text.entries.is_empty());
        }
    }
}

/// Returns the recordings in the kernel's top-level buffer: for each, the process id of its command and, if the command
/// has ended and no other command saves the recording, a [`LeftInTop`].
pub(crate) fn in_top() -> Vec<(u32, Option<LeftInTop>)> {
    let Ok(folder) = Folder::open() else { return Vec::new() };
    let in_top = |(name, writer, claim): (String, Writer, Option<File>)| {
        let (pid, text) = (writer.pid, folder.read_present(&name).filter(|text| !text.top.is_empty())?);
        Some((pid, claim.map(|claim| LeftInTop { pid, text, name, _claim: claim })))
    };
    folder.notes().filter_map(in_top).collect()
}

/// Returns the recordings in the kernel's top-level buffer that must be saved.
pub(crate) fn left_in_top() -> impl Iterator<Item = LeftInTop> {
    in_top().into_iter().filter_map(|(_, left)| left)
}

/// Cancels the outputs in the notes of the killed commands `pids`, so that no command saves their recordings any more.
pub(crate) fn forget(pids: &[u32]) {
    let Ok(folder) = Folder::open() else { return };
    for (name, writer, claim) in folder.notes() {
        if pids.contains(&writer.pid)
            && claim.is_some()
            && let Some(text) = folder.read_present(&name)
            && text.output.is_some()
        {
            strike(&folder, &name, text.entries.is_empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_known_by_its_start() {
        let this = Writer::of(std::process::id()).unwrap();
        assert!(this.lives());
        assert!(!Writer { start: this.start + 1, ..this }.lives());
        let name = format!("recording-{}-{}", this.pid, this.start);
        assert_eq!(Writer::of_name(&name), Some(this));
        for name in ["recording-1", "recording-1-", "recording-x-1", "properties", "recording-1-2-0", "1-2"] {
            assert_eq!(Writer::of_name(name), None, "{name}");
        }
    }

    fn entry(uid: Option<u32>, pattern: &str) -> NotedPattern {
        let path = OsString::from_vec(b"/a b\xff".to_vec()).into();
        NotedPattern { uid, path, before: 3, pattern: pattern.to_owned() }
    }

    #[test]
    fn what_was_written_down_is_read() {
        let entries = vec![entry(Some(7), "*/a \n'"), entry(None, "ü")];
        let mut text = "boot\n".to_owned();
        entries.iter().for_each(|entry| text += &entry.line());
        let mut expected = NoteText { boot: "boot".into(), entries, ..NoteText::default() };
        assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
        // If the command was killed while it wrote the last line, this line is ignored.
        assert_eq!(NoteText::parse(&(text.clone() + "9 0 2f 2a")).as_ref(), Some(&expected));
        text += &line_of_store(DONE, &Store::of(Some(7), expected.entries[0].path.clone()));
        expected.entries[0].before = 0;
        assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
        for owner in [None, Some((1000, 100)), Some((u32::MAX, 0))] {
            let output = Destination { path: "/a b/c\n d ".into(), owner };
            let text = text.clone() + &output.line();
            expected.output = Some(output);
            assert_eq!(NoteText::parse(&text).as_ref(), Some(&expected));
            let undone = NoteText { entries: vec![entry(None, "ü")], ..expected.clone() };
            let line = line_of_store(UNDONE, &Store::of(Some(7), entry(None, "").path));
            assert_eq!(NoteText::parse(&(text.clone() + &line)), Some(undone));
            let saved = NoteText { output: None, ..expected.clone() };
            let text = text + "top 2f61 31\n";
            let top = vec![("/a".into(), "1".to_owned())];
            assert_eq!(NoteText::parse(&text), Some(NoteText { top: top.clone(), ..expected.clone() }));
            let (text, set) = (text + "set 2f62 3220\n", vec![("/b".into(), "2 ".to_owned())]);
            assert_eq!(NoteText::parse(&text), Some(NoteText { top, set, ..expected.clone() }));
            assert_eq!(NoteText::parse(&(text + "saved\n")), Some(saved));
        }
        for wrong in [
            "",
            "b\n1\n",
            "b\nx 0 2f 2a\n",
            "b\n1 0 2 2a\n",
            "b\n1 0 2f zz\n",
            "b\n1 -1 2f 2a\n",
            "b\n1 0 2f ff\n",
            "b\ndone\n",
            "b\ndone 1 2\n",
            "b\noutput 1 1 61\n",
            "b\noutput - - \n",
            "b\noutput x 1 2f\n",
            "b\noutput 1 2f\n",
            "b\ntop 2f\n",
            "b\ntop 2f ff\n",
            "b\nset 2f\n",
        ] {
            assert_eq!(NoteText::parse(wrong), None, "{wrong:?}");
        }
    }
}

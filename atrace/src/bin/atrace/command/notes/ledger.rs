//! What is on because a recording runs, written down so that it can be taken away if the recording is killed.
//!
//! Before `record` switches anything it writes a file `recording-PID-START-N` into a directory of its own user:
//! which process it is (a number and its start, as numbers are used again), of which start of the machine, and what
//! it is about to switch where. `done` follows when that was done. The file goes when everything is as it was before.
//! A command that finds one whose process is gone makes it its own by renaming it, and finishes that work.
//!
//! For root the directory is `/run/atrace`, which nobody else can make or take; for others that of their store,
//! `/dev/shm/atrace-UID`; on Android `/data/local/tmp/atrace-UID`. One that others may write to is not used.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use atrace::shown::shown;
use atrace_sys::fork::{Generation, generation};
use atrace_sys::properties::Properties;
use nix::libc;
use nix::unistd::geteuid;

use crate::command::stores::errands::Work;
use crate::command::stores::store::{self, Store};
use crate::command::terminal::{Failure, Result, failed, say};

/// How long a ledger can be, and how many there can be.
const LENGTH: u64 = 1 << 20;
const MOST: usize = 1024;

const PREFIX: &str = "recording-";

/// A pattern that a recording switches on in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Whose store it is; None where the path says which.
    uid: Option<u32>,
    path: Vec<u8>,
    /// How often the pattern was listed before.
    before: usize,
    pub(crate) pattern: String,
}

impl Entry {
    pub(crate) fn new(store: &Store, pattern: &str) -> Self {
        let path = store.path.as_os_str().as_bytes().to_vec();
        Self { uid: store.uid, path, before: store.content.count(pattern), pattern: pattern.to_owned() }
    }

    pub(crate) fn is_of(&self, store: &Store) -> bool {
        self.uid == store.uid && self.path == store.path.as_os_str().as_bytes()
    }
}

/// What a ledger says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Text {
    boot: String,
    entries: Vec<Entry>,
    /// All of it was switched on.
    is_done: bool,
}

impl Text {
    fn line(entry: &Entry) -> String {
        let uid = entry.uid.map_or("-".to_owned(), |uid| uid.to_string());
        format!("{uid} {} {} {}\n", entry.before, hex(&entry.path), hex(entry.pattern.as_bytes()))
    }

    /// Reads the lines that are whole; `None` where one makes no sense.
    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        let mut parsed = Self { boot: lines.next()?.to_owned(), ..Self::default() };
        for line in lines {
            if line == "done" {
                parsed.is_done = true;
                continue;
            }
            let mut words = line.split(' ');
            let uid = match words.next()? {
                "-" => None,
                uid => Some(uid.parse().ok()?),
            };
            let before = words.next()?.parse().ok()?;
            let path = bytes(words.next()?)?;
            let pattern = String::from_utf8(bytes(words.next()?)?).ok()?;
            parsed.entries.push(Entry { uid, path, before, pattern });
        }
        Some(parsed)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|digit| Some(digit.to_digit(16)? as u8)).collect();
    let (pairs, []) = digits.as_ref()?.as_chunks::<2>() else { return None };
    Some(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// A process: its number, and when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Maker {
    pid: u32,
    start: u64,
}

impl Maker {
    fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it may hold anything; the start is the twentieth after that.
        let start = stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    /// From the name of a ledger.
    fn of_name(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split('-');
        let maker = Self { pid: parts.next()?.parse().ok()?, start: parts.next()?.parse().ok()? };
        parts.next()?.parse::<u32>().ok().map(|_| maker)
    }

    fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The directory of the ledgers, open, so that no other is meant when its path becomes another's.
struct Directory(File);

impl Directory {
    fn path() -> PathBuf {
        let uid = geteuid().as_raw();
        if cfg!(target_os = "android") {
            return format!("/data/local/tmp/atrace-{uid}").into();
        }
        if uid == 0 {
            return "/run/atrace".into();
        }
        let store = Properties::path_for_uid(uid);
        store.parent().unwrap_or(&store).to_owned()
    }

    fn open() -> io::Result<Self> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(Self::path())?;
        let data = directory.metadata()?;
        if data.uid() != geteuid().as_raw() || data.mode() & 0o077 != 0 {
            let text =
                format!("{} is not this user's alone: chmod it to 700, or remove it", Self::path().display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self(directory))
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.0.as_raw_fd().to_string()).join(name)
    }

    fn ledgers(&self) -> Vec<(String, Maker)> {
        let entries = fs::read_dir(self.file("")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter_map(|name| Some((Maker::of_name(&name)?, name)))
            .map(|(maker, name)| (name, maker))
            .take(MOST)
            .collect()
    }

    fn read(&self, name: &str) -> Option<Text> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.file(name)).ok()?;
        let mut text = String::new();
        file.take(LENGTH).read_to_string(&mut text).ok()?;
        Text::parse(&text)
    }

    /// A name that is free, for this process.
    fn fresh(&self, maker: Maker) -> Option<String> {
        (0..MOST).map(|n| format!("{PREFIX}{}-{}-{n}", maker.pid, maker.start)).find(|name| {
            fs::symlink_metadata(self.file(name)).is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        })
    }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// What this recording switches on. Dropped, it is switched off again; not by a forked child.
pub(crate) struct Ledger {
    directory: Directory,
    name: String,
    entries: Vec<Entry>,
    is_done: bool,
    by: Generation,
}

impl Ledger {
    /// Writes it down, then switches it on. Where that fails for another user it is said, and nothing else depends on it.
    pub(crate) fn switch_on(entries: Vec<Entry>, stores: &[Store]) -> Result<Self> {
        let mut ledger = Self::write(entries)?;
        ledger.perform(stores)?;
        Ok(ledger)
    }

    fn write(entries: Vec<Entry>) -> Result<Self> {
        let what =
            || format!("writing down in {} what the recording switches on", Directory::path().display());
        match DirBuilder::new().mode(0o700).create(Directory::path()) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(what())(e)),
            _ => {}
        }
        let directory = Directory::open().map_err(failed(what()))?;
        let maker = Maker::of(std::process::id()).ok_or_else(|| Failure::new("there is no /proc"))?;
        let name =
            directory.fresh(maker).ok_or_else(|| Failure::new(format!("{}: no name is free", what())))?;
        let mut text = boot() + "\n";
        entries.iter().for_each(|entry| text += &Text::line(entry));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.file(&name));
        let ledger = Self { directory, name, entries, is_done: false, by: generation() };
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed(what()))?;
        Ok(ledger)
    }

    fn perform(&mut self, stores: &[Store]) -> Result<()> {
        let patterns = |store: &Store| {
            self.entries
                .iter()
                .filter(|entry| entry.is_of(store))
                .map(|entry| entry.pattern.clone())
                .collect()
        };
        let meant = stores.iter().filter(|store| self.entries.iter().any(|entry| entry.is_of(store)));
        let mut are_all_on = true;
        for (store, result) in store::perform(meant, |store| Work::Enable(patterns(store))) {
            if let Err(e) = result {
                are_all_on = false;
                store::refuse(store, &e)?;
            }
        }
        // Else it is unknown: what is listed more often than before is taken back.
        self.is_done = are_all_on;
        if are_all_on {
            let file = OpenOptions::new().append(true).open(self.directory.file(&self.name));
            let _ = file.and_then(|mut file| file.write_all(b"done\n"));
        }
        Ok(())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // If that fails, the next command tries it once more.
        if self.by == generation() && take_back(&self.entries, self.is_done) {
            let _ = fs::remove_file(self.directory.file(&self.name));
        }
    }
}

/// Takes away what a recording switched on; says where that fails, and returns whether it did nowhere.
fn take_back(entries: &[Entry], is_done: bool) -> bool {
    let mut stores: Vec<Store> = Vec::new();
    for entry in entries {
        if !stores.iter().any(|store| entry.is_of(store)) {
            stores.push(match entry.uid {
                Some(uid) => Store::of_user(uid),
                None => Store::at(std::ffi::OsString::from_vec(entry.path.clone()).into()),
            });
        }
    }
    let patterns = |store: &Store| {
        let of_store = entries.iter().filter(|entry| entry.is_of(store));
        of_store.map(|entry| (entry.pattern.clone(), if is_done { 0 } else { entry.before })).collect()
    };
    let mut is_clean = true;
    for (store, result) in store::perform(&stores, |store| Work::TakeBack(patterns(store))) {
        if let Err(e) = result {
            is_clean = false;
            say(format_args!("not switched off again, {}: {}", store.owner(), shown(&e)));
        }
    }
    is_clean
}

/// What is on because of recordings.
#[derive(Default)]
pub(crate) struct Running(Vec<(u32, Entry)>);

impl Running {
    /// The recordings that have this pattern on in this store.
    pub(crate) fn of<'a>(&'a self, store: &'a Store, pattern: &'a str) -> impl Iterator<Item = u32> + 'a {
        let meant = move |entry: &Entry| entry.is_of(store) && entry.pattern == pattern;
        self.0.iter().filter(move |(_, entry)| meant(entry)).map(|(pid, _)| *pid)
    }
}

/// Takes away what recordings left that were killed, says so, and returns what those have on that run.
pub(crate) fn sweep() -> Running {
    let mut running = Running::default();
    let Ok(directory) = Directory::open() else { return running };
    for (name, maker) in directory.ledgers() {
        if maker.lives() {
            let entries = directory.read(&name).unwrap_or_default().entries;
            running.0.extend(entries.into_iter().map(|entry| (maker.pid, entry)));
            continue;
        }
        let this = Maker::of(std::process::id()).and_then(|this| directory.fresh(this));
        let Some(taken) = this else { continue };
        if fs::rename(directory.file(&name), directory.file(&taken)).is_err() {
            continue; // Another command was faster.
        }
        if let Some(text) = directory.read(&taken)
            && text.boot == boot()
        {
            take_back(&text.entries, text.is_done);
            let mut patterns: Vec<_> =
                text.entries.iter().map(|entry| shown(&entry.pattern).to_string()).collect();
            patterns.sort();
            patterns.dedup();
            say(format_args!(
                "switched off what was left on, as recording {} was killed: {}",
                maker.pid,
                patterns.join(", ")
            ));
        }
        let _ = fs::remove_file(directory.file(&taken));
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uid: Option<u32>, pattern: &str) -> Entry {
        Entry { uid, path: b"/a b\xff".to_vec(), before: 3, pattern: pattern.to_owned() }
    }

    #[test]
    fn what_was_written_down_is_read() {
        let entries = vec![entry(Some(7), "*/a \n'"), entry(None, "ü")];
        let mut text = "boot\n".to_owned();
        entries.iter().for_each(|entry| text += &Text::line(entry));
        let mut expected = Text { boot: "boot".into(), entries, is_done: false };
        assert_eq!(Text::parse(&text).as_ref(), Some(&expected));
        // Killed while writing: the last line is none.
        assert_eq!(Text::parse(&(text.clone() + "9 0 2f 2a")).as_ref(), Some(&expected));
        text += "done\n";
        expected.is_done = true;
        assert_eq!(Text::parse(&text), Some(expected));
        for wrong in [
            "",
            "b\n1\n",
            "b\nx 0 2f 2a\n",
            "b\n1 0 2 2a\n",
            "b\n1 0 2f zz\n",
            "b\n1 -1 2f 2a\n",
            "b\n1 0 2f ff\n",
        ] {
            assert_eq!(Text::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_maker_is_known_by_its_start() {
        let this = Maker::of(std::process::id()).unwrap();
        assert!(this.lives());
        assert!(!Maker { start: this.start + 1, ..this }.lives());
        let name = format!("recording-{}-{}-0", this.pid, this.start);
        assert_eq!(Maker::of_name(&name), Some(this));
        for name in ["recording-1-2", "recording-1--0", "recording-x-1-0", "properties", "recording-1-2-/"] {
            assert_eq!(Maker::of_name(name), None, "{name}");
        }
    }
}

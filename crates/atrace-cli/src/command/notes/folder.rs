//! The folder with the notes of a user's commands. No other user can write to it.
//!
//! For root it is `/run/atrace`; for others it is the folder of their property store, `/dev/shm/atrace-UID`; on
//! Android it is `/data/local/tmp/atrace-UID`. A folder is not used unless it belongs to this user and only this user
//! has access.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use atrace_sys::properties::Properties;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::process::geteuid;

use crate::command::file::roots_own;
use crate::command::notes::text::NoteText;
use crate::command::processes::Process;

/// The limits: the length of a note in bytes, and the number of notes.
const LENGTH: u64 = 1 << 20;
const MOST: usize = 1024;

const PREFIX: &str = "recording-";

/// The process that wrote a note. Process ids are reused, so the time at which the process started belongs to its
/// identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writer {
    pub(crate) pid: u32,
    start: u64,
}

impl Writer {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = Process(pid).read("stat")?;
        // The name in parentheses may contain any byte. The start time is the 20th field after it.
        let start = String::from_utf8_lossy(&stat).rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()?;
        Some(Self { pid, start })
    }

    /// Parses the name of a note.
    fn of_name(name: &str) -> Option<Self> {
        let (pid, start) = name.strip_prefix(PREFIX)?.split_once('-')?;
        Some(Self { pid: pid.parse().ok()?, start: start.parse().ok()? })
    }

    pub(crate) fn lives(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// The open folder. A descriptor keeps referring to this folder, even if another one gets its path.
pub(crate) struct Folder(File);

impl Folder {
    pub(crate) fn path() -> PathBuf {
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

    pub(crate) fn make() -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(Self::path()) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => Err(e),
            _ => Self::open(),
        }
    }

    pub(crate) fn open() -> io::Result<Self> {
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

    /// Returns the names of the notes, and the processes that wrote them.
    pub(crate) fn notes(&self) -> Vec<(String, Writer)> {
        let entries = fs::read_dir(self.file("")).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let notes = names.filter_map(|name| Writer::of_name(&name).map(|writer| (name, writer)));
        notes.take(MOST).collect()
    }

    fn open_note(&self, name: &str) -> io::Result<File> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(flags).open(self.file(name))
    }

    pub(crate) fn read(&self, name: &str) -> Option<NoteText> {
        let mut text = String::new();
        self.open_note(name).ok()?.take(LENGTH).read_to_string(&mut text).ok()?;
        NoteText::parse(&text)
    }

    /// Creates the note of this process. Returns its name and a file that holds its lock. While the lock is held, no
    /// other command [claims](Self::claim) the note, even if it can't see this process, as in another PID namespace.
    pub(crate) fn write(&self, text: &str) -> io::Result<(String, File)> {
        let this = Writer::of(std::process::id()).ok_or(ErrorKind::Unsupported)?;
        let name = format!("{PREFIX}{}-{}", this.pid, this.start);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(self.file(&name))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(text.as_bytes())?;
        Ok((name, file))
    }

    /// Appends lines to a note.
    pub(crate) fn add(&self, name: &str, lines: &str) -> io::Result<()> {
        let file = OpenOptions::new().append(true).open(self.file(name));
        file.and_then(|mut file| file.write_all(lines.as_bytes()))
    }

    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::remove_file(self.file(name));
    }

    /// Locks a note for this command, as long as the returned file is open. Returns `None` if the note's writer still
    /// holds the lock, or if another command has locked or removed the note.
    pub(crate) fn claim(&self, name: &str) -> Option<File> {
        let file = self.open_note(name).ok()?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok()?;
        file.metadata().is_ok_and(|data| data.nlink() > 0).then_some(file)
    }
}

/// Returns the id of the machine's current boot.
pub(crate) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
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
}

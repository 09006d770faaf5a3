//! The target of a recording: a name in an open directory, and the rules by which a file may get this name.
//!
//! A recording is first written to a temporary file in the target's directory, with a hidden name that contains the
//! command's process id. When the file is complete, [`Target::put`] moves it to its final name. So a failed recording
//! replaces no file, and a command that is killed leaves a file that the next command recognises by its name
//! ([`Target::sweep`]). All calls are relative to a descriptor of the directory, which is opened once. So the file
//! stays in the same directory even if the directory is renamed or exchanged meanwhile.
//!
//! # If the name is taken
//!
//! If a file with the final name exists already, [`Existing`] says whether the command fails (`Refuse`), replaces the
//! file (`Replace`), or takes the next free name (`Number`). For `Refuse` and `Number`, a hard link gives the file its
//! final name, because a link, unlike a rename, never replaces a file. (On a file system without hard links, the file
//! is renamed after a check that the name is free.)
//!
//! # Root
//!
//! If the final name is a symbolic link, an ordinary user's file replaces the link's target, as with any program of
//! that user. Root's file replaces the link itself, because another user may have planted the link. If others can write
//! to the directory, root replaces only its own files and those of the directory's owner, and refuses a directory in
//! which every user may replace files. Root's temporary files have mode 0600 and a name that did not exist before
//! (`O_EXCL`), so root writes to no file that another user has open. [`roots_own`] opens a directory only if no user
//! except root can change the directory or its path.
//!
//! # Leftovers
//!
//! A temporary file is a leftover of a killed command if all of these conditions hold: the process whose id is in the
//! name has ended; no process holds the file's lock; and the file belongs to this user, or only this user can create
//! files in the directory. A leftover that was written while events arrived is a valid trace and gets a name that is
//! not hidden. Any other leftover is removed.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::prelude::*;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, linkat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::command::terminal::{Failure, Result, failed, say, shown_path};
use crate::escape::shown;
use crate::process::Process;

/// The end of a temporary file's name. Only the temporary names of files that are written while events arrive lack this
/// end.
const UNFINISHED: &str = ".atrace";

/// The exclusive upper limit of the number in a file name such as `out.2.pftrace`.
const NUMBER_MAX: u32 = 10_000;

/// The usual end of the names of files that are written while events arrive.
const LIVE: &str = ".pftrace";

/// The action if a file with the recording's name already exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    /// Return an error, and do not change the file.
    Refuse,
    Replace,
    /// Take the first free name of `out.pftrace`, `out.2.pftrace`, `out.3.pftrace`, …
    Number,
}

impl Existing {
    /// Returns the action if the file exists. `is_named` means that the user has given the name of the file, and
    /// `is_forced` that the user has given `--force`.
    pub(crate) fn rule(is_forced: bool, is_named: bool) -> Self {
        match (is_forced, is_named) {
            (true, _) => Self::Replace,
            (false, true) => Self::Refuse,
            (false, false) => Self::Number,
        }
    }
}

/// A name in an open directory.
#[derive(Debug)]
pub(crate) struct Target {
    /// The path in the form in which the user gave it.
    pub(crate) named: PathBuf,
    directory: OwnedFd,
    name: OsString,
    existing: Existing,
    /// Whether the rules for root apply ([`of_root`](Self::of_root)).
    is_roots: bool,
}

impl Target {
    /// Returns the target for an ordinary user. With [`Existing::Replace`], a link that has the file's name is
    /// followed.
    pub(crate) fn of_user(path: &Path, existing: Existing) -> Result<Self> {
        let named = path.to_owned();
        let mut path = path.to_owned();
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(shown_path(&path))(e)),
            Ok(_) if existing == Existing::Refuse => return Err(exists(&path)),
            Ok(_) if existing == Existing::Number => {}
            Ok(_) => {
                path = fs::canonicalize(&path).map_err(failed(shown_path(&path)))?;
                if !fs::metadata(&path).is_ok_and(|data| data.is_file()) {
                    return Err(irregular(&path));
                }
            }
        }
        let name = name_of(&path)?;
        let directory = open_directory(parent(&path)).map_err(unwritable(&path))?;
        Ok(Self { named, directory, name, existing, is_roots: false })
    }

    /// Returns the target for root: links are replaced. In a directory to which others may write, the files of a user
    /// other than root are not replaced, unless that user owns the directory.
    pub(crate) fn of_root(directory: OwnedFd, path: &Path, existing: Existing) -> Result<Self> {
        let name = name_of(path)?;
        let mode = Mode::from_raw_mode(fstat(&directory).map_err(failed(shown_path(path)))?.st_mode);
        if mode.contains(Mode::WOTH) && !mode.contains(Mode::SVTX) {
            return Err(Failure::new(format!(
                "every user may replace the files in {}: name another place with -o",
                shown_path(parent(path))
            )));
        }
        let target = Self { named: path.to_owned(), directory, name, existing, is_roots: true };
        target.check_present()?;
        Ok(target)
    }

    /// Checks whether root may replace the file that has the target's name now.
    fn check_present(&self) -> Result {
        let path = self.named.as_path();
        let Some(data) = self.status(&self.name).map_err(failed(shown_path(path)))? else { return Ok(()) };
        match self.existing {
            Existing::Refuse => return Err(exists(path)),
            Existing::Number => return Ok(()),
            Existing::Replace => {}
        }
        if !matches!(kind(&data), FileType::RegularFile | FileType::Symlink) {
            return Err(irregular(path));
        }
        let directory = fstat(&self.directory).map_err(failed(shown_path(path)))?;
        let is_shared = Mode::from_raw_mode(directory.st_mode).intersects(SHARED);
        if is_shared && data.st_uid != geteuid().as_raw() && data.st_uid != directory.st_uid {
            let (path, uid) = (shown_path(path), data.st_uid);
            return Err(Failure::new(format!(
                "{path} is user {uid}'s, in a directory that others may write to: name another with -o"
            )));
        }
        Ok(())
    }

    /// Returns the status of the file with this name, without following a link. Returns `None` if there is no such
    /// file.
    fn status(&self, name: &OsStr) -> rustix::io::Result<Option<Stat>> {
        match statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Creates the temporary file, under a name that no file has.
    pub(crate) fn make_temporary(&self, by_root: bool, is_live: bool) -> io::Result<(OsString, File)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(if by_root { 0o600 } else { 0o666 });
        let mut tries = 0_u32;
        loop {
            let mut name = OsString::from(".");
            name.push(&self.name);
            name.push(format!(".{}", std::process::id()));
            if tries > 0 {
                name.push(format!("-{:x}", chance()));
            }
            if !is_live {
                name.push(UNFINISHED);
            }
            match openat(&self.directory, &name, flags, mode) {
                Ok(file) => return Ok((name, File::from(file))),
                // Another user created a file with this name on purpose, or an earlier process with the same id left
                // it.
                Err(Errno::EXIST) if tries < 100 => tries += 1,
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Moves the temporary file to its final name. Returns the path of the file.
    pub(crate) fn put(&self, temporary: &OsStr) -> Result<PathBuf> {
        let directory = &self.directory;
        match self.existing {
            Existing::Replace => {
                if self.is_roots {
                    self.check_present()?;
                }
                renameat(directory, temporary, directory, &self.name).map_err(io::Error::from)?;
                Ok(self.named.clone())
            }
            Existing::Refuse if self.move_to(temporary, &self.name)? => Ok(self.named.clone()),
            Existing::Refuse => Err(exists(&self.named)),
            Existing::Number if self.move_to(temporary, &self.name)? => Ok(self.named.clone()),
            Existing::Number => Ok(self.named.with_file_name(self.move_to_free(temporary, &self.name)?)),
        }
    }

    /// Moves a file to a name that no file has. Returns false, and moves nothing, if a file already has the
    /// name.
    fn move_to(&self, from: &OsStr, to: &OsStr) -> io::Result<bool> {
        let directory = &self.directory;
        match linkat(directory, from, directory, to, AtFlags::empty()) {
            Ok(()) => self.remove(from)?,
            Err(Errno::EXIST) => return Ok(false),
            // The link may have failed because the file system has no hard links, so the file is renamed.
            Err(_) if matches!(self.status(to), Ok(None)) => renameat(directory, from, directory, to)?,
            Err(_) if matches!(self.status(to), Ok(Some(_))) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    /// Moves a file to the first name like `out.2.pftrace` that no file has, and returns that name.
    fn move_to_free(&self, from: &OsStr, like: &OsStr) -> io::Result<OsString> {
        for number in 2..NUMBER_MAX {
            let name = numbered(like, number);
            if self.move_to(from, &name)? {
                return Ok(name);
            }
        }
        Err(ErrorKind::AlreadyExists.into())
    }

    /// Removes a file from the directory.
    pub(crate) fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.directory, name, AtFlags::empty())?)
    }

    /// Removes the temporary files of killed commands from the directory. No recording is lost by this: until the
    /// machine restarts, the recordings for which these files were created are still in the kernel's buffers. A file
    /// that was written while events arrived is a valid trace, so it is not removed, but gets a name that is not
    /// hidden.
    pub(crate) fn sweep(&self) {
        let way = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        for entry in fs::read_dir(way).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some((pid, live)) = maker(&name, &self.name) else { continue };
            if !Process(pid).exists() && self.is_leftover(&name) {
                let shown = shown(name.as_bytes());
                let done = match live {
                    Some(of) => self.move_to_free(&name, of).map(|to| {
                        format!(
                            "{} has the recording of a command (process {pid}) that ended before it could name the file: \
                             it was killed, or the directory could not be written to",
                            crate::escape::shown(to.as_bytes())
                        )
                    }),
                    None => self
                        .remove(&name)
                        .map(|()| format!("removed {shown}, which an earlier recording left unfinished")),
                };
                say(done.unwrap_or_else(|e| format!("{shown} of an earlier recording: {e}")));
            }
        }
    }

    /// Returns whether a file may be treated as a leftover of a killed command: no process writes to it, and it
    /// belongs to this user, or only this user can create files in the directory.
    fn is_leftover(&self, name: &OsStr) -> bool {
        let user = geteuid().as_raw();
        let is_alone = fstat(&self.directory)
            .is_ok_and(|data| data.st_uid == user && !Mode::from_raw_mode(data.st_mode).intersects(SHARED));
        let is_ours = |data: &Stat| kind(data) == FileType::RegularFile && (is_alone || data.st_uid == user);
        if !self.status(name).is_ok_and(|data| data.as_ref().is_some_and(is_ours)) {
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&self.directory, name, flags, Mode::empty()) else { return false };
        fstat(&file).is_ok_and(|data| is_ours(&data))
            && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    }
}

/// Parses the name of a temporary file: `.NAME.PID.atrace`, or `.NAME.PID` for a file that is written while events
/// arrive. In the second form, NAME must end with `.pftrace` or be equal to `beside`, the name of the target. Returns
/// PID and, for the second form, NAME.
fn maker<'a>(name: &'a OsStr, beside: &OsStr) -> Option<(u32, Option<&'a OsStr>)> {
    let name = name.as_bytes().strip_prefix(b".")?;
    let unfinished = name.strip_suffix(UNFINISHED.as_bytes());
    let mut parts = unfinished.unwrap_or(name).rsplitn(2, |&byte| byte == b'.');
    let (pid, of) = (parts.next()?.split(|&byte| byte == b'-').next()?, parts.next()?);
    let is_known = unfinished.is_some() || of == beside.as_bytes() || of.ends_with(LIVE.as_bytes());
    let is_number = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
    let pid = std::str::from_utf8(pid).ok().filter(|_| is_number && is_known)?.parse().ok()?;
    Some((pid, unfinished.is_none().then(|| OsStr::from_bytes(of))))
}

/// Returns the name with a number before its extension, such as `out.2.pftrace`.
pub(crate) fn numbered(name: &OsStr, number: u32) -> OsString {
    let path = Path::new(name);
    let mut numbered = path.file_stem().unwrap_or_default().to_owned();
    numbered.push(format!(".{number}"));
    if let Some(extension) = path.extension() {
        numbered.push(".");
        numbered.push(extension);
    }
    numbered
}

pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn name_of(path: &Path) -> Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| {
        Failure::new(format!("{} is not the name of a file: name a file with -o", shown_path(path)))
    })
}

fn kind(data: &Stat) -> FileType {
    FileType::from_raw_mode(data.st_mode)
}

/// Returns a random number that no other user can predict.
pub(crate) fn chance() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!(
        "{} exists already: name another file with -o, or replace it with --force",
        shown_path(path)
    ))
}

fn irregular(path: &Path) -> Failure {
    Failure::new(format!("{} is no regular file: name another with -o", shown_path(path)))
}

pub(crate) fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |e| Failure::new(format!("can't write to {}: {e}: name another place with -o", shown_path(path)))
}

/// The flags for opening a directory that is used only as the start of relative paths.
const NAMED: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, NAMED, Mode::empty())?)
}

/// Opens a directory if only root can change the directory and the path to it. This requires that root owns every
/// component of the path, that no component is a symbolic link, and that other users may write to none of the
/// components. Sticky directories before the last component are an exception: other users may write to them, but can't
/// replace root's files in them.
pub(crate) fn roots_own(path: &Path) -> Option<OwnedFd> {
    let path = std::path::absolute(path).ok()?;
    let mut steps = path.components().peekable();
    let mut directory: Option<OwnedFd> = None;
    while let Some(step) = steps.next() {
        let name = match step {
            Component::RootDir | Component::Normal(_) => step.as_os_str(),
            Component::CurDir => continue,
            Component::ParentDir | Component::Prefix(_) => return None,
        };
        let next = match &directory {
            Some(directory) => openat(directory, name, NAMED | OFlags::NOFOLLOW, Mode::empty()),
            None => openat(CWD, name, NAMED | OFlags::NOFOLLOW, Mode::empty()),
        };
        let next = next.ok()?;
        let data = fstat(&next).ok()?;
        let mode = Mode::from_raw_mode(data.st_mode);
        let is_sticky = mode.contains(Mode::SVTX) && steps.peek().is_some();
        if data.st_uid != 0 || mode.intersects(SHARED) && !is_sticky {
            return None;
        }
        directory = Some(next);
    }
    directory
}

/// The permissions that allow other users than the owner to write.
pub(crate) const SHARED: Mode = Mode::WGRP.union(Mode::WOTH);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn leftovers_are_known_by_their_names() {
        let out = OsStr::new("out");
        for (name, pid) in [(".out.12.atrace", 12), (".a.b.12-ff.atrace", 12)] {
            assert_eq!(maker(name.as_ref(), out), Some((pid, None)), "{name}");
        }
        for (name, pid, of) in
            [(".out.12", 12, "out"), (".out.12-ff", 12, "out"), (".a.b.pftrace.7", 7, "a.b.pftrace")]
        {
            assert_eq!(maker(name.as_ref(), out), Some((pid, Some(of.as_ref()))), "{name}");
        }
        for name in [
            ".else.12",
            "out.12.atrace",
            ".12.atrac",
            ".out.x.atrace",
            ".out..atrace",
            ".out.+1",
            ".out.-1.atrace",
        ] {
            assert_eq!(maker(name.as_ref(), out), None, "{name}");
        }
    }

    #[test]
    fn a_number_stands_before_the_extension() {
        for (name, expected) in [("out.pftrace", "out.2.pftrace"), ("out", "out.2"), ("a.b.c", "a.b.2.c")] {
            assert_eq!(numbered(name.as_ref(), 2), expected);
        }
    }

    #[test]
    fn roots_own_is_what_nobody_else_can_change() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let (directory, link) = (place.path().join("directory"), place.path().join("link"));
        fs::create_dir(&directory).unwrap();
        symlink(&directory, &link).unwrap();
        let set = |mode| fs::set_permissions(&directory, fs::Permissions::from_mode(mode)).unwrap();
        for (mode, is_own) in [(0o755, true), (0o700, true), (0o775, false), (0o777, false), (0o1777, false)]
        {
            set(mode);
            assert_eq!(roots_own(&directory).is_some(), is_own, "{mode:o}");
        }
        set(0o755);
        assert!(roots_own(&link).is_none() && roots_own(&directory.join("../directory")).is_none());
        assert!(roots_own(&directory.join("none")).is_none());
        // In a sticky directory, other users may create files, but may not replace root's files.
        fs::create_dir(directory.join("inner")).unwrap();
        set(0o1777);
        assert!(roots_own(&directory.join("inner")).is_some());
        set(0o777);
        assert!(roots_own(&directory.join("inner")).is_none());
        set(0o755);
        std::os::unix::fs::chown(&directory, Some(64_102), None).unwrap();
        assert!(roots_own(&directory.join("inner")).is_none());
    }
}

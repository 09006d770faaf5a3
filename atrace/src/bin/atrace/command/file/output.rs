//! The file that a recording is saved to: whole or not at all.
//!
//! It is written beside its place under another name and moved there at the end, so that neither a full disk
//! nor a signal leaves half a file, and nothing that exists is touched unless that was asked for. What a killed
//! command left under such a name is removed by the next one that writes to the directory.
//!
//! Who writes decides what is followed:
//!
//! - A user writes as they always do, also through a link of theirs.
//! - Under sudo the file is made, moved and removed with the rights of who called, so a path that turns out to
//!   lead elsewhere leads nowhere they could not go themselves. Root does it in root's own directories only.
//! - Root, called by nobody else, follows no link at the file's place: `--force` replaces the link. A directory
//!   that everybody may change is refused; where it is sticky, what another user has put at the place is not
//!   replaced, as a shell's `>` would not be led by it either (`fs.protected_symlinks`, `fs.protected_regular`).
//!
//! All work is done below a descriptor of the directory. Root's files are for root's eyes: mode 0600.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::fchown;
use std::path::{Component, Path, PathBuf};

use atrace::shown::shown;
use atrace_sys::fork::{Generation, generation};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, Flock, FlockArg, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, geteuid, linkat, unlinkat};

use crate::command::caller::Caller;
use crate::command::notes::journal::Journal;
use crate::command::processes::Process;
use crate::command::terminal::{Failure, Result, failed, place, say};

/// What a file's name ends in while it is written; the number of the process stands before.
const UNFINISHED: &str = ".atrace";

/// A file in the making; without [`finish`](Self::finish) it goes.
#[derive(Debug)]
pub(crate) struct Output {
    target: Target,
    temporary: OsString,
    file: File,
    /// Held as long as it is written, so that nobody takes it for a leftover; where the file system has locks.
    _lock: Option<Flock<File>>,
    /// Who does what is done to it, if not this process' user.
    actor: Option<Caller>,
    is_moved: bool,
    by: Generation,
    _journal: Option<Journal>,
}

/// A name in a directory.
#[derive(Debug)]
struct Target {
    /// As the user named it.
    named: PathBuf,
    directory: OwnedFd,
    name: OsString,
    replace: bool,
    /// Links are replaced, and others' files are not.
    is_roots: bool,
}

impl Output {
    /// Makes sure that `path` can be written, before there is anything to write, and notes it for the case that
    /// this command is killed.
    pub(crate) fn create(path: &Path, replace: bool, owner: Option<&Caller>) -> Result<Self> {
        let mut output = Self::make(path, replace, owner)?;
        output._journal = Journal::note(path, owner);
        Ok(output)
    }

    /// The same, of a file that another command was to write.
    pub(crate) fn make(path: &Path, replace: bool, owner: Option<&Caller>) -> Result<Self> {
        let roots = owner.and_then(|_| roots_own(parent(path)));
        let actor = owner.filter(|_| roots.is_none()).cloned();
        let by_root = geteuid().is_root();
        let work = || {
            let target = match roots {
                Some(directory) => Target::of_root(directory, path, replace)?,
                None if by_root && owner.is_none() => {
                    let directory = open_directory(parent(path)).map_err(unwritable(path))?;
                    Target::of_root(directory, path, replace)?
                }
                None => Target::of_user(path, replace)?,
            };
            target.sweep();
            let (temporary, file) = target.make_temporary(by_root).map_err(unwritable(path))?;
            Ok((target, temporary, file))
        };
        let (target, temporary, file) = match &actor {
            Some(actor) => actor.act(work).map_err(|e| {
                Failure::new(format!("{e}\natrace: it is written as user {}, who called sudo", actor.uid))
            })?,
            None => work()?,
        };
        let lock = file.try_clone().ok();
        let _lock = lock.and_then(|file| Flock::lock(file, FlockArg::LockExclusiveNonblock).ok());
        let output =
            Self { target, temporary, file, _lock, actor, is_moved: false, by: generation(), _journal: None };
        if let Some(owner) = owner {
            fchown(&output.file, Some(owner.uid), Some(owner.gid)).map_err(failed(format!(
                "giving {} to user {}",
                place(path),
                owner.uid
            )))?;
        }
        Ok(output)
    }

    /// The file as the user named it.
    pub(crate) fn named(&self) -> &Path {
        &self.target.named
    }

    /// Has `write` write the file, and makes sure that there was room for it.
    pub(crate) fn fill(&mut self, write: impl FnOnce(&mut &File) -> io::Result<()>) -> io::Result<()> {
        write(&mut &self.file)?;
        self.file.sync_data()
    }

    /// Moves the file to its place.
    pub(crate) fn finish(mut self) -> Result<PathBuf> {
        let actor = self.actor.take();
        let target = &self.target;
        let work = || target.put(&self.temporary);
        match &actor {
            Some(actor) => actor.act(work),
            None => work(),
        }?;
        self.is_moved = true;
        Ok(std::mem::take(&mut self.target.named))
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.is_moved || self.by != generation() {
            return;
        }
        let work = || Ok(unlink(&self.target.directory, &self.temporary)?);
        let _ = match &self.actor {
            Some(actor) => actor.act(work),
            None => work(),
        };
    }
}

impl Target {
    /// As everybody writes to a file that they name: an existing one that is a link is that which it leads to.
    fn of_user(path: &Path, replace: bool) -> Result<Self> {
        let named = path.to_owned();
        let mut path = path.to_owned();
        match fs::symlink_metadata(&path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(place(&path))(e)),
            Ok(_) if !replace => return Err(exists(&path)),
            Ok(_) => {
                path = fs::canonicalize(&path).map_err(failed(place(&path)))?;
                if !fs::metadata(&path).is_ok_and(|data| data.is_file()) {
                    return Err(irregular(&path));
                }
            }
        }
        let name = name_of(&path)?;
        let directory = open_directory(parent(&path)).map_err(unwritable(&path))?;
        Ok(Self { named, directory, name, replace, is_roots: false })
    }

    fn of_root(directory: OwnedFd, path: &Path, replace: bool) -> Result<Self> {
        let name = name_of(path)?;
        let data = fstat(&directory).map_err(failed(place(path)))?;
        if data.st_mode & 0o1002 == 0o0002 {
            return Err(Failure::new(format!(
                "every user may replace the files in {}: name another place with -o",
                place(parent(path))
            )));
        }
        let target = Self { named: path.to_owned(), directory, name, replace, is_roots: true };
        target.check_present()?;
        Ok(target)
    }

    /// Whether what stands at the place lets root go on.
    fn check_present(&self) -> Result<()> {
        let path = self.named.as_path();
        let Some(data) = self.status(&self.name).map_err(failed(place(path)))? else { return Ok(()) };
        if !self.replace {
            return Err(exists(path));
        }
        if !matches!(kind(&data), SFlag::S_IFREG | SFlag::S_IFLNK) {
            return Err(irregular(path));
        }
        let directory = fstat(&self.directory).map_err(failed(place(path)))?;
        let is_shared = directory.st_mode & 0o022 != 0;
        if is_shared && data.st_uid != geteuid().as_raw() && data.st_uid != directory.st_uid {
            return Err(Failure::new(format!(
                "{} is user {}'s, in a directory that others may write to: name another with -o",
                place(path),
                data.st_uid
            )));
        }
        Ok(())
    }

    /// What is at a name, itself; None if nothing.
    fn status(&self, name: &OsStr) -> nix::Result<Option<FileStat>> {
        match fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(data) => Ok(Some(data)),
            Err(Errno::ENOENT) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Makes the file that is written; nobody else's, under whatever name is free.
    fn make_temporary(&self, by_root: bool) -> io::Result<(OsString, File)> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(if by_root { 0o600 } else { 0o666 });
        let mut tries = 0_u32;
        loop {
            let mut name = OsString::from(".");
            name.push(&self.name);
            name.push(format!(".{}", std::process::id()));
            if tries > 0 {
                name.push(format!("-{:x}", chance()));
            }
            name.push(UNFINISHED);
            match openat(&self.directory, name.as_os_str(), flags, mode) {
                Ok(file) => return Ok((name, File::from(file))),
                // Planted, or of an earlier process of this number that was another user's.
                Err(Errno::EEXIST) if tries < 100 => tries += 1,
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn put(&self, temporary: &OsStr) -> Result<()> {
        let directory = self.directory.as_fd();
        if self.replace {
            if self.is_roots {
                self.check_present()?;
            }
            renameat(directory, temporary, directory, self.name.as_os_str()).map_err(io::Error::from)?;
            return Ok(());
        }
        match linkat(directory, temporary, directory, self.name.as_os_str(), AtFlags::empty()) {
            Ok(()) => unlink(directory, temporary)?,
            Err(Errno::EEXIST) => return Err(exists(&self.named)),
            // A file system without links.
            Err(_) if matches!(self.status(&self.name), Ok(None)) => {
                renameat(directory, temporary, directory, self.name.as_os_str()).map_err(io::Error::from)?;
            }
            Err(e) => return Err(io::Error::from(e).into()),
        }
        Ok(())
    }

    /// Removes what killed commands have left unfinished here. The buffers that they read from keep what was
    /// recorded.
    fn sweep(&self) {
        let way = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        for entry in fs::read_dir(way).into_iter().flatten().flatten() {
            let name = entry.file_name();
            if maker(&name, &self.name).is_some_and(|pid| !Process(pid).exists()) && self.is_leftover(&name) {
                match unlink(&self.directory, &name) {
                    Ok(()) => say(format_args!(
                        "removed {}, which an earlier recording left unfinished",
                        shown(name.as_bytes())
                    )),
                    Err(e) => say(format_args!("removing {}: {e}", shown(name.as_bytes()))),
                }
            }
        }
    }

    /// A file that nobody writes, and that is this user's or where nobody else can make one.
    fn is_leftover(&self, name: &OsStr) -> bool {
        let user = geteuid().as_raw();
        let is_alone =
            fstat(&self.directory).is_ok_and(|data| data.st_uid == user && data.st_mode & 0o022 == 0);
        let is_ours = |data: &FileStat| kind(data) == SFlag::S_IFREG && (is_alone || data.st_uid == user);
        if !self.status(name).is_ok_and(|data| data.as_ref().is_some_and(is_ours)) {
            return false;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let Ok(file) = openat(&self.directory, name, flags, Mode::empty()) else { return false };
        fstat(&file).is_ok_and(|data| is_ours(&data))
            && Flock::lock(File::from(file), FlockArg::LockExclusiveNonblock).is_ok()
    }
}

/// The process that made `.NAME.PID.atrace`, or `.NAME.PID` beside a file of that name, as it was called once.
fn maker(name: &OsStr, beside: &OsStr) -> Option<u32> {
    let name = name.as_bytes().strip_prefix(b".")?;
    let pid = match name.strip_suffix(UNFINISHED.as_bytes()) {
        Some(name) => name.rsplit(|&byte| byte == b'.').next()?.split(|&byte| byte == b'-').next()?,
        None => name.strip_prefix(beside.as_bytes())?.strip_prefix(b".")?,
    };
    let is_number = !pid.is_empty() && pid.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(pid).ok().filter(|_| is_number)?.parse().ok()
}

/// The directory, if nobody but root can change it or the way to it: every step of the path is root's, none is
/// a link, and others may write to those only where they can't replace what is root's.
pub(crate) fn roots_own(path: &Path) -> Option<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
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
            Some(directory) => openat(directory, name, flags, Mode::empty()),
            None => openat(AT_FDCWD, name, flags, Mode::empty()),
        };
        let next = next.ok()?;
        let data = fstat(&next).ok()?;
        let is_sticky = data.st_mode & 0o1000 != 0 && steps.peek().is_some();
        if data.st_uid != 0 || (data.st_mode & 0o022 != 0 && !is_sticky) {
            return None;
        }
        directory = Some(next);
    }
    directory
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(openat(AT_FDCWD, path, flags, Mode::empty())?)
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn name_of(path: &Path) -> Result<OsString> {
    let name = path.file_name().map(OsStr::to_owned);
    name.ok_or_else(|| Failure::new(format!("{} names no file: name one with -o", place(path))))
}

fn unlink(directory: impl AsFd, name: &OsStr) -> io::Result<()> {
    Ok(unlinkat(directory, name, UnlinkatFlags::NoRemoveDir)?)
}

fn kind(data: &FileStat) -> SFlag {
    #[allow(clippy::unnecessary_cast, reason = "wider than the constants on 32-bit Android")]
    let mode = data.st_mode as nix::libc::mode_t;
    SFlag::from_bits_truncate(mode & SFlag::S_IFMT.bits())
}

/// A number that nobody can have expected.
fn chance() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

fn exists(path: &Path) -> Failure {
    Failure::new(format!(
        "{} exists already: name another file with -o, or replace it with --force",
        place(path)
    ))
}

fn irregular(path: &Path) -> Failure {
    Failure::new(format!("{} is no regular file: name another with -o", place(path)))
}

fn unwritable(path: &Path) -> impl FnOnce(io::Error) -> Failure + '_ {
    move |e| Failure::new(format!("can't write to {}: {e}: name another place with -o", place(path)))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        drop(Output::create(&path, false, None).unwrap());
        assert_eq!(names(place.path()), [""; 0]);
        let mut output = Output::create(&path, false, None).unwrap();
        output.fill(|to| to.write_all(b"text")).unwrap();
        assert!(!path.exists());
        output.finish().unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"text".to_vec(), vec!["out".into()]));
    }

    #[test]
    fn nothing_is_replaced_unasked() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("out");
        fs::write(&path, "mine").unwrap();
        let refused = Output::create(&path, false, None).unwrap_err().to_string();
        assert!(refused.contains("exists already") && refused.contains("--force"), "{refused}");
        // Made by somebody meanwhile.
        fs::remove_file(&path).unwrap();
        let output = Output::create(&path, false, None).unwrap();
        fs::write(&path, "mine").unwrap();
        assert!(output.finish().unwrap_err().to_string().contains("exists already"));
        assert_eq!((fs::read(&path).unwrap(), names(place.path())), (b"mine".to_vec(), vec!["out".into()]));
        let mut output = Output::create(&path, true, None).unwrap();
        output.fill(|to| to.write_all(b"new")).unwrap();
        output.finish().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn only_files_are_replaced() {
        let place = tempfile::tempdir().unwrap();
        for path in [Path::new("/dev/null"), place.path()] {
            let refused = Output::create(path, true, None).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        let link = place.path().join("link");
        std::os::unix::fs::symlink(place.path().join("file"), &link).unwrap();
        fs::write(place.path().join("file"), "old").unwrap();
        Output::create(&link, true, None).unwrap().finish().unwrap();
        // Root's own links are replaced, too: nobody has to know whose they are.
        let (replaced, text) = if geteuid().is_root() { (true, "old") } else { (false, "") };
        assert_eq!(fs::symlink_metadata(&link).unwrap().is_file(), replaced);
        assert_eq!(fs::read_to_string(place.path().join("file")).unwrap(), text);
        let missing = Output::create(&place.path().join("no/out"), false, None).unwrap_err().to_string();
        assert!(missing.contains("can't write to") && missing.contains("-o"), "{missing}");
    }

    #[test]
    fn leftovers_are_known_by_their_names() {
        let maker = |name: &str| maker(name.as_ref(), "out".as_ref());
        for (name, pid) in [(".out.12.atrace", 12), (".a.b.12-ff.atrace", 12), (".out.12", 12)] {
            assert_eq!(maker(name), Some(pid), "{name}");
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
            assert_eq!(maker(name), None, "{name}");
        }
    }

    #[test]
    fn roots_own_is_what_nobody_else_can_change() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        if !geteuid().is_root() {
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
        // Where others may make files, but not replace root's.
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

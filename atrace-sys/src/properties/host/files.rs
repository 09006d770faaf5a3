//! The file of a store: where it is, whether it is to be trusted, how it is made, and its lock.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, fchown, lchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::super::error::{Error, ErrorKind};
use super::area::Area;
use super::layout;
use crate::fork::{Generation, generation};
use crate::system::{directory as sys, effective_ids, soft_limit};

/// The directory of the stores of all users, in memory; see the [properties module](super::super) for why.
const SHARED: &str = "/dev/shm";

/// Where a store is, and whose it must be.
#[derive(Debug)]
pub(super) struct Location {
    path: PathBuf,
    /// The directory and the name in it, as the system wants them.
    directory: CString,
    name: CString,
    owner: Owner,
}

/// Whose store it must be.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// This user's, directory and all; both are made for them.
    User(u32),
    /// A file of the caller; or, for root, of whoever the directory belongs to. The directory must exist.
    Caller,
}

/// Which file a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(data: &Metadata) -> Self {
        Self { device: data.dev(), inode: data.ino() }
    }
}

/// Why an attempt failed.
enum Failure {
    /// For good.
    Now(Error),
    /// Another process may be about to change that: to be tried again, and reported when it lasts.
    Lasting(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

/// Attempts something until it works, fails for good or takes longer than `patience`; without any, once.
fn persist<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Error> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Now(error)) => return Err(error),
            // Whether it lasts is not known.
            Err(Failure::Lasting(error)) if patience.is_zero() => return Err(error.into_busy()),
            Err(Failure::Lasting(error)) if start.elapsed() >= patience => return Err(error),
            Err(Failure::Lasting(_)) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

impl Location {
    /// The store of a user.
    pub(super) fn of_user(uid: u32) -> Result<Self, Error> {
        Self::new(Self::path_of_user(uid), Owner::User(uid))
    }

    /// The path of the store of a user.
    pub(super) fn path_of_user(uid: u32) -> PathBuf {
        Path::new(SHARED).join(format!("atrace-{uid}")).join("properties")
    }

    /// A store that the caller chose.
    pub(super) fn of_path(path: &Path) -> Result<Self, Error> {
        // The current directory may be another one when the store is set.
        let path = std::path::absolute(path).map_err(|error| {
            Error::new(ErrorKind::Io, "this is no path of a store").at(path).because(error)
        })?;
        Self::new(path, Owner::Caller)
    }

    fn new(path: PathBuf, owner: Owner) -> Result<Self, Error> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(ErrorKind::Foreign, "this is a directory; name a file in it").at(&path));
        };
        let c_string = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| Error::new(ErrorKind::Io, "a path can't contain a NUL byte").at(&path))
        };
        Ok(Self {
            directory: c_string(directory.as_os_str().as_bytes())?,
            name: c_string(name.as_bytes())?,
            path,
            owner,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes an error about this store.
    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        Error::new(kind, message).at(&self.path)
    }

    fn io(&self, message: &str, error: io::Error) -> Error {
        self.error(ErrorKind::Io, message).because(error)
    }

    fn directory_path(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Opens the file for reading; creates it, and a user's directory, when absent.
    pub(super) fn open(&self, patience: Duration) -> Result<(File, Identity), Error> {
        persist(patience, || {
            let directory = self.open_directory(true)?;
            if let Some(found) = self.open_file(&directory, libc::O_RDONLY)? {
                return Ok(found);
            }
            self.create(&directory)?;
            self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(|| Failure::Lasting(self.replaced()))
        })
    }

    /// Opens the file for reading; creates nothing.
    pub(super) fn open_existing(&self, patience: Duration) -> Result<(File, Identity), Error> {
        persist(patience, || {
            let directory = self.open_directory(false)?;
            let missing = || self.error(ErrorKind::Missing, "there is no property store here");
            Ok(self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(missing)?)
        })
    }

    /// Opens the file for writing, provided that it still is the one that was opened before.
    pub(super) fn reopen(&self, identity: Identity, patience: Duration) -> Result<File, Error> {
        persist(patience, || {
            let directory = match self.open_directory(false) {
                Err(Failure::Now(error)) if error.kind() == ErrorKind::Missing => {
                    return Err(self.replaced().into());
                }
                other => other?,
            };
            match self.open_file(&directory, libc::O_RDWR)? {
                Some((file, found)) if found == identity => Ok(file),
                _ => Err(self.replaced().into()),
            }
        })
    }

    fn replaced(&self) -> Error {
        self.error(
            ErrorKind::Replaced,
            "the property store was deleted or replaced since this process opened it: processes started since then use \
             another one; restart this process to join them",
        )
    }

    fn foreign(&self, path: &Path, what: &str, advice: &str) -> Error {
        Error::new(ErrorKind::Foreign, format!("{what}, so it is not used as a property store; {advice}"))
            .at(path)
    }

    /// Opens the directory and checks it.
    fn open_directory(&self, create: bool) -> Result<File, Failure> {
        let path = self.directory_path();
        let asker = effective_ids().0;
        let mut flags = libc::O_PATH | libc::O_DIRECTORY;
        if let Owner::User(uid) = self.owner {
            flags |= libc::O_NOFOLLOW;
            if asker != uid && asker != 0 {
                let what = format!("this file is for user {uid} and root, and user {asker} asks for it");
                return Err(self.foreign(&self.path, &what, "ask as one of them").into());
            }
        }
        let mut opened = sys::open(&self.directory, flags);
        if let (Owner::User(uid), true, Err(error)) = (self.owner, create, &opened)
            && error.kind() == io::ErrorKind::NotFound
        {
            self.create_directory(uid)?;
            opened = sys::open(&self.directory, flags);
        }
        let directory = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => self
                .error(
                    ErrorKind::Missing,
                    "the directory of this property store is missing; create it or name another",
                )
                .because(error),
            Some(libc::ENOTDIR | libc::ELOOP) => self.foreign(
                path,
                "this is a symbolic link or no directory",
                "remove it, or name another path",
            ),
            _ => self.io("can't open the directory of this property store", error),
        })?;
        let data = directory.metadata().map_err(|error| self.io("can't look at the directory", error))?;
        match self.owner {
            Owner::User(uid) => {
                if data.uid() != uid {
                    self.adopt(path, &data, uid, asker)?;
                }
                if data.mode() & 0o077 != 0 {
                    return Err(self
                        .foreign(path, "others have access to this directory", "chmod it to 700")
                        .into());
                }
            }
            Owner::Caller => {
                if data.mode() & 0o1002 == 0o002 {
                    let what =
                        "anyone can replace the files of this directory (it is world-writable, not sticky)";
                    return Err(self.foreign(path, what, "chmod it, or name another").into());
                }
            }
        }
        Ok(directory)
    }

    fn create_directory(&self, uid: u32) -> Result<(), Error> {
        match DirBuilder::new().mode(0o700).create(self.directory_path()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self
                .error(
                    ErrorKind::Missing,
                    format!(
                        "there is no {SHARED}; mount a tmpfs there, or name a store with ATRACE_PROPERTIES"
                    ),
                )
                .because(error)),
            Err(error) => {
                Err(self.io("can't create the directory; name another store with ATRACE_PROPERTIES", error))
            }
            Ok(()) if uid == effective_ids().0 => Ok(()),
            Ok(()) => self.give(self.directory_path(), uid),
        }
    }

    /// Gives a directory that root made to the user it is for.
    fn give(&self, directory: &Path, uid: u32) -> Result<(), Error> {
        lchown(directory, Some(uid), None)
            .map_err(|error| self.io("can't give the directory to its user", error))
    }

    /// Deals with a user's directory that belongs to someone else.
    fn adopt(&self, path: &Path, data: &Metadata, uid: u32, asker: u32) -> Result<(), Failure> {
        let what = format!("this directory is for user {uid} and belongs to user {}", data.uid());
        let error = self.foreign(path, &what, "remove it, or name another store with ATRACE_PROPERTIES");
        match (data.uid(), asker) {
            // Root was killed, or is, between making it and giving it away. Nobody else can have put
            // something of root's there, as the directory above is sticky.
            (0, 0) => Ok(self.give(path, uid)?),
            (0, _) => Err(Failure::Lasting(error)),
            _ => Err(error.into()),
        }
    }

    /// Opens the file and checks it; `None` when there is none.
    fn open_file(&self, directory: &File, flags: libc::c_int) -> Result<Option<(File, Identity)>, Failure> {
        let file = match sys::open_at(directory, &self.name, flags) {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(None),
                    Some(libc::ELOOP) => Err(self.distrust("is a symbolic link")),
                    Some(libc::ENXIO | libc::EISDIR | libc::ENODEV) => {
                        Err(self.distrust("is no regular file"))
                    }
                    Some(libc::EACCES | libc::EPERM) => {
                        Err(self.distrust("may not be opened by this process"))
                    }
                    _ => Err(self.io("can't open the property store", error).into()),
                };
            }
        };
        let data = file.metadata().map_err(|error| self.io("can't look at the property store", error))?;
        if !data.is_file() {
            return Err(self.distrust("is no regular file"));
        }
        if !self.is_owner(data.uid(), directory)? {
            return Err(self.distrust(&format!("belongs to user {}", data.uid())));
        }
        if data.mode() & 0o022 != 0 {
            return Err(self.distrust("can be written by others than its owner"));
        }
        match data.nlink() {
            1 => {}
            // It was deleted after it was opened: look again.
            0 => return Err(Failure::Lasting(self.replaced())),
            // Maybe one that is being moved into place by linking.
            _ => {
                let advice = "remove the others or all of them";
                return Err(Failure::Lasting(self.foreign(
                    &self.path,
                    "this file has several names",
                    advice,
                )));
            }
        }
        if data.size() != size_of::<Area>() as u64 {
            let fault = format!("it has {} bytes instead of {}", data.size(), size_of::<Area>());
            return Err(self.damaged(&fault).into());
        }
        Ok(Some((file, Identity::of(&data))))
    }

    fn distrust(&self, what: &str) -> Failure {
        self.foreign(&self.path, &format!("this file {what}"), "remove it, or name another path").into()
    }

    /// Says that the content makes no sense.
    pub(super) fn damaged(&self, what: &str) -> Error {
        self.error(
            ErrorKind::Damaged,
            format!(
                "the property store is damaged: {what}; delete the file and restart the programs that use it"
            ),
        )
    }

    fn is_owner(&self, uid: u32, directory: &File) -> Result<bool, Error> {
        Ok(match (self.owner, effective_ids().0) {
            (Owner::User(owner), _) => uid == owner,
            (Owner::Caller, 0) if uid != 0 => {
                let data =
                    directory.metadata().map_err(|error| self.io("can't look at the directory", error))?;
                uid == data.uid()
            }
            (Owner::Caller, asker) => uid == asker,
        })
    }

    /// Makes the file, unless somebody is faster: whole before it has its name, so that nobody waits for whoever
    /// makes it, and one who dies leaves nothing.
    fn create(&self, directory: &File) -> Result<(), Failure> {
        let size = size_of::<Area>() as u64;
        if soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < size) {
            let text =
                format!("can't create the property store: this process may not write files of {size} bytes");
            return Err(self.error(ErrorKind::Io, text + " (ulimit -f); create it from another one").into());
        }
        let made = sys::open_unnamed(directory).and_then(|file| {
            self.fill(&file)?;
            sys::name_at(directory, &file, &self.name)
        });
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        match made.or_else(|error| if is_there(&error) { Err(error) } else { self.create_named(directory) }) {
            Ok(()) => Ok(()),
            // The other one is as good.
            Err(error) if is_there(&error) => Ok(()),
            // The directory was deleted after it was opened: make it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Failure::Lasting(self.io("can't create the property store", error)))
            }
            Err(error) => Err(self.io("can't create the property store; name another path", error).into()),
        }
    }

    /// Makes the file where a file system has none without a name, or there is no `/proc` to give it one: under
    /// a name that nobody else takes, and moves it into place.
    fn create_named(&self, directory: &File) -> io::Result<()> {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        let suffix = format!(".{}-{number}", std::process::id());
        let name = CString::new([self.name.as_bytes(), suffix.as_bytes()].concat())?;
        // Should one who died have left such a name, it is tried again with the next number.
        let file = sys::open_at(directory, &name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        let made = self.fill(&file).and_then(|()| sys::rename_at(directory, &name, &self.name));
        if made.is_err() {
            let _ = sys::unlink_at(directory, &name);
        }
        made
    }

    fn fill(&self, file: &File) -> io::Result<()> {
        // The mode at creation was subject to the umask.
        file.set_permissions(Permissions::from_mode(0o600))?;
        if let Owner::User(uid) = self.owner
            && uid != effective_ids().0
        {
            fchown(file, Some(uid), None)?;
        }
        // Written, not just sized: a hole in a full tmpfs would kill whoever reads it through a mapping.
        file.write_all_at(&layout::image(), 0)
    }

    /// Waits a while for the lock of the file, which must be open for writing.
    pub(super) fn lock(&self, file: File, patience: Duration) -> Result<Lock, Error> {
        persist(patience, || match sys::try_lock(&file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Lasting(self.error(ErrorKind::Busy, ""))),
            Err(error) => Err(self.io("can't lock the property store", error).into()),
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Busy => {
                let holder = match holder(&file) {
                    Some(pid) => format!("process {pid}"),
                    None => "another process".to_owned(),
                };
                let text = format!("{holder} holds the lock of the property store and does not release it");
                self.error(ErrorKind::Busy, text + "; continue or end it if it was stopped")
            }
            _ => error,
        })?;
        Ok(Lock { file, by: generation() })
    }
}

/// The right to write to a store, until dropped by the process that took it.
///
/// It is that of an open file, which a forked child shares: the child can neither use it nor give it away.
pub(super) struct Lock {
    file: File,
    by: Generation,
}

impl Lock {
    pub(super) fn is_of_this_process(&self) -> bool {
        self.by == generation()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_of_this_process() {
            sys::unlock(&self.file);
        }
    }
}

/// Tells which process has locked the file, as far as the kernel shows.
fn holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino();
    holder_in(&std::fs::read_to_string("/proc/locks").ok()?, inode)
}

/// Finds the process in a text like `7: FLOCK  ADVISORY  WRITE 4711 00:1b:42 0 EOF`.
fn holder_in(locks: &str, inode: u64) -> Option<u32> {
    let suffix = format!(":{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        if kind == "FLOCK" && file.ends_with(&suffix) {
            pid.parse().ok().filter(|pid| *pid != 0)
        } else {
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:1b:42 0 EOF\n2: FLOCK  ADVISORY  WRITE 22 00:1b:142 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 33 00:1b:42 0 EOF\n\n4: FLOCK\n\
                     5: FLOCK  ADVISORY  WRITE 44 00:1b:42 0 EOF";
        assert_eq!(holder_in(locks, 42), Some(44));
        assert_eq!(holder_in(locks, 43), None);
    }

    #[test]
    fn a_users_path_follows_from_the_uid() {
        assert_eq!(Location::path_of_user(1000), Path::new("/dev/shm/atrace-1000/properties"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no current directory")]
    fn a_path_must_name_a_file() {
        for path in ["/", "/tmp/..", ""] {
            assert!(Location::of_path(Path::new(path)).is_err(), "{path}");
        }
        assert!(Location::of_path(Path::new("relative")).unwrap().path().is_absolute());
    }

    /// Where a file can't be without a name, it is made under one; and nothing is left of it.
    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn a_named_file_is_moved_into_place() {
        let place = tempfile::tempdir().unwrap();
        let location = Location::of_path(&place.path().join("properties")).unwrap();
        let directory = File::open(place.path()).unwrap();
        location.create_named(&directory).unwrap();
        let first = location.open(Duration::ZERO).unwrap().1;
        let error = location.create_named(&directory).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(location.open(Duration::ZERO).unwrap().1, first);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }
}

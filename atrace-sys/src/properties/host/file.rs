//! The file of a property store: its path and required owner, how it is opened and created, and its lock.
//!
//! # Opening
//!
//! First the directory is opened, then the file relative to the open directory. Each of the two is checked after it was
//! opened and before it is used: its mode, its owner (but not the owner of a directory that the caller has named) and,
//! for the file, its type, its size and the number of its names. So another user gains nothing by exchanging a file
//! between the check and the use. Symbolic links in place of the file, or in place of the directory of a user's own
//! store, are refused.
//!
//! # Creating
//!
//! The file gets its name only when it is complete. It is created without a name (`O_TMPFILE`), gets its mode, its
//! owner and the content of an empty store, and is then linked to its name, which replaces no other file. So no process
//! sees a part of the file. If two processes create the file at once, both use the file that was linked first. If a
//! process is killed before it has linked its file, the kernel frees that file. If the file system can't create files
//! without a name, or the system has no `/proc`, the file first gets a temporary name, and a killed process leaves the
//! file with this name behind.
//!
//! # Writing
//!
//! A writer opens the file anew for each transaction, checks by device and inode that it is the file that the process
//! reads, and locks it with `flock`. The writer calls `flock` without blocking and tries again at intervals, because
//! `flock` has no time limit. A transaction lasts until the [`Lock`] is dropped. Readers take no lock.
//!
//! # Crashes
//!
//! The kernel releases the lock when the last descriptor of the open file is closed, and thus also when the writer is
//! killed. But a child that the writer has forked, and that executes no program, shares the open file: if the writer
//! dies before it has unlocked the file, the lock lasts until the child ends. The content is valid after each step of a
//! writer (`area.rs`). If a process of root is killed before it has given a new directory to the store's user, the next
//! process of root that opens the store gives the directory to the user.

use std::ffi::CString;
use std::fmt;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, Read as _};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, PermissionsExt as _, fchown, lchown,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::super::error::{Error, ErrorKind};
use super::super::text::VALUE_MAX;
use super::area::{Area, Entry};
use super::layout::{CAPACITY, MAGIC, VALUE_ROOM};
use crate::fork::{Generation, generation};
use crate::system::{directory as at, effective_ids, file, is_known_by_number, soft_limit};

/// The directory of all users' stores, on a file system in memory.
const SHARED: &str = "/dev/shm";

/// The path of a store and its required owner.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// The directory of the file, and the name of the file in it, as C strings.
    directory: CString,
    name: CString,
    owner: Owner,
}

/// The required owner of a store.
#[derive(Clone, Copy, Debug)]
enum Owner {
    /// This user owns the directory and the file; both are created for this user.
    User(u32),
    /// The file must belong to the caller or, if the caller is root, may belong to the owner of the directory. The
    /// directory must exist.
    Caller,
}

impl Location {
    /// Returns the location of a user's store.
    pub(super) fn of_user(uid: u32) -> Result<Self, Error> {
        Self::new(Self::path_of_user(uid), Owner::User(uid))
    }

    /// Returns the path of a user's store.
    pub(super) fn path_of_user(uid: u32) -> PathBuf {
        Path::new(SHARED).join(format!("atrace-{uid}")).join("properties")
    }

    /// Returns the location of a store whose path the caller has chosen.
    pub(super) fn of_path(path: &Path) -> Result<Self, Error> {
        // The path is made absolute now, because the current directory may change before the store is written.
        let path = std::path::absolute(path).map_err(|error| {
            Error::new(ErrorKind::Io, &"this is not the path of a store").at(path).because(error)
        })?;
        Self::new(path, Owner::Caller)
    }

    fn new(path: PathBuf, owner: Owner) -> Result<Self, Error> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Error::new(ErrorKind::Foreign, &"this is a directory; name a file in it").at(&path));
        };
        let c_string = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| Error::new(ErrorKind::Io, &"a path can't contain a NUL byte").at(&path))
        };
        Ok(Self {
            directory: c_string(directory.as_os_str().as_bytes())?,
            name: c_string(name.as_bytes())?,
            path,
            owner,
        })
    }

    /// Creates an error about this store.
    #[cold]
    #[inline(never)]
    pub(super) fn error(&self, kind: ErrorKind, message: &dyn fmt::Display) -> Error {
        Error::new(kind, message).at(&self.path)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn io(&self, message: &str, error: io::Error) -> Error {
        self.error(ErrorKind::Io, &message).because(error)
    }

    fn directory_path(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    fn replaced(&self) -> Error {
        self.error(
            ErrorKind::Replaced,
            &"the property store was deleted or replaced since this process opened it: processes that started later use another store; restart this process so that it uses that one, too",
        )
    }

    #[cold]
    #[inline(never)]
    fn foreign(&self, path: &Path, what: &dyn fmt::Display, advice: &str) -> Error {
        Error::new(
            ErrorKind::Foreign,
            &format_args!("{what}, so it is not used as a property store; {advice}"),
        )
        .at(path)
    }

    #[cold]
    #[inline(never)]
    fn distrust(&self, what: &dyn fmt::Display) -> Failure {
        self.foreign(&self.path, &format_args!("this file {what}"), "remove it, or name another path").into()
    }

    /// Creates an error of the kind [`ErrorKind::Damaged`] about this store.
    #[cold]
    #[inline(never)]
    pub(super) fn damaged(&self, what: &dyn fmt::Display) -> Error {
        self.error(
            ErrorKind::Damaged,
            &format_args!(
                "the property store is damaged: {what}; delete the file and restart the programs that use it"
            ),
        )
    }
}

/// The reason why an attempt to use the store's file failed.
enum Failure {
    /// The failure is final: the operation is not tried again.
    Now(Error),
    /// Another process may be about to remove the cause of the error. So the operation is tried again, and the error is
    /// returned only if it persists.
    Lasting(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Now(error)
    }
}

/// Tries an operation until it succeeds, fails finally, or has taken longer than `patience`. If `patience` is 0,
/// the operation is tried only once.
fn persist<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Error> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Now(error)) => return Err(error),
            // Without a second attempt, it is not known whether the failure persists.
            Err(Failure::Lasting(error)) if patience.is_zero() => return Err(error.into_busy()),
            Err(Failure::Lasting(error)) if start.elapsed() >= patience => return Err(error),
            Err(Failure::Lasting(_)) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// Identifies a file independently of its name: by device and inode.
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

impl Location {
    /// Opens the file for reading. If `creates` is true, creates the file if it is missing, and, for the store of a
    /// user, its directory.
    pub(super) fn open(&self, creates: bool, patience: Duration) -> Result<(File, Identity), Error> {
        persist(patience, || {
            let directory = self.open_directory(creates)?;
            if let Some(found) = self.open_file(&directory, libc::O_RDONLY)? {
                return Ok(found);
            }
            if !creates {
                return Err(self.error(ErrorKind::Missing, &"there is no property store here").into());
            }
            self.create(&directory)?;
            self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(|| Failure::Lasting(self.replaced()))
        })
    }

    /// Opens the file for writing, if the path still leads to the file with this identity.
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

    /// Opens the directory of the store, and checks its owner and mode.
    fn open_directory(&self, create: bool) -> Result<File, Failure> {
        let path = self.directory_path();
        let asker = effective_ids().0;
        let mut flags = libc::O_PATH | libc::O_DIRECTORY;
        if let Owner::User(uid) = self.owner {
            flags |= libc::O_NOFOLLOW;
            if asker != uid && asker != 0 {
                return Err(self
                    .foreign(
                        &self.path,
                        &format_args!("this file is for user {uid} and root, and user {asker} asks for it"),
                        "ask as one of them",
                    )
                    .into());
            }
            if asker == uid && !is_known_by_number(uid) {
                return Err(self
                    .foreign(
                        &self.path,
                        &format_args!(
                            "here {uid} is the number of every user whom this namespace of users does not map"
                        ),
                        "map this user, or name a store with ATRACE_PROPERTIES",
                    )
                    .into());
            }
        }
        let mut opened = file::open(&self.directory, flags).map_err(io::Error::from);
        if let (Owner::User(uid), true, Err(error)) = (self.owner, create, &opened)
            && error.kind() == io::ErrorKind::NotFound
        {
            self.create_directory(uid)?;
            opened = file::open(&self.directory, flags).map_err(io::Error::from);
        }
        let directory = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT) => self
                .error(
                    ErrorKind::Missing,
                    &"the directory of this property store is missing; create it or name another",
                )
                .because(error),
            Some(libc::ENOTDIR | libc::ELOOP) => self.foreign(
                path,
                &"this is a symbolic link, or not a directory",
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
                        .foreign(path, &"others have access to this directory", "chmod it to 700")
                        .into());
                }
            }
            Owner::Caller => {
                if data.mode() & 0o1002 == 0o002 {
                    let what =
                        "anyone can replace the files of this directory (it is world-writable, not sticky)";
                    return Err(self.foreign(path, &what, "chmod it, or name another").into());
                }
            }
        }
        Ok(directory)
    }

    /// Handles the case that the directory of a user's store belongs to another user.
    fn adopt(&self, path: &Path, data: &Metadata, uid: u32, asker: u32) -> Result<(), Failure> {
        let error = self.foreign(
            path,
            &format_args!("this directory is for user {uid} and belongs to user {}", data.uid()),
            "remove it, or name another store with ATRACE_PROPERTIES",
        );
        match (data.uid(), asker) {
            // A process of root has created the directory, and has not given it to the user yet: it was killed, or is
            // still running. The parent directory is sticky, so no other user can have put a directory of root there.
            (0, 0) => Ok(self.give(path, uid)?),
            (0, _) => Err(Failure::Lasting(error)),
            _ => Err(error.into()),
        }
    }

    /// Opens the file of the store and checks it. Returns `None` if the file does not exist.
    fn open_file(&self, directory: &File, flags: libc::c_int) -> Result<Option<(File, Identity)>, Failure> {
        let file = match at::open_at(directory, &self.name, flags) {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(None),
                    Some(libc::ELOOP) => Err(self.distrust(&"is a symbolic link")),
                    Some(libc::ENXIO | libc::EISDIR | libc::ENODEV) => {
                        Err(self.distrust(&"is no regular file"))
                    }
                    Some(libc::EACCES | libc::EPERM) => {
                        Err(self.distrust(&"may not be opened by this process"))
                    }
                    _ => Err(self.io("can't open the property store", error).into()),
                };
            }
        };
        let data = file.metadata().map_err(|error| self.io("can't look at the property store", error))?;
        if !data.is_file() {
            return Err(self.distrust(&"is no regular file"));
        }
        if !self.is_owner(data.uid(), directory)? {
            return Err(self.distrust(&format_args!("belongs to user {}", data.uid())));
        }
        if data.mode() & 0o022 != 0 {
            return Err(self.distrust(&"can be written by others than its owner"));
        }
        match data.nlink() {
            1 => {}
            // The file was deleted after it was opened: the operation is tried again.
            0 => return Err(Failure::Lasting(self.replaced())),
            // Perhaps another process is just moving the file into place by `link` and `unlink`.
            _ => {
                let advice = "remove the other names, or the file";
                return Err(Failure::Lasting(self.foreign(
                    &self.path,
                    &"this file has several names",
                    advice,
                )));
            }
        }
        if data.size() != size_of::<Area>() as u64 {
            return Err(self
                .damaged(&format_args!("it has {} bytes instead of {}", data.size(), size_of::<Area>()))
                .into());
        }
        Ok(Some((file, Identity::of(&data))))
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
}

impl Location {
    fn create_directory(&self, uid: u32) -> Result<(), Error> {
        match DirBuilder::new().mode(0o700).create(self.directory_path()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(self
                .error(
                    ErrorKind::Missing,
                    &format_args!(
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

    /// Gives a directory that root has created to the user of the store.
    fn give(&self, directory: &Path, uid: u32) -> Result<(), Error> {
        lchown(directory, Some(uid), None)
            .map_err(|error| self.io("can't give the directory to its user", error))
    }

    /// Creates the file, unless another process creates it first. The file gets its name only when it is
    /// complete, so no process waits for the process that creates it, and a process that is killed meanwhile
    /// leaves no file behind (except by [`create_named`](Self::create_named)).
    fn create(&self, directory: &File) -> Result<(), Failure> {
        let size = size_of::<Area>() as u64;
        if soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < size) {
            return Err(self.error(ErrorKind::Io, &format_args!(
                "can't create the property store: this process may not write files of {size} bytes (ulimit -f); create the store from another process"
            )).into());
        }
        let made = at::open_unnamed(directory).and_then(|file| {
            self.fill(&file)?;
            at::name_at(directory, &file, &self.name)
        });
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        match made.or_else(|error| if is_there(&error) { Err(error) } else { self.create_named(directory) }) {
            Ok(()) => Ok(()),
            // Another process has created the file first, and that file is used.
            Err(error) if is_there(&error) => Ok(()),
            // The directory was deleted after it was opened. The next attempt creates the directory again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Failure::Lasting(self.io("can't create the property store", error)))
            }
            Err(error) => Err(self.io("can't create the property store; name another path", error).into()),
        }
    }

    /// Creates the file under a unique name and moves it into place. This is for file systems that can't
    /// create a file without a name, and for systems without `/proc`, which is needed to give such a file a
    /// name.
    fn create_named(&self, directory: &File) -> io::Result<()> {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        let suffix = format!(".{}-{number}", std::process::id());
        let name = CString::new([self.name.as_bytes(), suffix.as_bytes()].concat())?;
        // If a killed process has left a file with this name behind, the next attempt takes the next number.
        let file = at::open_at(directory, &name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        let made = self.fill(&file).and_then(|()| at::rename_at(directory, &name, &self.name));
        if made.is_err() {
            let _ = at::unlink_at(directory, &name);
        }
        made
    }

    fn fill(&self, file: &File) -> io::Result<()> {
        // The umask may have changed the mode with which the file was created.
        file.set_permissions(Permissions::from_mode(0o600))?;
        if let Owner::User(uid) = self.owner
            && uid != effective_ids().0
        {
            fchown(file, Some(uid), None)?;
        }
        // The bytes are written, although setting the size would give zeroes, too: in a full tmpfs, reading a hole of
        // the file through a mapping would kill the process.
        file.write_all_at(&image(), 0)
    }
}

/// Returns the bytes of the file of an empty store.
fn image() -> Vec<u8> {
    let mut image = vec![0; size_of::<Area>()];
    image[..8].copy_from_slice(&MAGIC);
    image[8..12].copy_from_slice(&(CAPACITY as u32).to_ne_bytes());
    image[16..20].copy_from_slice(&1u32.to_ne_bytes());
    image
}

const _: () = {
    assert!(size_of::<Area>() == 98368 || cfg!(miri));
    assert!(offset_of!(Area, capacity) == 8);
    assert!(offset_of!(Area, count) == 12);
    assert!(offset_of!(Area, serial) == 16);
    assert!(offset_of!(Area, entries) == 64);
    assert!(size_of::<Entry>() == 384);
    assert!(offset_of!(Entry, key_len) == 4);
    assert!(offset_of!(Entry, key) == 8);
    assert!(offset_of!(Entry, values) == 192);
    assert!(VALUE_MAX < VALUE_ROOM);
};

impl Location {
    /// Waits for the lock of the file, which must be open for writing, for at most `patience`.
    pub(super) fn lock(&self, file: File, patience: Duration) -> Result<Lock, Error> {
        persist(patience, || match at::try_lock(&file) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Lasting(self.error(ErrorKind::Busy, &""))),
            Err(error) => Err(self.io("can't lock the property store", error).into()),
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Busy => {
                let holder = match holder(&file) {
                    Some(pid) => format!("process {pid}"),
                    None => "another process".to_owned(),
                };
                self.error(ErrorKind::Busy, &format_args!(
                    "{holder} holds the lock of the property store and does not release it; continue or end it if it \
                     was stopped"
                ))
            }
            _ => error,
        })?;
        Ok(Lock { file, by: generation() })
    }
}

/// The right to write to a store. The right ends when the process that took the lock drops this value.
///
/// The lock belongs to the open file, which a forked child shares with its parent. The child can neither use nor
/// release the lock.
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
            at::unlock(&self.file);
        }
    }
}

/// Returns the id of the process that has locked the file, if the kernel shows it.
///
/// The kernel returns its list of locks in parts, at most a page at each read. If a lock disappears between two reads,
/// the second read leaves out another lock. So each read asks for more than a page, and the whole list is read again if
/// the lock is not in it.
fn holder(file: &File) -> Option<u32> {
    let data = file.metadata().ok()?;
    let device = format!("{:02x}:{:02x}", libc::major(data.dev()), libc::minor(data.dev()));
    (0..10).find_map(|_| {
        let mut locks = String::with_capacity(1 << 16);
        File::open("/proc/locks").ok()?.read_to_string(&mut locks).ok()?;
        holder_in(&locks, &device, data.ino())
    })
}

/// Finds the process that has locked a file, in a text like `7: FLOCK  ADVISORY  WRITE 4711 00:1b:42 0 EOF`. For some
/// file systems, the kernel shows another device in this text; then no process is found.
fn holder_in(locks: &str, device: &str, inode: u64) -> Option<u32> {
    let identity = format!("{device}:{inode}");
    locks.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        if kind == "FLOCK" && file == identity { pid.parse().ok().filter(|pid| *pid != 0) } else { None }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(Location::of_path(Path::new("relative")).unwrap().path.is_absolute());
    }

    /// Tests the creation of a file on file systems that can't create a file without a name: the file gets a temporary
    /// name, which does not remain.
    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn a_named_file_is_moved_into_place() {
        let place = tempfile::tempdir().unwrap();
        let location = Location::of_path(&place.path().join("properties")).unwrap();
        let directory = File::open(place.path()).unwrap();
        location.create_named(&directory).unwrap();
        let first = location.open(true, Duration::ZERO).unwrap().1;
        let error = location.create_named(&directory).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(location.open(true, Duration::ZERO).unwrap().1, first);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn the_holder_is_found_while_other_locks_come_and_go() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let folder = tempfile::tempdir().unwrap();
        let create = |name: &str| File::create(folder.path().join(name)).unwrap();
        let file = create("locked");
        assert!(at::try_lock(&file).unwrap());
        let done = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            for thread in 0..3 {
                let (create, done) = (&create, &done);
                scope.spawn(move || {
                    let files = [0, 1, 2].map(|at| create(&format!("other {thread} {at}")));
                    while !done.load(Ordering::Relaxed) {
                        files.iter().for_each(|file| assert!(at::try_lock(file).unwrap()));
                        files.iter().for_each(at::unlock);
                    }
                });
            }
            let found =
                scope.spawn(|| (0..1000).filter(|_| holder(&file) == Some(std::process::id())).count());
            let found = found.join();
            done.store(true, Ordering::Relaxed);
            found
        });
        assert_eq!(found.unwrap(), 1000);
    }

    #[test]
    fn the_holder_of_a_lock_is_found() {
        let locks = "1: POSIX  ADVISORY  WRITE 11 00:1b:42 0 EOF\n2: FLOCK  ADVISORY  WRITE 22 00:1b:142 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 23 00:1c:42 0 EOF\n\
                     3: -> FLOCK  ADVISORY  WRITE 33 00:1b:42 0 EOF\n\n4: FLOCK\n\
                     5: FLOCK  ADVISORY  WRITE 44 00:1b:42 0 EOF";
        assert_eq!(holder_in(locks, "00:1b", 42), Some(44));
        assert_eq!(holder_in(locks, "00:1b", 43), None);
        assert_eq!(holder_in(locks, "00:2d", 42), None);
    }
}

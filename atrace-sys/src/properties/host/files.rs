//! The file of a store: where it is, whether it is to be trusted, how it is made, and its lock.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, PermissionsExt, fchown, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::error::{Error, ErrorKind};
use super::area::Area;
use super::sys;

/// The directory of the stores of all users, in memory; see the [properties module](super::super) for why.
const SHARED: &str = "/dev/shm";

/// How long to wait for another process that is in the middle of something.
const PATIENCE: Duration = Duration::from_secs(2);

/// Where a store is, and whose it must be.
#[derive(Debug)]
pub(super) struct Location {
    path: PathBuf,
    /// The directory and the two names in it, as the system wants them.
    directory: CString,
    name: CString,
    /// The file while it is being made. One name for all, so that what dead creators leave can't pile up.
    temporary: CString,
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

/// Attempts something until it works, fails for good or takes too long.
fn persist<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Error> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    loop {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failure::Now(error)) => return Err(error),
            Err(Failure::Lasting(error)) if start.elapsed() >= PATIENCE => return Err(error),
            Err(Failure::Lasting(_)) => {}
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
}

/// A file being made, under its temporary name and locked; removed if its making does not succeed.
struct Temporary<'a> {
    directory: &'a File,
    location: &'a Location,
    file: File,
    /// The name may be another file's by now.
    renamed: bool,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = sys::unlink_at(self.directory, &self.location.temporary);
        }
        sys::unlock(&self.file);
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
            temporary: c_string(&[name.as_bytes(), b".new"].concat())?,
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
    pub(super) fn open(&self) -> Result<(File, Identity), Error> {
        persist(|| {
            let directory = self.open_directory(true)?;
            if let Some(found) = self.open_file(&directory, libc::O_RDONLY)? {
                return Ok(found);
            }
            self.create(&directory)?;
            self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(|| Failure::Lasting(self.replaced()))
        })
    }

    /// Opens the file for reading; creates nothing.
    pub(super) fn open_existing(&self) -> Result<(File, Identity), Error> {
        persist(|| {
            let directory = self.open_directory(false)?;
            let missing = || self.error(ErrorKind::Missing, "there is no property store here");
            Ok(self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(missing)?)
        })
    }

    /// Opens the file for writing, provided that it still is the one that was opened before.
    pub(super) fn reopen(&self, identity: Identity) -> Result<File, Error> {
        persist(|| {
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
        let asker = sys::geteuid();
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
            Ok(()) if uid == sys::geteuid() => Ok(()),
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
            // Maybe one that is being moved into place by linking, or was by one who died.
            _ => {
                self.clear_temporary(directory)?;
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
        Ok(match (self.owner, sys::geteuid()) {
            (Owner::User(owner), _) => uid == owner,
            (Owner::Caller, 0) if uid != 0 => {
                let data =
                    directory.metadata().map_err(|error| self.io("can't look at the directory", error))?;
                uid == data.uid()
            }
            (Owner::Caller, asker) => uid == asker,
        })
    }

    /// Makes the file: whole, under another name, and then moves it into place unless somebody was faster.
    fn create(&self, directory: &File) -> Result<(), Failure> {
        let size = size_of::<Area>() as u64;
        if sys::file_size_limit() < size {
            let text =
                format!("can't create the property store: this process may not write files of {size} bytes");
            return Err(self.error(ErrorKind::Io, text + " (ulimit -f); create it from another one").into());
        }
        let file = match sys::open_at(directory, &self.temporary, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.clear_temporary(directory)?;
                return Err(Failure::Lasting(self.occupied()));
            }
            // The directory was deleted after it was opened: make it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Failure::Lasting(self.io("can't create the property store", error)));
            }
            Err(error) => {
                return Err(self.io("can't create the property store; name another path", error).into());
            }
        };
        // Whoever holds the lock of the temporary file decides on its name. Without it, someone is about to
        // remove it, having found it between its creation and its lock; with it but without a name, they
        // have.
        if !self.lock_now(&file)? {
            return Err(Failure::Lasting(self.occupied()));
        }
        let data = file.metadata().map_err(|error| self.io("can't look at the property store", error))?;
        if data.nlink() == 0 {
            return Err(Failure::Lasting(self.occupied()));
        }
        let mut temporary = Temporary { directory, location: self, file, renamed: false };
        self.fill(&temporary.file).map_err(|error| self.io("can't create the property store", error))?;
        match sys::rename_at(directory, &self.temporary, &self.name) {
            Ok(()) => {
                temporary.renamed = true;
                Ok(())
            }
            // The other one is as good.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(self.io("can't move the new property store into place", error).into()),
        }
    }

    fn fill(&self, file: &File) -> io::Result<()> {
        // The mode at creation was subject to the umask.
        file.set_permissions(Permissions::from_mode(0o600))?;
        if let Owner::User(uid) = self.owner
            && uid != sys::geteuid()
        {
            fchown(file, Some(uid), None)?;
        }
        // Written, not just sized: a hole in a full tmpfs would kill whoever reads it through a mapping.
        file.write_all_at(&Area::image(), 0)
    }

    fn temporary_path(&self) -> PathBuf {
        self.directory_path().join(std::ffi::OsStr::from_bytes(self.temporary.as_bytes()))
    }

    fn occupied(&self) -> Error {
        Error::new(
            ErrorKind::Busy,
            "another process is creating the property store and does not finish; remove this file if it was stopped",
        )
        .at(&self.temporary_path())
    }

    fn lock_now(&self, file: &File) -> Result<bool, Error> {
        sys::try_lock(file).map_err(|error| self.io("can't lock the property store", error))
    }

    /// Removes the temporary file if its creator died, which is told by its lock.
    fn clear_temporary(&self, directory: &File) -> Result<(), Failure> {
        let open = || sys::open_at(directory, &self.temporary, libc::O_RDONLY);
        let file = match open() {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(()),
                    // Root may be making it for us, and gives it away last.
                    Some(libc::EACCES) => Err(Failure::Lasting(self.occupied())),
                    _ => {
                        let what = "this file is in the way of creating a property store";
                        Err(Error::new(ErrorKind::Foreign, format!("{what}; remove it"))
                            .at(&self.temporary_path())
                            .because(error)
                            .into())
                    }
                };
            }
        };
        if !self.lock_now(&file)? {
            return Ok(());
        }
        // The name may stand for another file by now. With the lock of the one it does stand for, it stays.
        let identity = |file: &File| file.metadata().map(|data| (Identity::of(&data), data.is_file())).ok();
        let unchanged = open().is_ok_and(|now| identity(&now) == identity(&file));
        if unchanged {
            let _ = sys::unlink_at(directory, &self.temporary);
        }
        sys::unlock(&file);
        Ok(())
    }

    /// Waits a while for the lock of the file, which must be open for writing.
    pub(super) fn lock<'a>(&self, file: &'a File) -> Result<Lock<'a>, Error> {
        persist(|| {
            if self.lock_now(file)? {
                return Ok(Lock(file));
            }
            Err(Failure::Lasting(self.error(ErrorKind::Busy, "")))
        })
        .map_err(|error| match error.kind() {
            ErrorKind::Busy => {
                let holder = match holder(file) {
                    Some(pid) => format!("process {pid}"),
                    None => "another process".to_owned(),
                };
                let text = format!("{holder} holds the lock of the property store and does not release it");
                self.error(ErrorKind::Busy, text + "; continue or end it if it was stopped")
            }
            _ => error,
        })
    }
}

/// The right to write to a store, until dropped.
pub(super) struct Lock<'a>(&'a File);

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        sys::unlock(self.0);
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

    /// What a creator leaves that was killed in the middle; on file systems without `RENAME_NOREPLACE` also
    /// between linking and unlinking.
    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn leftovers_of_a_dead_creator_are_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("properties");
        let location = Location::of_path(&path).unwrap();
        std::fs::write(location.temporary_path(), "half").unwrap();
        location.open().unwrap();
        assert!(!location.temporary_path().exists());
        std::fs::hard_link(&path, location.temporary_path()).unwrap();
        location.open().unwrap();
        assert!(!location.temporary_path().exists());
    }

    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn a_creator_at_work_is_left_alone_and_reported() {
        let directory = tempfile::tempdir().unwrap();
        let location = Location::of_path(&directory.path().join("properties")).unwrap();
        let file = File::create(location.temporary_path()).unwrap();
        assert!(sys::try_lock(&file).unwrap());
        let error = location.open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
        assert!(location.temporary_path().exists());
    }
}

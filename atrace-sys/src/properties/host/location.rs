//! The place of a store, its required owner, and the errors about it.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::super::error::{Error, ErrorKind};
use super::attempt::Failure;

/// The directory of all users' stores, which is in memory.
pub(super) const SHARED: &str = "/dev/shm";

/// The place of a store and its required owner.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// The directory, and the name in it, as C strings.
    pub(super) directory: CString,
    pub(super) name: CString,
    pub(super) owner: Owner,
}

/// The required owner of a store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// This user owns the directory and the file; both are created for this user.
    User(u32),
    /// The caller owns the file; if the caller is root, the owner of the directory may own it instead. The directory
    /// must exist.
    Caller,
}

impl Location {
    /// Returns the place of a user's store.
    pub(super) fn of_user(uid: u32) -> Result<Self, Error> {
        Self::new(Self::path_of_user(uid), Owner::User(uid))
    }

    /// Returns the path of a user's store.
    pub(super) fn path_of_user(uid: u32) -> PathBuf {
        Path::new(SHARED).join(format!("atrace-{uid}")).join("properties")
    }

    /// Returns the place of a store that the caller has chosen.
    pub(super) fn of_path(path: &Path) -> Result<Self, Error> {
        // Made absolute now, because the current directory may change before the store is written.
        let path = std::path::absolute(path).map_err(|error| {
            Error::new(ErrorKind::Io, &"this is no path of a store").at(path).because(error)
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

    pub(super) fn path(&self) -> &Path {
        &self.path
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

    pub(super) fn directory_path(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    pub(super) fn replaced(&self) -> Error {
        self.error(
            ErrorKind::Replaced,
            &"the property store was deleted or replaced since this process opened it: processes started since then use \
             another one; restart this process to join them",
        )
    }

    #[cold]
    #[inline(never)]
    pub(super) fn foreign(&self, path: &Path, what: &dyn fmt::Display, advice: &str) -> Error {
        Error::new(
            ErrorKind::Foreign,
            &format_args!("{what}, so it is not used as a property store; {advice}"),
        )
        .at(path)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn distrust(&self, what: &dyn fmt::Display) -> Failure {
        self.foreign(&self.path, &format_args!("this file {what}"), "remove it, or name another path").into()
    }

    /// Creates the error of a damaged store.
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
        assert!(Location::of_path(Path::new("relative")).unwrap().path().is_absolute());
    }
}

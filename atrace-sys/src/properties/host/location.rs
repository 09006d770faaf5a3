//! Where a store is, whose it must be, and what is said when something is wrong with it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::super::error::{Error, ErrorKind};
use super::attempt::Failure;

/// The directory of the stores of all users, in memory; see the [properties module](super::super) for why.
pub(super) const SHARED: &str = "/dev/shm";

/// Where a store is, and whose it must be.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) path: PathBuf,
    /// The directory and the name in it, as the system wants them.
    pub(super) directory: CString,
    pub(super) name: CString,
    pub(super) owner: Owner,
}

/// Whose store it must be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Owner {
    /// This user's, directory and all; both are made for them.
    User(u32),
    /// A file of the caller; or, for root, of whoever the directory belongs to. The directory must exist.
    Caller,
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

    pub(super) fn io(&self, message: &str, error: io::Error) -> Error {
        self.error(ErrorKind::Io, message).because(error)
    }

    pub(super) fn directory_path(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    pub(super) fn replaced(&self) -> Error {
        self.error(
            ErrorKind::Replaced,
            "the property store was deleted or replaced since this process opened it: processes started since then use \
             another one; restart this process to join them",
        )
    }

    pub(super) fn foreign(&self, path: &Path, what: &str, advice: &str) -> Error {
        Error::new(ErrorKind::Foreign, format!("{what}, so it is not used as a property store; {advice}"))
            .at(path)
    }

    pub(super) fn distrust(&self, what: &str) -> Failure {
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

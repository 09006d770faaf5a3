//! Opening a store: first its directory, then the file in it. Each is checked after it was opened, before it is
//! trusted.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::super::error::{Error, ErrorKind};
use super::area::Area;
use super::attempt::{Failure, persist};
use super::location::{Location, Owner};
use crate::system::{directory as at, effective_ids, is_known_by_number};

/// Identifies a file independently of its name.
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
    /// Opens the file for reading. If they do not exist, creates the file and a user's directory.
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

    /// Opens the file for reading. Creates nothing.
    pub(super) fn open_existing(&self, patience: Duration) -> Result<(File, Identity), Error> {
        persist(patience, || {
            let directory = self.open_directory(false)?;
            let missing = || self.error(ErrorKind::Missing, &"there is no property store here");
            Ok(self.open_file(&directory, libc::O_RDONLY)?.ok_or_else(missing)?)
        })
    }

    /// Opens the file for writing, if it is still the file that was opened before.
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

    /// Opens the directory and checks it.
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
        let mut opened = at::open(&self.directory, flags);
        if let (Owner::User(uid), true, Err(error)) = (self.owner, create, &opened)
            && error.kind() == io::ErrorKind::NotFound
        {
            self.create_directory(uid)?;
            opened = at::open(&self.directory, flags);
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
                &"this is a symbolic link or no directory",
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

    /// Handles a user's directory that belongs to another user.
    fn adopt(&self, path: &Path, data: &Metadata, uid: u32, asker: u32) -> Result<(), Failure> {
        let error = self.foreign(
            path,
            &format_args!("this directory is for user {uid} and belongs to user {}", data.uid()),
            "remove it, or name another store with ATRACE_PROPERTIES",
        );
        match (data.uid(), asker) {
            // Root was killed, or is at work, between creating the directory and giving it away. The parent directory
            // is sticky, so nobody else can have put a directory of root there.
            (0, 0) => Ok(self.give(path, uid)?),
            (0, _) => Err(Failure::Lasting(error)),
            _ => Err(error.into()),
        }
    }

    /// Opens the file and checks it; `None` if it does not exist.
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
            // It was deleted after it was opened: look again.
            0 => return Err(Failure::Lasting(self.replaced())),
            // Perhaps another process is just moving it into place by linking.
            _ => {
                let advice = "remove the others or all of them";
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

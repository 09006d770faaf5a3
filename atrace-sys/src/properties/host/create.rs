//! Creating a store, and the directory of a user's store.

use std::ffi::CString;
use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::{DirBuilderExt, FileExt, PermissionsExt, fchown, lchown};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::super::error::{Error, ErrorKind};
use super::super::text::VALUE_MAX;
use super::area::{Area, Entry};
use super::attempt::Failure;
use super::layout::{CAPACITY, MAGIC, VALUE_ROOM};
use super::location::{Location, Owner, SHARED};
use crate::system::{directory as at, effective_ids, soft_limit};

impl Location {
    pub(super) fn create_directory(&self, uid: u32) -> Result<(), Error> {
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

    /// Gives a directory that root has created to its user.
    pub(super) fn give(&self, directory: &Path, uid: u32) -> Result<(), Error> {
        lchown(directory, Some(uid), None)
            .map_err(|error| self.io("can't give the directory to its user", error))
    }

    /// Creates the file, unless another process is faster. The file gets its name when it is complete, so that no
    /// process waits for the creator, and a creator that is killed leaves nothing behind.
    pub(super) fn create(&self, directory: &File) -> Result<(), Failure> {
        let size = size_of::<Area>() as u64;
        if soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < size) {
            return Err(self.error(ErrorKind::Io, &format_args!(
                "can't create the property store: this process may not write files of {size} bytes (ulimit -f); create \
                 it from another one"
            )).into());
        }
        let made = at::open_unnamed(directory).and_then(|file| {
            self.fill(&file)?;
            at::name_at(directory, &file, &self.name)
        });
        let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
        match made.or_else(|error| if is_there(&error) { Err(error) } else { self.create_named(directory) }) {
            Ok(()) => Ok(()),
            // The other process's file is as good.
            Err(error) if is_there(&error) => Ok(()),
            // The directory was deleted after it was opened: try again, which creates it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(Failure::Lasting(self.io("can't create the property store", error)))
            }
            Err(error) => Err(self.io("can't create the property store; name another path", error).into()),
        }
    }

    /// Creates the file under a unique name and moves it into place. For file systems that can't create a file
    /// without a name, and systems without `/proc`, which is needed to name it.
    fn create_named(&self, directory: &File) -> io::Result<()> {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        let number = TAKEN.fetch_add(1, Ordering::Relaxed);
        let suffix = format!(".{}-{number}", std::process::id());
        let name = CString::new([self.name.as_bytes(), suffix.as_bytes()].concat())?;
        // If a killed process has left such a name, the next attempt takes the next number.
        let file = at::open_at(directory, &name, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL)?;
        let made = self.fill(&file).and_then(|()| at::rename_at(directory, &name, &self.name));
        if made.is_err() {
            let _ = at::unlink_at(directory, &name);
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
        // Written, not only sized: in a full tmpfs, reading a hole through a mapping would kill the process.
        file.write_all_at(&image(), 0)
    }
}

/// Returns the content of an empty store.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// If a file can't be created without a name, it is created under one, which does not remain.
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

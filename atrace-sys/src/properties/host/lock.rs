//! The lock of a store's file, which serializes writers.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use super::super::error::{Error, ErrorKind};
use super::attempt::{Failure, persist};
use super::location::Location;
use crate::fork::{Generation, generation};
use crate::system::directory as at;

impl Location {
    /// Waits for the lock of the file, which must be open for writing, at most for `patience`.
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

/// The right to write to a store, which ends when the process that took it drops this.
///
/// The lock belongs to the open file, which a forked child shares. The child can neither use the lock nor release it.
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

/// Returns which process has locked the file, if the kernel shows it.
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
}

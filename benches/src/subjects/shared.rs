//! Memory as a program shares it with Perfetto's service, to be filled by copies and nothing else, and read by a process beside.
#![allow(unsafe_code, reason = "the memory is mapped, and others may write to it")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of memory that could be another process', too.
#[derive(Debug)]
pub struct Shared {
    file: File,
    start: NonNull<u8>,
    len: usize,
    at: usize,
}

impl Shared {
    /// Makes so many bytes, all of which are there.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create("atrace-bench", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Self::map(file, len)
    }

    /// Opens what another process has [made](Self::path), all of it.
    ///
    /// # Errors
    ///
    /// What the system answered.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Self::map(file, len)
    }

    /// Where other processes open it, as long as this one has it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    fn map(file: File, len: usize) -> io::Result<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, wherever there is room.
        let start = unsafe { mmap(std::ptr::null_mut(), len, prot, flags, file.as_fd(), 0)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { file, start, len, at: 0 })
    }

    /// Reads all of it; returns the sum of its bytes.
    #[must_use]
    pub fn sum(&self) -> u64 {
        // SAFETY: within the mapping; others may write there meanwhile, so each is read as it is then.
        (0..self.len).map(|at| u64::from(unsafe { self.start.add(at).read_volatile() })).sum()
    }

    /// Copies these bytes behind those before, or at the start where they have no room there.
    ///
    /// # Panics
    ///
    /// If they are more than all of it.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        if bytes.len() > self.len - self.at {
            assert!(bytes.len() <= self.len, "so many bytes have no room");
            self.at = 0;
        }
        // SAFETY: there is room for so many in the mapping, which no reference is to.
        unsafe { self.start.add(self.at).copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        self.at += bytes.len();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped above, and nothing refers to it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_behind_each_other() {
        let mut shared = Shared::new(4096).unwrap();
        let bytes = |shared: &Shared| {
            // SAFETY: it is mapped, and nobody writes to it now.
            unsafe { std::slice::from_raw_parts(shared.start.as_ptr(), shared.len) }.to_vec()
        };
        let other = Shared::open(&shared.path()).unwrap();
        shared.copy(b"abc");
        shared.copy(b"de");
        assert_eq!(&bytes(&shared)[..6], b"abcde\0");
        assert_eq!(other.sum(), b"abcde".iter().map(|&byte| u64::from(byte)).sum::<u64>());
        shared.copy(&[b'x'; 4092]);
        assert_eq!(&bytes(&shared)[4090..], b"xx\0\0\0\0");
    }
}

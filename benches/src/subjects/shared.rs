//! Memory that is shared with another process, like the memory that the Perfetto backend shares with Perfetto's
//! service. One process only copies bytes into the memory, and the other process only reads the bytes.
#![allow(unsafe_code, reason = "the memory is mapped, and others may write to it")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use atrace_sys::memory::Region;
use rustix::fs::{MemfdFlags, memfd_create};

/// A mapping of memory that another process may map as well.
#[derive(Debug)]
pub struct Shared {
    file: File,
    memory: Region,
    at: usize,
}

impl Shared {
    /// Makes a mapping of `len` bytes, and reads all bytes, so that all pages are mapped.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn new(len: usize) -> io::Result<Self> {
        let file = File::from(memfd_create("atrace-bench", MemfdFlags::CLOEXEC)?);
        file.set_len(len as u64)?;
        Self::map(file, len)
    }

    /// Maps the whole memory that another process has made. `path` is the [path](Self::path) that the other process
    /// returns.
    ///
    /// # Errors
    ///
    /// Returns the system's error.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Self::map(file, len)
    }

    /// Returns the path under which other processes can open the memory while this process keeps the memory open.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    fn map(file: File, len: usize) -> io::Result<Self> {
        let memory = Region::of_file(file.as_raw_fd(), len)?;
        let shared = Self { file, memory, at: 0 };
        // Reading all bytes maps all pages.
        shared.sum();
        Ok(shared)
    }

    /// Reads the whole memory, and returns the sum of its bytes.
    pub fn sum(&self) -> u64 {
        let byte = |at| self.memory.get::<AtomicU8>(at).map_or(0, |byte| byte.load(Ordering::Relaxed));
        (0..self.memory.size()).map(|at| u64::from(byte(at))).sum()
    }

    /// Copies bytes into the memory behind the previously copied bytes, or to the start of the memory if the rest of
    /// the memory is too small.
    ///
    /// # Panics
    ///
    /// Panics if there are more bytes than the memory can hold.
    #[inline]
    pub fn copy(&mut self, bytes: &[u8]) {
        if bytes.len() > self.memory.size() - self.at {
            assert!(bytes.len() <= self.memory.size(), "there is no room for so many bytes");
            self.at = 0;
        }
        // SAFETY: the mapping has room for the bytes, and no reference points to it.
        unsafe { self.memory.at(self.at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.at += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_behind_each_other() {
        let mut shared = Shared::new(4096).unwrap();
        let bytes = |shared: &Shared| {
            // SAFETY: the memory is mapped, and no thread writes to it now.
            unsafe { std::slice::from_raw_parts(shared.memory.at(0), shared.memory.size()) }.to_vec()
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

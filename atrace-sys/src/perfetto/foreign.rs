//! A producer's memory, as the service sees it.
//!
//! The producer may write anything there at any moment. So its size can't change (it is mapped only if it is sealed
//! against shrinking), its words are loaded once, and what is looked into is a copy. An index that comes from the
//! producer is checked here; a chunk that does not exist is none.

use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::{self, CHUNK_HEADER, PAGE_HEADER};
use crate::system::errno;

/// The most memory that a producer may have.
pub const SIZE_MAX: usize = 32 << 20;
/// Sizes of a page.
pub const PAGES: [usize; 4] = [4096, 8192, 16384, 32768];

/// The kind of file that a memory file is; others could end a process by being mapped.
const TMPFS: i64 = 0x0102_1994;

/// A producer's memory.
#[derive(Debug)]
pub struct Foreign {
    base: *mut u8,
    page: usize,
    pages: u32,
}

// SAFETY: all of it is read and written as atomic words.
unsafe impl Send for Foreign {}

/// The header of a chunk, as it stood in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which of its writer's chunks it is.
    pub number: u32,
    /// The writer.
    pub writer: u16,
    /// How many packets have begun.
    pub packets: u16,
    /// Its flags: [`CONTINUES`], [`GOES_ON`], [`NEEDS_PATCHES`].
    pub flags: u16,
}

/// The first packet began in the chunk before.
pub const CONTINUES: u16 = 1;
/// The last packet goes on in the next chunk.
pub const GOES_ON: u16 = 2;
/// Bytes of it come later.
pub const NEEDS_PATCHES: u16 = 4;

/// What a chunk is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody's, or the service's.
    Free,
    /// A thread writes it: all packets but the last that has begun are whole.
    Open,
    /// All of it is written.
    Complete,
}

impl Foreign {
    /// Maps a producer's memory file, of pages of this size, if it can't shrink.
    ///
    /// # Errors
    ///
    /// Returns the errno of what failed; EPERM where it could shrink, EINVAL where a size is wrong.
    pub fn map(file: BorrowedFd<'_>, page: usize) -> Result<Self, i32> {
        let fd = file.as_raw_fd();
        // SAFETY: asks about a descriptor.
        let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(libc::EPERM);
        }
        // SAFETY: zeroes are values of both, which the kernel fills.
        let (mut stat, mut system): (libc::stat, libc::statfs) = unsafe { std::mem::zeroed() };
        // SAFETY: both are writable.
        if unsafe { libc::fstat(fd, &raw mut stat) != 0 || libc::fstatfs(fd, &raw mut system) != 0 } {
            return Err(errno());
        }
        #[allow(clippy::unnecessary_cast, reason = "its width is the system's")]
        if system.f_type as i64 != TMPFS {
            return Err(libc::EPERM);
        }
        let size = usize::try_from(stat.st_size).map_err(|_| libc::EINVAL)?;
        Self::at(fd, size, page)
    }

    /// Makes memory for a producer that brings none; returns its descriptor, too.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn make(size: usize, page: usize) -> Result<(Self, OwnedFd), i32> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a C string and flags. By number: not every libc has the function.
        let made = unsafe { libc::syscall(libc::SYS_memfd_create, c"atrace-producer".as_ptr(), flags) };
        #[allow(clippy::useless_conversion, reason = "its width is the system's")]
        let fd = i32::try_from(made).ok().filter(|fd| *fd >= 0).ok_or_else(errno)?;
        // SAFETY: made above, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: a descriptor of ours.
        let is_sealed = unsafe {
            libc::ftruncate(fd, size as libc::off_t) == 0 && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        if is_sealed { Ok((Self::at(fd, size, page)?, file)) } else { Err(errno()) }
    }

    fn at(fd: i32, size: usize, page: usize) -> Result<Self, i32> {
        if !PAGES.contains(&page) || size == 0 || size > SIZE_MAX || !size.is_multiple_of(page) {
            return Err(libc::EINVAL);
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(ptr::null_mut(), size, protection, libc::MAP_SHARED, fd, 0) };
        if base == libc::MAP_FAILED {
            return Err(errno());
        }
        Ok(Self { base: base.cast(), page, pages: (size / page) as u32 })
    }

    /// How many pages there are.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// How many bytes there are.
    pub const fn size(&self) -> usize {
        self.pages as usize * self.page
    }

    /// The word at an offset; None where there is none.
    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        let is_within = offset.is_multiple_of(4) && offset.checked_add(4)? <= self.size();
        // SAFETY: within the mapping, which this borrows, and aligned.
        is_within.then(|| unsafe { &*self.base.add(offset).cast::<AtomicU32>() })
    }

    fn header(&self, page: u32) -> Option<&AtomicU32> {
        self.word(page as usize * self.page).filter(|_| page < self.pages)
    }

    /// How many chunks a page has at the moment; None where there is no such page.
    pub fn chunks(&self, page: u32) -> Option<u32> {
        Some(abi::chunks_of(self.header(page)?.load(Ordering::Acquire)))
    }

    /// What a chunk is at the moment; None where there is no such chunk.
    pub fn state(&self, page: u32, chunk: u32) -> Option<State> {
        let word = self.header(page)?.load(Ordering::Acquire);
        (chunk < abi::chunks_of(word)).then(|| match word >> (2 * chunk) & 3 {
            1 => State::Open,
            3 => State::Complete,
            _ => State::Free,
        })
    }

    /// Where a chunk lies and how long it is.
    fn place(&self, page: u32, chunk: u32) -> Option<(usize, usize)> {
        let chunks = self.chunks(page)?;
        let size = abi::chunk_size(self.page, chunks.max(1));
        (chunk < chunks).then(|| (page as usize * self.page + PAGE_HEADER + chunk as usize * size, size))
    }

    fn head_at(&self, offset: usize) -> Option<Head> {
        let number = self.word(offset)?.load(Ordering::Relaxed);
        // Acquire: the packets that are counted are there.
        let word = self.word(offset + 4)?.load(Ordering::Acquire);
        let (writer, packets) = (word as u16, (word >> 16) as u16);
        let (packets, flags) = (packets & abi::PACKETS_MAX, packets >> 10);
        Some(Head { number, writer, packets, flags })
    }

    /// The header of a chunk.
    pub fn head(&self, page: u32, chunk: u32) -> Option<Head> {
        self.head_at(self.place(page, chunk)?.0)
    }

    /// Copies a chunk's packets to `bytes`, in place of what is there; returns its header, which was read before.
    pub fn copy(&self, page: u32, chunk: u32, bytes: &mut Vec<u8>) -> Option<Head> {
        let (offset, size) = self.place(page, chunk)?;
        let head = self.head_at(offset)?;
        bytes.clear();
        for at in (offset + CHUNK_HEADER..offset + size).step_by(4) {
            bytes.extend_from_slice(&self.word(at)?.load(Ordering::Relaxed).to_le_bytes());
        }
        Some(head)
    }

    /// Gives a chunk that was complete back to the producer. Takes a bounded time, whatever the producer does meanwhile.
    pub fn free(&self, page: u32, chunk: u32) {
        let Some(header) = self.header(page).filter(|_| chunk < abi::CHUNKS_MAX) else { return };
        let mask = !(3 << (2 * chunk));
        // Release: what was read, before it may be written again.
        let left = header.fetch_and(mask, Ordering::AcqRel) & mask;
        if abi::is_all_free(left) {
            let _ = header.compare_exchange(left, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: mapped by `at`, and what it lends borrows this.
        unsafe { libc::munmap(self.base.cast(), self.size()) };
    }
}

//! A producer's memory, as the service sees it.
//!
//! The producer may write anything there at any moment. So its size can't change (it is mapped only if it is sealed
//! against shrinking), its words are loaded once, and what is looked into is a copy. An index that comes from the
//! producer is checked here; a chunk that does not exist is none.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use atrace_sys::memory::{Region, fixed_size, sealed_file};

use super::abi::{self, CHUNK_HEADER, PAGE_HEADER};
use super::memory::Loss;

/// The most memory that a producer may have.
pub const SIZE_MAX: usize = 32 << 20;
/// Sizes of a page.
pub const PAGES: [usize; 4] = [4096, 8192, 16384, 32768];

/// A producer's memory.
#[derive(Debug)]
pub struct Foreign {
    memory: Region,
    page: usize,
    pages: u32,
}

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
    /// Tells how large a memory file is whose size can't change, if a producer may have as much.
    ///
    /// # Errors
    ///
    /// Returns what is wrong: EPERM where it could change or is of another kind, EINVAL where it is too large.
    pub fn size_of(file: BorrowedFd<'_>) -> io::Result<usize> {
        match fixed_size(file.as_raw_fd())? {
            size @ 1..=SIZE_MAX => Ok(size),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Maps a producer's memory file, of pages of this size, if its size can't change.
    ///
    /// # Errors
    ///
    /// As [`size_of`](Self::size_of), or what failed; EINVAL, too, where the size is not that of whole pages.
    pub fn map(file: BorrowedFd<'_>, page: usize) -> io::Result<Self> {
        Self::at(file.as_raw_fd(), Self::size_of(file)?, page)
    }

    /// Makes memory for a producer that brings none; returns its descriptor, too.
    ///
    /// # Errors
    ///
    /// As [`map`](Self::map).
    pub fn make(size: usize, page: usize) -> io::Result<(Self, OwnedFd)> {
        let file = sealed_file(c"atrace-producer", size)?;
        Ok((Self::at(file.as_raw_fd(), size, page)?, file.into()))
    }

    fn at(fd: RawFd, size: usize, page: usize) -> io::Result<Self> {
        if !PAGES.contains(&page) || size == 0 || size > SIZE_MAX || !size.is_multiple_of(page) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self { memory: Region::of_file(fd, size)?, page, pages: (size / page) as u32 })
    }

    /// What was looked at counts no more as memory of this process, until it is looked at again; nothing in it changes.
    pub fn forget(&self) {
        self.memory.forget();
    }

    /// How many pages there are.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// How many bytes there are.
    pub const fn size(&self) -> usize {
        self.memory.size()
    }

    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.memory.get(offset)
    }

    fn header(&self, page: u32) -> Option<&AtomicU32> {
        self.word(page as usize * self.page).filter(|_| page < self.pages)
    }

    /// How many events a producer of this library has counted as lost; the count goes on from 0 after `u32::MAX`.
    pub fn lost(&self, loss: Loss) -> u32 {
        let word = self.word(loss.word(self.page)).filter(|_| (loss as u32) < self.pages);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
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

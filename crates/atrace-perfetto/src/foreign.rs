//! The shared memory of another process's producer, as a tracing service sees it.
//!
//! The producer may write anything to this memory at any moment. So the file is mapped only if it is sealed and its
//! size can't change; a word is not loaded again after it was checked; and packets are copied before they are parsed.
//! Indices that come from the producer are checked here: for a page or chunk that does not exist, the functions return
//! `None` or do nothing.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use atrace_sys::memory::{Region, fixed_size, sealed_file};

use super::abi::{self, CHUNK_HEADER, PAGE_HEADER};
use super::memory::{self, Loss};

/// The maximum size of a producer's memory, in bytes.
pub const SIZE_MAX: usize = 32 << 20;
/// The valid page sizes, in bytes.
pub const PAGES: [usize; 4] = [4096, 8192, 16384, 32768];

/// The mapped memory of a producer.
#[derive(Debug)]
pub struct Foreign {
    memory: Region,
    page: usize,
    pages: u32,
}

/// The header of a chunk, as it was when the chunk was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The number of the chunk in its writer's sequence.
    pub number: u32,
    /// The writer's number.
    pub writer: u16,
    /// The number of packets in the chunk. An unfinished packet counts, and so do parts of packets that began in the
    /// previous chunk or continue in the next chunk.
    pub packets: u16,
    /// A set of the flags [`CONTINUES`], [`GOES_ON`] and [`NEEDS_PATCHES`].
    pub flags: u16,
}

pub use super::abi::{CONTINUES, GOES_ON};

/// A flag of a chunk, which means that the producer will send some bytes of the chunk later.
pub const NEEDS_PATCHES: u16 = 4;

/// The state of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The chunk is free, or the service is reading it.
    Free,
    /// A thread is writing the chunk. All packets that the chunk's header counts, except the last one, are complete.
    Open,
    /// The chunk is complete.
    Complete,
}

impl Foreign {
    /// Returns the size of a memory file in bytes, if the size can't change.
    ///
    /// # Errors
    ///
    /// Returns EPERM if the size could change or `file` is not a memory file. Returns EINVAL if the file is
    /// empty or larger than [`SIZE_MAX`].
    pub fn size_of(file: BorrowedFd<'_>) -> io::Result<usize> {
        match fixed_size(file.as_raw_fd())? {
            size @ 1..=SIZE_MAX => Ok(size),
            _ => Err(io::Error::from_raw_os_error(libc::EINVAL)),
        }
    }

    /// Maps a producer's memory file. `page` is the size of its pages in bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`size_of`](Self::size_of); EINVAL if the page size is not valid or the file does
    /// not consist of whole pages; or an error of the system.
    pub fn map(file: BorrowedFd<'_>, page: usize) -> io::Result<Self> {
        Self::at(file.as_raw_fd(), Self::size_of(file)?, page)
    }

    /// Makes memory for a producer that provides no memory. Returns the memory and its descriptor.
    ///
    /// # Errors
    ///
    /// Returns EINVAL if the page size or the size of the memory is not valid, or an error of the system.
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

    /// Drops the mapped pages from this process's memory until they are read again. The content of the pages does
    /// not change.
    pub fn forget(&self) {
        self.memory.forget();
    }

    /// Returns the number of pages.
    pub const fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the size in bytes.
    pub const fn size(&self) -> usize {
        self.memory.size()
    }

    fn word(&self, offset: usize) -> Option<&AtomicU32> {
        self.memory.get(offset)
    }

    fn header(&self, page: u32) -> Option<&AtomicU32> {
        self.word(page as usize * self.page).filter(|_| page < self.pages)
    }

    /// Returns the number of events that a producer which uses this library has counted as lost for this reason. The
    /// count wraps at `u32::MAX`.
    pub fn lost(&self, loss: Loss) -> u32 {
        let word = self.word(loss.word(self.page)).filter(|_| (loss as u32) < self.pages);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns an upper bound of the number of pages, from the first page on, that a producer which uses this library
    /// has used. For other producers, returns the number of all pages. Reading a page that was never used would
    /// allocate memory for it.
    pub fn touched(&self) -> u32 {
        memory::touched(self.word(memory::TOUCHED_PAGE as usize * self.page + 4), self.pages)
    }

    /// Returns the present number of chunks of a page, or `None` if there is no such page.
    pub fn chunks(&self, page: u32) -> Option<u32> {
        Some(abi::chunks_of(self.header(page)?.load(Ordering::Acquire)))
    }

    /// Returns the present state of a chunk, or `None` if there is no such chunk.
    pub fn state(&self, page: u32, chunk: u32) -> Option<State> {
        let word = self.header(page)?.load(Ordering::Acquire);
        (chunk < abi::chunks_of(word)).then(|| match word >> (2 * chunk) & 3 {
            1 => State::Open,
            3 => State::Complete,
            _ => State::Free,
        })
    }

    /// Returns the offset and the size of a chunk, or `None` if there is no such chunk.
    fn place(&self, page: u32, chunk: u32) -> Option<(usize, usize)> {
        let chunks = self.chunks(page)?;
        let size = abi::chunk_size(self.page, chunks.max(1));
        (chunk < chunks).then(|| (page as usize * self.page + PAGE_HEADER + chunk as usize * size, size))
    }

    fn head_at(&self, offset: usize) -> Option<Head> {
        // Acquire: makes the counted packets visible, and also the chunk's number, which the producer stores before
        // this word.
        let word = self.word(offset + 4)?.load(Ordering::Acquire);
        let number = self.word(offset)?.load(Ordering::Relaxed);
        let (writer, packets) = (word as u16, (word >> 16) as u16);
        let (packets, flags) = (packets & abi::PACKETS_MAX, packets >> 10);
        Some(Head { number, writer, packets, flags })
    }

    /// Returns the header of a chunk, or `None` if there is no such chunk.
    pub fn head(&self, page: u32, chunk: u32) -> Option<Head> {
        self.head_at(self.place(page, chunk)?.0)
    }

    /// Replaces the content of `bytes` with a copy of a chunk's packets. Returns the chunk's header, which is read
    /// first, or `None` if there is no such chunk.
    pub fn copy(&self, page: u32, chunk: u32, bytes: &mut Vec<u8>) -> Option<Head> {
        let (offset, size) = self.place(page, chunk)?;
        let head = self.head_at(offset)?;
        bytes.clear();
        for at in (offset + CHUNK_HEADER..offset + size).step_by(4) {
            bytes.extend_from_slice(&self.word(at)?.load(Ordering::Relaxed).to_le_bytes());
        }
        Some(head)
    }

    /// Frees a chunk that the service has read. This takes a limited time, whatever the producer does meanwhile.
    pub fn free(&self, page: u32, chunk: u32) {
        let Some(header) = self.header(page).filter(|_| chunk < abi::CHUNKS_MAX) else { return };
        // The thread that uses the chunk next first takes the chunk, and then writes the chunk's header. In the time
        // between, the header must not count any packets.
        if let Some(word) = self.place(page, chunk).and_then(|(offset, _)| self.word(offset + 4)) {
            word.store(0, Ordering::Relaxed);
        }
        let mask = !(3 << (2 * chunk));
        // Release: the service has read the whole chunk before the producer can write to the chunk again.
        let left = header.fetch_and(mask, Ordering::AcqRel) & mask;
        if abi::is_all_free(left) {
            let _ = header.compare_exchange(left, 0, Ordering::Release, Ordering::Relaxed);
        }
    }
}

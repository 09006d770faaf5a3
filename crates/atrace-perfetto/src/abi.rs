//! Perfetto's shared memory ABI: the words of pages and chunks, and the rules by which the producer and the service may
//! change them.
//!
//! ```text
//! page    u32 layout and states, u32 reserved, chunks of equal size
//! layout  bits 28..=30: how many chunks; 0: not divided yet
//! state   2 bits a chunk, from bit 0: free, being written (producer's), being read (service's), complete
//! chunk   u32 number, u16 writer, u16 count of packets and flags, packets
//! ```
//!
//! A chunk goes through its states in this order: the producer takes a free chunk ([`take`]) and completes it
//! ([`complete`]); the service reads it ([`begin_reading`]) and frees it ([`free`]). When the service frees the last
//! chunk of a page that was in use, it clears the whole header word of the page, so that the page can be divided anew.
//! The producer sets the layout when it takes the first chunk of a page. Apart from these two cases, the producer and
//! the service change only the two state bits of one chunk. All changes are atomic read-modify-write operations.
//!
//! A faulty or hostile process may have written any value to a header word. So the functions here accept any value of a
//! word, and use it only to select chunks that exist.
//!
//! Source: Perfetto's `shared_memory_abi.h`.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The size of a page, in bytes. This size meets two requirements: even the smallest chunk of a page has room for a
/// thread's first packets, and the largest chunk is full before it has more than [`PACKETS_MAX`] packets.
pub const PAGE: usize = 8192;
/// The size of the header at the start of a page, in bytes.
pub const PAGE_HEADER: usize = 8;
/// The size of the header at the start of a chunk, in bytes.
pub const CHUNK_HEADER: usize = 8;
/// The maximum number of chunks of a page.
pub const CHUNKS_MAX: u32 = 14;
/// The maximum number of packets of a chunk. The count in the chunk's header has ten bits.
pub const PACKETS_MAX: u16 = 1023;

/// A flag in a chunk's header, in the bits above the count of packets. It means that the chunk's first packet began in
/// the writer's previous chunk.
pub const CONTINUES: u16 = 1;
/// A flag in a chunk's header, like [`CONTINUES`]. It means that the chunk's last packet continues in the writer's next
/// chunk.
pub const GOES_ON: u16 = 2;
/// The position of the lowest flag in the 16-bit number that holds the count of packets and the flags.
pub const FLAGS_SHIFT: u32 = 10;

const LAYOUT_SHIFT: u32 = 28;
const LAYOUT_MASK: u32 = 7 << LAYOUT_SHIFT;
const STATES: u32 = (1 << LAYOUT_SHIFT) - 1;
const BEING_WRITTEN: u32 = 1;
const BEING_READ: u32 = 2;
const COMPLETE: u32 = 3;

/// How a page is divided into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One chunk in a page, for a thread that writes much.
    Whole,
    /// Fourteen chunks in a page, for threads that write little.
    Small,
}

impl Layout {
    const fn word(self) -> u32 {
        match self {
            Self::Whole => 1 << LAYOUT_SHIFT,
            Self::Small => 5 << LAYOUT_SHIFT,
        }
    }

    /// Returns the number of chunks of a page.
    pub const fn chunks(self) -> u32 {
        match self {
            Self::Whole => 1,
            Self::Small => CHUNKS_MAX,
        }
    }

    /// Returns the size of a chunk, including its header.
    pub const fn chunk_size(self) -> usize {
        chunk_size(PAGE, self.chunks())
    }

    /// Returns how many bytes of packets fit into a chunk. The chunk's last byte is reserved for an empty packet.
    pub const fn room(self) -> usize {
        self.chunk_size() - CHUNK_HEADER - 1
    }
}

/// Returns the size of a chunk, including its header, if a page of `page` bytes is divided into `chunks` chunks.
pub const fn chunk_size(page: usize, chunks: u32) -> usize {
    ((page - PAGE_HEADER) / chunks as usize) & !3
}

/// Returns the number of chunks into which a page with this header word is divided, or 0 if the page is not divided.
pub const fn chunks_of(word: u32) -> u32 {
    match (word & LAYOUT_MASK) >> LAYOUT_SHIFT {
        1 => 1,
        2 => 2,
        3 => 4,
        4 => 7,
        5 => 14,
        _ => 0,
    }
}

/// For the producer: takes a free chunk of a page with this layout. If the page is not divided yet, divides it first.
/// Returns the chunk's index, or `None` if the page has another layout or no free chunk.
pub fn take(header: &AtomicU32, layout: Layout) -> Option<u32> {
    let mut word = header.load(Ordering::Relaxed);
    loop {
        let divided = match word & LAYOUT_MASK {
            0 if word == 0 => layout.word(),
            present if present == layout.word() => word,
            _ => return None,
        };
        let chunk = (0..layout.chunks()).find(|chunk| state(divided, *chunk) == 0)?;
        let taken = divided | BEING_WRITTEN << (2 * chunk);
        // Acquire: pairs with the release in `free`, so the service has finished reading the chunk's former content.
        match header.compare_exchange_weak(word, taken, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(chunk),
            Err(present) => word = present,
        }
    }
}

/// For the producer: marks a chunk as complete.
pub fn complete(header: &AtomicU32, chunk: u32) {
    // Release: a thread that sees the chunk's new state also sees the packets in the chunk.
    header.fetch_or((COMPLETE ^ BEING_WRITTEN) << (2 * chunk), Ordering::Release);
}

/// For the service: begins to read a chunk. Returns false if the chunk is not complete.
pub fn begin_reading(header: &AtomicU32, chunk: u32) -> bool {
    let word = header.load(Ordering::Acquire);
    let is_complete = chunk < chunks_of(word) && state(word, chunk) == COMPLETE;
    if is_complete {
        header.fetch_and(!((COMPLETE ^ BEING_READ) << (2 * chunk)), Ordering::Acquire);
    }
    is_complete
}

/// For the service: frees a chunk that it has read.
pub fn free(header: &AtomicU32, chunk: u32) {
    let mut word = header.load(Ordering::Relaxed);
    loop {
        let mut freed = word & !(3 << (2 * chunk));
        if freed & STATES == 0 {
            freed = 0;
        }
        // Release: the service has read the whole chunk before a producer can write to the chunk again.
        match header.compare_exchange_weak(word, freed, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(present) => word = present,
        }
    }
}

/// Returns whether the producer is writing or has completed this chunk of a page with the header word `word`.
pub const fn is_in_use(word: u32, chunk: u32) -> bool {
    matches!(state(word, chunk), BEING_WRITTEN | COMPLETE)
}

/// Returns whether all chunks of a page with this header word are free.
pub const fn is_all_free(word: u32) -> bool {
    word & STATES == 0
}

const fn state(word: u32, chunk: u32) -> u32 {
    word >> (2 * chunk) & 3
}

const _: () = assert!(
    // Every packet of an event has at least nine bytes.
    Layout::Whole.chunk_size() / 9 <= PACKETS_MAX as usize,
    "a chunk must be full before its count is"
);

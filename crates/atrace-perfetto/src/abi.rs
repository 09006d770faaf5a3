//! The words of the memory that is shared with Perfetto's service: pages, chunks, and who may change what.
//!
//! ```text
//! page    u32 layout and states, u32 reserved, chunks of equal size
//! layout  bits 28..31: how many chunks; 0: not divided yet
//! state   2 bits a chunk, from bit 0: free, being written (producer's), being read (service's), complete
//! chunk   u32 number, u16 writer, u16 count of packets and flags, packets
//! ```
//!
//! The producer takes a free chunk and completes it; the service alone frees it, and clears the whole word with the
//! page's last chunk. Of a word's other chunks nothing is changed, hence read-modify-writes. What is loaded was perhaps
//! written by a faulty service: it chooses among chunks that exist, and nothing else is indexed by it.
//!
//! Source: Perfetto's `shared_memory_abi.h`.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The size of a page: one whose smallest chunks still hold a thread's first packet, and whose largest can't hold
/// more packets than a chunk may count.
pub const PAGE: usize = 8192;
/// Before a page's chunks.
pub const PAGE_HEADER: usize = 8;
/// Before a chunk's packets.
pub const CHUNK_HEADER: usize = 8;
/// How many chunks a page has at most.
pub const CHUNKS_MAX: u32 = 14;
/// The most packets of a chunk.
pub const PACKETS_MAX: u16 = 1023;

const LAYOUT_SHIFT: u32 = 28;
const LAYOUT_MASK: u32 = 7 << LAYOUT_SHIFT;
const STATES: u32 = (1 << LAYOUT_SHIFT) - 1;
const BEING_WRITTEN: u32 = 1;
const BEING_READ: u32 = 2;
const COMPLETE: u32 = 3;

/// How a page is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One chunk: for a thread that fills it.
    Whole,
    /// Fourteen chunks: for threads that write little.
    Small,
}

impl Layout {
    const fn word(self) -> u32 {
        match self {
            Self::Whole => 1 << LAYOUT_SHIFT,
            Self::Small => 5 << LAYOUT_SHIFT,
        }
    }

    /// How many chunks a page has.
    pub const fn chunks(self) -> u32 {
        match self {
            Self::Whole => 1,
            Self::Small => CHUNKS_MAX,
        }
    }

    /// How many bytes a chunk has, its header included.
    pub const fn chunk_size(self) -> usize {
        chunk_size(PAGE, self.chunks())
    }
}

/// How many bytes a chunk has where a page of this size has so many.
pub const fn chunk_size(page: usize, chunks: u32) -> usize {
    ((page - PAGE_HEADER) / chunks as usize) & !3
}

/// How many chunks a page has with this word; none where it is not divided.
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

/// The producer takes a free chunk of a page with this layout, dividing the page if it is not; returns which.
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
        // Acquire: the service has read what stood there before.
        match header.compare_exchange_weak(word, taken, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(chunk),
            Err(present) => word = present,
        }
    }
}

/// The producer has written the chunk.
pub fn complete(header: &AtomicU32, chunk: u32) {
    // Release: the packets before the state.
    header.fetch_or((COMPLETE ^ BEING_WRITTEN) << (2 * chunk), Ordering::Release);
}

/// The service begins to read a complete chunk; tells whether it was one.
pub fn begin_reading(header: &AtomicU32, chunk: u32) -> bool {
    let word = header.load(Ordering::Acquire);
    let is_complete = chunk < chunks_of(word) && state(word, chunk) == COMPLETE;
    if is_complete {
        header.fetch_and(!((COMPLETE ^ BEING_READ) << (2 * chunk)), Ordering::Acquire);
    }
    is_complete
}

/// The service has read the chunk, which is free from now on.
pub fn free(header: &AtomicU32, chunk: u32) {
    let mut word = header.load(Ordering::Relaxed);
    loop {
        let mut freed = word & !(3 << (2 * chunk));
        if freed & STATES == 0 {
            freed = 0;
        }
        // Release: what was read, before it may be written again.
        match header.compare_exchange_weak(word, freed, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(present) => word = present,
        }
    }
}

/// Whether the producer is writing the chunk, or has written it.
pub const fn is_in_use(word: u32, chunk: u32) -> bool {
    matches!(state(word, chunk), BEING_WRITTEN | COMPLETE)
}

/// Whether all chunks of a page are free, with this word.
pub const fn is_all_free(word: u32) -> bool {
    word & STATES == 0
}

const fn state(word: u32, chunk: u32) -> u32 {
    word >> (2 * chunk) & 3
}

const _: () = assert!(
    // A packet of an event has nine bytes at least.
    Layout::Whole.chunk_size() / 9 <= PACKETS_MAX as usize,
    "a chunk must be full before its count is"
);

//! The memory that is shared with the service: an [`Arena`] of pages, and the [`Chunk`]s that threads write.
//!
//! It is a memory file of ours, sealed so that nobody can make it smaller: the service could otherwise end this process
//! by a store to what is no more. What the service's own file can't prove of itself is not mapped. An arena is never
//! unmapped, as a thread may be in the middle of an event: once the service is gone, or in a forked child, anonymous
//! memory is laid over it, which costs nothing and is nobody else's. Where no thread is in such an event, the next file is
//! mapped at the same place: a service that comes back a thousand times costs the addresses of one.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use atrace_sys::memory::{Mapped, Region, Shared, sealed_file, sealed_size};
use atrace_sys::{Descriptor, OnceRef};

use super::abi::{self, CHUNK_HEADER, CHUNKS_MAX, Layout, PAGE, PAGE_HEADER};
use super::handed::Handed;
use super::wire::Moved;

/// Shared pages, and beside each chunk what only this process knows of it.
#[derive(Debug)]
pub struct Arena {
    memory: Region,
    pages: u32,
    handed: Handed,
    /// Where the last whole page, and the last small chunk, was found.
    hints: [AtomicU32; 2],
    is_retired: AtomicBool,
    /// The arena that was made before this one.
    before: Option<&'static Arena>,
}

/// What only this process knows of a chunk.
#[derive(Debug)]
#[repr(C)]
struct Beside {
    /// Of those handed over: the one before.
    next: AtomicU32,
    /// The service's number of the buffer that it was opened for.
    buffer: AtomicU32,
}

/// What a chunk begins with.
#[derive(Debug)]
#[repr(C)]
struct Head {
    /// Which of its writer's chunks it is.
    number: AtomicU32,
    writer: AtomicU16,
    /// How many packets have begun.
    packets: AtomicU16,
}

/// Why events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No chunk was free.
    Room,
    /// Their thread was in the middle of another event, or had no place.
    Inside,
    /// The service had not said yet which sessions there are.
    Early,
}

impl Loss {
    /// All of them, by the pages that count them.
    pub const ALL: [Self; 3] = [Self::Room, Self::Inside, Self::Early];

    /// Where such losses are counted: in the word of a page's header that Perfetto has reserved, and neither side of
    /// its protocol looks at.
    pub(super) const fn word(self, page: usize) -> usize {
        self as usize * page + 4
    }
}

// SAFETY: atomics.
unsafe impl Shared for Beside {}
// SAFETY: as above.
unsafe impl Shared for Head {}

/// Bytes of this process alone, zeros at first, of which there is what is touched. Not of the heap, which an event must not
/// touch, nor a thread that it started.
#[derive(Debug)]
pub struct Buffer(Region);

impl Buffer {
    /// Maps so many bytes.
    ///
    /// # Errors
    ///
    /// When there is no memory.
    pub fn new(size: usize) -> io::Result<Self> {
        Region::own(size).map(Self)
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: zeros at first; the mapping is of that size, and this alone refers to it.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(0), self.0.size()) }
    }
}

/// The arena that was made last; from it on they are all found.
static LAST: OnceRef<Arena> = OnceRef::new();
/// Arenas that nobody writes in: of the connection before, and of the recording before.
static SPARES: [OnceRef<Arena>; 4] = [const { OnceRef::new() }; 4];

impl Arena {
    /// Makes a memory file of so many pages, sealed, and maps it; returns its descriptor, too.
    ///
    /// # Errors
    ///
    /// Returns what failed.
    #[inline(never)]
    pub fn make(pages: u32) -> io::Result<(&'static Self, Descriptor)> {
        let file = sealed_file(c"atrace-perfetto", pages as usize * PAGE)?;
        Ok((Self::map(file.as_raw_fd(), pages)?, file))
    }

    /// Maps a file that came from the service, if it can't shrink and has pages of our size.
    ///
    /// # Errors
    ///
    /// Returns what failed; EPERM where it could shrink, EINVAL where its size is wrong.
    #[inline(never)]
    pub fn of_service(file: BorrowedFd<'_>) -> io::Result<&'static Self> {
        let fd = file.as_raw_fd();
        let pages = sealed_size(fd)? / PAGE;
        if !(1..=4096).contains(&pages) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::map(fd, pages as u32)
    }

    fn map(fd: RawFd, pages: u32) -> io::Result<&'static Self> {
        let arena = Self::spare(pages).map_or_else(|| Self::reserve(pages), Ok)?;
        // Over the start of its memory, which is larger, and which nobody uses.
        if let Err(error) = arena.memory.lay(Some((fd, pages as usize * PAGE))) {
            arena.keep();
            return Err(error);
        }
        arena.is_retired.store(false, Ordering::Relaxed);
        Ok(arena)
    }

    /// Takes one with so many pages that nobody writes in.
    fn spare(pages: u32) -> Option<&'static Self> {
        SPARES.iter().find_map(|place| {
            let spare = place.take()?;
            if spare.pages != pages {
                spare.keep();
                return None;
            }
            Some(spare)
        })
    }

    /// Has it used again by the next that needs one.
    #[inline(never)]
    fn keep(&'static self) {
        // Where there are enough of them, it only keeps its addresses.
        let _ = SPARES.iter().any(|place| place.set(self).is_ok());
    }

    /// One with memory that is nobody else's.
    fn reserve(pages: u32) -> io::Result<&'static Self> {
        loop {
            let before = LAST.get();
            let new = Mapped::of(Self {
                memory: Region::own(Self::size(pages))?,
                pages,
                handed: Handed::default(),
                hints: [const { AtomicU32::new(0) }; 2],
                is_retired: AtomicBool::new(true),
                before,
            })?;
            // Once more where another thread was faster.
            if let Ok(new) = LAST.offer(before, new) {
                return Ok(new);
            }
        }
    }

    /// [`retire`](Self::retire)s all: in a forked child, of which its parent's memory must not hear. Async-signal-safe.
    pub fn retire_all() {
        let mut next = LAST.get();
        while let Some(arena) = next {
            if !arena.is_retired.load(Ordering::Relaxed) {
                arena.retire();
            }
            next = arena.before;
        }
    }

    /// The whole mapping: the pages, then what is known beside them.
    const fn size(pages: u32) -> usize {
        pages as usize * (PAGE + CHUNKS_MAX as usize * size_of::<Beside>())
    }

    /// Lays anonymous memory over it: nobody else sees what is written there from now on. Async-signal-safe.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        // Its users write to it, and read nothing that must be so. Where there is no memory for it, it stays as it is.
        let _ = self.memory.lay(None);
    }

    /// [`retire`](Self::retire)s it, and has it used again: no thread has a chunk of it, or is in the middle of an event that
    /// could take one.
    #[inline(never)]
    pub fn give_back(&'static self) {
        let _ = self.take_handed();
        self.retire();
        self.hints.iter().for_each(|hint| hint.store(0, Ordering::Relaxed));
        self.keep();
    }

    fn header(&self, page: u32) -> Option<&AtomicU32> {
        self.memory.get(page as usize * PAGE).filter(|_| page < self.pages)
    }

    /// Counts events that were lost (or, below zero, were not), where a service that knows of it finds the count even
    /// after this process was killed.
    #[inline(never)]
    pub fn count_lost(&self, loss: Loss, events: i32) {
        let word = self.memory.get::<AtomicU32>(loss.word(PAGE));
        if let Some(word) = word.filter(|_| (loss as u32) < self.pages) {
            word.fetch_add(events.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// Behind the pages.
    fn beside(&self, index: u32) -> Option<&Beside> {
        self.memory.get(self.pages as usize * PAGE + index as usize * size_of::<Beside>())
    }

    /// Takes a free chunk of this layout.
    #[inline(never)]
    fn take(&'static self, layout: Layout) -> Option<(u32, u32)> {
        if self.is_retired.load(Ordering::Relaxed) {
            return None;
        }
        let hint = &self.hints[usize::from(layout == Layout::Small)];
        let mut page = hint.load(Ordering::Relaxed);
        for _ in 0..self.pages {
            if page >= self.pages {
                page = 0;
            }
            if let Some(chunk) = abi::take(self.header(page)?, layout) {
                let is_small = layout == Layout::Small;
                hint.store(if is_small { page } else { page + 1 }, Ordering::Relaxed);
                return Some((page, chunk));
            }
            page += 1;
        }
        None
    }

    /// Opens a chunk for a writer: of this layout, or of the other where there is none.
    #[inline(never)]
    pub fn open(&'static self, layout: Layout, writer: u16, number: u32, buffer: u32) -> Option<Chunk> {
        let other = if layout == Layout::Whole { Layout::Small } else { Layout::Whole };
        let (layout, (page, chunk)) =
            [layout, other].into_iter().find_map(|layout| Some((layout, self.take(layout)?)))?;
        let size = layout.chunk_size();
        let index = page * CHUNKS_MAX + chunk;
        self.beside(index)?.buffer.store(buffer, Ordering::Relaxed);
        let start = Self::start(page, chunk, layout.chunks());
        let head: &Head = self.memory.get(start)?;
        head.number.store(number, Ordering::Relaxed);
        head.writer.store(writer, Ordering::Relaxed);
        // One packet, which is not finished.
        head.packets.store(1, Ordering::Release);
        let start = self.memory.at(start);
        // Within the chunk; its last byte is kept for an empty packet.
        let (at, end) = (start.wrapping_add(CHUNK_HEADER), start.wrapping_add(size - 1));
        Some(Chunk { at, end, start, finished: 0, index, arena: Some(self) })
    }

    /// Takes what was handed over: chunks in the order that each thread completed them, and their buffers.
    #[inline(never)]
    pub fn take_handed(&'static self) -> Completed {
        let chunks = self.pages * CHUNKS_MAX;
        let first = self.handed.take(chunks, |index| Some(&self.beside(index)?.next));
        Completed { arena: self, first, left: chunks }
    }

    /// Reads a complete chunk, as the service does, and frees it: calls `each` with its writer's number and each of its
    /// packets, without their lengths. For who records this process alone, and so may read memory as it is.
    pub fn read(&self, place: &Moved, mut each: impl FnMut(u16, &[u8])) {
        let Some(header) = self.header(place.page) else { return };
        let chunks = abi::chunks_of(header.load(Ordering::Relaxed));
        if !abi::begin_reading(header, place.chunk) {
            return;
        }
        let start = Self::start(place.page, place.chunk, chunks);
        let size = abi::chunk_size(PAGE, chunks);
        // SAFETY: the chunk lies within the page, see `begin_reading`; it is complete, so nobody writes there before it is
        // freed.
        let bytes = unsafe { std::slice::from_raw_parts(self.memory.at(start), size) };
        let (head, mut rest) = bytes.split_at(CHUNK_HEADER);
        let writer = u16::from_le_bytes([head[4], head[5]]);
        let packets = u16::from_le_bytes([head[6], head[7]]) & abi::PACKETS_MAX;
        for _ in 0..packets {
            let Some((packet, behind)) = split_packet(rest) else { break };
            rest = behind;
            if !packet.is_empty() {
                each(writer, packet);
            }
        }
        // Who opens it next has written nothing before this is another number.
        if let Some(head) = self.memory.get::<Head>(start) {
            head.packets.store(0, Ordering::Relaxed);
        }
        abi::free(header, place.chunk);
    }

    /// Reads what threads have finished in chunks that they did not hand over, since they stand in the middle of an event:
    /// calls `each` as [`read`](Self::read) does. Once there are no others.
    pub fn read_left(&self, mut each: impl FnMut(u16, &[u8])) {
        for page in 0..self.pages {
            let Some(header) = self.header(page) else { return };
            let word = header.load(Ordering::Acquire);
            let chunks = abi::chunks_of(word);
            for chunk in (0..chunks).filter(|chunk| abi::is_in_use(word, *chunk)) {
                let start = Self::start(page, chunk, chunks);
                let Some(head) = self.memory.get::<Head>(start) else { return };
                let packets = head.packets.load(Ordering::Acquire);
                let writer = head.writer.load(Ordering::Relaxed);
                let (mut at, end) = (start + CHUNK_HEADER, start + abi::chunk_size(PAGE, chunks));
                // The last that is counted is being written.
                for _ in 1..packets & abi::PACKETS_MAX {
                    // SAFETY: within the chunk; what is finished is not written any more.
                    let byte = |i| unsafe { self.memory.at(at + i).read() };
                    let Some((before, len)) = packet_len(end - at, byte) else { break };
                    // SAFETY: as above.
                    each(writer, unsafe { std::slice::from_raw_parts(self.memory.at(at + before), len) });
                    at += before + len;
                }
            }
        }
    }

    /// Where a chunk of a page begins that has so many.
    const fn start(page: u32, chunk: u32, chunks: u32) -> usize {
        page as usize * PAGE + PAGE_HEADER + chunk as usize * abi::chunk_size(PAGE, chunks)
    }

    /// How many pages there are.
    pub const fn pages(&self) -> u32 {
        self.pages
    }
}

/// Chunks that were handed over, from the first on. To take them again, clone it before: a chunk that the service has freed
/// belongs to others.
#[derive(Clone, Debug)]
#[must_use = "what is not named to the service is lost"]
pub struct Completed {
    arena: &'static Arena,
    first: u32,
    /// At most so many follow.
    left: u32,
}

impl Completed {
    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.first == 0 || self.left == 0
    }
}

impl Iterator for Completed {
    type Item = Moved;

    fn next(&mut self) -> Option<Moved> {
        let index = self.first.checked_sub(1).filter(|_| self.left > 0)?;
        let Beside { next, buffer } = self.arena.beside(index)?;
        self.first = next.load(Ordering::Relaxed);
        self.left -= 1;
        let buffer = buffer.load(Ordering::Relaxed);
        Some(Moved { page: index / CHUNKS_MAX, chunk: index % CHUNKS_MAX, buffer })
    }
}

/// Splits a packet off, whose length stands before it.
fn split_packet(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (before, len) = packet_len(bytes.len(), |at| bytes[at])?;
    bytes.get(before..)?.split_at_checked(len)
}

/// How many bytes the length of a packet has, and the packet; all of it is within so many.
fn packet_len(most: usize, byte: impl Fn(usize) -> u8) -> Option<(usize, usize)> {
    let mut len = 0;
    for at in 0..most.min(4) {
        let byte = byte(at);
        len |= usize::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return (len < most - at).then_some((at + 1, len));
        }
    }
    None
}

/// A chunk that a thread is writing. All zeroes, it is none.
///
/// Its packets are written by the thread that it belongs to, into memory that nobody else writes.
#[derive(Debug)]
#[repr(C)]
pub struct Chunk {
    at: *mut u8,
    /// Where the byte lies that is kept.
    end: *mut u8,
    start: *mut u8,
    /// How many packets are finished.
    finished: u32,
    index: u32,
    arena: Option<&'static Arena>,
}

impl Chunk {
    /// None: without room.
    pub const fn none() -> Self {
        let null = ptr::null_mut();
        Self { at: null, end: null, start: null, finished: 0, index: 0, arena: None }
    }

    /// Whether it is one.
    pub const fn is_some(&self) -> bool {
        self.arena.is_some()
    }

    /// How many bytes more it can take.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.end.addr() - self.at.addr()
    }

    /// Where the next packet begins.
    #[inline(always)]
    pub const fn at(&self) -> *mut u8 {
        self.at
    }

    /// The packet that begins at [`at`](Self::at) ends before `end`: readers may have it.
    ///
    /// # Safety
    ///
    /// `end` is at most [`room`](Self::room) behind `at`, of a chunk that is one.
    #[inline(always)]
    pub unsafe fn publish(&mut self, end: *mut u8) {
        self.at = end;
        self.finished += 1;
        // SAFETY: the chunk's header, aligned by 2. A reader ignores the last packet that is counted, of a chunk that is
        // not complete.
        unsafe {
            (*self.start.add(6).cast::<AtomicU16>()).store(self.finished as u16 + 1, Ordering::Release)
        };
    }

    /// Writes a packet that is there already, length included; tells whether it had room.
    #[inline(never)]
    pub fn write(&mut self, packet: &[u8]) -> bool {
        if !self.is_some() || packet.len() > self.room() {
            return false;
        }
        // SAFETY: there is room for it.
        unsafe {
            ptr::copy_nonoverlapping(packet.as_ptr(), self.at, packet.len());
            self.publish(self.at.add(packet.len()));
        }
        true
    }

    /// Completes the chunk and hands it over; from then on it is none.
    #[inline(never)]
    pub fn complete(&mut self) {
        let Self { at, index, arena, .. } = std::mem::take(self);
        let Some(arena) = arena else { return };
        // SAFETY: the byte that was kept: the packet that is counted already is an empty one.
        unsafe { at.write(0) };
        if let (Some(header), Some(beside)) = (arena.header(index / CHUNKS_MAX), arena.beside(index)) {
            abi::complete(header, index % CHUNKS_MAX);
            arena.handed.push(index, &beside.next);
        }
    }
}

impl Default for Chunk {
    fn default() -> Self {
        Self::none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a service does that frees what it was not given.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory that is shared")]
    fn chunks_that_come_twice_are_an_end() {
        let arena = Arena::reserve(1).unwrap();
        let mut none = arena.take_handed();
        assert_eq!((none.is_empty(), none.next()), (true, None));
        let push = |index: u32| arena.handed.push(index, &arena.beside(index).unwrap().next);
        [3, 1, 2].into_iter().for_each(push);
        let all = arena.take_handed();
        assert_eq!(all.clone().map(|place| place.chunk).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!((all.is_empty(), arena.take_handed().is_empty()), (false, true));
        [3, 1, 3, 2, 1].into_iter().for_each(push);
        assert!((1..=CHUNKS_MAX as usize).contains(&arena.take_handed().count()));
        // Handed over again while it is named.
        [3, 1, 2].into_iter().for_each(push);
        let mut all = arena.take_handed();
        assert_eq!(all.next().map(|place| place.chunk), Some(3));
        [1, 2, 1].into_iter().for_each(push);
        assert!(all.count() <= CHUNKS_MAX as usize);
    }
}

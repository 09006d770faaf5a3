//! The memory shared with the service: an [`Arena`] of pages, and the [`Chunk`]s of these pages, which threads write.
//!
//! # Trust
//!
//! The memory belongs to a file without a name (`memfd_create`), which has a seal, so that no process can shrink it. If
//! the file were shrunk, a write behind its end would kill the process that makes the write. A file that the service
//! provides is mapped only if it has this seal. (On kernels before 3.17, which have no seals, the file must belong to
//! this user or root.) All words that the service may write are checked before they are used as an index (`abi.rs`).
//!
//! # Lifetime
//!
//! An arena is never unmapped, because a thread may be in the middle of an event at any time. When the connection is
//! gone or the recording has ended, and in a forked child, the arena is *retired*: anonymous memory is mapped over it.
//! Late writes then go to memory that no other process sees. An arena becomes one of at most four *spares* if it was
//! not retired by a fork and no thread has a chunk of it any more. The next file of the same size is then mapped at the
//! addresses of the spare. So even if the service restarts a thousand times, only one arena takes address space.
//!
//! All arenas are in a linked list, so that the fork handler can retire all of them.
//!
//! # Chunks
//!
//! [`Arena::open`] takes a free chunk by compare-and-swap. The thread that opened the chunk writes packets to it, and
//! [`Chunk::publish`] counts each packet. Readers of an unfinished chunk skip the last packet that its header counts.
//! So as long as the chunk is not complete, the count includes one packet that is not finished; after a crash, all
//! finished packets can then be read. [`Chunk::complete`] turns the unfinished packet into an empty packet, marks the
//! chunk complete, and pushes it to the list of completed chunks (`completed.rs`).

use std::os::fd::{AsRawFd as _, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, Ordering};
use std::time::Duration;

use atrace_sys::memory::{Mapped, Region, Shared, may_have_size, page_size, sealed_file, sealed_size};
use atrace_sys::{Descriptor, Errno, OnceRef, Result};

use super::abi::{self, CHUNK_HEADER, CHUNKS_MAX, Layout, PAGE, PAGE_HEADER};
use super::completed::CompletedStack;
use super::filling::Filling;
use super::proto::varint;
use super::wire::ChunkPlace;

/// The pages that are shared with the service. Behind these pages, on separate pages, is the private data of each
/// chunk.
#[derive(Debug)]
pub struct Arena {
    memory: Region,
    pages: u32,
    /// The offset at which the private data begins.
    private: usize,
    completed: CompletedStack,
    filling: Filling,
    /// The pages at which the next search for a free chunk starts: the first page is for whole chunks (a whole chunk
    /// fills a page), the second page for small chunks. The search for a whole chunk starts behind the page of the
    /// whole chunk that was taken last. The search for a small chunk starts at the page of the small chunk that was
    /// taken last. After each collection of the completed chunks ([`Arena::take_completed`]), the search for a whole
    /// chunk starts at page 0 again. So mostly the lowest pages are used, which saves memory, because pages that are
    /// never touched take none.
    hints: [AtomicU32; 2],
    is_retired: AtomicBool,
    /// The arena that was made before this arena, or `None`: the link of the list of all arenas.
    before: Option<&'static Arena>,
}

/// The private data of a chunk, which is not shared with the service: the link of the list of completed chunks, and the
/// number by which the service identifies the buffer for the chunk's packets.
type Private = [AtomicU32; 2];

/// The second word of a chunk's header. (The first word is the chunk's number.) Its first half is the number of the
/// chunk's writer. Its second half is the number of packets in the chunk, with the chunk's flags in higher bits. While
/// a thread writes the chunk, the last packet that is counted is unfinished.
type Head = [AtomicU16; 2];

/// The reason why events were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// No chunk was free, or the event ends a slice whose begin was lost.
    Room,
    /// The thread could not be pinned (`pin.rs`), because it was in the middle of another event, or had no slot.
    NotPinned,
    /// The event was written before the service had reported the existing sessions.
    Early,
}

impl Loss {
    /// All reasons, in the order of the pages whose headers hold the counts of the reasons.
    pub const ALL: [Self; 3] = [Self::Room, Self::NotPinned, Self::Early];

    /// Returns the offset of the word that counts the losses for this reason. The word is in the header of one of the
    /// first three pages, where Perfetto's protocol reserves it and does not use it.
    pub(super) const fn word(self, page: usize) -> usize {
        self as usize * page + 4
    }
}

/// Mapped memory of this process. Its bytes are initially zero, and a page takes memory only once it is
/// touched.
///
/// The memory is not on the heap, because an event, or a thread that an event has started, must not use the
/// heap.
#[derive(Debug)]
pub struct Buffer(Region);

impl Buffer {
    /// Maps `size` bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no memory.
    pub fn new(size: usize) -> Result<Self> {
        Region::own(size).map(Self)
    }

    /// Returns the bytes of the buffer.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has this size, its bytes are initialised with zeroes, and `&mut self` is the only
        // access to them.
        unsafe { std::slice::from_raw_parts_mut(self.0.at(0), self.0.size()) }
    }
}

/// The arena that was made last, which is the head of the list of all arenas.
static LAST: OnceRef<Arena> = OnceRef::new();
/// Spare arenas, whose addresses can be used again. They belonged to former connections and recordings, and no thread
/// writes to them.
static SPARES: [OnceRef<Arena>; 4] = [const { OnceRef::new() }; 4];

impl Arena {
    /// Makes a sealed memory file of `pages` pages and maps it. If the process may not make a file of this size
    /// (`RLIMIT_FSIZE`), the file has at most 1 MiB. Returns the arena and the descriptor of the file.
    ///
    /// # Errors
    ///
    /// Returns the error of the system; EFBIG if the process may not make a file of 1 MiB either.
    #[inline(never)]
    pub fn make(pages: u32) -> Result<(&'static Self, Descriptor)> {
        const USUAL: u32 = (1 << 20) / PAGE as u32;
        let may_have = |pages: u32| may_have_size(pages as usize * PAGE);
        let pages = if may_have(pages) { pages } else { pages.min(USUAL) };
        if !may_have(pages) {
            return Err(Errno(libc::EFBIG)); // The attempt would raise SIGXFSZ.
        }
        let file = sealed_file(c"atrace-perfetto", pages as usize * PAGE)?;
        Ok((Self::map(file.as_raw_fd(), pages)?, file))
    }

    /// Maps a file that the service provides, with pages of [`PAGE`] bytes.
    ///
    /// # Errors
    ///
    /// Returns the error of the system; EPERM if the file could shrink; EINVAL if it has no page, or more than 4096
    /// pages.
    #[inline(never)]
    pub fn of_service(fd: RawFd) -> Result<&'static Self> {
        let pages = sealed_size(fd)? / PAGE;
        if !(1..=4096).contains(&pages) {
            return Err(Errno(libc::EINVAL));
        }
        Self::map(fd, pages as u32)
    }

    fn map(fd: RawFd, pages: u32) -> Result<&'static Self> {
        let arena = Self::spare(pages).map_or_else(|| Self::reserve(pages), Ok)?;
        // The file is mapped over the start of the arena's memory. The private data behind the file stays. At this
        // time, no thread uses the arena.
        if let Err(error) = arena.memory.lay(Some((fd, pages as usize * PAGE))) {
            arena.keep();
            return Err(error);
        }
        arena.filling.clear();
        arena.note_touched(0);
        arena.is_retired.store(false, Ordering::Relaxed);
        Ok(arena)
    }

    /// Takes a spare arena with this number of pages, or returns `None` if there is none.
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

    /// Makes this arena a *spare*, whose addresses can be used for a later file.
    #[inline(never)]
    fn keep(&'static self) {
        // If there are already enough spares, this arena is not used again, and only occupies its addresses.
        let _ = SPARES.iter().any(|place| place.set(self).is_ok());
    }

    /// Makes an arena whose pages are private memory of this process.
    fn reserve(pages: u32) -> Result<&'static Self> {
        loop {
            let before = LAST.get();
            let private = private_from(pages, page_size());
            let new = Mapped::of(Self {
                memory: Region::own(private + pages as usize * CHUNKS_MAX as usize * size_of::<Private>())?,
                pages,
                private,
                completed: CompletedStack::default(),
                filling: Filling::default(),
                hints: [const { AtomicU32::new(0) }; 2],
                is_retired: AtomicBool::new(true),
                before,
            })?;
            // If another thread has added an arena meanwhile, the loop tries again, with that arena as `before`.
            if let Ok(new) = LAST.offer(before, new) {
                return Ok(new);
            }
        }
    }

    /// [Retires](Self::retire) all arenas. A forked child calls this, because its writes must not reach its
    /// parent's memory.
    ///
    /// Async-signal-safe.
    pub fn retire_all() {
        let mut next = LAST.get();
        while let Some(arena) = next {
            if !arena.is_retired.load(Ordering::Relaxed) {
                arena.retire();
            }
            next = arena.before;
        }
    }

    /// Maps anonymous memory over the arena. If this succeeds, no other process sees data that is written to the arena
    /// from now on.
    ///
    /// Async-signal-safe.
    pub fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
        // Threads that still use the arena write to it, and don't depend on data that they read from it. If there is no
        // memory for the new mapping, the arena stays mapped as it is.
        let _ = self.memory.lay(None);
    }

    /// [Retires](Self::retire) the arena, and then makes it a spare, whose addresses can be used for a later file.
    ///
    /// No thread may have a chunk of this arena, or be in the middle of an event that could open a chunk of it.
    #[inline(never)]
    pub fn give_back(&'static self) {
        let _ = self.take_completed();
        self.retire();
        self.hints.iter().for_each(|hint| hint.store(0, Ordering::Relaxed));
        self.keep();
    }

    fn header(&self, page: u32) -> Option<&AtomicU32> {
        self.memory.get(page as usize * PAGE).filter(|_| page < self.pages)
    }

    /// Adds `events` to the count of the events that were lost for the reason `loss`. A negative number corrects the
    /// count. The count is a word in the shared memory, so a service can read it even after this process was killed.
    #[inline(never)]
    pub fn count_lost(&self, loss: Loss, events: i32) {
        let word = self.memory.get::<AtomicU32>(loss.word(PAGE));
        if let Some(word) = word.filter(|_| (loss as u32) < self.pages) {
            word.fetch_add(events.cast_unsigned(), Ordering::Relaxed);
        }
    }

    /// Returns the count of the events that were lost for the reason `loss`, and sets the count to 0.
    pub(crate) fn take_lost(&self, loss: Loss) -> u32 {
        let word = self.memory.get::<AtomicU32>(loss.word(PAGE)).filter(|_| (loss as u32) < self.pages);
        word.map_or(0, |word| word.swap(0, Ordering::Relaxed))
    }

    /// Returns the private data of a chunk, which lies behind the pages, or `None` if there is no such chunk.
    fn private(&self, index: u32) -> Option<&Private> {
        self.memory.get(self.private + index as usize * size_of::<Private>())
    }

    /// Returns the second word of the header of the chunk that starts at this offset, if the offset is valid.
    fn head(&self, start: usize) -> Option<&Head> {
        self.memory.get(start + 4)
    }

    /// Takes a free chunk of this layout. Returns the index of its page, and the index of the chunk in the page; or
    /// `None` if no such chunk is free or the arena is retired.
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
                self.note_touched(page + 1);
                self.filling.add(CHUNKS_MAX / layout.chunks(), self.half());
                return Some((page, chunk));
            }
            page += 1;
        }
        None
    }

    /// Records that the first `pages` pages have been used. The record is the word that [`touched`] reads. A reader
    /// skips all other pages, because reading them would allocate memory for them.
    fn note_touched(&self, pages: u32) {
        if let Some(word) = self.memory.get::<AtomicU32>(TOUCHED).filter(|_| self.pages > TOUCHED_PAGE)
            && word.load(Ordering::Relaxed) <= pages
        {
            word.fetch_max(pages + 1, Ordering::Release);
        }
    }

    /// Returns half of the arena's size. The unit is a small chunk, of which [`CHUNKS_MAX`] fit into a page.
    const fn half(&self) -> u32 {
        self.pages * CHUNKS_MAX / 2
    }

    /// Sleeps until one of these happens: threads have taken half of the arena since the last call of
    /// [`take_completed`](Self::take_completed), a thread waits for room, or `time` has passed. Returns false if the
    /// system refuses the sleep. Only one thread may sleep.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        self.filling.sleep(self.half(), time)
    }

    /// Wakes the thread that [sleeps](Self::sleep). Async-signal-safe.
    pub(crate) fn wake(&self) {
        self.filling.wake();
    }

    /// Opens a chunk for a writer. The chunk has this layout or, if no such chunk is free, the other layout. Returns
    /// `None` if no chunk is free, or if the arena was [retired](Self::retire).
    #[inline(never)]
    pub fn open(&'static self, layout: Layout, writer: u16, number: u32, buffer: u32) -> Option<Chunk> {
        let other = if layout == Layout::Whole { Layout::Small } else { Layout::Whole };
        let (layout, (page, chunk)) =
            [layout, other].into_iter().find_map(|layout| Some((layout, self.take(layout)?)))?;
        let size = layout.chunk_size();
        let index = page * CHUNKS_MAX + chunk;
        let [_, buffer_of] = self.private(index)?;
        buffer_of.store(buffer, Ordering::Relaxed);
        let start = Self::start(page, chunk, layout.chunks());
        let [writer_of, packets] = self.head(start)?;
        self.memory.get::<AtomicU32>(start)?.store(number, Ordering::Relaxed);
        writer_of.store(writer, Ordering::Relaxed);
        // The count includes the first packet, which is not finished.
        packets.store(1, Ordering::Release);
        let start = self.memory.at(start);
        // Both addresses are within the chunk. The chunk's last byte is reserved for an empty packet.
        let (at, end) = (start.wrapping_add(CHUNK_HEADER), start.wrapping_add(size - 1));
        Some(Chunk { at, end, start, finished: 0, index, arena: Some(self) })
    }

    /// Takes the list of completed chunks. The chunks of each thread are in the order of their
    /// completion.
    #[inline(never)]
    pub fn take_completed(&'static self) -> Completed {
        self.filling.clear();
        self.hints[0].store(0, Ordering::Relaxed);
        let chunks = self.pages * CHUNKS_MAX;
        let first = self.completed.take(chunks, |index| Some(&self.private(index)?[0]));
        Completed { arena: self, first, left: chunks }
    }

    /// Reads a complete chunk and frees it, as the service does. Calls `each` with each packet, or part of a packet.
    ///
    /// Call this only for memory that is not shared with another process: the chunk is read in place, which is unsound
    /// if another process may write to it.
    pub fn read(&self, place: &ChunkPlace, mut each: impl FnMut(Part<'_>)) {
        self.consume(place, |start, chunks| {
            let Some([writer, packets]) = self.head(start) else { return };
            let (writer, finished) = (writer.load(Ordering::Relaxed), packets.load(Ordering::Relaxed));
            self.packets(start, chunks, finished, |bytes, flags| each(Part { writer, bytes, flags }));
        });
    }

    /// Copies a complete chunk with its header to the start of `to`, and frees the chunk. Returns the copy, or `None`
    /// if the chunk is not complete.
    ///
    /// Like [`read`](Self::read), call this only for memory that is not shared with another process.
    pub(crate) fn take_out<'a>(&self, place: &ChunkPlace, to: &'a mut [u8; PAGE]) -> Option<&'a [u8]> {
        let mut size = 0;
        self.consume(place, |start, chunks| {
            size = abi::chunk_size(PAGE, chunks);
            // No thread writes to the chunk until the chunk is free.
            to.get_mut(..size).into_iter().for_each(|to| self.copy(start, to));
        });
        to.get(..size).filter(|_| size > 0)
    }

    /// Fills `to` with the bytes from the offset `from` on, as far as they are within the pages. No thread or process
    /// may be writing these bytes.
    fn copy(&self, from: usize, to: &mut [u8]) {
        let len = to.len().min((self.pages as usize * PAGE).saturating_sub(from));
        // SAFETY: the bytes are within the arena, and they don't change.
        unsafe { ptr::copy_nonoverlapping(self.memory.at(from), to.as_mut_ptr(), len) };
    }

    /// Calls `read` with the offset of a complete chunk and the number of chunks in its page, and then frees
    /// the chunk.
    #[inline(always)]
    fn consume(&self, place: &ChunkPlace, read: impl FnOnce(usize, u32)) {
        let Some(header) = self.header(place.page) else { return };
        let chunks = abi::chunks_of(header.load(Ordering::Relaxed));
        if !abi::begin_reading(header, place.chunk) {
            return;
        }
        let start = Self::start(place.page, place.chunk, chunks);
        read(start, chunks);
        if let Some([_, packets]) = self.head(start) {
            // The thread that opens the chunk next sets this count before it writes packets. Until then, the count is
            // 0, so no reader finds packets in the chunk.
            packets.store(0, Ordering::Relaxed);
        }
        abi::free(header, place.chunk);
    }

    /// Calls `each` with each finished, non-empty packet of a chunk, and with the packet's flags, as long as the
    /// packets lie within the chunk. `finished` holds the number of finished packets and the chunk's flags. The caller
    /// makes sure that this number of packets is finished, because the function reads the packets in place, and only
    /// finished packets don't change any more. Returns the offset behind the last finished packet.
    fn packets(&self, start: usize, chunks: u32, finished: u16, mut each: impl FnMut(&[u8], u16)) -> usize {
        let (mut at, end) = (start + CHUNK_HEADER, start + abi::chunk_size(PAGE, chunks));
        let (finished, all_flags) = (finished & abi::PACKETS_MAX, finished >> abi::FLAGS_SHIFT);
        for number in 1..=finished {
            let of_first = if number == 1 { all_flags & abi::CONTINUES } else { 0 };
            let flags = of_first | if number == finished { all_flags & abi::GOES_ON } else { 0 };
            let byte = |i| Some(self.memory.get::<AtomicU8>(at + i)?.load(Ordering::Relaxed));
            let Some((before, len)) = packet_len(end - at, byte) else { break };
            if len > 0 {
                // SAFETY: the packet is within the chunk, and finished packets don't change any more.
                each(unsafe { std::slice::from_raw_parts(self.memory.at(at + before), len) }, flags);
            }
            at += before + len;
        }
        at
    }

    /// Returns the chunks that are neither free nor being read and that have finished packets. Once the list of
    /// completed chunks was taken and read, these are the chunks that threads are still writing. The second value of
    /// each pair holds the number of the chunk's finished packets, and the chunk's flags.
    pub(crate) fn open_chunks(&self) -> impl Iterator<Item = (Open, u16)> {
        let pages = touched(self.memory.get(TOUCHED), self.pages);
        let all = (0..pages * CHUNKS_MAX).map(|index| (index / CHUNKS_MAX, index % CHUNKS_MAX));
        all.filter_map(|(page, chunk)| self.open_chunk(page, chunk))
    }

    /// Returns this chunk, and a value that holds the number of its finished packets and its flags. Returns `None` if
    /// the chunk is free or being read, or has no finished packet.
    fn open_chunk(&self, page: u32, chunk: u32) -> Option<(Open, u16)> {
        let word = self.header(page)?.load(Ordering::Acquire);
        let chunks = abi::chunks_of(word);
        if chunk >= chunks || !abi::is_in_use(word, chunk) {
            return None;
        }
        let start = Self::start(page, chunk, chunks);
        let [writer, packets] = self.head(start)?;
        // Acquire: makes the packets visible, and the values that the thread stored when it opened the chunk. The last
        // packet that is counted is unfinished, so it is subtracted.
        let finished = packets.load(Ordering::Acquire).checked_sub(1)?;
        let number = self.memory.get::<AtomicU32>(start)?.load(Ordering::Relaxed);
        let [_, buffer] = self.private(page * CHUNKS_MAX + chunk)?;
        let place = ChunkPlace { page, chunk, buffer: buffer.load(Ordering::Relaxed) };
        let open = Open { place, number, writer: writer.load(Ordering::Relaxed), chunks };
        (finished & abi::PACKETS_MAX > 0).then_some((open, finished))
    }

    /// Copies the finished packets of an open chunk, with the chunk's header, to the start of `to`. The count in the
    /// header includes the unfinished packet. Returns the copy, which has the chunk's size, or `None` if the chunk
    /// has been freed.
    ///
    /// Call this only for memory that is not shared with another process, and only on the thread that frees chunks.
    pub(crate) fn copy_finished<'a>(&self, open: &Open, to: &'a mut [u8; PAGE]) -> Option<&'a [u8]> {
        let ChunkPlace { page, chunk, .. } = open.place;
        let (_, finished) = self.open_chunk(page, chunk).filter(|(present, _)| present == open)?;
        let start = Self::start(page, chunk, open.chunks);
        let end = self.packets(start, open.chunks, finished, |_, _| ());
        to.fill(0);
        let (header, packets) = to.split_first_chunk_mut::<CHUNK_HEADER>()?;
        header[..4].copy_from_slice(&open.number.to_le_bytes());
        header[4..6].copy_from_slice(&open.writer.to_le_bytes());
        header[6..].copy_from_slice(&(finished + 1).to_le_bytes());
        let begin = start + CHUNK_HEADER;
        // The packets are finished, so they don't change.
        self.copy(begin, packets.get_mut(..end - begin)?);
        to.get(..abi::chunk_size(PAGE, open.chunks))
    }

    /// Reads the finished packets of chunks that were not completed because their threads are stuck in the middle of
    /// an event. Calls `each` as [`read`](Self::read) does.
    ///
    /// Must be called after all completed chunks were read.
    pub fn read_left(&self, mut each: impl FnMut(Part<'_>)) {
        for (Open { place, writer, chunks, .. }, finished) in self.open_chunks() {
            let start = Self::start(place.page, place.chunk, chunks);
            // The flag `GOES_ON` belongs to the last packet, which is unfinished and is not read.
            let finished = finished & !(abi::GOES_ON << abi::FLAGS_SHIFT);
            self.packets(start, chunks, finished, |bytes, flags| each(Part { writer, bytes, flags }));
        }
    }

    /// Returns the offset of a chunk in a page that is divided into `chunks` chunks.
    const fn start(page: u32, chunk: u32, chunks: u32) -> usize {
        page as usize * PAGE + PAGE_HEADER + chunk as usize * abi::chunk_size(PAGE, chunks)
    }

    /// Returns the number of pages.
    pub const fn pages(&self) -> u32 {
        self.pages
    }
}

/// The page whose reserved word holds the number of used pages, plus 1. The reserved words of the pages before this
/// page hold the counts of [`Loss`].
pub(crate) const TOUCHED_PAGE: u32 = Loss::ALL.len() as u32;
/// The offset of the word with the number of used pages.
const TOUCHED: usize = TOUCHED_PAGE as usize * PAGE + 4;

/// Returns how many of its `pages` pages a producer has used, according to the word that holds this number. If there is
/// no such word, or if the word is 0, all pages count as used, because the number is not known.
pub(crate) fn touched(word: Option<&AtomicU32>, pages: u32) -> u32 {
    let word = word.filter(|_| pages > TOUCHED_PAGE);
    word.and_then(|word| word.load(Ordering::Acquire).checked_sub(1)).map_or(pages, |known| known.min(pages))
}

/// Returns the offset of an arena's private data: behind the system's page that contains the end of the file. If the
/// system's pages are larger than [`PAGE`], the last system page of the file may extend beyond the end of the file.
/// Data in this part of the system page is shared, too.
const fn private_from(pages: u32, page_size: usize) -> usize {
    (pages as usize * PAGE).next_multiple_of(page_size)
}

/// A packet, or one part of a packet that spans several chunks.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The number of the writer that wrote the packet.
    pub writer: u16,
    /// The packet, without its length.
    pub bytes: &'a [u8],
    /// [`abi::CONTINUES`] if the packet began in the writer's previous chunk, and [`abi::GOES_ON`] if the packet
    /// continues in the next chunk.
    pub flags: u16,
}

/// A list of completed chunks, as an iterator.
///
/// A clone that is made before the first use walks the same list, but must not be used after the chunks were
/// reported to the service: once the service has freed a chunk, the chunk's link may change.
#[derive(Clone, Debug)]
#[must_use = "chunks that are not reported to the service are lost"]
pub struct Completed {
    arena: &'static Arena,
    first: u32,
    /// The maximum number of chunks that may still follow. This number bounds the walk through a list with a cycle.
    left: u32,
}

impl Completed {
    /// Returns whether no chunk is left in the list.
    pub const fn is_empty(&self) -> bool {
        self.first == 0 || self.left == 0
    }
}

impl Iterator for Completed {
    type Item = ChunkPlace;

    fn next(&mut self) -> Option<ChunkPlace> {
        let index = self.first.checked_sub(1).filter(|_| self.left > 0)?;
        let [next, buffer] = self.arena.private(index)?;
        self.first = next.load(Ordering::Relaxed);
        self.left -= 1;
        let buffer = buffer.load(Ordering::Relaxed);
        Some(ChunkPlace { page: index / CHUNKS_MAX, chunk: index % CHUNKS_MAX, buffer })
    }
}

/// A chunk that [`Arena::open_chunks`] has found, with its state at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    /// The page and the index of the chunk, and the number of the buffer for its packets.
    pub(crate) place: ChunkPlace,
    number: u32,
    writer: u16,
    /// The number of chunks in the page of this chunk.
    chunks: u32,
}

/// Reads the length that precedes a packet, within `most` bytes. Returns the number of bytes that the length
/// takes and the number of bytes of the packet, or `None` if the packet does not end within `most` bytes.
fn packet_len(most: usize, byte: impl Fn(usize) -> Option<u8>) -> Option<(usize, usize)> {
    let (len, before) = varint(most.min(4), byte)?;
    let len = len as usize;
    (len <= most - before).then_some((before, len))
}

/// A chunk that a thread writes, or no chunk. Zeroes are a valid value, which means "no chunk".
///
/// Packets are written to the chunk only by its own thread, or by the thread that completes the chunk in place of its
/// own thread.
#[derive(Debug)]
#[repr(C)]
pub struct Chunk {
    at: *mut u8,
    /// The address of the chunk's last byte, which is reserved.
    end: *mut u8,
    start: *mut u8,
    /// The number of finished packets and, in higher bits, the chunk's flags.
    finished: u32,
    index: u32,
    arena: Option<&'static Arena>,
}

impl Chunk {
    /// Returns whether this value is a chunk, and not "no chunk".
    pub const fn is_some(&self) -> bool {
        self.arena.is_some()
    }

    /// Returns how many more bytes fit into the chunk.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.end.addr() - self.at.addr()
    }

    /// Returns the address where the next packet begins.
    #[inline(always)]
    pub const fn at(&self) -> *mut u8 {
        self.at
    }

    /// Publishes the packet that begins at [`at`](Self::at) and ends at `end`: from now on, the service may read the
    /// packet.
    ///
    /// # Safety
    ///
    /// This value must be a chunk. `end` must be at most [`room`](Self::room) bytes behind `at`, and the bytes from
    /// `at` to `end` must be a packet.
    #[inline(always)]
    pub unsafe fn publish(&mut self, end: *mut u8) {
        self.at = end;
        self.finished += 1;
        // SAFETY: the address is in the chunk's header and aligned by 2. The count includes the next packet, which
        // readers ignore while the chunk is not complete.
        unsafe {
            (*self.start.add(6).cast::<AtomicU16>()).store(self.finished as u16 + 1, Ordering::Release)
        };
    }

    /// Writes an encoded packet, which includes its length. Returns whether there was room for the packet.
    #[inline(never)]
    pub fn write(&mut self, packet: &[u8]) -> bool {
        if !self.is_some() || packet.len() > self.room() {
            return false;
        }
        // SAFETY: the chunk has room for the packet.
        unsafe {
            ptr::copy_nonoverlapping(packet.as_ptr(), self.at, packet.len());
            self.publish(self.at.add(packet.len()));
        }
        true
    }

    /// Completes the chunk and adds it to the list of completed chunks. Afterwards, `self` means "no chunk".
    #[inline(never)]
    pub fn complete(&mut self) {
        if let Some(length) = self.word::<AtomicU8>(self.at) {
            // The packet that was counted in advance becomes an empty packet: one byte with the length 0, which is the
            // reserved byte or a byte before it.
            length.store(0, Ordering::Relaxed);
        }
        self.hand_over();
    }

    /// [Completes](Self::complete) the chunk with a part of a packet at its end. The count of packets in the header
    /// already includes this packet. The packet continues in the writer's next chunk, for which
    /// [`continue_packet`](Self::continue_packet) must be called.
    pub(crate) fn complete_with_part(&mut self) {
        self.add_flag(abi::GOES_ON);
        self.hand_over();
    }

    /// Declares that the first packet of this empty chunk is the rest of the last packet in the writer's
    /// previous chunk.
    pub(crate) fn continue_packet(&mut self) {
        self.add_flag(abi::CONTINUES);
        self.finished |= u32::from(abi::CONTINUES) << abi::FLAGS_SHIFT;
    }

    fn add_flag(&self, flag: u16) {
        if let Some([_, packets]) = self.word::<Head>(self.start.wrapping_add(4)) {
            packets.fetch_or(flag << abi::FLAGS_SHIFT, Ordering::Release);
        }
    }

    /// Returns the value at an address within the chunk, or `None` if this is "no chunk".
    fn word<T: Shared>(&self, at: *mut u8) -> Option<&T> {
        let memory = &self.arena?.memory;
        memory.get(at.addr() - memory.at(0).addr())
    }

    fn hand_over(&mut self) {
        let Self { index, arena, .. } = std::mem::take(self);
        let Some(arena) = arena else { return };
        if let (Some(header), Some(private)) = (arena.header(index / CHUNKS_MAX), arena.private(index)) {
            abi::complete(header, index % CHUNKS_MAX);
            arena.completed.push(index, &private[0]);
        }
    }
}

impl Default for Chunk {
    /// Returns the value for "no chunk", which has no room.
    fn default() -> Self {
        let null = ptr::null_mut();
        Self { at: null, end: null, start: null, finished: 0, index: 0, arena: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests a faulty service, which frees a chunk that was not reported to it.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory that is shared")]
    fn chunks_that_come_twice_are_an_end() {
        let arena = Arena::reserve(1).unwrap();
        let mut none = arena.take_completed();
        assert_eq!((none.is_empty(), none.next()), (true, None));
        let push = |index: u32| arena.completed.push(index, &arena.private(index).unwrap()[0]);
        [3, 1, 2].into_iter().for_each(push);
        let all = arena.take_completed();
        assert_eq!(all.clone().map(|place| place.chunk).collect::<Vec<_>>(), [3, 1, 2]);
        assert_eq!((all.is_empty(), arena.take_completed().is_empty()), (false, true));
        [3, 1, 3, 2, 1].into_iter().for_each(push);
        assert!((1..=CHUNKS_MAX as usize).contains(&arena.take_completed().count()));
        // The chunks are pushed again while the list is being read.
        [3, 1, 2].into_iter().for_each(push);
        let mut all = arena.take_completed();
        assert_eq!(all.next().map(|place| place.chunk), Some(3));
        [1, 2, 1].into_iter().for_each(push);
        assert!(all.count() <= CHUNKS_MAX as usize);
    }

    #[test]
    fn what_is_private_has_pages_of_its_own() {
        for pages in [1, 2, 3, 9] {
            for page_size in [4 << 10, 16 << 10, 64 << 10] {
                let from = private_from(pages, page_size);
                assert_eq!(from % page_size, 0);
                assert!((0..page_size).contains(&(from - pages as usize * PAGE)));
            }
        }
    }

    /// Tests that the private data does not share a page with the file. The kernel maps whole pages, so another process
    /// sees data that is written behind the end of the file.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory that is shared")]
    fn what_is_private_is_not_in_the_file() {
        for pages in 1..=8 {
            let (arena, file) = Arena::make(pages).unwrap();
            for index in 0..pages * CHUNKS_MAX {
                arena.private(index).unwrap().iter().for_each(|word| word.store(u32::MAX, Ordering::Relaxed));
            }
            let seen = (pages as usize * PAGE).next_multiple_of(page_size());
            let seen = Region::of_file(file.as_raw_fd(), seen).unwrap();
            let others = (0..seen.size()).step_by(4).filter(|at| *at != TOUCHED);
            let words = others.map(|at| seen.get::<AtomicU32>(at).unwrap());
            assert!(words.into_iter().all(|word| word.load(Ordering::Relaxed) == 0), "{pages} pages");
        }
    }
}

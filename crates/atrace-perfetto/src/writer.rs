//! The state with which one thread writes for one session: the current chunk, a record of the definitions that readers
//! already have, and losses.
//!
//! # State
//!
//! A reader decodes a packet with the help of earlier packets in the same sequence. The earlier packets define the
//! clock, the default track, and the numbers of interned categories and names; together they are the *incremental
//! state*. The writer stores which definitions its sequence contains. It writes the state anew in every eighth chunk,
//! after a loss, and when the service asks for it. So even if a ring buffer has overwritten the oldest chunks, a reader
//! can decode the packets from the next state on.
//!
//! # Paths
//!
//! [`Writer::event_fast`] writes an event if nothing else has to be written before it, except perhaps the description
//! of its track. Otherwise, [`Writer::event`] first writes the missing definitions, the unmatched ends (see below), or
//! the state at the start of a new chunk.
//!
//! # Loss
//!
//! If no chunk is free, events are lost. In a session that requests such waits, a thread first waits for up to a
//! second. The writer looks for a chunk again after two milliseconds. If a slice whose begin was written ends during
//! this time, its end is an *unmatched end*, which is written later, before the next event (`unmatched.rs`). If the
//! begin of a slice was lost, its end is lost as well. So the slices in the trace are nested as they were in the
//! program.
//!
//! A loss is reported at the end of the writer's last chunk, because perhaps the writer gets no other chunk. If the
//! last chunk has no room for the report, the state at the start of the next chunk contains the report.
//!
//! # Threading
//!
//! A writer is used by its thread while this thread is pinned, that is, in the middle of an event. After the session
//! was closed, or after the writer's thread has ended, the writer is used by the thread that serves the session; see
//! `pin.rs`. A writer itself has no atomics or locks.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::abi::Layout;
use crate::memory::{Arena, Chunk, Loss};
use crate::pin::Epoch;
use crate::pool::{Pool, Session, writer_number};
use atrace_sys::memory::Plain;
use atrace_sys::{process, thread};

use crate::clock;
use crate::event::{Event, TEXT_MAX, Track, Type};
use crate::interned::Interned;
use crate::options::{FILTERS, NOT_FAST, STALL, THREAD_TIME};
use crate::packet::{self, state};
use crate::track::process_track;
use crate::unmatched::UnmatchedEnds;

/// The slots of the threads and sessions of this process, with their writers.
pub(crate) static POOL: Pool<Writer> = Pool::new();

/// The number of chunks after which a writer writes its incremental state (the definitions that readers need) anew.
const CHUNKS_A_STATE: u32 = 8;
/// The time in nanoseconds from which a thread counts as slow. If a thread took this time or longer to fill a chunk,
/// its next chunk is a small chunk.
const SLOW_NS: u64 = 50_000_000;
/// The time after which a thread that has found no free chunk looks for a chunk again, in nanoseconds. During this
/// time, its events are lost.
const BACK_OFF_NS: u64 = 2_000_000;
/// How long an event waits for a chunk, in a session that requests such waits, in nanoseconds.
const STALL_NS: u64 = 1_000_000_000;
/// The size of the cache with the numbers of tracks that were described and are kept ([`Track::is_kept`]). The cache is
/// direct-mapped, and indexed by the track's number.
const REMEMBERED: usize = 8;

/// The state with which a thread writes for one session. A value of zeroes is a writer that was
/// never used.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Writer {
    /// The first epoch of the session to which the other fields belong, or 0 if they belong to no session.
    epoch: u32,
    /// The present epoch of the session, if the session's events may take a fast path. The field has another value if
    /// the session has got a new epoch, if the incremental state must be written anew, or if the session's options
    /// change the packets of events.
    fast_epoch: u32,
    /// The categories whose names are defined in the state, as the bits of tags. The highest bit is [`ALL_LEVELS`].
    categories: u32,
    chunk: Chunk,
    /// The time of the last packet, in nanoseconds of `CLOCK_BOOTTIME`.
    last: u64,
    /// The number of slices of the thread that are open in this session.
    depth: u32,
    unmatched: UnmatchedEnds,
    /// The number of the next chunk. The numbers continue from session to session, because for the service all chunks
    /// of a writer are one sequence.
    chunks: u32,
    chunks_of_state: u32,
    /// Whether events were lost and no packet has reported the loss yet.
    has_lost: bool,
    /// Whether the last packet of the last chunk reports that events after this packet were lost.
    has_reported: bool,
    /// Whether the chunk is full and no other chunk was free. The first lost event then completes the chunk.
    is_last: bool,
    /// The first epoch of the session for which this writer last wrote the incremental state. By this epoch, the writer
    /// sees whether a state is the first one that it writes in a session.
    state_epoch: u32,
    /// The value of the session's counter `clears` (requests for a new state) when the state was last written.
    clears: u32,
    opened: u64,
    retry: u64,
    counters: [u64; REMEMBERED],
    /// The callsites whose constant data is in the incremental state.
    interned: Interned,
    /// The number of the track for the thread's processor time, or 0 if the state does not describe that
    /// track.
    thread_time: u64,
}

/// A bit of [`Writer::categories`], which is set if the names of the levels are defined in the state.
const ALL_LEVELS: u32 = 1 << 31;

// SAFETY: all zeroes are numbers that are 0, `false`, null pointers and `None`: a writer without a chunk.
#[expect(unsafe_code, reason = "writers are in zeroed mapped memory")]
unsafe impl Plain for Writer {}

/// Identifies a writer, by its session and its thread slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterSlot {
    pub(crate) session: &'static Session,
    pub(crate) epoch: u32,
    pub(crate) number: usize,
    pub(crate) thread: usize,
}

impl Writer {
    /// Completes the chunk if it belongs to the session with this first epoch.
    ///
    /// A thread calls this when it ends, because another thread will get its slot. The thread that serves the session
    /// calls this after the session was closed.
    pub(crate) fn finish(&mut self, epoch: u32) {
        if self.epoch == epoch {
            self.complete();
        }
    }

    /// Completes the chunk. It does not matter to which session the chunk belongs.
    #[inline(never)]
    fn complete(&mut self) {
        let dropped = self.unmatched.take_all();
        if let Some(shared) = POOL.shared().filter(|_| dropped > 0) {
            shared.lost.fetch_add(dropped.into(), Ordering::Relaxed); // Shared memory already counts these.
        }
        if self.has_lost || dropped > 0 {
            self.chunk.write(packet::LOST);
        }
        self.chunk.complete();
        (self.epoch, self.fast_epoch) = (0, 0);
    }

    /// Writes an event if nothing has to be written before it, except perhaps the description of its track: the reader
    /// has all other definitions that the event needs, no end is unmatched, and the chunk has room. Otherwise writes
    /// nothing and returns false; the caller then calls [`event`](Self::event).
    ///
    /// Like [`packet::event`], this function is inlined. With `IS_USUAL`, it has less code and writes only an event that
    /// - names exactly one category, or is an end,
    /// - has a callsite with a number, or no callsite,
    /// - is on no track that has to be described and kept ([`Track::is_kept`]),
    /// - has no [`whole_args`](Event::whole_args) (the caller checks this).
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn event_fast<const IS_SHORT: bool, const IS_USUAL: bool>(
        &mut self,
        epoch: u32,
        event: &Event<'_>,
        now: u64,
    ) -> bool {
        let since = self.since(event, now);
        if !self.is_ready::<IS_USUAL>(epoch, event) {
            return false;
        }
        // No closures are used here, because the compiler would not inline all of them.
        if let Some(track) = &event.track
            && !self.knows(track)
        {
            if IS_USUAL && track.is_kept || self.chunk.room() < event.room::<IS_USUAL>() + track.room() {
                return false;
            }
            let is_described = if IS_USUAL {
                packet::describe::<IS_SHORT>(&mut self.chunk, track)
            } else {
                self.describe(Some(track))
            };
            if !is_described {
                return false;
            }
        }
        packet::event::<IS_SHORT, IS_USUAL>(&mut self.chunk, since, event, &[])
            && self.wrote(since, event.opens())
    }

    /// Writes any event, after all definitions that the reader needs for it.
    ///
    /// Returns false if the event is lost, if it is an end that has to be written later, or if the session is not open.
    /// But if the event is the begin of a slice on the thread's own track, returns true even if the begin is lost. The
    /// caller must then pass the slice's end, too, because [`UnmatchedEnds`] has recorded the begin and must also
    /// record the end.
    #[inline(never)]
    pub(crate) fn event(&mut self, slot: &WriterSlot, event: &Event<'_>, now: u64) -> bool {
        if !Epoch::is_open(slot.epoch) {
            return false;
        }
        if self.fast_epoch != slot.epoch {
            self.follow(slot, now);
        }
        if event.opens() < 0 {
            return self.end(slot, event, now);
        }
        let is_begin = event.opens() > 0;
        let is_written = (!is_begin || self.unmatched.has_room())
            && self.write_unmatched(slot, 0, now)
            && self.define_and_write(slot, event, now);
        if is_begin {
            self.unmatched.begun(is_written);
            self.depth += u32::from(is_written);
        }
        if !is_written {
            self.lose(slot);
        }
        is_written || is_begin
    }

    /// Returns whether nothing has to be written before the event, except perhaps the description of its track. Does
    /// not check whether the chunk has room. `IS_USUAL` has the same meaning as in [`event_fast`](Self::event_fast).
    #[inline(always)]
    fn is_ready<const IS_USUAL: bool>(&self, epoch: u32, event: &Event<'_>) -> bool {
        if self.fast_epoch != epoch || !self.unmatched.is_clear() || event.opens() < 0 && self.depth == 0 {
            return false;
        }
        (IS_USUAL || event.whole_args.is_none()) && self.is_defined::<IS_USUAL>(event)
    }

    /// Returns whether the present state has all definitions that the event needs, except perhaps the description of
    /// its track.
    #[inline(always)]
    fn is_defined<const IS_USUAL: bool>(&self, event: &Event<'_>) -> bool {
        if event.kind != Type::End {
            let categories = event.categories();
            if IS_USUAL {
                if categories & self.categories == 0 || event.has_categories() {
                    return false;
                }
            } else if categories & !self.categories != 0 {
                return false;
            }
        }
        event.site.as_ref().is_none_or(|site| {
            self.interned.has(site.number) && (site.about.is_none() || self.categories & ALL_LEVELS != 0)
                // If the callsite has no number, the event itself contains the callsite's texts.
                || !IS_USUAL && !site.has_number()
        })
    }

    /// Returns whether the time of the last packet is not later than `time`, so that a packet with this time can
    /// follow.
    #[inline(always)]
    pub(crate) const fn is_before(&self, time: u64) -> bool {
        self.last <= time
    }

    /// Returns the time since the last packet, or 0 if the clock has gone back or the event has a time of its own.
    #[inline(always)]
    const fn since(&self, event: &Event<'_>, now: u64) -> u64 {
        if event.time == 0 { now.saturating_sub(self.last) } else { 0 }
    }

    /// Updates the writer after a packet. `since` is the time since the previous packet, and `opened` the
    /// change of the number of open slices. Returns true.
    #[inline(always)]
    const fn wrote(&mut self, since: u64, opened: i32) -> bool {
        self.last += since;
        self.depth = self.depth.wrapping_add_signed(opened);
        true
    }

    /// Records that an event is lost.
    fn lose(&mut self, slot: &WriterSlot) {
        if std::mem::take(&mut self.is_last) {
            self.has_reported = self.chunk.write(packet::LOST);
            self.chunk.complete();
        }
        self.has_lost |= !self.has_reported;
        if let Some(shared) = POOL.shared() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        count_lost(slot.session, 1);
    }

    /// Updates the writer if the session has got a new epoch, or if the session's events never take a fast path.
    #[cold]
    fn follow(&mut self, slot: &WriterSlot, now: u64) {
        let Session { epoch, clears, options, .. } = slot.session;
        if self.epoch != epoch.first() {
            self.reset(slot);
        }
        let is_fast = options.load(Ordering::Relaxed) & NOT_FAST == 0;
        self.fast_epoch = if is_fast { slot.epoch } else { 0 };
        if self.chunk.is_some() && self.clears != clears.load(Ordering::Relaxed) {
            if self.chunk.room() >= state::ROOM {
                self.write_state(slot, now);
            } else {
                // A new chunk begins with the requested state.
                let _ = self.open(slot, 0, now);
            }
        }
    }

    /// Resets the writer, because the thread writes its first event in the session.
    fn reset(&mut self, slot: &WriterSlot) {
        self.epoch = slot.session.epoch.first();
        self.categories = 0;
        self.chunk = Chunk::default();
        self.last = 0;
        self.depth = 0;
        self.unmatched = UnmatchedEnds::default();
        self.chunks_of_state = CHUNKS_A_STATE;
        // The first thread that writes in the session reports the events that were lost before the session.
        let has_lost = &slot.session.has_lost;
        let is_after_loss = has_lost.load(Ordering::Relaxed) && has_lost.swap(false, Ordering::Relaxed);
        (self.has_lost, self.has_reported, self.is_last) = (is_after_loss, false, false);
        self.clears = 0;
        self.opened = 0;
        self.retry = 0;
        self.counters = [0; REMEMBERED];
        self.interned.clear();
        self.thread_time = 0;
    }

    /// Writes the end of a slice of the thread, or records that the end has to be written later.
    fn end(&mut self, slot: &WriterSlot, event: &Event<'_>, now: u64) -> bool {
        if !self.unmatched.ended() {
            self.lose(slot); // The slice's begin was lost, too.
            return false;
        }
        if self.depth == 0 {
            // The slice began before the session.
            POOL.shared().into_iter().for_each(|shared| shared.early.lose_end());
            return false;
        }
        self.depth -= 1;
        self.unmatched.add();
        count_lost(slot.session, 1); // Counts as lost until it is written: the process may end before.
        let has_args = !event.args.is_empty();
        self.write_unmatched(slot, has_args.into(), now)
            && (!has_args || self.define_and_write(slot, event, now) && self.wrote_unmatched(slot))
    }

    /// Writes the unmatched ends (ends of slices that could not be written earlier), except for the last `but` of them.
    /// Returns false if there was not enough room for these ends.
    fn write_unmatched(&mut self, slot: &WriterSlot, but: u32, now: u64) -> bool {
        while self.unmatched.count() > but {
            if !self.define_and_write(slot, &Event::new(Type::End, 0), now) || !self.wrote_unmatched(slot) {
                return false;
            }
        }
        true
    }

    /// Records that an unmatched end (an end that could not be written earlier) was written. Returns true.
    fn wrote_unmatched(&mut self, slot: &WriterSlot) -> bool {
        self.unmatched.remove();
        count_lost(slot.session, -1);
        true
    }

    /// Writes the definitions that an event needs, and the part of the event that the session's filters leave. If the
    /// session asks for the thread's processor time, an event on the thread's track contains it. All unmatched ends
    /// that come before the event must have been written.
    ///
    /// A long event is written whole, in several chunks if necessary. It is cut in these cases:
    ///
    /// - in a signal handler, which may have little time and a small stack;
    /// - for a session with filters;
    /// - if the event has fields that a packet of several chunks can't have ([`Event::may_be_whole`]);
    /// - if the event is too long for 33 chunks.
    fn define_and_write(&mut self, slot: &WriterSlot, event: &Event<'_>, now: u64) -> bool {
        let filters = slot.session.options.load(Ordering::Relaxed) & FILTERS;
        let (mut changed, mut kept);
        let mut event = event;
        let is_whole = event.is_long() && filters == 0 && event.may_be_whole() && !process::is_in_handler();
        if event.is_long() && !is_whole {
            changed = event.cut();
            event = &changed;
        }
        let filtered = if filters == 0 { 0 } else { packet::FILTERED_ROOM };
        let room = if is_whole { packet::PART_MIN } else { event.room::<false>() + filtered };
        if !self.define(slot, event, room, now) {
            return false;
        }
        if filters != 0 {
            kept = [0; packet::KEPT_MAX];
            changed = *event;
            packet::filter(&mut changed, filters, &mut kept);
            event = &changed;
        }
        // The begin of a slice has described the track of the slice's end. With filters, the end must not describe it
        // again: the end has no name, so `filter` does not see whether the track's name is that of the slice.
        if (filters == 0 || event.kind != Type::End) && !self.describe(event.track.as_ref()) {
            return false;
        }
        let mut bytes = [0; packet::SAMPLE_MAX];
        let has_sample = sample_room(slot) != 0;
        let sample = if has_sample { self.sample(slot, event.track.as_ref(), &mut bytes) } else { &[] };
        let since = self.since(event, now);
        if !is_whole {
            return packet::event::<false, false>(&mut self.chunk, since, event, sample)
                && self.wrote(since, 0);
        }
        let Self { chunk, chunks, chunks_of_state, .. } = self;
        let mut take = || {
            let next = take_chunk(slot, Layout::Whole, *chunks)?;
            *chunks = chunks.wrapping_add(1);
            *chunks_of_state += 1;
            Some(next)
        };
        match packet::whole_event(chunk, since, event, sample, &mut take) {
            Some(true) => self.wrote(since, 0),
            Some(false) => {
                self.retry = now + BACK_OFF_NS;
                false
            }
            None => {
                changed = event.cut();
                self.define_and_write(slot, &changed, now)
            }
        }
    }

    /// Returns the fields of an event that hold the thread's processor time, or no bytes if the event has no such
    /// fields. If the state does not describe the counter of the processor time yet, first describes it. There must be
    /// room for the fields and the description.
    #[inline(never)]
    fn sample<'a>(
        &mut self,
        slot: &WriterSlot,
        track: Option<&Track<'_>>,
        bytes: &'a mut [u8; packet::SAMPLE_MAX],
    ) -> &'a [u8] {
        if sample_room(slot) == 0 || track.is_some() {
            return &[];
        }
        if self.thread_time == 0 {
            let track = packet::thread_time_track(process_track());
            if !packet::describe_any(&mut self.chunk, &track) {
                return &[];
            }
            self.thread_time = track.uuid;
        }
        packet::sample(self.thread_time, bytes).unwrap_or_default()
    }

    /// Makes sure that the chunk has `room` free bytes, and room for the processor time and the description of the
    /// track. Then writes the definitions that an event needs, except for the description of the track. Returns false
    /// if there is no room.
    fn define(&mut self, slot: &WriterSlot, event: &Event<'_>, room: usize, now: u64) -> bool {
        let track = |track: &Track<'_>| track.room().min(TEXT_MAX);
        let site = event.site.filter(|site| site.has_number());
        let definitions = site.map_or(0, |site| packet::site_room(site) + packet::LEVELS.len());
        let categories = event.categories();
        let room = room + sample_room(slot);
        // A new chunk may begin with a new state. So it needs room even for definitions that the present state already
        // has.
        let track_if_new = event.track.as_ref().map_or(0, track);
        let room_if_new = room + track_if_new + definitions + state::categories_room(categories);
        let needed = if self.is_defined::<false>(event) {
            room + event.track.as_ref().filter(|track| !self.knows(track)).map_or(0, track)
        } else {
            room_if_new
        };
        if !self.has_room(needed) && !self.next_chunk(slot, room_if_new, now) {
            return false;
        }
        self.name_categories(categories);
        if let Some(site) = site {
            if site.about.is_some() {
                self.name_levels();
            }
            if !self.interned.has(site.number) && packet::intern(&mut self.chunk, &site) {
                self.interned.add(site.number);
            }
        }
        true
    }

    /// Writes the description of an event's track, if the event names a track and the writer does not remember that the
    /// state describes this track. Returns false if there is no room.
    #[inline(never)]
    fn describe(&mut self, track: Option<&Track<'_>>) -> bool {
        let Some(track) = track else { return true };
        if self.knows(track) {
            return true;
        }
        let is_described = packet::describe_any(&mut self.chunk, track);
        if is_described && track.is_kept {
            self.counters[track.uuid as usize % REMEMBERED] = track.uuid;
        }
        is_described
    }

    /// Returns whether the writer remembers that the present incremental state describes the track. It remembers only
    /// some tracks.
    #[inline(always)]
    fn knows(&self, track: &Track<'_>) -> bool {
        track.is_kept && self.counters[track.uuid as usize % REMEMBERED] == track.uuid
    }

    /// Writes the names of those categories whose names the state does not define yet.
    fn name_categories(&mut self, categories: u32) {
        let missing = categories & !self.categories;
        if missing != 0 && state::name_categories(&mut self.chunk, missing) {
            self.categories |= missing;
        }
    }

    /// Writes the names of the levels, if the state does not define them yet.
    fn name_levels(&mut self) {
        if self.categories & ALL_LEVELS == 0 && self.chunk.write(packet::LEVELS) {
            self.categories |= ALL_LEVELS;
        }
    }

    /// Returns whether there is a chunk with `needed` bytes of room.
    fn has_room(&self, needed: usize) -> bool {
        self.chunk.is_some() && self.chunk.room() >= needed
    }

    /// Opens a new chunk, unless the last attempt failed less than [`BACK_OFF_NS`] ago. Returns false if there is no
    /// new chunk with `needed` bytes of room.
    fn next_chunk(&mut self, slot: &WriterSlot, needed: usize, now: u64) -> bool {
        (self.retry == 0 || now >= self.retry) && self.open(slot, needed, now)
    }

    #[cold]
    fn open(&mut self, slot: &WriterSlot, needed: usize, now: u64) -> bool {
        let _errno = process::ErrnoGuard::new();
        let is_fast = self.chunk.is_some() && now.saturating_sub(self.opened) < SLOW_NS;
        let mut layout = if is_fast { Layout::Whole } else { Layout::Small };
        if needed > Layout::Small.room() - state::ROOM {
            layout = Layout::Whole;
        }
        let Some(chunk) = take_chunk(slot, layout, self.chunks) else {
            self.is_last = self.chunk.is_some();
            self.retry = now + BACK_OFF_NS;
            return false;
        };
        self.chunk.complete();
        self.chunk = chunk;
        self.is_last = false;
        self.chunks = self.chunks.wrapping_add(1);
        self.chunks_of_state += 1;
        self.opened = now;
        self.retry = 0;
        if self.has_lost
            || self.has_reported
            || self.chunks_of_state >= CHUNKS_A_STATE
            || self.clears != slot.session.clears.load(Ordering::Relaxed)
        {
            self.write_state(slot, now);
        }
        if self.chunk.room() >= needed {
            return true;
        }
        // The chunk is a small one, because no whole chunk was free. It is kept, because the next event may fit into
        // it.
        self.retry = now + BACK_OFF_NS;
        false
    }

    /// Writes the state: all definitions that readers need before the next event.
    fn write_state(&mut self, slot: &WriterSlot, now: u64) {
        // The number of requests is read first: a request that comes while the state is written is answered by another
        // state.
        self.clears = slot.session.clears.load(Ordering::Relaxed);
        // The clock may go back a little when it gets a new anchor. Without the maximum here, a slice's end could come
        // before its begin.
        self.last = self.last.max(now);
        let is_first = self.state_epoch != self.epoch;
        let written = state::write(&mut self.chunk, process_track(), self.last, is_first, self.has_lost);
        debug_assert!(written, "a chunk of either size is larger");
        self.categories = 0;
        self.counters = [0; REMEMBERED];
        self.interned.clear();
        self.thread_time = 0;
        self.chunks_of_state = 0;
        (self.has_lost, self.has_reported) = (false, false);
        self.state_epoch = self.epoch;
    }
}

/// Returns the room that the thread's processor time takes in an event, or 0 if the session does not ask for
/// it.
fn sample_room(slot: &WriterSlot) -> usize {
    if slot.session.options.load(Ordering::Relaxed) & THREAD_TIME == 0 { 0 } else { packet::SAMPLE_ROOM }
}

/// Takes a free chunk for a writer, with this layout and this number. If no chunk is free, and the session requests
/// such waits, waits for a free chunk.
fn take_chunk(slot: &WriterSlot, layout: Layout, chunk: u32) -> Option<Chunk> {
    let buffer = slot.session.buffer.load(Ordering::Relaxed);
    let number = writer_number(slot.number, slot.thread);
    let open = || slot.session.arena()?.open(layout, number, chunk, buffer);
    open().or_else(|| stall(slot, open))
}

/// Waits until `open` returns a chunk, if the session requests such waits: for at most [`STALL_NS`], and only as long
/// as the session is open. An event in a signal handler does not wait, because the handler may have interrupted a
/// thread on which the freeing of chunks depends.
#[cold]
fn stall(slot: &WriterSlot, open: impl Fn() -> Option<Chunk>) -> Option<Chunk> {
    if slot.session.options.load(Ordering::Relaxed) & STALL == 0 || process::is_in_handler() {
        return None;
    }
    let until = clock::asked() + STALL_NS;
    while clock::asked() < until && Epoch::is_open(slot.session.epoch.now()) {
        slot.session.arena().into_iter().for_each(Arena::wake);
        thread::pause(Duration::from_millis(1));
        if let Some(chunk) = open() {
            return Some(chunk);
        }
    }
    None
}

/// Completes the chunk of an ended thread's writer, in a session that is still open.
pub(crate) fn finish(session: &Session, writer: &mut Writer) {
    writer.finish(session.epoch.first());
}

/// Adds `events` to the count of events that were lost for lack of room. `atrace record` reads this count; Perfetto's
/// service does not. A negative number corrects the count.
fn count_lost(session: &Session, events: i32) {
    if let Some(arena) = session.arena() {
        arena.count_lost(Loss::Room, events);
    }
}

#[cfg(test)]
mod tests {
    use crate::abi::GOES_ON;
    use crate::callsite::{Number, Site};
    use crate::event::{Amount, WholeArgs};
    use crate::memory::Part;
    use crate::pool::Shared;
    use crate::proto::{Reader, Value};
    use crate::track;

    use super::*;

    /// Returns three values for a test: memory, a session with these options that is open in this memory, and an unused
    /// writer.
    fn open(options: u32) -> (&'static Arena, &'static Session, Box<Writer>) {
        #[expect(unsafe_code, reason = "outside of tests both are in zeroed mapped memory")]
        // SAFETY: zeroes are valid for both: `Shared` has numbers and an empty `OnceRef`, and `Writer` is `Plain`.
        let (shared, writer): (Box<Shared>, Box<Writer>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        let shared = Box::leak(shared);
        let (arena, _) = Arena::make(8).unwrap();
        shared.open(0, arena, 1, 1, options);
        (arena, &shared.sessions[0], writer)
    }

    /// Tests that timestamps never decrease even if the clock goes back, as it may when it gets a new anchor.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn times_of_a_thread_never_go_back() {
        let (arena, session, mut writer) = open(0);
        let slot = WriterSlot { session, epoch: session.epoch.now(), number: 0, thread: 0 };
        let (mut last, mut time, mut states) = (0, 0, 0);
        for number in 0..20_000 {
            let event = Event { name: Some("name"), ..Event::new(Type::Instant, 1) };
            assert!(writer.event(&slot, &event, 1_000_000_000 - number));
            for chunk in arena.take_completed() {
                arena.read(&chunk, |Part { bytes: packet, .. }| {
                    let of = |field| Reader::first(packet, field).map_or(0, Value::number);
                    let is_state = of(58) != 0;
                    states += u32::from(is_state);
                    time = if is_state { of(8) } else { time + of(8) };
                    assert!(time >= last, "{time} after {last}");
                    last = time;
                });
            }
        }
        assert!(states > 2);
        writer.complete();
        arena.retire();
    }

    /// Tests that the writer leaves a chunk only when the chunk has no room for the event itself, if the reader has the
    /// event's definitions.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn no_room_is_kept_for_definitions_that_the_reader_has() {
        static NUMBER: Number = Number::new();
        let name = "counter ".repeat(60);
        let uuid = track::number(7 << 60);
        let counter = Track { uuid, parent: 1, name: &name, is_counter: true, is_kept: true };
        let site = Some(Site::named(&NUMBER, "a constant name"));
        let named = Event { site, ..Event::new(Type::Instant, 0b11) };
        let counted =
            Event { track: Some(counter), value: Some(Amount::Whole(1)), ..Event::new(Type::Counter, 0b11) };
        for event in [named, counted] {
            let (arena, session, mut writer) = open(0);
            let slot = WriterSlot { session, epoch: session.epoch.now(), number: 0, thread: 0 };
            let mut full = 0;
            for now in 0..2000 {
                let chunks = writer.chunks;
                let room = if writer.chunk.is_some() { writer.chunk.room() } else { 0 };
                assert!(writer.event(&slot, &event, 1_000_000_000 + now));
                if writer.chunks != chunks {
                    assert!(room < event.room::<false>(), "{room} bytes of chunk {chunks} were left");
                    full += 1;
                }
                drop(arena.take_completed());
            }
            assert!(full > 2, "{full}");
            writer.complete();
            arena.retire();
        }
    }

    /// Tests that every event on the thread's track has the processor time: short and long events, and ends. Events on
    /// other tracks do not have the processor time.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn events_have_the_threads_time_if_the_session_asks_for_it() {
        let (arena, session, mut writer) = open(THREAD_TIME);
        let slot = WriterSlot { session, epoch: session.epoch.now(), number: 0, thread: 0 };
        let begin = Event { name: Some("name"), ..Event::new(Type::Begin, 1) };
        let track =
            Track { uuid: track::number(7 << 60), parent: 1, name: "row", is_counter: false, is_kept: false };
        let long = "long ".repeat(2000);
        let whole = Event { name: Some(&long), whole_args: Some(WholeArgs(&|_| ())), ..begin };
        assert!(!writer.event_fast::<true, true>(slot.epoch, &begin, 1000));
        assert!(writer.event(&slot, &begin, 1000));
        assert!(writer.event(&slot, &whole, 1000));
        assert!(writer.event(&slot, &Event { track: Some(track), ..begin }, 1000));
        assert!(!writer.event_fast::<true, true>(slot.epoch, &begin, 1000));
        for _ in 0..2 {
            assert!(writer.event(&slot, &Event::new(Type::End, 0), 1000));
        }
        writer.complete();
        let (mut counters, mut times, mut packet) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in arena.take_completed() {
            arena.read(&chunk, |Part { bytes, flags, .. }| {
                packet.extend_from_slice(bytes);
                if flags & GOES_ON != 0 {
                    return;
                }
                let all = std::mem::take(&mut packet);
                let inner = |field| Reader::first(&all, field).map(Value::bytes);
                if let Some(track) = inner(60).filter(|track| Reader::first(track, 8).is_some()) {
                    counters.push(Reader::first(track, 1).unwrap().number());
                }
                let number = |of, field| Reader::first(of, field).map(Value::number);
                times.extend(inner(11).map(|event| (number(event, 31), number(event, 12))));
            });
        }
        let [counter] = counters[..] else { panic!("{counters:?}") };
        let (of_thread, of_track): (Vec<_>, Vec<_>) = times.iter().partition(|time| time.0.is_some());
        assert_eq!((times.len(), of_track), (5, vec![(None, None)]));
        assert!(of_thread.iter().all(|time| time.0 == Some(counter)), "{of_thread:?}");
        assert!(of_thread.is_sorted_by_key(|time| time.1.unwrap()), "{of_thread:?}");
        arena.retire();
    }

    /// Tests that a requested incremental state is written at the next event, even in the middle of a chunk: a ring
    /// buffer may have lost the old state while the thread wrote few events.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_request_for_a_new_state_is_answered_at_the_next_event() {
        let (arena, session, mut writer) = open(0);
        let mut write = || {
            let slot = WriterSlot { session, epoch: session.epoch.now(), number: 0, thread: 0 };
            let event = Event { name: Some("name"), ..Event::new(Type::Begin, 1) };
            assert!(writer.event(&slot, &event, 1_000_000_000));
        };
        write();
        write();
        session.clears.fetch_add(1, Ordering::Relaxed);
        session.epoch.advance();
        write();
        write();
        // The session is the same: its slices are still open.
        assert_eq!((writer.depth, session.epoch.first() == session.epoch.now()), (4, false));
        writer.finish(session.epoch.first());
        let mut states = 0;
        for chunk in arena.take_completed() {
            arena.read(&chunk, |Part { bytes: packet, .. }| {
                states += u32::from(Reader::first(packet, 13).is_some_and(|flags| flags.number() & 1 != 0));
            });
        }
        assert_eq!(states, 2);
        arena.retire();
    }
}

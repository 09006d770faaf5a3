//! A thread's packets for one session: its chunk, what readers were told already, and what was lost.
//!
//! A reader understands a packet by what came before it in the same sequence: the clock, the default track, the names of
//! categories, together the *state*. It is told anew in every eighth chunk, after a loss, and when the session asks, so
//! that a ring buffer may forget the oldest.
//!
//! Without a free chunk events are lost, for two milliseconds before one is looked for again. The thread then *owes* the
//! ends of slices whose begins were written: they come first when there is room. A begin that was lost has its end lost
//! as well, so slices nest as the program made them. The reader is told at the end of the last chunk, as perhaps no other
//! follows; where that can't be, at the start of the next.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::Layout;
use crate::memory::{Chunk, Loss};
use crate::pool::{Pool, Session, Zeroes, writer_number};
use crate::presence::Epoch;
use atrace_sys::process;

use crate::callsite::Site;
use crate::debts::Debts;
use crate::early;
use crate::event::{Event, Track, Type};
use crate::packet::{self, TEXT_MAX, state};
use crate::told::Told;

/// The places of this process' threads and sessions.
pub(crate) static POOL: Pool<Writer> = Pool::new();
/// The number of the process' track.
pub(crate) static PROCESS_TRACK: AtomicU64 = AtomicU64::new(0);

/// The number of the process' track, under which all others are.
pub(crate) fn process_track() -> u64 {
    PROCESS_TRACK.load(Ordering::Relaxed)
}

/// State is told anew in each chunk with such a number.
const CHUNKS_A_STATE: u32 = 8;
/// A chunk that took longer to fill is followed by a small one.
const SLOW_NS: u64 = 50_000_000;
/// How long a thread that found no chunk waits before it looks for one again.
const BACK_OFF_NS: u64 = 2_000_000;
/// As many counters are remembered to be described.
const REMEMBERED: usize = 8;

/// What a thread writes with, for one session. All zeroes, it has never written.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Writer {
    /// The session's, or an earlier one's at its place; 0 where the thread has not written for any.
    epoch: u32,
    /// The categories that the state names, by the bits of tags.
    categories: u32,
    chunk: Chunk,
    /// The time of the last packet.
    last: u64,
    /// How many slices of the thread are open in this session.
    depth: u32,
    debts: Debts,
    /// The numbers of its chunks go on from one session to the next: the sequence is the same to the service.
    chunks: u32,
    chunks_of_state: u32,
    /// Something was lost: state is needed, and the reader is to be told.
    has_lost: bool,
    /// It was told that what comes before the next chunk is lost.
    has_told: bool,
    /// The chunk is full, and there was no other: it is completed by the first event that is lost.
    is_last: bool,
    /// The session in which a thread of this place was the last to tell state.
    told: u32,
    /// How often the session had asked for state when it was told last.
    clears: u32,
    opened: u64,
    retry: u64,
    counters: [u64; REMEMBERED],
    /// The callsites that the state tells.
    told_sites: Told,
}

/// Among [`Writer::categories`]: the state names the levels.
const ALL_LEVELS: u32 = 1 << 31;

// SAFETY: numbers, `false`, and a chunk that is none.
#[expect(unsafe_code, reason = "its memory is a mapping's")]
unsafe impl Zeroes for Writer {}

/// Where a writer is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) session: &'static Session,
    pub(crate) epoch: u32,
    pub(crate) number: usize,
    pub(crate) thread: usize,
}

impl Writer {
    /// Completes the chunk, if it is of the session with this epoch: by the thread as it ends, as the next one at its place is
    /// another; or after the session was closed.
    pub(crate) fn finish(&mut self, epoch: u32) {
        if self.epoch == epoch {
            self.take_away();
        }
    }

    /// Completes the chunk, whichever session it is of.
    #[inline(never)]
    fn take_away(&mut self) {
        let owed = self.debts.forgive();
        if let Some(shared) = POOL.shared().filter(|_| owed > 0) {
            shared.lost.fetch_add(owed.into(), Ordering::Relaxed); // In the memory they are counted.
        }
        if self.has_lost || owed > 0 {
            self.chunk.write(packet::LOST);
        }
        self.chunk.complete();
        self.epoch = 0;
    }

    /// Writes an event if nothing stands against it: the reader knows what it refers to, no end is owed, and the chunk has
    /// room. Else it writes nothing, returns false, and [`any`](Self::any) takes it from there. Inlined, as [`packet::event`],
    /// and with no code for a counter that is not described.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn quick<const IS_SHORT: bool>(&mut self, epoch: u32, event: &Event<'_>, now: u64) -> bool {
        let since = self.since(now);
        if !self.is_ready::<true>(epoch, event) {
            return false;
        }
        // No closure: not each would be inlined.
        if let Some(track) = &event.track
            && !self.knows(track)
            && (track.is_counter
                || self.chunk.room() < event.room::<true>() + track.room()
                || !packet::describe::<IS_SHORT>(&mut self.chunk, track))
        {
            return false;
        }
        packet::event::<IS_SHORT, true>(&mut self.chunk, since, event) && self.wrote(since, event.opens())
    }

    /// Writes any event, at once where nothing stands against it; returns what [`any`](Self::any) does.
    #[inline(never)]
    pub(crate) fn event(&mut self, place: &Place, event: &Event<'_>, now: u64) -> bool {
        let since = self.since(now);
        let track_room = event.track.as_ref().map_or(0, |track| track.room());
        self.is_ready::<false>(place.epoch, event)
            && self.chunk.room() >= event.room::<false>() + track_room
            && self.describe(event)
            && packet::any_event(&mut self.chunk, since, event)
            && self.wrote(since, event.opens())
            || self.any(place, event, now)
    }

    /// Whether nothing stands against an event, but perhaps its room and its track; if `HAS_ONE`, also whether it
    /// names one category at most.
    #[inline(always)]
    fn is_ready<const HAS_ONE: bool>(&self, epoch: u32, event: &Event<'_>) -> bool {
        if self.epoch != epoch || !self.debts.is_none() || event.opens() < 0 && self.depth == 0 {
            return false;
        }
        if event.kind != Type::End {
            let categories = event.categories();
            if HAS_ONE {
                if categories & self.categories == 0 || event.has_categories() {
                    return false;
                }
            } else if categories & !self.categories != 0 {
                return false;
            }
        }
        self.is_told(event.site.as_ref())
    }

    /// How long after the last packet this is: times never go back.
    #[inline(always)]
    const fn since(&self, now: u64) -> u64 {
        now.saturating_sub(self.last)
    }

    /// A packet was written, so long after the one before; it opened so many slices of the thread. Returns true.
    #[inline(always)]
    const fn wrote(&mut self, since: u64, opened: i32) -> bool {
        self.last += since;
        self.depth = self.depth.wrapping_add_signed(opened);
        true
    }

    /// Whether readers know all that never changes of the callsite, if it is one.
    #[inline(always)]
    fn is_told(&self, site: Option<&Site<'_>>) -> bool {
        site.is_none_or(|site| {
            self.told_sites.has(site.number) && (site.about.is_none() || self.categories & ALL_LEVELS != 0)
        })
    }

    /// Writes any event, whatever stands against it. Returns false if it is lost, or not the session's; but true for each begin
    /// of a slice of the thread, even a lost one, so that the caller also writes the end, which the [debts](Debts) expect.
    #[inline(never)]
    pub(crate) fn any(&mut self, place: &Place, event: &Event<'_>, now: u64) -> bool {
        if !Epoch::is_open(place.epoch) {
            return false;
        }
        if self.epoch != place.epoch {
            self.begin(place);
        }
        if event.opens() < 0 {
            return self.end_slowly(place, event, now);
        }
        let is_begin = event.opens() > 0;
        let is_written =
            (!is_begin || self.debts.may_begin()) && self.pay(place, 0, now) && self.put(place, event, now);
        if is_begin {
            self.debts.begun(is_written);
            self.depth += u32::from(is_written);
        }
        if !is_written {
            self.lose(place);
        }
        is_written || is_begin
    }

    /// An event is lost.
    fn lose(&mut self, place: &Place) {
        if std::mem::take(&mut self.is_last) {
            self.has_told = self.chunk.write(packet::LOST);
            self.chunk.complete();
        }
        self.has_lost |= !self.has_told;
        if let Some(shared) = POOL.shared() {
            shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        count(place.session, 1);
    }

    /// A session's first event of this thread.
    fn begin(&mut self, place: &Place) {
        self.epoch = place.epoch;
        self.categories = 0;
        self.chunk = Chunk::none();
        self.last = 0;
        self.depth = 0;
        self.debts = Debts::default();
        self.chunks_of_state = CHUNKS_A_STATE;
        // Of all threads, the first tells what was lost before the session.
        let has_lost = &place.session.has_lost;
        let is_after_loss = has_lost.load(Ordering::Relaxed) && has_lost.swap(false, Ordering::Relaxed);
        (self.has_lost, self.has_told, self.is_last) = (is_after_loss, false, false);
        self.clears = 0;
        self.opened = 0;
        self.retry = 0;
        self.counters = [0; REMEMBERED];
        self.told_sites.clear();
    }

    fn end_slowly(&mut self, place: &Place, event: &Event<'_>, now: u64) -> bool {
        if !self.debts.is_end_due() {
            self.lose(place); // As its begin was.
            return false;
        }
        if self.depth == 0 {
            POOL.shared().into_iter().for_each(early::lose_end); // It began before the session.
            return false;
        }
        self.depth -= 1;
        self.debts.owe();
        count(place.session, 1); // Until it is paid: the process may end before that.
        let has_args = !event.args.is_empty();
        self.pay(place, has_args.into(), now)
            && (!has_args || self.put(place, event, now) && self.paid(place))
    }

    /// Writes the ends that are owed but so many; false where not all have room.
    fn pay(&mut self, place: &Place, but: u32, now: u64) -> bool {
        while self.debts.owed() > but {
            if !self.has_room(place, packet::END_ROOM, now) {
                return false;
            }
            let since = self.since(now);
            let end = Event::new(Type::End, 0);
            if !(packet::any_event(&mut self.chunk, since, &end) && self.wrote(since, 0) && self.paid(place))
            {
                return false;
            }
        }
        true
    }

    /// An end that was owed is written. True.
    fn paid(&mut self, place: &Place) -> bool {
        self.debts.paid();
        count(place.session, -1);
        true
    }

    /// Writes an event, before which nothing is owed.
    fn put(&mut self, place: &Place, event: &Event<'_>, now: u64) -> bool {
        let track = event.track.as_ref().map_or(0, |track| track.room());
        let site = event.site.filter(|site| site.has_number());
        // What is told already may have to be told again, in a new chunk.
        let told = site.map_or(0, |site| packet::site_room(site) + packet::LEVELS.len());
        let categories = event.categories();
        let needed = event.room::<false>() + track.min(TEXT_MAX) + told + state::categories_room(categories);
        if !self.has_room(place, needed, now) {
            return false;
        }
        self.name_categories(categories);
        if let Some(site) = site {
            if site.about.is_some() {
                self.name_levels();
            }
            if !self.told_sites.has(site.number) && packet::tell(&mut self.chunk, &site) {
                self.told_sites.add(site.number);
            }
        }
        let since = self.since(now);
        self.describe(event) && packet::any_event(&mut self.chunk, since, event) && self.wrote(since, 0)
    }

    /// Describes the event's track, if it has one that the state does not describe; returns false if there is no room.
    #[inline(never)]
    fn describe(&mut self, event: &Event<'_>) -> bool {
        let Some(track) = &event.track else { return true };
        if self.knows(track) {
            return true;
        }
        let is_described = packet::describe_any(&mut self.chunk, track);
        if is_described && track.is_counter {
            self.counters[track.uuid as usize % REMEMBERED] = track.uuid;
        }
        is_described
    }

    /// Whether the state describes the track: a counter that is remembered.
    #[inline(always)]
    fn knows(&self, track: &Track<'_>) -> bool {
        track.is_counter && self.counters[track.uuid as usize % REMEMBERED] == track.uuid
    }

    /// Names the categories that the state has not named.
    fn name_categories(&mut self, categories: u32) {
        let missing = categories & !self.categories;
        if missing != 0 && state::name_categories(&mut self.chunk, missing) {
            self.categories |= missing;
        }
    }

    /// Names the levels, if the state has not.
    fn name_levels(&mut self) {
        if self.categories & ALL_LEVELS == 0 && self.chunk.write(packet::LEVELS) {
            self.categories |= ALL_LEVELS;
        }
    }

    /// Makes sure of so much room, in a new chunk if need be. False: something is lost.
    fn has_room(&mut self, place: &Place, needed: usize, now: u64) -> bool {
        if self.chunk.is_some() && self.chunk.room() >= needed {
            return true;
        }
        (self.retry == 0 || now >= self.retry) && self.open(place, needed, now)
    }

    #[cold]
    fn open(&mut self, place: &Place, needed: usize, now: u64) -> bool {
        let _errno = process::ErrnoGuard::new();
        let is_fast = self.chunk.is_some() && now.saturating_sub(self.opened) < SLOW_NS;
        let mut layout = if is_fast { Layout::Whole } else { Layout::Small };
        if needed > Layout::Small.chunk_size() - state::ROOM {
            layout = Layout::Whole;
        }
        let buffer = place.session.buffer.load(Ordering::Relaxed);
        let number = writer_number(place.number, place.thread);
        let opened = place.session.arena().and_then(|arena| arena.open(layout, number, self.chunks, buffer));
        let Some(chunk) = opened else {
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
        let clears = place.session.clears.load(Ordering::Relaxed);
        if self.has_lost || self.has_told || self.chunks_of_state >= CHUNKS_A_STATE || self.clears != clears {
            self.tell_state(now);
            self.clears = clears;
        }
        if self.chunk.room() >= needed {
            return true;
        }
        // A small one, where no whole one was free: the next event may have room in it.
        self.retry = now + BACK_OFF_NS;
        false
    }

    /// Tells all that readers must know.
    fn tell_state(&mut self, now: u64) {
        // The clock may go back a little when it is anchored again: an end would come before its begin.
        self.last = self.last.max(now);
        let is_first = self.told != self.epoch;
        let told = state::tell(&mut self.chunk, process_track(), self.last, is_first, self.has_lost);
        debug_assert!(told, "a chunk of either size is larger");
        self.categories = 0;
        self.counters = [0; REMEMBERED];
        self.told_sites.clear();
        self.chunks_of_state = 0;
        (self.has_lost, self.has_told) = (false, false);
        self.told = self.epoch;
    }
}

/// Completes what the writer of an ended thread has of an open session.
pub(crate) fn finish(session: &Session, writer: &mut Writer) {
    writer.finish(session.epoch.now());
}

/// So many events are lost for want of room, for the service to know; below zero, they were not.
fn count(session: &Session, events: i32) {
    if let Some(arena) = session.arena() {
        arena.count_lost(Loss::Room, events);
    }
}

#[cfg(test)]
mod tests {
    use crate::memory::Arena;
    use crate::pool::Shared;
    use crate::proto::{Reader, Value};

    use super::*;

    /// Also where the clock does, as it is anchored again.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn times_of_a_thread_never_go_back() {
        #[expect(unsafe_code, reason = "both are made of a mapping's zeroes elsewhere")]
        // SAFETY: numbers, and a place that is empty; and see `Zeroes`.
        let (shared, mut writer): (Box<Shared>, Box<Writer>) =
            unsafe { (Box::new(std::mem::zeroed()), Box::new(std::mem::zeroed())) };
        let shared = Box::leak(shared);
        let (arena, _) = Arena::make(2).unwrap();
        shared.open(0, arena, 1, 1);
        let session = &shared.sessions[0];
        let place = Place { session, epoch: session.epoch.now(), number: 0, thread: 0 };
        let (mut last, mut time, mut states) = (0, 0, 0);
        for number in 0..20_000 {
            let event = Event { name: Some("name"), ..Event::new(Type::Instant, 1) };
            assert!(writer.event(&place, &event, 1_000_000_000 - number));
            for chunk in arena.take_handed() {
                arena.read(&chunk, |_, packet| {
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
        writer.take_away();
        arena.retire();
    }
}

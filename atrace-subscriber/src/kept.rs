//! What must be kept of a span while it lives: the text of its fields, and the async slice it has open.
//!
//! Kept in slots that are used again and again. Slots come in chunks that double in size, and the buffers of
//! a slot stay with it, so that nothing is allocated once there are as many slots as spans are alive at a
//! time. One store serves the whole process: the slices of a thread nest whichever subscriber wrote them, and
//! cookies must differ throughout it.
//!
//! Which slots are free and who holds one is [`slots`](crate::slots)'s. Nobody waits for a thread that may not
//! exist (in a forked child, none but one does): who needs a chunk makes it, and the first of several is right; who
//! finds a buffer in use for long does without it.

use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use atrace::TrackSlice;
use atrace_sys::OnceRef;

use crate::callsites::Callsite;
use crate::parts;
use crate::slots::{Free, Life, Link, NONE_FREE, high, low, pair};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const FIRST_CHUNK: usize = 16;
const CHUNKS: usize = 24;
/// Bytes that the fields of most spans fit in.
const TEXT_AT_FIRST: usize = 120;
/// Slots that have such a buffer from the start.
const PREPARED: u32 = 4;

struct Slot {
    life: Life,
    link: Link,
    callsite: AtomicU32,
    fields: RwLock<String>,
    track: Mutex<Track>,
}

/// The async slice of a span.
#[derive(Debug)]
pub(crate) struct Track {
    /// Where it is shown, if that is not the span's target.
    pub(crate) name: String,
    pub(crate) slice: TrackSlice,
}

impl Slot {
    fn new() -> Self {
        Self {
            life: Life::new(),
            link: Link::new(),
            callsite: AtomicU32::new(0),
            fields: RwLock::new(String::new()),
            track: Mutex::new(Track { name: String::new(), slice: TrackSlice::none() }),
        }
    }
}

static CHUNK: [OnceRef<Box<[Slot]>>; CHUNKS] = [const { OnceRef::new() }; CHUNKS];
/// How many slots were ever given out.
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: Free = Free::new(AtomicU64::new(NONE_FREE));

/// The chunk that slot `index` lies in, and its index there.
fn place(index: u32) -> (usize, usize) {
    parts::locate(index as usize, FIRST_CHUNK)
}

fn slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = place(index);
    CHUNK.get(chunk)?.get()?.get(at)
}

/// Slot `index`, in a chunk that is made if need be.
fn make_slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = place(index);
    let make = || (0..FIRST_CHUNK << chunk).map(|_| Slot::new()).collect();
    CHUNK.get(chunk)?.get_or_make(make).get(at)
}

fn take_unused() -> Option<u32> {
    let most = u32::try_from(parts::room(CHUNKS, FIRST_CHUNK)).unwrap_or(u32::MAX);
    let index = USED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < most).then_some(used + 1))
        .ok()?;
    make_slot(index).map(|_| index)
}

/// Tries for as long as a thread that holds something for some nanoseconds can reasonably take.
fn patiently<T>(attempt: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 0..200 {
        if let Some(done) = attempt() {
            return Some(done);
        }
        std::thread::yield_now();
    }
    None
}

/// What a lock guards, also after a panic: these are buffers, good in any state.
fn open<G>(tried: Result<G, TryLockError<G>>) -> Option<G> {
    match tried {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Makes the first slots ahead of the first span.
pub(crate) fn prepare() {
    for index in 0..PREPARED {
        if let Some(slot) = make_slot(index)
            && let Some(mut fields) = open(slot.fields.try_write())
        {
            fields.reserve(TEXT_AT_FIRST);
        }
    }
}

/// A span that something is kept of. A copy may outlive the span; then it finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept(u64);

impl Kept {
    /// A new span of this callsite, with one holder, without fields or a track. None when there is no room
    /// for more.
    pub(crate) fn new(callsite: Callsite) -> Option<Self> {
        let index = FREE.take(|index| Some(&slot(index)?.link)).or_else(take_unused)?;
        let slot = slot(index)?;
        slot.callsite.store(callsite.number(), Ordering::Relaxed);
        let kept = Self(pair(slot.life.begin(), index));
        if let Some(mut fields) = kept.fields_mut() {
            fields.clear();
            fields.reserve(TEXT_AT_FIRST);
        }
        Some(kept)
    }

    /// 62 bits that tell it from every other span of its time.
    #[inline]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Different for all spans that are alive at the same time in this process.
    pub(crate) const fn cookie(self) -> i32 {
        // Apart from the small numbers that programs choose for cookies of their own.
        (low(self.0) & 0x3fff_ffff | 0x4000_0000).cast_signed()
    }

    #[inline]
    fn slot(self) -> Option<&'static Slot> {
        slot(low(self.0)).filter(|slot| slot.life.is_of(high(self.0)))
    }

    #[inline]
    pub(crate) fn callsite(self) -> Option<Callsite> {
        Some(Callsite::from_number(self.slot()?.callsite.load(Ordering::Relaxed)))
    }

    /// The fields as text, each behind a separator.
    #[inline]
    pub(crate) fn fields(self) -> Option<RwLockReadGuard<'static, String>> {
        let slot = self.slot()?;
        open(slot.fields.try_read()).or_else(|| patiently(|| open(slot.fields.try_read())))
    }

    pub(crate) fn fields_mut(self) -> Option<RwLockWriteGuard<'static, String>> {
        let slot = self.slot()?;
        patiently(|| open(slot.fields.try_write()))
    }

    pub(crate) fn track(self) -> Option<MutexGuard<'static, Track>> {
        let slot = self.slot()?;
        patiently(|| open(slot.track.try_lock()))
    }

    /// Adds a holder.
    #[inline]
    pub(crate) fn hold(self) {
        if let Some(slot) = slot(low(self.0)) {
            slot.life.hold(high(self.0));
        }
    }

    /// Takes a holder away; with the last one the span closes: its async slice ends, its slot is free. Tells
    /// whether it did.
    pub(crate) fn release(self) -> bool {
        let Some(slot) = slot(low(self.0)) else { return false };
        if !slot.life.release(high(self.0)) {
            return false;
        }
        if let Some(mut track) = open(slot.track.try_lock()) {
            let slice = std::mem::replace(&mut track.slice, TrackSlice::none());
            let callsite = Callsite::from_number(slot.callsite.load(Ordering::Relaxed));
            let target = callsite.metadata().map_or("", |metadata| metadata.target());
            slice.end(if track.name.is_empty() { target } else { &track.name }, self.cookie());
            track.name.clear();
        }
        FREE.put_back(low(self.0), &slot.link);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_spans_find_nothing_and_slots_are_used_again() {
        let callsite = Callsite::from_number(7);
        let first = Kept::new(callsite).unwrap();
        first.fields_mut().unwrap().push_str("text");
        first.hold();
        assert!(!first.release());
        assert_eq!(first.callsite(), Some(callsite));
        assert!(first.release());
        assert!(first.fields().is_none() && first.callsite().is_none() && first.track().is_none());
        first.hold();
        assert!(!first.release());
        let second = Kept::new(callsite).unwrap();
        assert_ne!(first, second);
        assert_eq!(second.fields().unwrap().as_str(), "");
        assert!(second.release());
    }

    #[test]
    fn cookies_are_none_that_a_program_chooses() {
        let span = Kept::new(Callsite::from_number(1)).unwrap();
        for number in [span.0, pair(7, 0), pair(0, 1), pair(0x3fff_ffff, 0x3fff_ffff)] {
            let cookie = Kept::from_number(number).cookie();
            assert!(cookie >= 1 << 30, "{cookie}");
            assert_eq!(cookie & 0x3fff_ffff, low(number).cast_signed());
        }
        assert!(span.release());
    }

    #[test]
    fn a_panic_while_its_buffers_are_held_spoils_no_slot() {
        let span = Kept::new(Callsite::from_number(1)).unwrap();
        let held = std::thread::spawn(move || {
            let mut fields = span.fields_mut().unwrap();
            let _track = span.track().unwrap();
            fields.push_str("half");
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(held.join().is_err());
        assert_eq!(*span.fields().unwrap(), "half");
        span.fields_mut().unwrap().push_str(" and whole");
        assert_eq!(*span.fields().unwrap(), "half and whole");
        assert!(!span.track().unwrap().slice.is_written());
        assert!(span.release());
    }

    #[test]
    fn threads_that_need_a_chunk_at_once_have_the_same() {
        // Beyond all that the other tests use.
        let index = u32::try_from(FIRST_CHUNK << if cfg!(miri) { 6 } else { 12 }).unwrap();
        let made: Vec<_> = std::thread::scope(|scope| {
            let make = || std::ptr::from_ref(make_slot(index).unwrap()).addr();
            let threads: Vec<_> = (0..if cfg!(miri) { 2 } else { 8 }).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|slot| *slot == made[0]), "{made:?}");
        let most = u32::try_from(parts::room(CHUNKS, FIRST_CHUNK)).unwrap();
        assert!(slot(index).is_some() && make_slot(most).is_none());
    }

    #[test]
    fn spans_alive_at_the_same_time_differ_in_their_cookies() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    let (times, spans) = if cfg!(miri) { (2, 6) } else { (200, 20) };
                    for _ in 0..times {
                        let spans: Vec<_> =
                            (0..spans).map(|_| Kept::new(Callsite::from_number(1)).unwrap()).collect();
                        for (n, span) in spans.iter().enumerate() {
                            let mut fields = span.fields_mut().unwrap();
                            assert_eq!(fields.as_str(), "");
                            fields.push_str(&n.to_string());
                        }
                        let mut cookies: Vec<_> = spans.iter().map(|span| span.cookie()).collect();
                        cookies.sort_unstable();
                        cookies.dedup();
                        assert_eq!(cookies.len(), spans.len());
                        for (n, span) in spans.iter().enumerate() {
                            assert_eq!(*span.fields().unwrap(), n.to_string());
                            assert!(span.release());
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

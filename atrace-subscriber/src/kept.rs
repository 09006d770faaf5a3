//! What must be kept of a span while it lives: the text of its fields, and the async slice it has open.
//!
//! Kept in slots that are used again and again. Slots come in chunks that double in size, and the buffers of
//! a slot stay with it, so that nothing is allocated once there are as many slots as spans are alive at a
//! time. One store serves the whole process: the slices of a thread nest whichever subscriber wrote them, and
//! cookies must differ throughout it.
//!
//! Free slots form a stack. The words that change hands carry a count of their changes, so that a
//! compare-and-swap that comes late fails, and the id of a span that is gone is found to be stale. Nobody
//! waits for a thread that may not exist (in a forked child, none but one does): who finds a buffer in use
//! for long does without it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::Duration;

use atrace::TrackSlice;

use crate::callsites::Callsite;

const FIRST_CHUNK: usize = 16;
const CHUNKS: usize = 24;
const NO_SLOT: u32 = u32::MAX;
/// The generations that fit in a span's id.
const GENERATIONS: u32 = 0x3fff_ffff;
/// Bytes that the fields of most spans fit in.
const TEXT_AT_FIRST: usize = 120;
/// Slots that have such a buffer from the start.
const PREPARED: u32 = 4;

struct Slot {
    /// The generation, which changes when the span closes, and how many hold the span.
    life: AtomicU64,
    next_free: AtomicU32,
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
            life: AtomicU64::new(0),
            next_free: AtomicU32::new(NO_SLOT),
            callsite: AtomicU32::new(0),
            fields: RwLock::new(String::new()),
            track: Mutex::new(Track { name: String::new(), slice: TrackSlice::none() }),
        }
    }
}

static CHUNK: [OnceLock<Box<[Slot]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static CHUNK_IS_TAKEN_ON: [AtomicBool; CHUNKS] = [const { AtomicBool::new(false) }; CHUNKS];
/// How many slots were ever given out.
static USED: AtomicU32 = AtomicU32::new(0);
/// The count of changes, and the slot that was freed last.
static FREE: AtomicU64 = AtomicU64::new(NO_SLOT as u64);

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

const fn high(pair: u64) -> u32 {
    (pair >> 32) as u32
}

const fn low(pair: u64) -> u32 {
    pair as u32
}

/// The chunk that slot `index` lies in, and its place there.
fn place(index: u32) -> (usize, usize) {
    let chunk = (index as usize / FIRST_CHUNK + 1).ilog2() as usize;
    (chunk, index as usize - FIRST_CHUNK * ((1 << chunk) - 1))
}

fn slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = place(index);
    CHUNK.get(chunk)?.get()?.get(at)
}

/// Slot `index`, in a chunk that is made if need be. In a forked child one may stay unfinished forever; then
/// there is none.
fn make_slot(index: u32) -> Option<&'static Slot> {
    let (chunk, _) = place(index);
    if slot(index).is_none() && !CHUNK_IS_TAKEN_ON.get(chunk)?.swap(true, Ordering::AcqRel) {
        let _ = CHUNK[chunk].set((0..FIRST_CHUNK << chunk).map(|_| Slot::new()).collect());
    }
    // The thread that makes it may have lost its CPU: on a busy machine, for some milliseconds.
    patiently(|| slot(index)).or_else(|| {
        (0..100).find_map(|_| {
            std::thread::sleep(Duration::from_micros(200));
            slot(index)
        })
    })
}

fn take_unused() -> Option<u32> {
    let most = u32::try_from(FIRST_CHUNK * ((1 << CHUNKS) - 1)).unwrap_or(NO_SLOT);
    let index = USED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < most).then_some(used + 1))
        .ok()?;
    make_slot(index).map(|_| index)
}

fn take_free() -> Option<u32> {
    let mut free = FREE.load(Ordering::Acquire);
    loop {
        let slot = slot(low(free)).filter(|_| low(free) != NO_SLOT)?;
        let next = pair(high(free).wrapping_add(1), slot.next_free.load(Ordering::Relaxed));
        match FREE.compare_exchange_weak(free, next, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Some(low(free)),
            Err(now) => free = now,
        }
    }
}

fn put_back(index: u32, slot: &Slot) {
    let mut free = FREE.load(Ordering::Relaxed);
    loop {
        slot.next_free.store(low(free), Ordering::Relaxed);
        let next = pair(high(free).wrapping_add(1), index);
        match FREE.compare_exchange_weak(free, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => free = now,
        }
    }
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
        let index = take_free().or_else(take_unused)?;
        let slot = slot(index)?;
        slot.callsite.store(callsite.number(), Ordering::Relaxed);
        let generation = high(slot.life.load(Ordering::Relaxed));
        slot.life.store(pair(generation, 1), Ordering::Release);
        let kept = Self(pair(generation, index));
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
        let slot = slot(low(self.0))?;
        self.is_alive(slot.life.load(Ordering::Acquire)).then_some(slot)
    }

    #[inline]
    fn is_alive(self, life: u64) -> bool {
        high(life) == high(self.0) && low(life) > 0
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
            let more = |life| (self.is_alive(life) && low(life) < u32::MAX).then(|| life + 1);
            let _ = slot.life.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }

    /// Takes a holder away; with the last one the span closes: its async slice ends, its slot is free. Tells
    /// whether it did.
    pub(crate) fn release(self) -> bool {
        let Some(slot) = slot(low(self.0)) else { return false };
        let less = |life| {
            self.is_alive(life).then(|| match low(life) {
                1 => pair((high(life) + 1) & GENERATIONS, 0),
                _ => life - 1,
            })
        };
        match slot.life.fetch_update(Ordering::Release, Ordering::Relaxed, less) {
            Ok(life) if low(life) == 1 => {}
            _ => return false,
        }
        fence(Ordering::Acquire);
        if let Some(mut track) = open(slot.track.try_lock()) {
            let slice = std::mem::replace(&mut track.slice, TrackSlice::none());
            let callsite = Callsite::from_number(slot.callsite.load(Ordering::Relaxed));
            let target = callsite.metadata().map_or("", |metadata| metadata.target());
            slice.end(if track.name.is_empty() { target } else { &track.name }, self.cookie());
            track.name.clear();
        }
        put_back(low(self.0), slot);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_lie_in_chunks_that_double() {
        let mut expected = 0..;
        for chunk in 0..5 {
            for at in 0..FIRST_CHUNK << chunk {
                let index = expected.next().unwrap();
                assert_eq!(place(index), (chunk, at), "{index}");
            }
        }
    }

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
    fn spans_alive_at_the_same_time_differ_in_their_cookies() {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    for _ in 0..200 {
                        let spans: Vec<_> =
                            (0..20).map(|_| Kept::new(Callsite::from_number(1)).unwrap()).collect();
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

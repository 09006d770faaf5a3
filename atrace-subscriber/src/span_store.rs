//! The span store: the fields of each stored span, its life (a slice from its creation until it closes), and its open
//! async slice.
//!
//! # Why
//!
//! A span's fields are given at its creation and by `Span::record`. A slice with these fields begins each time the span
//! is entered. So the fields are formatted or encoded when they are given, and stored until the span closes. A span
//! without fields, life and async slice is not stored, because the table of callsites has all data of such a span
//! (`callsites.rs`).
//!
//! # Layout
//!
//! The store consists of slots that are reused. A slot has buffers for the text and for the encoded arguments, and
//! keeps them when its span closes. Slots are allocated in chunks, each twice as large as the previous chunk, so no
//! slot ever moves. The store allocates only if more spans are alive than ever before, if fields do not fit into a
//! buffer, or if a field gives a span a name or a track.
//!
//! A [`StoredSpan`] is the index of a slot and the generation of its span, a number that changes with each span in the
//! slot. The generation shows whether the span is still alive. `slots.rs` tracks which slots are free, the generations,
//! and how many *holders* each span has: references that keep the span open.
//!
//! One store serves all subscribers, because the cookies of async slices, which contain the index of the slot, must
//! differ throughout the process.
//!
//! # Threads and forks
//!
//! Each slot has a lock for its buffers, because a span may be entered on one thread while another thread records
//! fields. No thread waits for the lock for long, because in a forked child the thread that holds the lock may not
//! exist. If a slot stays locked, the fields are left out. If several threads need a new chunk at once, each thread
//! allocates a chunk, and only the chunk that is published first is used.

pub(crate) mod by_id;
mod claim;
pub(crate) mod lives;
mod marks;

use std::cell::Cell;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use atrace::tracer::{NamedTrack, TrackSlice};
use atrace_sys::OnceRef;

use crate::callsites::Callsite;
use crate::fields;
use crate::parts;
use crate::slots::{Free, Life, Link, NONE_FREE, high, low, pair};
use crate::span::Span;
use crate::span_stack;
use crate::span_store::lives::Origin;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The number of slots in the first chunk.
const FIRST_CHUNK: usize = 16;
/// The maximum number of chunks of slots.
const CHUNKS: usize = 24;
/// The initial capacity of a slot's buffer for the text and, in the first [`PREPARED`] slots, of the buffer for the
/// arguments, in bytes. This is enough for the text and the arguments of most spans.
const TEXT_AT_FIRST: usize = 120;
/// The number of slots whose buffers are allocated before the first span.
const PREPARED: u32 = 4;

/// The maximum size of a span's stored arguments, in bytes: an event has no room for more.
const ARGS_MAX: usize = 2048;
/// The room that is kept for the argument `left_out` (the number of arguments for which there was no room), in bytes.
const LEFT_OUT_ROOM: usize = 16;
/// The encoded argument `left_out` without its value, which follows as a varint of two bytes. These are
/// the bytes that the encoders of arguments write.
const LEFT_OUT: &[u8] = b"\x22\x0d\x52\x08left_out\x18";
/// The maximum value of the argument `left_out`.
const LEFT_OUT_MAX: u32 = 0x3fff;

struct Slot {
    life: Life,
    link: Link,
    callsite: AtomicU32,
    /// Whether the span may have an open async slice that is not a life. Without such a slice and without a life,
    /// closing the span does not need the lock.
    has_track: AtomicBool,
    /// Whether the registry has reported that the span closed.
    is_closed: AtomicBool,
    origin: Origin,
    texts: RwLock<Texts>,
}

/// The stored content of a span, for one backend or both.
#[derive(Debug)]
pub(crate) struct Texts {
    /// The name that a field has given to the span, or an empty text if the span has the name of its callsite.
    pub(crate) name: String,
    /// The text for ATrace: the name, and each field after a separator. This text is empty if the span was not stored
    /// for ATrace.
    pub(crate) shown: String,
    /// The encoded arguments and flows for Perfetto.
    pub(crate) args: Vec<u8>,
    /// Whether the span was stored for Perfetto.
    pub(crate) is_typed: bool,
    /// The length that `args` had when the async slice began.
    pub(crate) at_begin: u32,
    /// The number of arguments for which there was no room. It is 0 until a recorded argument has no room; then it is
    /// the value of the argument `left_out`.
    left_out: u32,
    /// The positions in `args` of the begin and the end of the argument `left_out`.
    left_out_at: (u32, u32),
    /// The name of the async slice's track, or an empty text if the track has the name of the span's target.
    pub(crate) track: String,
    pub(crate) async_slice: Option<TrackSlice>,
}

impl Slot {
    fn new() -> Self {
        let texts = Texts {
            name: String::new(),
            shown: String::new(),
            args: Vec::new(),
            is_typed: false,
            at_begin: 0,
            left_out: 0,
            left_out_at: (0, 0),
            track: String::new(),
            async_slice: None,
        };
        Self {
            life: Life::new(),
            link: Link::new(),
            callsite: AtomicU32::new(0),
            has_track: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            origin: Origin::new(),
            texts: RwLock::new(texts),
        }
    }
}

static CHUNK: [OnceRef<Box<[Slot]>>; CHUNKS] = [const { OnceRef::new() }; CHUNKS];
/// The number of slots that have ever been used.
static USED: AtomicU32 = AtomicU32::new(0);
/// Whether any span of this process ever had, or might have had, a life or an async slice, or was added to the table of
/// [`by_id`].
static HAS_SHOWN: AtomicBool = AtomicBool::new(false);
static FREE: Free = Free::new(AtomicU64::new(NONE_FREE));

/// Returns false if certainly no stored span of this process has to be closed when the registry reports its close.
#[inline(always)]
pub(crate) fn has_shown() -> bool {
    HAS_SHOWN.load(Ordering::Relaxed)
}

/// Records that this process has a stored span that must be closed when the registry reports its close. Only the first
/// call writes to [`HAS_SHOWN`], which all threads read.
#[inline(always)]
fn note_shown() {
    if !has_shown() {
        HAS_SHOWN.store(true, Ordering::Relaxed);
    }
}

#[inline]
fn slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = parts::locate(index as usize, FIRST_CHUNK);
    CHUNK.get(chunk)?.get()?.get(at)
}

/// Returns a slot, and allocates the chunk that contains it if necessary.
fn make_slot(index: u32) -> Option<&'static Slot> {
    let (chunk, at) = parts::locate(index as usize, FIRST_CHUNK);
    let make = || (0..FIRST_CHUNK << chunk).map(|_| Slot::new()).collect();
    CHUNK.get(chunk)?.get_or_make(make).get(at)
}

#[cold]
fn take_unused() -> Option<(u32, &'static Slot)> {
    let most = u32::try_from(parts::room(CHUNKS, FIRST_CHUNK)).unwrap_or(u32::MAX);
    let index = USED
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < most).then_some(used + 1))
        .ok()?;
    make_slot(index).map(|slot| (index, slot))
}

/// Takes a lock. Returns `None` if another thread still holds the lock after 200 attempts. A poisoned lock is taken as
/// well, because the buffers are valid in any state.
#[inline]
fn patiently<G>(lock: impl Fn() -> Result<G, TryLockError<G>>) -> Option<G> {
    for _ in 0..200 {
        match lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

/// Allocates the first slots and their buffers before the first span.
pub(crate) fn prepare() {
    for index in 0..PREPARED {
        if let Some(slot) = make_slot(index)
            && let Ok(mut texts) = slot.texts.try_write()
        {
            texts.shown.reserve(TEXT_AT_FIRST);
            texts.args.reserve(TEXT_AT_FIRST);
        }
    }
}

/// A span that was found in its slot, so that several steps need only one lookup.
#[derive(Clone, Copy)]
pub(crate) struct InSlot {
    pub(crate) stored: StoredSpan,
    slot: &'static Slot,
}

impl InSlot {
    /// Stores an async slice of a new span, which ends when the span closes.
    pub(crate) fn set_async_slice(self, texts: &mut Texts, slice: Option<TrackSlice>) {
        note_shown();
        self.slot.has_track.store(slice.is_some(), Ordering::Relaxed);
        texts.async_slice = slice;
    }
}

/// A span in the store: the index of its slot, and the generation. A copy of this value may outlive the span; its
/// functions then do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredSpan(u64);

impl StoredSpan {
    /// Stores a span of this callsite, with one holder. `fill` gets the span and empty buffers. Returns `None` if there
    /// is no room for another span, or if the slot stays locked.
    #[inline]
    pub(crate) fn new(callsite: Callsite, fill: impl FnOnce(InSlot, &mut Texts)) -> Option<Self> {
        let seen = Cell::new(None);
        let link = |index| {
            seen.set(slot(index));
            Some(&seen.get()?.link)
        };
        let (index, slot) = FREE.take(link).zip(seen.get()).or_else(take_unused)?;
        slot.callsite.store(callsite.number(), Ordering::Relaxed);
        slot.is_closed.store(false, Ordering::Relaxed);
        let stored = Self(pair(slot.life.begin(), index));
        let Some(mut texts) = patiently(|| slot.texts.try_write()) else {
            stored.release(|| false);
            return None;
        };
        texts.clear();
        texts.shown.reserve(TEXT_AT_FIRST);
        fill(InSlot { stored, slot }, &mut texts);
        Some(stored)
    }

    /// Returns a number of 62 bits that differs for all spans that are alive at the same time.
    #[inline]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns a cookie that differs for all spans that are alive in this process at the same time.
    pub(crate) const fn cookie(self) -> i32 {
        // The high bit avoids the small numbers that programs choose for their own cookies.
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

    #[inline]
    pub(crate) fn texts(self) -> Option<RwLockReadGuard<'static, Texts>> {
        let slot = self.slot()?;
        patiently(|| slot.texts.try_read())
    }

    pub(crate) fn texts_mut(self) -> Option<RwLockWriteGuard<'static, Texts>> {
        let slot = self.slot()?;
        patiently(|| slot.texts.try_write())
    }

    /// Adds a holder to the span if the span is alive. Returns whether a holder was added.
    #[inline]
    pub(crate) fn hold(self) -> bool {
        slot(low(self.0)).is_some_and(|slot| slot.life.hold(high(self.0)))
    }

    /// Removes a holder. If it was the last holder, the span closes: its life and its async slice end, and its slot
    /// becomes free. If the life was a holder of the span's parent, the parent then has one holder less. Returns
    /// whether the span closed.
    ///
    /// `is_just_left` must return whether this thread has left the span and has entered no other span since.
    #[inline(always)]
    pub(crate) fn release(self, is_just_left: impl Fn() -> bool) -> bool {
        slot(low(self.0)).is_some_and(|slot| self.release_in(slot, is_just_left))
    }

    #[inline(always)]
    fn release_in(self, slot: &'static Slot, is_just_left: impl Fn() -> bool) -> bool {
        if !slot.life.release(high(self.0)) {
            return false;
        }
        if slot.origin.is_known() {
            return self.close_known(slot, is_just_left());
        }
        if slot.has_track.load(Ordering::Relaxed) {
            return self.close(slot, false);
        }
        FREE.put_back(low(self.0), &slot.link);
        true
    }

    /// Returns whether the registry has reported that the span closed. The span itself may close later, when the lives
    /// of its children have ended.
    pub(crate) fn is_closed(self) -> bool {
        self.slot().is_none_or(|slot| slot.is_closed.load(Ordering::Relaxed))
    }

    /// Removes the registry's holder of a span. A layer calls this once for each span, when the registry closes the span.
    pub(crate) fn close_once(self, is_just_left: impl Fn() -> bool) {
        if let Some(slot) = self.slot() {
            slot.is_closed.store(true, Ordering::Release);
            self.release(is_just_left);
        }
    }

    /// Removes the registry's holder of this span, which this thread left last, if the span's flow has the id `flow_id`
    /// and the span may have a life. This closes the span unless it has other holders. Returns false if the caller must
    /// look for the closed span in the registry. Returns true without a change if the span has neither a life nor an
    /// async slice, because such a span is closed when the registry drops its extensions.
    #[inline(always)]
    pub(crate) fn close_just_left(self, flow_id: u64) -> bool {
        let Some(slot) = self.slot() else { return false };
        if !slot.origin.is_known() {
            return !slot.has_track.load(Ordering::Relaxed);
        }
        let is_this = slot.origin.is_of(flow_id);
        if is_this {
            slot.is_closed.store(true, Ordering::Release);
            self.release_in(slot, || true);
        }
        is_this
    }

    /// Closes a span that has no holder any more and may have a life. Returns true.
    #[inline(never)]
    fn close_known(self, slot: &'static Slot, is_just_left: bool) -> bool {
        let is_just_left = is_just_left && slot.origin.was_entered_once();
        let has_track = slot.has_track.load(Ordering::Relaxed);
        if !is_just_left || has_track || slot.origin.needs_more(high(self.0)) {
            return self.close(slot, is_just_left);
        }
        slot.origin.forget();
        FREE.put_back(low(self.0), &slot.link);
        true
    }

    /// Closes a span that has no holder any more and may have a life or an async slice. Returns true.
    #[inline(never)]
    fn close(self, slot: &'static Slot, is_sync: bool) -> bool {
        if is_sync {
            span_stack::forget_last(Span::stored(self, false));
            slot.was_sync(high(self.0));
        }
        let mut next = Some((self, slot));
        while let Some((span, slot)) = next {
            let parent = if slot.origin.is_known() { span.end_life(slot) } else { None };
            if slot.has_track.load(Ordering::Relaxed) {
                span.end_async_slice(slot);
            }
            FREE.put_back(low(span.0), &slot.link);
            let of_parent = |parent: Self| Some((parent, self::slot(low(parent.0))?));
            next = parent.and_then(of_parent).filter(|(parent, slot)| slot.life.release(high(parent.0)));
        }
        true
    }

    #[cold]
    fn end_async_slice(self, slot: &Slot) {
        slot.has_track.store(false, Ordering::Relaxed);
        if let Some(mut texts) = patiently(|| slot.texts.try_write()) {
            let Some(slice) = texts.async_slice.take() else { return };
            let callsite = Callsite::from_number(slot.callsite.load(Ordering::Relaxed));
            let Some((metadata, info)) = callsite.metadata().zip(callsite.info()) else { return };
            let name = texts.track_or(metadata.target());
            let track = NamedTrack::new(name, NamedTrack::hash_of(name), self.cookie());
            let recorded = texts.args.get(texts.at_begin as usize..).unwrap_or_default();
            slice.end(&track, Some((&info.site(), recorded)), 0);
        }
    }
}

impl Texts {
    /// Removes the data of the slot's previous span, and keeps the buffers. If the slot was locked while that span
    /// closed, the span's async slice is still stored here.
    #[inline(always)]
    fn clear(&mut self) {
        let Self { name, shown, args, is_typed, at_begin, left_out, left_out_at: _, track, async_slice } =
            self;
        name.clear();
        shown.clear();
        args.clear();
        track.clear();
        (*is_typed, *at_begin, *left_out, *async_slice) = (false, 0, 0, None);
    }

    /// Adds `number` encoded arguments or, if `number` is 0, encoded flows. If an event would not have room for all
    /// arguments of the span, adds none of the new arguments, and adds their number to the argument `left_out`. Returns
    /// the position of the first change in the span's arguments.
    pub(crate) fn add_args(&mut self, args: &[u8], number: u32) -> u32 {
        if self.args.len() + args.len() > ARGS_MAX - LEFT_OUT_ROOM {
            return self.leave_out(number);
        }
        let from = self.args.len() as u32;
        self.args.extend_from_slice(args);
        self.is_typed = true;
        from
    }

    #[cold]
    #[inline(never)]
    fn leave_out(&mut self, number: u32) -> u32 {
        let begin = self.args.len() as u32;
        if number == 0 {
            return begin;
        }
        if self.left_out == 0 {
            self.make_left_out();
        }
        let (begin, end) = self.left_out_at;
        if let Some(value) = self.args.get_mut(..end as usize).and_then(<[u8]>::last_chunk_mut) {
            let before = u32::from(value[0] & 0x7f) | u32::from(value[1]) << 7;
            self.left_out = before.saturating_add(number).min(LEFT_OUT_MAX);
            *value = [self.left_out as u8 | 0x80, (self.left_out >> 7) as u8];
        }
        self.at_begin = self.at_begin.min(begin);
        begin
    }

    /// Finds the argument `left_out`, which an encoder has added if it had no room for all arguments. If there is no
    /// such argument, adds one whose value is 0.
    fn make_left_out(&mut self) {
        // The search can't find these bytes within a text: a byte above 0x7f stands alone in them, which never happens
        // in UTF-8.
        let is_value = |value: &[u8]| matches!(value, &[low, high] if low > 0x7f && high <= 0x7f);
        let is_left_out = |arg: &[u8]| arg.strip_prefix(LEFT_OUT).is_some_and(is_value);
        let len = LEFT_OUT.len() + 2;
        let present = self.args.windows(len).rposition(is_left_out);
        let begin = present.unwrap_or(self.args.len());
        if present.is_none() {
            self.args.extend_from_slice(LEFT_OUT);
            self.args.extend_from_slice(&[0x80, 0]);
        }
        self.left_out_at = (begin as u32, (begin + len) as u32);
    }

    /// Returns whether the span was stored only for Perfetto.
    pub(crate) fn is_only_typed(&self) -> bool {
        self.is_typed && self.shown.is_empty()
    }

    /// Returns the name that a field gave to the span, or `None` if no field did.
    pub(crate) fn own_name(&self) -> Option<&str> {
        if self.name.is_empty() { None } else { Some(&self.name) }
    }

    /// Gives the span another name. In the text for ATrace, the new name replaces the present name or, if the span has
    /// no name of its own, the name `of_callsite`.
    pub(crate) fn rename(&mut self, name: &str, of_callsite: &str) {
        let before = self.own_name().unwrap_or(of_callsite).len();
        if !self.shown.is_empty() && before <= self.shown.len() && self.shown.is_char_boundary(before) {
            let rest = self.shown.split_off(before);
            self.shown.clear();
            fields::append(&mut self.shown, name);
            fields::append(&mut self.shown, &rest);
        }
        self.name.clear();
        fields::append(&mut self.name, name);
    }

    /// Returns the name of the async slice's track, which is `target` by default.
    pub(crate) fn track_or<'a>(&'a self, target: &'a str) -> &'a str {
        if self.track.is_empty() { target } else { &self.track }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(callsite: Callsite, shown: &str) -> StoredSpan {
        StoredSpan::new(callsite, |_, texts| texts.shown.push_str(shown)).unwrap()
    }

    #[test]
    fn stale_spans_find_nothing_and_slots_are_used_again() {
        let callsite = Callsite::from_number(7);
        let first = stored(callsite, "text");
        first.hold();
        assert!(!first.release(|| false));
        assert_eq!(first.callsite(), Some(callsite));
        assert!(first.release(|| false));
        assert!(first.texts().is_none() && first.callsite().is_none() && first.texts_mut().is_none());
        first.hold();
        assert!(!first.release(|| false));
        let second = StoredSpan::new(callsite, |_, texts| assert_eq!(texts.shown, "")).unwrap();
        assert_ne!(first, second);
        assert_eq!(second.texts().unwrap().shown, "");
        assert!(second.release(|| false));
    }

    #[test]
    fn a_slot_that_stays_locked_while_its_span_closes_passes_nothing_on() {
        let callsite = Callsite::from_number(1);
        let left = |_: InSlot, texts: &mut Texts| {
            "name".clone_into(&mut texts.name);
            "shown".clone_into(&mut texts.shown);
            "track".clone_into(&mut texts.track);
            (texts.args, texts.at_begin, texts.is_typed) = (vec![1], 1, true);
        };
        let first = StoredSpan::new(callsite, left).unwrap();
        let slot = first.slot().unwrap();
        slot.has_track.store(true, Ordering::Relaxed);
        let locked = first.texts_mut().unwrap();
        assert!(first.release(|| false));
        drop(locked);
        let mut others = Vec::new();
        loop {
            std::thread::yield_now(); // Another test may have the slot for a while.
            let next = StoredSpan::new(callsite, |_, texts| {
                assert_eq!((&*texts.name, &*texts.shown, &*texts.track, &*texts.args), ("", "", "", &[][..]));
                assert_eq!((texts.at_begin, texts.is_typed, texts.async_slice.is_some()), (0, false, false));
            });
            others.push(next.unwrap());
            if others.last().is_some_and(|next| low(next.0) == low(first.0)) {
                break;
            }
        }
        assert!(others.into_iter().all(|span| span.release(|| false)));
    }

    #[test]
    fn cookies_are_none_that_a_program_chooses() {
        let span = stored(Callsite::from_number(1), "");
        for number in [span.0, pair(7, 0), pair(0, 1), pair(0x3fff_ffff, 0x3fff_ffff)] {
            let cookie = StoredSpan::from_number(number).cookie();
            assert!(cookie >= 1 << 30, "{cookie}");
            assert_eq!(cookie & 0x3fff_ffff, low(number).cast_signed());
        }
        assert!(span.release(|| false));
    }

    #[test]
    fn a_panic_while_its_buffers_are_held_spoils_no_slot() {
        let span = stored(Callsite::from_number(1), "");
        let held = std::thread::spawn(move || {
            span.texts_mut().unwrap().shown.push_str("half");
            let _texts = span.texts_mut().unwrap();
            std::panic::resume_unwind(Box::new(()));
        });
        assert!(held.join().is_err());
        span.texts_mut().unwrap().shown.push_str(" and whole");
        let texts = span.texts().unwrap();
        assert_eq!((&*texts.shown, texts.async_slice.is_some()), ("half and whole", false));
        drop(texts);
        assert!(span.release(|| false));
    }

    #[test]
    fn threads_that_need_a_chunk_at_once_have_the_same() {
        // The index of a slot that the other tests do not reach.
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
                            (0..spans).map(|_| stored(Callsite::from_number(1), "")).collect();
                        for (n, span) in spans.iter().enumerate() {
                            let mut texts = span.texts_mut().unwrap();
                            assert_eq!(texts.shown, "");
                            texts.shown.push_str(&n.to_string());
                        }
                        let mut cookies: Vec<_> = spans.iter().map(|span| span.cookie()).collect();
                        cookies.sort_unstable();
                        cookies.dedup();
                        assert_eq!(cookies.len(), spans.len());
                        for (n, span) in spans.iter().enumerate() {
                            assert_eq!(span.texts().unwrap().shown, n.to_string());
                            assert!(span.release(|| false));
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

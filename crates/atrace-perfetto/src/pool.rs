//! The places of threads, sessions and writers: one mapping, made once.
//!
//! A thread takes a place at its first event and has it until it ends; for each session that it writes for, there is a
//! writer at its place. Places are at fixed numbers, so a writer's number for the service comes from both of them. The
//! mapping is large and costs what is touched of it. How threads and the socket's thread keep out of each other's way
//! is told in [`presence`](super::presence).
//!
//! A forked child finds the sessions wiped, so it writes nothing. The threads' places and writers it has as they were: the
//! fork may have come from a signal handler in the middle of an event, which the child then goes on with. Its writer must
//! be whole; what it writes to is no longer its parent's memory. [`Pool::renew`] frees the places of threads that the child
//! does not have. A writer is told from its parent's by the epoch of its session, which has the generation of the process.

use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use atrace_sys::fork::{Turn, generation};
use atrace_sys::memory::{Mapped, Plain};
use atrace_sys::process::ErrnoGuard;
use atrace_sys::thread::{self, with_slot};
use atrace_sys::{OnceRef, fence};

use super::memory::{Arena, Loss};
use super::presence::{Epoch, Found, Presence};

/// How many sessions of the service there can be at once.
pub const SERVICES: usize = 8;
/// The place of the session that this process records itself by: behind those of the service.
pub const OWN_SESSION: usize = SERVICES;
/// How many sessions there can be at once.
pub const SESSIONS: usize = SERVICES + 1;
/// How many threads can have a place: as many as the service has numbers for their writers.
pub const THREADS: usize = 4095;

const _: () = assert!(SERVICES * THREADS < 1 << 15, "the service numbers a process' writers by 15 bits");

/// The service's number of a thread's writer in a session; in the process' own one it is known to nobody else.
pub const fn writer_number(session: usize, thread: usize) -> u16 {
    (1 + session % SERVICES * THREADS + thread) as u16
}

/// A session, as events see it.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Session {
    /// Which it is.
    pub epoch: Epoch,
    /// The service's number of the buffer that it writes into.
    pub buffer: AtomicU32,
    /// The tags that it wants.
    pub tags: AtomicU64,
    /// How many sessions had begun in this process before it.
    pub number: AtomicU32,
    /// How often what was said once was to be said again.
    pub clears: AtomicU32,
    /// Events were lost before it began, which no packet has told yet.
    pub has_lost: AtomicBool,
    /// Where its chunks are.
    arena: OnceRef<Arena>,
}

impl Session {
    /// Where its chunks are.
    #[inline]
    pub fn arena(&self) -> Option<&'static Arena> {
        self.arena.get()
    }

    /// Says where its chunks are.
    pub fn set_arena(&self, arena: &'static Arena) {
        self.arena.put(Some(arena));
    }
}

/// What all threads look at.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Shared {
    /// The tags that any session wants, and the presumed ones.
    pub tags: AtomicU64,
    /// A bit for each session that is open.
    pub open: AtomicU32,
    /// How many sessions have begun.
    pub begun: AtomicU32,
    /// As many places as were ever taken, all of them below this number.
    pub threads: AtomicU32,
    /// Events that were lost for want of room, of threads without a place, and within another event of their thread.
    pub lost: AtomicU64,
    /// The tags that are presumed to be wanted, while the service has not said which sessions there are.
    pub presumed: AtomicU64,
    /// Events that were lost meanwhile.
    pub early: AtomicU64,
    /// Those of them that are not counted in shared memory yet.
    pub untold: AtomicU64,
    /// Slices whose begins are among them, and whose ends are still to come.
    pub unbegun: AtomicU64,
    /// The sessions.
    pub sessions: [Session; SESSIONS],
}

impl Shared {
    /// Opens the session at a place, of which no thread has a chunk: events of these tags are written from now on.
    #[inline(never)]
    pub fn open(&self, number: usize, arena: &'static Arena, buffer: u32, tags: u64) {
        let Some(session) = self.sessions.get(number) else { return };
        session.set_arena(arena);
        session.buffer.store(buffer, Ordering::Relaxed);
        session.tags.store(tags, Ordering::SeqCst);
        session.number.store(self.begun.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let has_lost = self.presumed.load(Ordering::Relaxed) != 0 && self.early.load(Ordering::Relaxed) != 0;
        session.has_lost.store(has_lost, Ordering::Relaxed);
        session.epoch.open(generation().number());
        self.open.fetch_or(1 << number, Ordering::Release);
        self.publish_tags();
    }

    /// Closes the session at a place: no event begins to be written for it any more. Its chunks are to be
    /// [reclaimed](Pool::reclaim).
    #[inline(never)]
    pub fn close(&self, number: usize) {
        let Some(session) = self.sessions.get(number) else { return };
        self.open.fetch_and(!(1 << number), Ordering::Relaxed);
        session.tags.store(0, Ordering::SeqCst);
        session.epoch.close();
        self.publish_tags();
    }

    /// Has these tags be presumed to be wanted, whatever sessions say; tells whether that is a change.
    #[inline(never)]
    pub fn presume(&self, tags: u64) -> bool {
        let is_new = self.presumed.swap(tags, Ordering::SeqCst) != tags;
        if is_new {
            self.publish_tags();
        }
        is_new
    }

    /// Counts an event that is lost as its thread can't go inside.
    #[cold]
    fn lose(&self) {
        let open = self.open.load(Ordering::Acquire);
        if open == 0 && self.presumed.load(Ordering::Relaxed) != 0 {
            self.early.fetch_add(1, Ordering::Relaxed);
            self.untold.fetch_add(1, Ordering::SeqCst);
            return;
        }
        self.lost.fetch_add(1, Ordering::Relaxed);
        let session = self.sessions.get(open.trailing_zeros() as usize);
        if let Some(arena) = session.and_then(Session::arena) {
            arena.count_lost(Loss::Inside, 1);
        }
    }

    /// Has the word of all sessions' tags be what they say. Of two that do so at once, the later sees both.
    #[inline(never)]
    fn publish_tags(&self) {
        loop {
            let seen = self.tags.load(Ordering::Acquire);
            let tags = self.tags_of_all();
            if self.tags.compare_exchange(seen, tags, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                continue;
            }
            if self.tags_of_all() == tags {
                return;
            }
        }
    }

    #[inline(never)]
    fn tags_of_all(&self) -> u64 {
        let presumed = self.presumed.load(Ordering::SeqCst);
        self.sessions.iter().fold(presumed, |all, session| all | session.tags.load(Ordering::SeqCst))
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Thread {
    presence: Presence,
    /// The system's number of a thread whose end is not noticed: see [`Pool::look_for_ended`].
    unnoticed: AtomicU32,
}

/// A type whose memory may be all zeroes.
///
/// # Safety
///
/// Zeroes are a value of it, and it needs no drop.
pub unsafe trait Zeroes: Sized {}

/// The writer of a thread and a session.
struct Place<W>(UnsafeCell<W>);

// SAFETY: used by its thread alone, or by the socket's thread once that one can't any more: see `presence`.
unsafe impl<W> Sync for Place<W> {}

/// How much at the start of the mapping is wiped in a child: whole pages, whatever their size.
const WIPED: usize = 64 << 10;

#[repr(C)]
struct Layout<W> {
    shared: Shared,
    /// The rest of what is wiped.
    _unused: [u8; WIPED - size_of::<Shared>()],
    /// The process that the places are of, by its generation; and how many places were ever taken, here or by an ancestor.
    owner: AtomicU64,
    ever: AtomicU32,
    threads: [Thread; THREADS],
    writers: [[Place<W>; THREADS]; SESSIONS],
}

// SAFETY: atomics, and what `Zeroes` says.
unsafe impl<W: Zeroes> Plain for Layout<W> {}

/// The places of this process.
#[derive(Debug)]
pub struct Pool<W: Zeroes + 'static>(OnceRef<Layout<W>>);

/// Returns the number of the calling thread's place, or `usize::MAX` if it has none.
#[inline(always)]
fn own_place() -> usize {
    with_slot(|slot| slot.load(Ordering::Relaxed) as usize).wrapping_sub(1)
}

impl<W: Zeroes + 'static> Pool<W> {
    /// None yet.
    pub const fn new() -> Self {
        Self(OnceRef::new())
    }

    #[inline(always)]
    fn layout(&self) -> Option<&'static Layout<W>> {
        self.0.get()
    }

    /// What all threads look at.
    #[inline(always)]
    pub fn shared(&self) -> Option<&'static Shared> {
        self.layout().map(|layout| &layout.shared)
    }

    /// Makes the mapping; `at_end` is called with its place by a thread that ends and had one.
    ///
    /// # Errors
    ///
    /// Returns what failed where there is no memory, or no key for threads that end.
    pub fn make(&self, at_end: &'static fn(usize)) -> io::Result<&'static Shared> {
        fence::prepare();
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        // In a child its start is wiped where the kernel can do that, else by `wipe`.
        let layout = Mapped::<Layout<W>>::large(WIPED)?;
        layout.owner.store(generation().number(), Ordering::Relaxed);
        let layout = self.0.keep(layout);
        thread::ending::prepare(at_end)?;
        Ok(&layout.shared)
    }

    /// Empties the sessions, and [renews](Self::renew). In a child of fork, by the handler that runs there first.
    /// Async-signal-safe.
    pub fn wipe(&self) {
        if let Some(layout) = self.layout() {
            // SAFETY: the child has one thread. In the middle of an event it finds atomics that are zero.
            unsafe { Mapped::wipe(layout, WIPED) };
        }
        self.renew();
    }

    /// In a forked child, before its first session: frees the places of its parent's threads. The calling thread keeps its own
    /// if it is in the middle of an event. Async-signal-safe.
    pub fn renew(&self) {
        let Some(layout) = self.layout() else { return };
        let this = generation().number();
        if layout.owner.swap(this, Ordering::AcqRel) == this {
            return;
        }
        let (own, ever) = (own_place(), layout.ever.load(Ordering::Acquire) as usize);
        for (place, thread) in layout.threads.iter().enumerate().take(ever) {
            if place == own && thread.presence.is_inside() {
                layout.shared.threads.fetch_max(place as u32 + 1, Ordering::AcqRel);
            } else {
                thread.unnoticed.store(0, Ordering::Relaxed);
                thread.presence.give_back();
            }
        }
    }

    /// Goes inside with this thread's place, taking one if it has none. None: the event is lost, and counted.
    #[inline(always)]
    pub fn enter(&self) -> Option<Inside<W>> {
        let layout = self.layout()?;
        let place = own_place();
        let (place, presence) = match layout.threads.get(place) {
            Some(Thread { presence, .. }) if presence.enter() == Found::Entered => (place, presence),
            _ => enter_first(&layout.shared, &layout.ever, &layout.threads)?,
        };
        Some(Inside { layout, place, presence, _not_send: PhantomData })
    }

    /// The calling thread, which has this place, ends: calls `each` with each session and this thread's writer there, then gives its place
    /// back.
    pub fn end_thread(&self, place: usize, each: fn(&'static Session, &mut W)) {
        let Some(layout) = self.layout() else { return };
        // Of what it knows of itself there may be nothing any more.
        with_slot(|slot| slot.store(0, Ordering::Relaxed));
        let Some(thread) = layout.threads.get(place) else { return };
        if thread.presence.enter() != Found::Entered {
            return; // A child's, or in the middle of an event that can't go on.
        }
        Self::end(layout, place, each);
    }

    /// Gives a place back, inside which its thread is, or was when it ended.
    #[inline(never)]
    fn end(layout: &'static Layout<W>, place: usize, each: fn(&'static Session, &mut W)) {
        let presence = &layout.threads[place].presence;
        let mut inside = Inside { layout, place, presence, _not_send: PhantomData };
        for (number, session) in layout.shared.sessions.iter().enumerate() {
            if Epoch::is_open(session.epoch.now()) {
                each(session, inside.writer(number));
            }
        }
        std::mem::forget(inside);
        presence.give_back();
    }

    /// Does what [`end_thread`](Self::end_thread) does for threads that have ended and could not say so. Now and then, by
    /// a thread that opens and closes sessions.
    pub fn look_for_ended(&self, each: fn(&'static Session, &mut W)) {
        /// Of two that look at once, one does.
        static TURN: Turn = Turn::new();
        let Some(layout) = self.layout() else { return };
        let threads = layout.shared.threads.load(Ordering::Acquire) as usize;
        TURN.run(|| {
            for (place, thread) in layout.threads.iter().enumerate().take(threads) {
                let number = thread.unnoticed.load(Ordering::Acquire);
                let has_ended = number != 0 && !thread::is_there(number);
                if has_ended && thread.presence.enter() == Found::Entered {
                    thread.unnoticed.store(0, Ordering::Relaxed);
                    Self::end(layout, place, each);
                }
            }
        });
    }

    /// After a session was closed: calls `each` with its epoch and the writers of all threads that are not inside; tells
    /// whether there were no others. By the thread that closed it.
    #[inline(never)]
    pub fn reclaim(&self, session: usize, each: fn(&mut W, u32)) -> bool {
        let Some(layout) = self.layout() else { return true };
        let epoch = layout.shared.sessions[session].epoch.last();
        let threads = layout.shared.threads.load(Ordering::Acquire) as usize;
        let mut is_done = true;
        for (thread, writer) in layout.threads.iter().zip(&layout.writers[session]).take(threads) {
            if thread.presence.is_inside() {
                is_done = false;
                continue;
            }
            // SAFETY: the session is closed, so only a thread that was inside then uses the writer, and none is.
            each(unsafe { &mut *writer.0.get() }, epoch);
        }
        is_done
    }
}

/// Goes inside with this thread's place, or takes one; returns which.
///
/// A signal handler may come between any two steps and do the same: the place that was stored first is the thread's.
#[cold]
#[inline(never)]
fn enter_first<'a>(
    shared: &Shared,
    ever: &AtomicU32,
    threads: &'a [Thread; THREADS],
) -> Option<(usize, &'a Presence)> {
    let _errno = ErrnoGuard::new();
    let before = with_slot(|slot| slot.load(Ordering::Relaxed));
    let is_inside = threads.get(own_place()).is_some_and(|thread| thread.presence.is_inside());
    let taken = if is_inside { None } else { threads.iter().position(|thread| thread.presence.claim()) };
    let Some(place) = taken else {
        shared.lose();
        return None;
    };
    // Counted before it is used.
    let number = place as u32 + 1;
    ever.fetch_max(number, Ordering::AcqRel);
    shared.threads.fetch_max(number, Ordering::AcqRel);
    let store = |slot: &AtomicU32| {
        slot.compare_exchange(before, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if with_slot(store) {
        if !thread::ending::note(place) {
            let number = thread::number().unwrap_or_default();
            threads[place].unnoticed.store(number, Ordering::Release);
        }
    } else {
        threads[place].presence.give_back();
    }
    let place = own_place();
    let presence = &threads.get(place)?.presence;
    (presence.enter() == Found::Entered).then_some((place, presence))
}

impl<W: Zeroes + 'static> Default for Pool<W> {
    fn default() -> Self {
        Self::new()
    }
}

/// A thread is inside: until this is dropped its writers are its own.
#[derive(Debug)]
pub struct Inside<W: Zeroes + 'static> {
    layout: &'static Layout<W>,
    place: usize,
    presence: &'static Presence,
    _not_send: PhantomData<*const ()>,
}

impl<W: Zeroes + 'static> Inside<W> {
    /// What all threads look at.
    #[inline(always)]
    pub const fn shared(&self) -> &'static Shared {
        &self.layout.shared
    }

    /// The number of this thread's place.
    #[inline(always)]
    pub const fn thread(&self) -> usize {
        self.place
    }

    /// This thread's writer of a session, of which it is to be asked now, not before, whether it is open.
    #[inline(always)]
    pub fn writer(&mut self, session: usize) -> &mut W {
        // SAFETY: the place is this thread's, which is inside once. The socket's thread takes writers of closed
        // sessions only, and only while no thread is inside.
        unsafe { &mut *self.layout.writers[session % SESSIONS][self.place].0.get() }
    }
}

impl<W: Zeroes + 'static> Drop for Inside<W> {
    #[inline(always)]
    fn drop(&mut self) {
        self.presence.leave();
    }
}

impl<W> std::fmt::Debug for Layout<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.shared.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    #[repr(C)]
    struct Counter(u64);
    // SAFETY: a number.
    unsafe impl Zeroes for Counter {}

    static POOL: Pool<Counter> = Pool::new();

    fn at_end(place: usize) {
        POOL.end_thread(place, |_, counter| counter.0 += 1000);
    }

    /// One test, as the pool is one.
    #[test]
    #[cfg_attr(miri, ignore = "maps 18 MiB")]
    fn threads_have_places_of_their_own_and_give_them_back() {
        assert!(POOL.enter().is_none());
        let shared = POOL.make(&(at_end as fn(usize))).unwrap();
        let epoch = &shared.sessions[3].epoch;
        for round in 1..=3 {
            epoch.open(1);
            std::thread::scope(|scope| {
                let work = || {
                    for _ in 0..1000 {
                        let mut inside = POOL.enter().unwrap();
                        assert!(POOL.enter().is_none());
                        inside.writer(3).0 += 1;
                    }
                };
                let threads = [(); 8].map(|()| scope.spawn(work));
                // What runs at a thread's end is over then, too.
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
            epoch.close();
            static SUM: AtomicU64 = AtomicU64::new(0);
            SUM.store(0, Ordering::Relaxed);
            assert!(POOL.reclaim(3, |counter, _| {
                SUM.fetch_add(counter.0, Ordering::Relaxed);
            }));
            assert_eq!(SUM.load(Ordering::Relaxed), round * 16_000);
            assert!(shared.threads.load(Ordering::Relaxed) <= 8);
        }
        assert_eq!(shared.lost.load(Ordering::Relaxed), 24_000);

        // A child has no session. Who forked in the middle of an event goes on with it; the places of others are free.
        let inside = POOL.enter();
        let other = POOL.layout().map(|layout| {
            layout.ever.fetch_max(8, Ordering::AcqRel);
            &layout.threads[7].presence
        });
        assert!(other.is_some_and(Presence::claim));
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_wiped = POOL.shared().is_some_and(|shared| shared.threads.load(Ordering::Relaxed) == 0);
            POOL.renew();
            let is_free = other.is_some_and(Presence::claim);
            let is_inside = POOL.enter().is_none();
            drop(inside);
            let goes_on = POOL.enter().is_some();
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!(is_wiped && is_free && is_inside && goes_on))) };
        }
        drop(inside);
        let mut status = 0;
        // SAFETY: writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}

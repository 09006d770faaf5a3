//! The places of threads, sessions and writers: one mapping, made once, which a child of fork finds wiped.
//!
//! A thread takes a place at its first event and has it until it ends; for each session that it writes for, there is a
//! writer at its place. Places are at fixed numbers, so a writer's number for the service comes from both of them. The
//! mapping is large and costs what is touched of it. How threads and the socket's thread keep out of each other's way
//! is told in [`presence`](super::presence).

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::memory::Arena;
use super::presence::{Epoch, Found, Presence};
use crate::OnceRef;
use crate::fork::Turn;
use crate::system::{Mapped, Plain};
use crate::thread::OWN;

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
    /// The tags that any session wants.
    pub tags: AtomicU64,
    /// A bit for each session that is open.
    pub open: AtomicU32,
    /// How many sessions have begun.
    pub begun: AtomicU32,
    /// As many places as were ever taken, all of them below this number.
    pub threads: AtomicU32,
    /// Events of threads that had no place, or were inside another event.
    pub lost: AtomicU64,
    /// The sessions.
    pub sessions: [Session; SESSIONS],
}

impl Shared {
    /// Opens the session at a place, of which no thread has a chunk: events of these tags are written from now on.
    pub fn open(&self, number: usize, arena: &'static Arena, buffer: u32, tags: u64) {
        let Some(session) = self.sessions.get(number) else { return };
        session.set_arena(arena);
        session.buffer.store(buffer, Ordering::Relaxed);
        session.tags.store(tags, Ordering::SeqCst);
        session.number.store(self.begun.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        session.epoch.open();
        self.open.fetch_or(1 << number, Ordering::Release);
        self.publish_tags();
    }

    /// Closes the session at a place: no event begins to be written for it any more. Its chunks are to be
    /// [reclaimed](Pool::reclaim).
    pub fn close(&self, number: usize) {
        let Some(session) = self.sessions.get(number) else { return };
        self.open.fetch_and(!(1 << number), Ordering::Relaxed);
        session.tags.store(0, Ordering::SeqCst);
        session.epoch.close();
        self.publish_tags();
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
        self.sessions.iter().fold(0, |all, session| all | session.tags.load(Ordering::SeqCst))
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

#[repr(C)]
struct Layout<W> {
    shared: Shared,
    threads: [Thread; THREADS],
    writers: [[Place<W>; THREADS]; SESSIONS],
}

// SAFETY: atomics, and what `Zeroes` says.
unsafe impl<W: Zeroes> Plain for Layout<W> {}

/// The places of this process.
#[derive(Debug)]
pub struct Pool<W: Zeroes + 'static>(OnceRef<Layout<W>>);

/// The place of this thread; none has one as high as what is returned where it has none.
#[inline(always)]
fn own_place() -> usize {
    OWN.with(|own| own.place.get() as usize).wrapping_sub(1)
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
        crate::fence::prepare();
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        // In a child it is wiped where the kernel can do that, else by `wipe`.
        let layout = self.0.keep(Mapped::large()?);
        ending::prepare(at_end)?;
        Ok(&layout.shared)
    }

    /// Empties all places. In a child of fork, by the handler that runs there first. Async-signal-safe.
    pub fn wipe(&self) {
        if let Some(layout) = self.layout() {
            // SAFETY: the child has one thread, which is not in it.
            unsafe { Mapped::wipe(layout) };
        }
    }

    /// Goes inside with this thread's place, taking one if it has none. None: the event is lost, and counted.
    #[inline(always)]
    pub fn enter(&self) -> Option<Inside<W>> {
        let layout = self.layout()?;
        let place = own_place();
        let (place, presence) = match layout.threads.get(place) {
            Some(Thread { presence, .. }) if presence.enter() == Found::Entered => (place, presence),
            _ => enter_first(&layout.shared, &layout.threads)?,
        };
        Some(Inside { layout, place, presence, _not_send: PhantomData })
    }

    /// The calling thread, which has this place, ends: calls `each` with each session and this thread's writer there, then gives its place
    /// back.
    pub fn end_thread(&self, place: usize, each: fn(&'static Session, &mut W)) {
        let Some(layout) = self.layout() else { return };
        // Of what it knows of itself there may be nothing any more.
        OWN.with(|own| own.place.set(0));
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
                let has_ended = number != 0 && !crate::system::is_thread(number);
                if has_ended && thread.presence.enter() == Found::Entered {
                    thread.unnoticed.store(0, Ordering::Relaxed);
                    Self::end(layout, place, each);
                }
            }
        });
    }

    /// After a session was closed: calls `each` with the writers of all threads that are not inside; tells whether
    /// there were no others. By the thread that closed it.
    #[inline(never)]
    pub fn reclaim(&self, session: usize, each: &mut dyn FnMut(&mut W)) -> bool {
        let Some(layout) = self.layout() else { return true };
        let threads = layout.shared.threads.load(Ordering::Acquire) as usize;
        let mut is_done = true;
        for (thread, writer) in layout.threads.iter().zip(&layout.writers[session]).take(threads) {
            if thread.presence.is_inside() {
                is_done = false;
                continue;
            }
            // SAFETY: the session is closed, so only a thread that was inside then uses the writer, and none is.
            each(unsafe { &mut *writer.0.get() });
        }
        is_done
    }
}

/// Goes inside with this thread's place, or takes one; returns which.
#[cold]
#[inline(never)]
fn enter_first<'a>(shared: &Shared, threads: &'a [Thread; THREADS]) -> Option<(usize, &'a Presence)> {
    let mine = threads.get(own_place());
    if mine.is_some_and(|thread| thread.presence.is_inside()) {
        shared.lost.fetch_add(1, Ordering::Relaxed);
        return None;
    }
    let _errno = crate::system::ErrnoGuard::new();
    let Some(place) = threads.iter().position(|thread| thread.presence.claim()) else {
        shared.lost.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    if !ending::note(place) {
        let number = crate::system::thread_number().unwrap_or_default();
        threads[place].unnoticed.store(number, Ordering::Release);
    }
    OWN.with(|own| own.place.set(place as u32 + 1));
    shared.threads.fetch_max(place as u32 + 1, Ordering::AcqRel);
    let presence = &threads[place].presence;
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

/// How a thread gives its place back when it ends: by a key of the C library. Of a key that glibc has no room for in each
/// thread it would allocate some: then a thread's end is not noticed.
mod ending {
    use super::{AtomicU32, OnceRef, Ordering, c_void, io};
    use crate::system::c;

    /// The key and 1; 0: none.
    static KEY: AtomicU32 = AtomicU32::new(0);
    static AT_END: OnceRef<fn(usize)> = OnceRef::new();

    extern "C" fn run(place: *mut c_void) {
        if let Some(at_end) = AT_END.get() {
            at_end(place.addr().wrapping_sub(1));
        }
    }

    pub(super) fn prepare(at_end: &'static fn(usize)) -> io::Result<()> {
        let _ = AT_END.set(at_end); // Once.
        if KEY.load(Ordering::Acquire) != 0 {
            return Ok(());
        }
        let mut key: libc::pthread_key_t = 0;
        let code = c::pthread_key_create(&mut key, Some(run));
        if code != 0 {
            return Err(io::Error::from_raw_os_error(code));
        }
        if KEY.compare_exchange(0, key as u32 + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and no thread has used it.
            unsafe { libc::pthread_key_delete(key) };
        }
        Ok(())
    }

    /// As many keys have room in each thread.
    const WITHOUT_ALLOCATION: u32 = if cfg!(target_env = "gnu") { 32 } else { u32::MAX };

    /// Has the calling thread's end noticed; false where that can't be.
    pub(super) fn note(place: usize) -> bool {
        let key = KEY.load(Ordering::Acquire).checked_sub(1).filter(|key| *key < WITHOUT_ALLOCATION);
        let Some(key) = key else { return false };
        // SAFETY: a key of ours; the value is not followed, but must not be null.
        unsafe {
            libc::pthread_setspecific(key as libc::pthread_key_t, std::ptr::without_provenance(place + 1))
                == 0
        }
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
            epoch.open();
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
            let mut sum = 0;
            assert!(POOL.reclaim(3, &mut |counter| sum += counter.0));
            assert_eq!(sum, round * 16_000);
            assert!(shared.threads.load(Ordering::Relaxed) <= 8);
        }
        assert_eq!(shared.lost.load(Ordering::Relaxed), 24_000);

        // A child finds nobody inside, and takes a place anew.
        let inside = POOL.enter();
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_wiped = POOL.shared().is_some_and(|shared| shared.threads.load(Ordering::Relaxed) == 0);
            let is_new = POOL.enter().is_some_and(|mut inside| inside.writer(3).0 == 0);
            // SAFETY: as above.
            unsafe { libc::_exit(i32::from(!(is_wiped && is_new))) };
        }
        drop(inside);
        let mut status = 0;
        // SAFETY: writable.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}

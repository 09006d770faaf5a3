//! The slots of threads and sessions, and the writers of events. All of these are in one memory mapping, which is made
//! once.
//!
//! # Layout
//!
//! A thread takes a *thread slot* at its first event and holds it until the thread ends. There are nine *session
//! slots*: eight for sessions of the service, one for a recording of this process. For each pair of a thread slot and a
//! session slot there is a *writer* (the state with which the thread writes for the session) at a fixed place. So the
//! writer's number, by which the service identifies the writer, can be computed from the two indices. The mapping is
//! large (4095 × 9 writers), but only pages that are touched take memory.
//!
//! The pool is generic over the type of the writer, `W`, of which it only requires that zeroes are a valid
//! value ([`Plain`]).
//!
//! # Threading
//!
//! A thread uses its writers while it is *pinned* ([`Pool::pin`]). The thread that serves a session (the socket thread,
//! or the thread of a recording) uses a writer in two cases: if the session was closed and the writer's thread is not
//! pinned ([`Pool::reclaim`]); and if the writer's thread has ended, after the serving thread has pinned the slot
//! ([`Pool::look_for_ended`]). [`pin`](super::pin) explains why two threads never use a writer at once. The writer's
//! thread never waits for the other thread. If a signal handler on a pinned thread writes an event, the thread is not
//! pinned twice: this nested event is lost and counted.
//!
//! A slot is given back when its thread ends, by the destructor of a thread key (`pthread_key_create`). For some
//! threads, no such destructor runs. The slot of such a thread holds the thread's id (`unnoticed`), and the thread that
//! serves sessions checks at intervals whether a thread with this id still exists.
//!
//! # Forks
//!
//! In a forked child, the session slots are wiped (the start of the mapping, up to `WIPED`), so the child writes
//! nothing until it has sessions of its own. If the kernel can't wipe the session slots, the child wipes them itself
//! ([`Pool::wipe`]), in its fork handler or, if it is a child of a bare `clone`, at its first event: the bit
//! [`COMPARE`] makes each event check whether it is the first in a child. Thread slots and writers are copied
//! unchanged, because the fork may have been made by a signal handler in the middle of an event. The child continues
//! that event, so its writer must be intact. When it continues, the memory that its writer points to is no longer
//! shared with the parent (`Arena::retire_all`). [`Pool::renew`] frees the slots of the parent's other threads. The
//! epoch of the session, which contains the generation of the process (a number that identifies it), shows whether a
//! writer was used by the child or by its parent.

use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use atrace_sys::fork::{Turn, generation, wipes};
use atrace_sys::memory::{Mapped, Plain};
use atrace_sys::process::ErrnoGuard;
use atrace_sys::thread::{self, with_slot};
use atrace_sys::{OnceRef, Result, fence};

use super::early::EarlyLosses;
use super::memory::{Arena, Loss};
use super::pin::{Epoch, Pin, PinResult};

/// The maximum number of sessions of the service that this process can be in.
pub(crate) const SERVICES: usize = 8;
/// The index of the session slot for this process's own recording. The slots for sessions of the service have smaller
/// indices.
pub(crate) const OWN_SESSION: usize = SERVICES;
/// The maximum number of sessions.
pub(crate) const SESSIONS: usize = SERVICES + 1;
/// The maximum number of threads with a slot. With more threads, there would be more writers than the protocol has
/// numbers for.
pub(crate) const THREADS: usize = 4095;

const _: () = assert!(SERVICES * THREADS < 1 << 15, "the service numbers a process' writers by 15 bits");

/// Returns the number by which the service identifies the writer of a thread for a session.
///
/// The writers of the recording have the same numbers as the writers of session 0. The numbers do not conflict, because
/// the service does not get the recording's chunks.
pub(crate) const fn writer_number(session: usize, thread: usize) -> u16 {
    (1 + session % SERVICES * THREADS + thread) as u16
}

/// A bit in the word with the tags that sessions want. It means that the tags are known only after a call of
/// [`tags`](crate::producer::tags). In the word with the presumed tags (`Shared::presumed`), this bit means that the
/// first event has to connect to the service.
pub const ASK: u64 = 1 << 62;
/// A bit in the same word as [`ASK`]. It means that the kernel can't wipe memory in a child, so the tags may be those
/// of the parent. If this bit is set, each event whose tag is enabled checks by the process's generation whether it is
/// in a child.
pub const COMPARE: u64 = 1 << 61;

/// A bit in the word with the open sessions, besides the bits of the session slots. It is set while tags are *presumed*
/// ([`Shared::presumed`]), that is, count as wanted until the service has reported its sessions. During this time, no
/// event takes a fast path, because the event may have to be counted as lost for the service.
pub(crate) const PRESUMED: u32 = 1 << 31;
const _: () = assert!(SESSIONS < 31);

/// The data of a session slot that is needed to write events.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Session {
    /// Identifies the session that is in this slot, and shows whether the session is open.
    pub(crate) epoch: Epoch,
    /// The number by which the service identifies the buffer for the session's chunks.
    pub(crate) buffer: AtomicU32,
    /// The tags that the session wants.
    pub(crate) tags: AtomicU64,
    /// The number of sessions that had begun in this process before this one.
    pub(crate) number: AtomicU32,
    /// The options that the session requests besides its tags, as bits of the module
    /// [`options`](crate::options).
    pub(crate) options: AtomicU32,
    /// The number of times that the service has asked for the incremental state to be cleared.
    pub(crate) clears: AtomicU32,
    /// Whether events were lost before the session began and no packet has reported this loss yet.
    pub(crate) has_lost: AtomicBool,
    /// The memory of the session's chunks.
    arena: OnceRef<Arena>,
}

impl Session {
    /// Returns the memory of the session's chunks.
    #[inline]
    pub(crate) fn arena(&self) -> Option<&'static Arena> {
        self.arena.get()
    }

    /// Sets the memory of the session's chunks.
    pub(crate) fn set_arena(&self, arena: &'static Arena) {
        self.arena.put(Some(arena));
    }
}

/// The words of the pool that events of all threads read: which tags are wanted and which sessions are open, and counts
/// of lost events.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shared {
    /// The tags that at least one session wants, together with the tags in `presumed`.
    pub(crate) tags: AtomicU64,
    /// The open sessions, as one bit for each slot, and the bit [`PRESUMED`].
    pub(crate) open: AtomicU32,
    /// The number of sessions that have begun.
    pub(crate) begun: AtomicU32,
    /// An upper bound of the thread slots in use: all thread slots that are taken have smaller indices. The bound never
    /// decreases within a process.
    pub(crate) threads: AtomicU32,
    /// The number of lost events: those that found no free chunk, ends of slices whose begins were lost, events of
    /// threads without a slot, and events nested in another event.
    pub(crate) lost: AtomicU64,
    /// The presumed tags: they count as wanted while the service has not yet reported which sessions exist.
    pub(crate) presumed: AtomicU64,
    /// The events that were lost before the service reported which sessions exist.
    pub(crate) early: EarlyLosses,
    /// The session slots.
    pub(crate) sessions: [Session; SESSIONS],
}

impl Shared {
    /// Opens a session in the slot `number`. From now on, events with these tags are written for the session.
    ///
    /// No thread may still have a chunk of the slot's previous session.
    #[inline(never)]
    pub(crate) fn open(&self, number: usize, arena: &'static Arena, buffer: u32, tags: u64, options: u32) {
        let Some(session) = self.sessions.get(number) else { return };
        session.set_arena(arena);
        session.options.store(options, Ordering::Relaxed);
        session.buffer.store(buffer, Ordering::Relaxed);
        session.tags.store(tags, Ordering::SeqCst);
        session.number.store(self.begun.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let has_lost =
            self.presumed.load(Ordering::Relaxed) != 0 && self.early.events.load(Ordering::Relaxed) != 0;
        session.has_lost.store(has_lost, Ordering::Relaxed);
        session.epoch.open(generation().number());
        self.open.fetch_or(1 << number, Ordering::Release);
        self.publish_tags();
    }

    /// Returns the number of open sessions. If the thread that opens a session has not published the session's tags
    /// yet, this call publishes them. So if a thread sees a session here, its next event finds the session's tags at
    /// the gate.
    pub(crate) fn session_count(&self) -> u32 {
        let open = self.open.load(Ordering::Acquire);
        if self.tags.load(Ordering::Relaxed) != self.tags_of_all() {
            self.publish_tags();
        }
        (open & !PRESUMED).count_ones()
    }

    /// Closes the session in the slot `number`. After that, no thread begins to write an event for the session.
    ///
    /// The caller has to [reclaim](Pool::reclaim) the session's chunks.
    #[inline(never)]
    pub(crate) fn close(&self, number: usize) {
        let Some(session) = self.sessions.get(number) else { return };
        self.open.fetch_and(!(1 << number), Ordering::Relaxed);
        session.tags.store(0, Ordering::SeqCst);
        session.epoch.close();
        self.publish_tags();
    }

    /// Sets the presumed tags, which count as wanted even if no session wants them. Returns whether the presumed tags
    /// have changed.
    ///
    /// Async-signal-safe.
    #[inline(never)]
    pub(crate) fn presume(&self, tags: u64) -> bool {
        let is_new = self.presumed.swap(tags, Ordering::SeqCst) != tags;
        if is_new {
            if tags == 0 {
                self.open.fetch_and(!PRESUMED, Ordering::Release);
            } else {
                self.open.fetch_or(PRESUMED, Ordering::Release);
            }
            self.publish_tags();
        }
        is_new
    }

    /// Returns whether a session of the service is open.
    pub(crate) fn has_service(&self) -> bool {
        self.open.load(Ordering::Relaxed) & !(PRESUMED | 1 << OWN_SESSION) != 0
    }

    /// Returns whether an event that has found `open` in the word with the open sessions has to be counted as lost for
    /// the service: no session of the service is open, and the service has not yet reported which sessions exist.
    pub(crate) fn is_early(&self, open: u32) -> bool {
        open & !(1 << OWN_SESSION) == PRESUMED && self.presumed.load(Ordering::Relaxed) != 0
    }

    /// Counts an event that is lost because its thread could not be [pinned](Pool::pin).
    #[cold]
    fn lose(&self) {
        let open = self.open.load(Ordering::Acquire);
        if self.is_early(open) {
            self.early.count();
            if open == PRESUMED {
                return;
            }
        } else {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        let session = self.sessions.get(open.trailing_zeros() as usize);
        if let Some(arena) = session.and_then(Session::arena) {
            arena.count_lost(Loss::NotPinned, 1);
        }
    }

    /// Sets `tags` to the union of all sessions' tags and the presumed tags, and sets the bits [`ASK`] and [`COMPARE`]
    /// if the kernel can't wipe memory in a child. If two threads call this at once, the thread that stores last has
    /// seen the changes of both threads.
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
        let presumed = self.presumed.load(Ordering::SeqCst) | if wipes() { 0 } else { ASK | COMPARE };
        self.sessions.iter().fold(presumed, |all, session| all | session.tags.load(Ordering::SeqCst))
    }
}

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Thread {
    pin: Pin,
    /// The thread id of the slot's thread if no destructor will report the end of this thread; otherwise 0. See
    /// [`Pool::look_for_ended`].
    unnoticed: AtomicU32,
}

/// The memory of one writer.
struct WriterCell<W>(UnsafeCell<W>);

// SAFETY: only the thread that has pinned the slot uses the cell: the writer's thread or, after this thread has ended,
// the thread that runs `look_for_ended`. `reclaim` uses the cell only when the session is closed and the slot is not
// pinned; see `pin`.
unsafe impl<W> Sync for WriterCell<W> {}

/// The size of the part at the start of the mapping that is wiped in a child, in bytes: a multiple of every
/// page size.
const WIPED: usize = 64 << 10;

#[repr(C)]
struct Layout<W> {
    shared: Shared,
    /// Fills the wiped part of the mapping up to its size, [`WIPED`].
    _unused: [u8; WIPED - size_of::<Shared>()],
    /// The generation (see [`generation`]) of the process to which the slots belong.
    owner: AtomicU64,
    /// An upper bound of all slots that were ever taken, in this process or an ancestor.
    ever: AtomicU32,
    threads: [Thread; THREADS],
    writers: [[WriterCell<W>; THREADS]; SESSIONS],
}

// SAFETY: the layout consists of atomics, for which zeroes are valid, and of `W`, for which zeroes are valid because it
// is `Plain`.
unsafe impl<W: Plain> Plain for Layout<W> {}

/// The thread slots and session slots of this process, and the writers.
pub(crate) struct Pool<W: Plain + 'static>(OnceRef<Layout<W>>);

/// Returns the calling thread's slot, or `usize::MAX` if it has none.
#[inline(always)]
fn own_slot() -> usize {
    with_slot(|slot| slot.load(Ordering::Relaxed) as usize).wrapping_sub(1)
}

impl<W: Plain + 'static> Pool<W> {
    /// Creates an empty pool.
    pub(crate) const fn new() -> Self {
        Self(OnceRef::new())
    }

    #[inline(always)]
    fn layout(&self) -> Option<&'static Layout<W>> {
        self.0.get()
    }

    /// Returns the words that the events of all threads read, or `None` before [`make`](Self::make).
    #[inline(always)]
    pub(crate) fn shared(&self) -> Option<&'static Shared> {
        self.layout().map(|layout| &layout.shared)
    }

    /// Makes the mapping, unless it exists. When a thread with a slot ends, the destructor of a thread key calls
    /// `at_end` with the slot, if the destructor runs for this thread.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if there is no memory or no thread key.
    pub(crate) fn make(&self, at_end: &'static fn(usize)) -> Result<&'static Shared> {
        fence::prepare();
        if let Some(shared) = self.shared() {
            return Ok(shared);
        }
        // In a child, the kernel wipes the start of the mapping, if it is able to; otherwise `wipe` does this.
        let layout = Mapped::<Layout<W>>::large(WIPED)?;
        layout.owner.store(generation().number(), Ordering::Relaxed);
        let layout = self.0.keep(layout);
        thread::ending::prepare(at_end)?;
        Ok(&layout.shared)
    }

    /// Wipes the session slots, and [renews](Self::renew) the pool. The fork handler calls this in a child.
    ///
    /// Async-signal-safe.
    pub(crate) fn wipe(&self) {
        if let Some(layout) = self.layout() {
            // SAFETY: the child has only this thread. If it was forked in the middle of an event, that event finds
            // atomics that are 0.
            unsafe { Mapped::wipe(layout, WIPED) };
        }
        self.renew();
    }

    /// Returns whether the slots belong to this process, and not to an ancestor.
    pub(crate) fn is_own(&self) -> bool {
        self.layout().is_some_and(|layout| layout.owner.load(Ordering::Acquire) == generation().number())
    }

    /// Frees the slots of the parent's other threads, in a forked child before its first session. The calling thread
    /// keeps its slot, because it may be in any step of an event, even just before it is pinned.
    ///
    /// Async-signal-safe.
    pub(crate) fn renew(&self) {
        let Some(layout) = self.layout() else { return };
        let this = generation().number();
        if layout.owner.swap(this, Ordering::AcqRel) == this {
            return;
        }
        let (own, ever) = (own_slot(), layout.ever.load(Ordering::Acquire) as usize);
        for (slot, thread) in layout.threads.iter().enumerate().take(ever) {
            if slot == own {
                layout.shared.threads.fetch_max(slot as u32 + 1, Ordering::AcqRel);
                if thread.unnoticed.load(Ordering::Relaxed) != 0 {
                    thread.unnoticed.store(thread::number().unwrap_or_default(), Ordering::Relaxed);
                }
            } else {
                thread.unnoticed.store(0, Ordering::Relaxed);
                thread.pin.free();
            }
        }
    }

    /// Pins the calling thread. If the thread has no slot, takes a slot first. If this returns `None`, the event is
    /// lost. It was already counted as lost, unless the pool was not made.
    #[cfg_attr(small, inline(never))]
    #[cfg_attr(not(small), inline(always))]
    pub(crate) fn pin(&self) -> Option<Guard<W>> {
        let layout = self.layout()?;
        let slot = own_slot();
        let (slot, pin) = match layout.threads.get(slot) {
            Some(Thread { pin, .. }) if pin.pin() == PinResult::Pinned => (slot, pin),
            _ => pin_first(&layout.shared, &layout.ever, &layout.threads)?,
        };
        Some(Guard { layout, slot, pin, _not_send: PhantomData })
    }

    /// Ends the calling thread's use of its slot. Calls `each` with each open session and the thread's writer for the
    /// session, and then gives the slot back.
    pub(crate) fn end_thread(&self, slot: usize, each: fn(&'static Session, &mut W)) {
        let Some(layout) = self.layout() else { return };
        // The thread-local word with the slot may already be gone, so the slot is a parameter. From now on, the thread
        // has no slot.
        with_slot(|slot| slot.store(0, Ordering::Relaxed));
        let Some(thread) = layout.threads.get(slot) else { return };
        if thread.pin.pin() != PinResult::Pinned {
            // A child has freed the slot, or the thread ended in the middle of an event.
            return;
        }
        Self::end(layout, slot, each);
    }

    /// Gives back a slot that the caller has pinned: the caller's own slot, or the slot of a thread that has ended.
    #[inline(never)]
    fn end(layout: &'static Layout<W>, slot: usize, each: fn(&'static Session, &mut W)) {
        let pin = &layout.threads[slot].pin;
        let mut guard = Guard { layout, slot, pin, _not_send: PhantomData };
        for (number, session) in layout.shared.sessions.iter().enumerate() {
            if Epoch::is_open(session.epoch.now()) {
                each(session, guard.writer(number));
            }
        }
        std::mem::forget(guard);
        pin.free();
    }

    /// Does the same as [`end_thread`](Self::end_thread) for all threads that have ended and whose end was not reported
    /// by a destructor.
    ///
    /// The thread that opens and closes sessions must call this at intervals.
    pub(crate) fn look_for_ended(&self, each: fn(&'static Session, &mut W)) {
        /// Makes sure that only one thread at a time looks for ended threads.
        static TURN: Turn = Turn::new();
        let Some(layout) = self.layout() else { return };
        TURN.run(|| {
            let threads = layout.shared.threads.load(Ordering::Acquire) as usize;
            for (slot, thread) in layout.threads.iter().enumerate().take(threads) {
                let number = thread.unnoticed.load(Ordering::Acquire);
                let has_ended = number != 0 && !thread::is_there(number);
                if has_ended && thread.pin.pin() == PinResult::Pinned {
                    // Pairs with the thread's last `unpin`, whose store `pin` has read: the data that the thread wrote
                    // is visible from here on.
                    fence(Ordering::Acquire);
                    thread.unnoticed.store(0, Ordering::Relaxed);
                    Self::end(layout, slot, each);
                }
            }
        });
    }

    /// Calls `each` for the writers of a closed session, except the writers of pinned threads (which are in the middle
    /// of an event). The arguments are the writer and the session's first epoch. Returns true if no thread was pinned,
    /// so that nothing is left to reclaim.
    ///
    /// Only one thread at a time may call this for a session.
    #[inline(never)]
    pub(crate) fn reclaim(&self, session: usize, each: fn(&mut W, u32)) -> bool {
        let Some(layout) = self.layout() else { return true };
        let epoch = layout.shared.sessions[session].epoch.first();
        let threads = layout.shared.threads.load(Ordering::Acquire) as usize;
        let mut is_done = true;
        for (thread, writer) in layout.threads.iter().zip(&layout.writers[session]).take(threads) {
            if thread.pin.is_pinned() {
                is_done = false;
                continue;
            }
            // SAFETY: the session is closed, so only a thread that was pinned before the close may use its writer. The
            // writer's thread is not pinned.
            each(unsafe { &mut *writer.0.get() }, epoch);
        }
        is_done
    }
}

/// Takes a slot for the calling thread and pins the thread: the slow path of [`Pool::pin`]. Returns the
/// slot, or `None` if the thread is already pinned or no slot is free; the event then counts as lost.
///
/// Between any two steps, a signal handler may run and call this function, too. The slot that is stored first, here or
/// in the handler, becomes the thread's slot.
#[cold]
#[inline(never)]
fn pin_first<'a>(
    shared: &Shared,
    ever: &AtomicU32,
    threads: &'a [Thread; THREADS],
) -> Option<(usize, &'a Pin)> {
    let _errno = ErrnoGuard::new();
    let before = with_slot(|slot| slot.load(Ordering::Relaxed));
    let is_pinned = threads.get(own_slot()).is_some_and(|thread| thread.pin.is_pinned());
    let taken = if is_pinned { None } else { threads.iter().position(|thread| thread.pin.claim()) };
    let pinned = taken.and_then(|slot| pin_slot(shared, ever, threads, slot, before));
    if pinned.is_none() {
        shared.lose();
    }
    pinned
}

/// Makes `slot`, which the calling thread has taken, the thread's slot, and pins the thread. If the thread's present
/// slot is no longer `before`, a signal handler has given the thread another slot; then `slot` is freed, and the thread
/// is pinned in the other slot.
fn pin_slot<'a>(
    shared: &Shared,
    ever: &AtomicU32,
    threads: &'a [Thread; THREADS],
    slot: usize,
    before: u32,
) -> Option<(usize, &'a Pin)> {
    // The two upper bounds of the slots in use are raised before the slot is used.
    let number = slot as u32 + 1;
    ever.fetch_max(number, Ordering::AcqRel);
    shared.threads.fetch_max(number, Ordering::AcqRel);
    let store = |slot: &AtomicU32| {
        slot.compare_exchange(before, number, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    if with_slot(store) {
        if !thread::ending::note(slot) {
            let number = thread::number().unwrap_or_default();
            threads[slot].unnoticed.store(number, Ordering::Release);
        }
    } else {
        threads[slot].pin.free();
    }
    let slot = own_slot();
    let pin = &threads.get(slot)?.pin;
    (pin.pin() == PinResult::Pinned).then_some((slot, pin))
}

/// A thread that is pinned, because it writes an event. Until this value is dropped, only this thread may use its
/// slot's writers.
pub(crate) struct Guard<W: Plain + 'static> {
    layout: &'static Layout<W>,
    slot: usize,
    pin: &'static Pin,
    _not_send: PhantomData<*const ()>,
}

impl<W: Plain + 'static> Guard<W> {
    /// Returns the words that the events of all threads read.
    #[inline(always)]
    pub(crate) const fn shared(&self) -> &'static Shared {
        &self.layout.shared
    }

    /// Returns the thread's slot.
    #[inline(always)]
    pub(crate) const fn thread(&self) -> usize {
        self.slot
    }

    /// Returns the thread's writer for a session. The caller must check, after the thread was pinned, whether the
    /// session is open.
    #[inline(always)]
    pub(crate) fn writer(&mut self, session: usize) -> &mut W {
        // SAFETY: the slot is pinned once, by this thread, for itself or for a thread that has ended; and `&mut self`
        // excludes a second reference. `reclaim` uses writers of closed sessions only, and only while the slot is not
        // pinned.
        unsafe { &mut *self.layout.writers[session % SESSIONS][self.slot].0.get() }
    }
}

impl<W: Plain + 'static> Drop for Guard<W> {
    #[inline(always)]
    fn drop(&mut self) {
        self.pin.unpin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi;
    use crate::early::set_arena;
    use crate::foreign::Foreign;

    #[derive(Debug)]
    #[repr(C)]
    struct Counter(u64);
    // SAFETY: zero is a valid number.
    unsafe impl Plain for Counter {}

    static POOL: Pool<Counter> = Pool::new();

    fn at_end(slot: usize) {
        POOL.end_thread(slot, |_, counter| counter.0 += 1000);
    }

    /// Tests the slots of threads. All checks are in one test, because all tests of a process would share the pool,
    /// which is a static.
    #[test]
    #[cfg_attr(miri, ignore = "maps 18 MiB")]
    fn threads_have_places_of_their_own_and_give_them_back() {
        assert!(POOL.pin().is_none());
        let shared = POOL.make(&(at_end as fn(usize))).unwrap();
        let epoch = &shared.sessions[3].epoch;
        for round in 1..=3 {
            epoch.open(1);
            std::thread::scope(|scope| {
                let work = || {
                    for _ in 0..1000 {
                        let mut guard = POOL.pin().unwrap();
                        assert!(POOL.pin().is_none());
                        guard.writer(3).0 += 1;
                    }
                };
                let threads = [(); 8].map(|()| scope.spawn(work));
                // Joining a thread also waits for its destructors.
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

        // A forked child has no session. If the thread that forked was in the middle of an event, it continues the
        // event. The slots of all other threads are free.
        let guard = POOL.pin();
        let other = POOL.layout().map(|layout| {
            layout.ever.fetch_max(8, Ordering::AcqRel);
            &layout.threads[7].pin
        });
        assert!(other.is_some_and(Pin::claim));
        let mut guard = guard;
        assert!(holds_in_child(|| {
            let is_wiped = POOL.shared().is_some_and(|shared| shared.threads.load(Ordering::Relaxed) == 0);
            POOL.renew();
            let is_free = other.is_some_and(Pin::claim);
            let is_pinned = POOL.pin().is_none();
            drop(guard.take());
            is_wiped && is_free && is_pinned && POOL.pin().is_some()
        }));
        drop(guard);

        // If a thread forked just before it was pinned, it keeps its slot in the child, and the thread that closes a
        // session finds this slot.
        assert!(holds_in_child(|| {
            POOL.renew();
            POOL.shared().is_some_and(|shared| shared.threads.load(Ordering::Relaxed) as usize > own_slot())
        }));

        if std::thread::available_parallelism().is_ok_and(|processors| processors.get() == 1) {
            // On one processor, the two threads below would hardly ever access the slot at the same time.
            let _ =
                std::io::Write::write_all(&mut std::io::stderr(), b"skipped in part: one processor only\n");
            return;
        }
        // The event of a thread whose slot is freed before the thread is pinned counts as lost. A child frees such a
        // slot if a signal handler has forked at that moment; here another thread frees the slot. The slot may change,
        // because a thread that has just ended may still have had the first slot.
        POOL.end_thread(own_slot(), |_, _| ());
        let (layout, lost) = (POOL.layout().unwrap(), shared.lost.load(Ordering::Relaxed));
        let (is_over, slot) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            // The two threads run on two processors. If they took turns on one, the slot would hardly be freed after
            // `pin` has found it and before `pin` has pinned it.
            run_on_one(true);
            scope.spawn(|| {
                run_on_one(false);
                while !is_over.load(Ordering::Relaxed) {
                    layout.threads[slot.load(Ordering::Relaxed)].pin.free();
                }
            });
            while POOL.pin().is_some() {
                slot.store(own_slot(), Ordering::Relaxed);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(shared.lost.load(Ordering::Relaxed), lost + 1);
    }

    /// Tests that each early loss is in the shared memory at once, because perhaps no other event follows.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn each_early_loss_is_counted_in_shared_memory() {
        use std::os::fd::{AsFd as _, OwnedFd};

        // SAFETY: zeroes are valid: numbers and empty `OnceRef`s.
        let shared: Box<Shared> = unsafe { Box::new(std::mem::zeroed()) };
        let (arena, file) = Arena::make(4).unwrap();
        let memory = Foreign::map(OwnedFd::from(file).as_fd(), abi::PAGE).unwrap();
        shared.presume(1);
        set_arena(Some(arena));
        shared.lose();
        assert_eq!(memory.lost(Loss::Early), 1);
        shared.early.lose(0);
        assert_eq!((memory.lost(Loss::Early), memory.lost(Loss::NotPinned)), (2, 0));
        // If the service does not accept this memory, the next memory gets the count.
        shared.early.take_back(arena);
        assert_eq!((memory.lost(Loss::Early), shared.early.has_unpublished()), (0, true));
        set_arena(Some(arena));
        shared.early.publish();
        assert_eq!((memory.lost(Loss::Early), shared.early.has_unpublished()), (2, false));
        set_arena(None);
        arena.retire();
    }

    /// Tests that an event of a thread that sees a session passes the gate.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_session_that_is_counted_has_its_tags_in_the_gates_word() {
        const ROUNDS: u32 = 20_000;
        // SAFETY: zeroes are valid: numbers and empty `OnceRef`s.
        let shared: Box<Shared> = unsafe { Box::new(std::mem::zeroed()) };
        let (arena, _file) = Arena::make(1).unwrap();
        let (opened, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let until = |is_true: &dyn Fn() -> bool| {
            let mut looks = 0_u32;
            while !is_true() {
                looks += 1;
                if looks.is_multiple_of(1000) {
                    std::thread::yield_now(); // There may be one processor only.
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    opened.store(round, Ordering::Release);
                    shared.open(0, arena, 0, 1, 0);
                    until(&|| seen.load(Ordering::Acquire) == round);
                    shared.close(0);
                }
            });
            let mut without_tags = 0;
            for round in 1..=ROUNDS {
                until(&|| opened.load(Ordering::Acquire) == round && shared.session_count() == 1);
                without_tags += u32::from(shared.tags.load(Ordering::Relaxed) != 1);
                seen.store(round, Ordering::Release);
            }
            assert_eq!(without_tags, 0);
        });
        arena.retire();
    }

    /// Makes the calling thread run on the first or the last processor that the process may use.
    fn run_on_one(is_first: bool) {
        // SAFETY: the sets are writable, and have that size. Zeroes are an empty set.
        unsafe {
            let (mut all, mut one): (libc::cpu_set_t, libc::cpu_set_t) = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(libc::getpid(), size_of_val(&all), &raw mut all), 0);
            let mut usable = (0..8 * size_of_val(&all)).filter(|number| libc::CPU_ISSET(*number, &all));
            let number = if is_first { usable.next() } else { usable.next_back() };
            libc::CPU_SET(number.unwrap_or(0), &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
        }
    }

    /// Returns whether `body` returns true in a forked child. A child that panics would otherwise end with status 0,
    /// because its only thread ends.
    fn holds_in_child(body: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child ends at once.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let holds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: no preconditions; ends the child at once.
            unsafe { libc::_exit(i32::from(!holds)) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        status == 0
    }
}

//! This process as a producer: its connection to the service, and the functions that write events.
//!
//! # Connecting
//!
//! The process has one socket thread (`link`), which communicates with the service. [`connect`] starts it as an
//! ordinary thread. [`seek`] also starts an ordinary thread, which sleeps while there is no service. The first event
//! starts the thread if the program has only announced events with [`expect_events`], or in a forked child whose parent
//! had a socket thread. An event must not allocate or take a lock, so it starts a bare thread, by the system call
//! `clone` without the C library. `LINKED` holds the generation (a number that identifies a process) of the process
//! that has a socket thread. It is changed by compare-and-swap, so exactly one caller starts the thread.
//!
//! # Writing
//!
//! Each event is written once for each open session that wants one of its tags, by the calling thread's writer for
//! that session (`writer.rs`). There are three paths:
//!
//! 1. `write_fast`: one session is open, and nothing special has to be written before the event. This path is inlined
//!    and compiled for each common kind of event, so the compiler drops the code for the parts that the event does not
//!    have. Builds for size (`cfg(small)`) have no fast path. Events with long names have a fast path of their own, in
//!    `write_as`, because such an event often needs a new chunk.
//! 2. `write_several`: several sessions are open. This path is for begins, ends and instants on the thread's track,
//!    except for events whose name is a text of more than 96 bytes. The time is read once, and the same encoder writes
//!    the packet in place for each session. To encode the event once and then copy it would take longer: the processor
//!    has to wait before it can load bytes that were just written by several smaller stores.
//! 3. [`write()`]: any number of sessions, and any event. It runs whenever the fast paths can't write the event. For
//!    each session, it first tries to write the event alone. If this is not possible, it writes the missing definitions
//!    and then the event. If the service has not answered yet, so that the existing sessions are unknown, the event
//!    waits for the answer, or is lost and counted (`startup.rs`).
//!
//! A program may call [`write()`] with any event. For an event that it writes often, it calls [`write_as`], with the
//! arguments from which the event's [`Form`] makes the event, or [`write_text`], [`count`], [`end`] or [`end_traced`].
//! These functions first try the fast paths, and call [`write()`] if the fast paths can't write the event.
//!
//! # Threading
//!
//! Any thread may call any function. Signal handlers may call all functions except these: [`connect`], [`seek`],
//! [`is_service_there`], [`expect_events`], [`start_if_expected`] and [`can_be_used`]. An event that interrupts another
//! event of its thread is lost and counted.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::memory::Arena;
use crate::pool::{ASK, COMPARE, Guard, PRESUMED, Session, Shared};
use crate::socket;
use atrace_sys::fork::{generation, wipes};
use atrace_sys::process::{self, Undisturbed};
use atrace_sys::thread;
use atrace_sys::{Errno, OnceRef, Result};

use crate::callsite::Site;
use crate::changes::changed;
use crate::connection_state::ConnectionState;
use crate::early;
use crate::event::{Amount, End, Event, Form, LongText, Short, ShortText, Track, Type, Written};
use crate::link::{self, Environment};
pub use crate::startup::is_linked;
use crate::startup::{self, LINKED};
use crate::track::{self, process_track};
use crate::writer::{self, POOL, Writer, WriterSlot};

/// Whether [`expect_events`] was called, in this process or an ancestor.
static IS_EXPECTED: AtomicBool = AtomicBool::new(false);
/// The state of the connection, as [`ConnectionState::packed`] encodes it.
static CONNECTION_STATE: AtomicU64 = AtomicU64::new(0);
/// The environment variables for the connection. They are read early, because it would not be safe to read them in an
/// event.
static ENVIRONMENT: OnceRef<Environment> = OnceRef::new();

/// Starts the socket thread, unless this process has a socket thread. Returns false if the thread can't be started.
/// This function allocates, so an event must not call it.
fn start() -> bool {
    let _undisturbed = Undisturbed::new();
    link(|| {
        let started = thread::spawn_quiet("atrace-perfetto", run);
        started.map_err(|error| Errno(error.raw_os_error().unwrap_or_default()))
    })
}

/// Starts the socket thread, and waits until the service has reported the existing sessions, for at most 100 ms (5 s
/// after [`expect_events`]). If no service runs, the thread tries again and again.
pub fn connect() {
    let _undisturbed = Undisturbed::new();
    let has_sought = link::be_persistent();
    if start() {
        if has_sought && is_service_there() {
            startup::wait_for_another(&|| connection_state().0 == ConnectionState::CONNECTED);
        } else {
            startup::wait();
        }
    }
}

/// Starts the socket thread as [`connect`] does. But if no service runs, the thread tries again only after the word
/// `serial` has changed. The thread sleeps on this word (a futex) and never changes it. Other processes change the word
/// and wake the thread.
///
/// Waits for the thread's first attempt, for at most 5 s. The attempt takes some 100 µs, if the thread is scheduled and
/// the service's queue of connections is not full. If a service runs, then waits for its answer, for at most 100 ms.
pub fn seek(serial: &'static AtomicU32) {
    let _undisturbed = Undisturbed::new();
    link::set_serial(serial);
    if start() {
        link::wait_for_first();
        if is_service_there() {
            startup::wait_anew();
        }
    }
}

/// Returns whether a service may be running: whether a file exists at the address of its socket, or the address is
/// abstract.
pub fn is_service_there() -> bool {
    let named = || ENVIRONMENT.get().and_then(|environment| environment.socket.as_deref());
    prepare().is_some() && socket::has_producers(named())
}

/// Makes the first event connect to the service. This event waits longer than usual for the service, because the caller
/// wants to lose no event.
///
/// This starts no thread: a program that writes no event does not connect.
pub fn expect_events() {
    startup::be_patient();
    let _ = link::be_persistent();
    IS_EXPECTED.store(true, Ordering::Relaxed);
    prepare().into_iter().for_each(startup::expect);
}

/// If the first event would start the socket thread, starts it now, and waits for its first attempt to connect, as
/// [`seek`] does. Afterwards, the program may confine itself (seccomp).
pub fn start_if_expected() {
    if POOL.shared().is_some_and(|shared| shared.presumed.load(Ordering::Relaxed) & ASK != 0) && start() {
        link::wait_for_first();
    }
}

/// Returns the state of the connection, and the number of open sessions.
pub fn connection_state() -> (ConnectionState, u32) {
    let state = ConnectionState::of(CONNECTION_STATE.load(Ordering::Acquire));
    match POOL.shared() {
        Some(shared) if is_linked() || state.is_threadless() => (state, shared.session_count()),
        _ => (ConnectionState::NOT_REQUESTED, 0),
    }
}

/// Returns how many events were lost.
pub fn lost() -> u64 {
    let of =
        |shared: &Shared| shared.lost.load(Ordering::Relaxed) + shared.early.events.load(Ordering::Relaxed);
    POOL.shared().map_or(0, of)
}

/// Prepares this process to be a producer. Returns false if memory can't be allocated.
pub fn can_be_used() -> bool {
    prepare().is_some()
}

/// Returns the tags that sessions want, or all tags while the existing sessions are not known. If the process should
/// connect at its first event and has not connected yet, this call connects.
#[inline(always)]
pub fn tags() -> u64 {
    let Some(shared) = POOL.shared() else { return 0 };
    let tags = shared.tags.load(Ordering::Relaxed);
    if tags & ASK != 0 {
        return ask(shared);
    }
    tags
}

/// Handles the first event of a process that should connect: starts the socket thread and waits for the service. If the
/// kernel can't wipe memory in children, this function also handles the first event in a child of a bare `clone`: it
/// detaches the child from its parent's connection, and the child does not trace.
///
/// Events call this function, so no code here allocates or takes a lock.
#[cold]
#[inline(never)]
fn ask(shared: &'static Shared) -> u64 {
    let _undisturbed = Undisturbed::new();
    if !wipes() && !POOL.is_own() {
        // If another thread is still detaching the child, the memory may still be the parent's. So the event is not
        // written.
        leave_parent_once();
        return 0;
    }
    if shared.presumed.load(Ordering::Relaxed) & ASK != 0 && clock::asked() >= RETRY.load(Ordering::Relaxed) {
        if FAILED.load(Ordering::Relaxed) != 0 && thread::is_confined() {
            // A seccomp filter that was set after the first attempt may forbid another attempt.
            startup::end(shared);
        } else if link(|| thread::spawn_bare(&RUN)) {
            startup::wait();
        }
    }
    shared.tags.load(Ordering::Relaxed) & !(ASK | COMPARE)
}

/// Returns the word that holds the tags that sessions want, or `None` if the process was not prepared to be a
/// producer.
#[inline(always)]
pub fn tags_word() -> Option<&'static AtomicU64> {
    POOL.shared().map(|shared| &shared.tags)
}

/// The time from a failed attempt to start the socket thread until an event tries again, in nanoseconds.
const RETRY_NS: u64 = 100_000_000;
/// The time from the first failed attempt until events no longer try again, in nanoseconds.
const RETRIES_NS: u64 = 10_000_000_000;
/// The time from which an event may try again to start the socket thread, in nanoseconds of `CLOCK_BOOTTIME`.
static RETRY: AtomicU64 = AtomicU64::new(0);
/// The time of the first failed attempt, or 0 if the last attempt succeeded or events no longer try.
static FAILED: AtomicU64 = AtomicU64::new(0);

/// Starts the socket thread by the function `start`, unless this process has a socket thread. Returns false if the
/// thread can't be started. If the first event was to start the thread, later events try again for ten seconds. During
/// this time, events are lost and counted.
fn link(start: impl FnOnce() -> Result<()>) -> bool {
    let this = generation().number();
    let present = LINKED.load(Ordering::Acquire);
    if present == this || LINKED.compare_exchange(present, this, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return true;
    }
    set_connection_state(ConnectionState::CONNECTING);
    let Some(shared) = prepare() else {
        set_connection_state(ConnectionState::threadless(Errno(libc::ENOMEM)));
        LINKED.store(0, Ordering::Release);
        return false;
    };
    let is_by_event = shared.presumed.load(Ordering::Relaxed) & ASK != 0;
    // A process that only seeks a service does not wait for an answer if no service is there.
    if link::is_persistent() || is_service_there() {
        startup::begin(shared);
    } else {
        startup::end(shared);
    }
    let Err(error) = start() else {
        FAILED.store(0, Ordering::Relaxed);
        return true;
    };
    set_connection_state(ConnectionState::threadless(error));
    let now = clock::asked();
    let first = FAILED.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(now);
    if is_by_event && error != Errno(libc::ENOSYS) && now < first + RETRIES_NS {
        RETRY.store(now + RETRY_NS, Ordering::Relaxed);
        startup::expect(shared);
    } else {
        FAILED.store(0, Ordering::Relaxed);
        startup::end(shared);
    }
    LINKED.store(0, Ordering::Release);
    false
}

/// Runs the socket thread.
fn run() {
    if let (Some(shared), Some(environment)) = (POOL.shared(), ENVIRONMENT.get()) {
        link::run(shared, environment, report_connection_state, changed);
        // The thread has capabilities that the process has given up, so it ends. The next event starts another
        // thread.
        set_connection_state(ConnectionState::CONNECTING);
        startup::expect(shared);
        LINKED.store(0, Ordering::Release);
    }
}

/// The function that the process's bare thread runs.
static RUN: fn() = run;

/// Prepares the memory in which threads write. Returns `None` if the memory can't be allocated.
///
/// The first call allocates. In a forked child of a process that was prepared, no call allocates.
pub(crate) fn prepare() -> Option<&'static Shared> {
    /// The generation (see [`generation`]) of the process that was last prepared: this process or an ancestor.
    static PREPARED: AtomicU64 = AtomicU64::new(0);
    let this = generation().number();
    if PREPARED.load(Ordering::Acquire) != this {
        // If two threads call this function at once, both execute this block, with the same result.
        ENVIRONMENT.get_or_make(|| Environment {
            socket: socket::named_producers(),
            memory: process::variable("ATRACE_SHMEM_KB"),
        });
        // The name of the process and the source of the system's clock are read now, while the process may still open
        // files.
        process::with_argv0(|_| ());
        clock::prepare();
        thread::prepare();
        track::prepare(process::start_time(), process::raw_id());
        at_fork();
        PREPARED.store(this, Ordering::Release);
    }
    // In a child of a bare `clone`, no fork handler has run, so the child is detached from its parent's connection
    // here. If another thread of the child is still doing this, the memory can't be used yet.
    if POOL.shared().is_some() && !POOL.is_own() && !leave_parent_once() && !POOL.is_own() {
        return None;
    }
    POOL.make(&(end_thread as fn(usize))).ok()
}

/// Runs at the end of a thread that had a slot.
fn end_thread(slot: usize) {
    // In a child of a bare `clone` the sessions may still be the parent's.
    if POOL.is_own() {
        POOL.end_thread(slot, writer::finish);
    }
}

/// Detaches a child of a bare `clone` from its parent's connection. Returns false if another call has detached the
/// child, or is detaching it at this time.
///
/// Async-signal-safe.
fn leave_parent_once() -> bool {
    /// The generation (see [`generation`]) of the process that last began to detach itself: this process or an
    /// ancestor.
    static LEFT: AtomicU64 = AtomicU64::new(0);
    let this = generation().number();
    let is_first = LEFT.swap(this, Ordering::AcqRel) != this;
    if is_first {
        leave_parent();
    }
    is_first
}

/// Detaches a child from its parent's connection, so that the child writes nothing to its parent's memory.
///
/// Async-signal-safe.
fn leave_parent() {
    // The arenas (all shared memory) are retired first, because the child may have been forked in the middle of an
    // event, which it continues.
    Arena::retire_all();
    early::set_arena(None);
    POOL.wipe();
}

/// Registers a fork handler that detaches a child from its parent's connection.
fn at_fork() {
    extern "C" fn in_child() {
        leave_parent();
        FAILED.store(0, Ordering::Relaxed);
        set_connection_state(ConnectionState::NOT_REQUESTED);
        // If the parent had a socket thread, or was to connect at its first event, the child connects at its first
        // event.
        if (LINKED.load(Ordering::Relaxed) != 0 || IS_EXPECTED.load(Ordering::Relaxed))
            && let Some(shared) = POOL.shared()
        {
            startup::expect(shared);
        }
    }
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.swap(true, Ordering::AcqRel) {
        atrace_sys::fork::in_children(in_child);
    }
}

fn set_connection_state(state: ConnectionState) {
    CONNECTION_STATE.store(state.packed(), Ordering::Release);
}

/// Sets the state of the connection and, if it has changed, calls the registered callbacks. Only the socket
/// thread calls this.
fn report_connection_state(state: ConnectionState) {
    let state = state.packed();
    if CONNECTION_STATE.swap(state, Ordering::AcqRel) != state {
        changed();
    }
}

/// Writes an event for each session that wants it. Returns `None` if no session got the event. But a begin of a slice
/// of the thread counts as written here, even if it is lost for lack of room or because the sessions are not known. So
/// the caller passes the end of this slice, too, which then also counts as lost.
///
/// If no session of the service is open, and the service has not reported yet which sessions exist, waits for the
/// report. If the report does not come in time, the event is lost for the service. A long event may take several chunks
/// of the memory.
#[inline(never)]
pub fn write(event: &Event<'_>) -> Option<Written> {
    let mut guard = POOL.pin()?;
    let (mut shared, mut thread) = (guard.shared(), guard.thread());
    let mut open = shared.open.load(Ordering::Acquire);
    let now = clock::now(); // The time is read before the wait.
    let mut lost = None;
    // If `write_several` calls this function, it may have found an open session that was closed since, because the
    // connection was lost.
    if shared.is_early(open) && event.sessions & !open != 0 {
        drop(guard);
        open = wait_for_sessions(shared);
        if shared.is_early(open) {
            let begun = || shared.begun.load(Ordering::Relaxed);
            lost = shared.early.lose(event.opens()).then(|| Written::ByPerfetto { begun: begun() });
        }
        if open & !PRESUMED == 0 {
            return lost;
        }
        guard = POOL.pin()?;
        (shared, thread) = (guard.shared(), guard.thread());
    }
    let (mut begun, mut is_written) = (0, false);
    for number in bits(open & !PRESUMED & event.sessions) {
        let session = shared.sessions.get(number)?;
        let Some(epoch) = wanted(session, event) else { continue };
        let slot = WriterSlot { session, epoch, number, thread };
        let writer = guard.writer(number);
        is_written |= !cfg!(small) && writer.event_fast::<false, false>(epoch, event, now)
            || writer.event(&slot, event, now);
        begun = begun.max(behind(session));
    }
    is_written.then_some(Written::ByPerfetto { begun }).or(lost)
}

/// Waits until the service has reported which sessions exist. Returns the open sessions.
#[cold]
#[inline(never)]
fn wait_for_sessions(shared: &Shared) -> u32 {
    let _undisturbed = Undisturbed::new();
    startup::wait();
    shared.open.load(Ordering::Acquire)
}

/// Returns the positions of the bits that are set in `of`.
#[inline(always)]
fn bits(mut of: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (of != 0).then_some(of.trailing_zeros() as usize);
        of &= of.wrapping_sub(1);
        lowest
    })
}

/// Returns a number that is larger than the number of `session`, and not larger than the numbers of later
/// sessions.
#[inline(always)]
fn behind(session: &Session) -> u32 {
    session.number.load(Ordering::Relaxed).wrapping_add(1)
}

/// Writes an event of a form. [`Form::event`] makes the event from the arguments. This function is compiled for each
/// form, so it has code only for the fields that the form's events have. In builds for size, it only calls [`write()`].
///
/// Returns what [`write()`] returns. If the form has no events of this type, such as an end of the form
/// [`Named`](crate::event::Named), returns `None` and writes nothing.
///
/// The fast paths write the event that [`Form::usual`] makes. The other paths make the event again: if the first event
/// were passed to them by reference, the compiler would no longer know which of its fields are constant.
#[inline(never)]
pub fn write_as<'a, F: Form<'a>>(key: F::Key, tags: u64, text: F::Text, more: F::More) -> Option<Written> {
    if !F::has(key) {
        return None;
    }
    let again = || F::event(key, tags, text, more);
    if cfg!(small) {
        return write(&again());
    }
    let otherwise =
        || if F::IS_FOR_SEVERAL { write_several::<F>(key, tags, text, more) } else { write(&again()) };
    let Some(event) = F::usual(key, tags, text, more) else { return otherwise() };
    if F::IS_LONG {
        let mut guard = POOL.pin()?;
        if let Some((writer, slot)) = sole(&mut guard, &event) {
            // This is not `write_fast`, because a long event often needs a new chunk.
            let now = clock::now();
            let is_written = writer.event_fast::<false, true>(slot.epoch, &event, now)
                // The slot is copied. If its own address were passed, the compiler would store the slot in memory for
                // the fast path, too.
                || writer.event(&{ slot }, &again(), now);
            return is_written.then_some(Written::ByPerfetto { begun: 0 });
        }
        drop(guard);
        return otherwise();
    }
    if F::IS_SHORT { write_fast::<true>(event, otherwise) } else { write_fast::<false>(event, otherwise) }
}

/// Writes an instant, or the begin of a slice of the calling thread, with this name, as [`write_as`] does. `kind` must
/// be the type of such an event. An end is not written.
#[inline(always)]
pub fn write_text(kind: Type, tags: u64, name: &str) -> Option<Written> {
    match Short::new(name) {
        Some(name) => write_as::<ShortText>(kind, tags, name, ()),
        None => write_as::<LongText>(kind, tags, name, ()),
    }
}

/// Writes an event on the fast path: one session is open, and its writer can write the event at once. Otherwise calls
/// `otherwise`, which has to write the event. `IS_SHORT` has the same meaning as in [`packet::event`].
///
/// The function is inlined, and so compiled for exactly the fields that the caller fills in. `otherwise` makes the
/// event again.
///
/// If the event has a time that is not in the future, and no packet of the thread has a later time, the packet
/// contains, like other packets, the time since the last packet.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_fast<const IS_SHORT: bool>(
    event: Event<'_>,
    otherwise: impl FnOnce() -> Option<Written>,
) -> Option<Written> {
    let mut guard = POOL.pin()?;
    if !cfg!(small)
        && let Some((writer, slot)) = sole(&mut guard, &event)
    {
        let now = if event.time == 0 { clock::now() } else { event.time };
        if (event.time == 0 || writer.is_before(now) && now <= clock::now())
            && writer.event_fast::<IS_SHORT, true>(slot.epoch, &Event { time: 0, ..event }, now)
        {
            // Instants on a track get a number in `begun`, too, although they don't need it: like the encoder, this
            // code only distinguishes ends from other events.
            let is_counted = event.kind != Type::End && event.track.is_some_and(|track| !track.is_counter);
            return Some(Written::ByPerfetto { begun: if is_counted { behind(slot.session) } else { 0 } });
        }
    }
    drop(guard);
    otherwise()
}

/// Returns the calling thread's writer for the only open session. Returns `None` if that session does not want the
/// event, if no session or several sessions are open, or if tags are presumed.
///
/// With this function the caller needs no loop over sessions. In such a loop the compiler would compute the loop
/// invariants in advance and spill them to the stack.
#[inline(always)]
fn sole<'a>(guard: &'a mut Guard<Writer>, event: &Event<'_>) -> Option<(&'a mut Writer, WriterSlot)> {
    let (shared, thread) = (guard.shared(), guard.thread());
    let open = shared.open.load(Ordering::Acquire);
    if open & open.wrapping_sub(1) != 0 {
        return None; // Several sessions are open, or `PRESUMED` and a session.
    }
    // If no session is open, this is not the index of a session, and `get` returns `None`.
    let number = open.trailing_zeros() as usize;
    let session = shared.sessions.get(number)?;
    let epoch = wanted(session, event)?;
    Some((guard.writer(number), WriterSlot { session, epoch, number, thread }))
}

/// Writes an event of a form for several sessions. Each writer that can write the event at once does so, by code that
/// is compiled for the form. [`write()`] writes the event for the other sessions. It also writes an event that can't
/// take a fast path in any session.
#[inline(never)]
fn write_several<'a, F: Form<'a>>(key: F::Key, tags: u64, text: F::Text, more: F::More) -> Option<Written> {
    if cfg!(small) || !F::has(key) {
        return None; // `write_as` has checked this; here it tells the compiler which types are possible.
    }
    let again = || F::event(key, tags, text, more);
    let Some(event) = F::usual(key, tags, text, more) else { return write(&again()) };
    let mut guard = POOL.pin()?;
    let shared = guard.shared();
    let open = shared.open.load(Ordering::Acquire);
    let now = clock::now();
    // As a signed number, `open` is not positive if no session is open, or if the sign bit, `PRESUMED`, is set.
    let (mut rest, open) = if open.cast_signed() <= 0 { (Event::ALL, 0) } else { (0, open) };
    let mut is_written = false;
    for number in bits(open) {
        let session = shared.sessions.get(number)?;
        let Some(epoch) = wanted(session, &event) else { continue };
        let writer = guard.writer(number);
        let is_fast = if F::IS_SHORT {
            writer.event_fast::<true, true>(epoch, &event, now)
        } else {
            writer.event_fast::<false, true>(epoch, &event, now)
        };
        is_written |= is_fast;
        rest |= u32::from(!is_fast) << number;
    }
    drop(guard);
    is_written |= rest != 0 && write(&Event { sessions: rest, ..again() }).is_some();
    is_written.then_some(Written::ByPerfetto { begun: 0 })
}

/// Returns the session's epoch (odd while the session is open), or `None` if the session does not want the event.
#[inline(always)]
fn wanted(session: &Session, event: &Event<'_>) -> Option<u32> {
    let epoch = session.epoch.now();
    let is_asked = session.tags.load(Ordering::Relaxed) & event.tags != 0;
    let is_old = event.begun == u32::MAX || session.number.load(Ordering::Relaxed) < event.begun;
    (is_asked && is_old).then_some(epoch)
}

/// Writes the end of a slice on a track, with more arguments. `args` are the arguments as an encoder has encoded them
/// for the callsite `site`. If `site` is `None`, the arguments are not written. `begun` is the number that the begin
/// returned in [`Written`]. If `time` is not 0, the slice ends at that time, otherwise now.
#[inline(never)]
pub fn end_traced(tags: u64, track: &Track<'_>, site: Option<&Site<'_>>, time: u64, begun: u32, args: &[u8]) {
    let track = Track { is_kept: true, ..*track };
    let end = Event { track: Some(track), begun, time, ..Event::new(Type::End, tags) };
    _ = match site.filter(|_| !args.is_empty()) {
        None => write_fast::<false>(end, || write(&{ end })),
        // The packet of an end does not refer to the callsite. The callsite's names are needed for the arguments.
        Some(site) => {
            let end = Event { site: Some(*site), args, ..end };
            write_fast::<false>(end, || write(&{ end }))
        }
    };
}

/// Writes the end of the calling thread's innermost slice. This does the same as `write_as::<End>`, but returns no
/// result, because a result would cost some instructions.
#[inline(never)]
pub fn end(tags: u64) {
    let otherwise = || {
        if cfg!(small) { write(&Event::new(Type::End, tags)) } else { write_several::<End>((), tags, (), ()) }
    };
    _ = write_fast::<true>(Event::new(Type::End, tags), otherwise);
}

/// Sets the counter with this name to an integer. `hash` is the result of [`hash::of_name`](crate::hash::of_name) for
/// the name.
#[inline(always)]
pub fn count(tags: u64, name: &str, hash: u64, value: i64) -> Option<Written> {
    let track = Track::counter(name, hash);
    let make = move || Event {
        // These two fields are set again, so that the compiler sees here, too, that they are constant.
        track: Some(Track { is_counter: true, is_kept: true, ..track }),
        value: Some(Amount::Whole(value)),
        ..Event::new(Type::Counter, tags)
    };
    write_fast::<true>(make(), || write(&make()))
}

/// Returns the number of the flow that this process calls `id`. In other processes, the same `id` gives other numbers.
#[inline(always)]
pub fn flow_number(id: u64) -> u64 {
    (process_track() ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::TRACK_NAME_MAX;
    use crate::callsite::{About, BEYOND, Number};
    use crate::event::{Call, Named, OnTrack, Traced, TracedOnTrack, TrackKey, WholeArgs};
    use crate::hash;
    use crate::memory::Part;
    use crate::pool::OWN_SESSION;
    use crate::proto::{Reader, Value};
    use crate::tests::is_alone;
    use atrace_sys::text::cut;

    #[derive(Debug)]
    struct Nowhere;

    impl About for Nowhere {
        fn target(&self) -> &str {
            "target"
        }

        fn location(&self) -> Option<(&str, u32)> {
            None
        }

        fn arguments(&self, _: &mut dyn FnMut(&str)) {}
    }

    /// Tests a slice that begins after another session has got its number, but before that session can get events. That
    /// session must not get the slice's end.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_slice_ends_only_in_the_sessions_that_got_its_begin() {
        if !is_alone("producer::tests::a_slice_ends_only_in_the_sessions_that_got_its_begin") {
            return;
        }
        static NUMBER: Number = Number::new();
        let shared = prepare().unwrap();
        let (arena, _) = Arena::make(2).unwrap();
        shared.open(0, arena, 1, 1, 0);
        let written = Some(Written::ByPerfetto { begun: shared.begun.fetch_add(1, Ordering::Relaxed) });
        let site = Site::new(Some(&NUMBER), "site", 3, &Nowhere);
        let track = Track::of(TrackKey::named(Type::Begin, 7), "track");
        let call = Call { site: &site, flow: 0, args: &[] };
        // The first event also writes the incremental state, and the next two events take the fast path. The last two
        // events have a time of their own.
        for time in [0, 0, 0, clock::now(), 1] {
            assert_eq!(write_as::<TracedOnTrack>(&track, 1, None, (time, &call)), written, "{time}");
        }
        let begin = Event { track: Some(track), ..Event::new(Type::Begin, 1) };
        assert_eq!(write(&begin), written);
        let key = TrackKey::named(Type::Begin, 7);
        assert_eq!(write_as::<OnTrack>(key, 1, "row", Some("name")), written);
        // The other session got its number before the next slice, which begins in both sessions.
        let Some(Written::ByPerfetto { begun }) = written else { unreachable!() };
        let (later, _) = Arena::make(2).unwrap();
        shared.open(1, later, 1, 1, 0);
        shared.sessions[1].number.store(begun, Ordering::Relaxed);
        let next = shared.begun.fetch_add(1, Ordering::Relaxed);
        for begun in [begun, next] {
            end_traced(1, &track, Some(&site), 0, begun, &[]);
        }
        let ends = [(0, arena), (1, later)].map(|(session, arena)| {
            shared.close(session);
            assert!(POOL.reclaim(session, Writer::finish));
            let mut ends = 0;
            for chunk in arena.take_completed() {
                arena.read(&chunk, |Part { bytes, .. }| {
                    let kind = Reader::first(bytes, 11).and_then(|event| Reader::first(event.bytes(), 9));
                    ends += u32::from(kind.is_some_and(|kind| kind.number() == 2));
                });
            }
            arena.retire();
            ends
        });
        assert_eq!(ends, [2, 1]);
    }

    /// Tests that an event with a time in the future does not change the times of the thread's later events.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn an_event_in_the_future_leaves_the_times_of_others() {
        if !is_alone("producer::tests::an_event_in_the_future_leaves_the_times_of_others") {
            return;
        }
        static NUMBER: Number = Number::new();
        let shared = prepare().unwrap();
        let arena = Arena::make(2).unwrap().0;
        shared.open(0, arena, 1, 1, 0);
        let site = Site::new(Some(&NUMBER), "site", 3, &Nowhere);
        let track = Track::of(TrackKey::named(Type::Begin, 7), "track");
        let start = clock::now();
        let future = start + 10_000_000_000;
        // The first events write the incremental state, so that the last ones take the fast path.
        for time in [0, 0, 0, future] {
            let call = Call { site: &site, flow: 0, args: &[] };
            assert!(write_as::<TracedOnTrack>(&track, 1, None, (time, &call)).is_some());
        }
        end_traced(1, &track, Some(&site), future, u32::MAX, &[]);
        assert!(write_text(Type::Instant, 1, "now").is_some());
        let end = clock::now();
        shared.close(0);
        assert!(POOL.reclaim(0, Writer::finish));
        let (mut last, mut times) = (0, Vec::new());
        for chunk in arena.take_completed() {
            arena.read(&chunk, |Part { bytes, .. }| {
                let number = |field| Reader::first(bytes, field).map_or(0, Value::number);
                // A packet has either a time of its own (of the clock in field 58), or the time since the last packet
                // on the sequence's clock. That clock begins with the state (field 13).
                let (is_own, is_state) = (number(58) == 6, number(13) & 1 != 0);
                let time = if is_own { number(8) } else { last + number(8) };
                if !is_own || is_state {
                    last = time;
                }
                if Reader::first(bytes, 11).is_some() {
                    times.push(time);
                }
            });
        }
        arena.retire();
        let [.., begun, ended, now] = times[..] else { panic!("{times:?}") };
        assert_eq!((begun, ended), (future, future));
        assert!((start..=end).contains(&now), "{start} {times:?} {end}");
    }

    /// Tests that an event gets a small chunk only if it fits into that chunk after the longest state.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn the_first_event_of_a_thread_fits_whatever_its_length() {
        if !is_alone("producer::tests::the_first_event_of_a_thread_fits_whatever_its_length") {
            return;
        }
        let shared = prepare().unwrap();
        let arena = Arena::make(2).unwrap().0;
        let write_one = move || {
            thread::note_name();
            for len in 0..1000 {
                shared.open(0, arena, 1, 1, 0);
                let is_written = write_text(Type::Instant, 1, &"n".repeat(len)).is_some();
                assert_eq!((is_written, lost()), (true, 0), "{len}");
                shared.close(0);
                assert!(POOL.reclaim(0, Writer::finish));
                arena.take_completed().for_each(|chunk| arena.read(&chunk, |_| ()));
            }
        };
        let named = std::thread::Builder::new().name("a thread's long name ".repeat(4));
        named.spawn(write_one).unwrap().join().unwrap();
        arena.retire();
    }

    /// Tests that a child that was created without the C library counts its lost events in its own memory.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn the_child_of_a_bare_clone_counts_nothing_for_its_parent() {
        use crate::foreign::Foreign;
        use crate::memory::Loss;
        use std::os::fd::{AsFd as _, OwnedFd};

        if !is_alone("producer::tests::the_child_of_a_bare_clone_counts_nothing_for_its_parent") {
            return;
        }
        prepare().unwrap();
        let (arena, file) = Arena::make(4).unwrap();
        let memory = Foreign::map(OwnedFd::from(file).as_fd(), crate::abi::PAGE).unwrap();
        early::set_arena(Some(arena));
        // SAFETY: without flags except the signal at the end, the call is a fork. The child ends at once.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        assert!(child >= 0);
        if child == 0 {
            let is_counted = std::panic::catch_unwind(|| {
                prepare().into_iter().for_each(|shared| shared.early.count());
                lost() == 1
            });
            // SAFETY: no preconditions.
            unsafe { libc::_exit(i32::from(!is_counted.unwrap_or(false))) };
        }
        let mut status = 0;
        // SAFETY: `status` is writable.
        let ended = unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
        assert_eq!(i64::from(ended), child);
        assert_eq!((status, memory.lost(Loss::Early)), (0, 0));
        early::set_arena(None);
        arena.retire();
    }

    /// Tests a process whose socket thread can't be started: events try for some time to start the thread, and after
    /// that the tags are off.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_thread_that_never_starts_keeps_no_tag_on() {
        if !is_alone("producer::tests::a_thread_that_never_starts_keeps_no_tag_on") {
            return;
        }
        let shared = prepare().unwrap();
        startup::expect(shared);
        let tags = || shared.tags.load(Ordering::Relaxed);
        assert!(!link(|| Err(Errno(libc::EAGAIN))));
        assert_eq!(tags() & (ASK | 1), ASK | 1);
        // Moves the time of the first attempt back, as if that attempt had been long ago.
        FAILED.fetch_sub(RETRIES_NS, Ordering::Relaxed);
        assert!(!link(|| Err(Errno(libc::EAGAIN))));
        assert_eq!(tags() & !COMPARE, 0);
    }

    /// Tests that each session gets all events that it wants, with the same fields, and in the same order, whichever
    /// path writes them.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn several_sessions_get_the_same_events() {
        const ROUNDS: usize = 1000;
        if !is_alone("producer::tests::several_sessions_get_the_same_events") {
            return;
        }
        static NUMBERS: [Number; 2] = [const { Number::new() }; 2];
        let shared = prepare().unwrap();
        let arenas = [1, 3, 2].map(|tags| (tags, Arena::make(64).unwrap().0));
        for (number, (tags, arena)) in arenas.iter().enumerate() {
            shared.open(number, arena, 1, *tags, 0);
        }
        let (key, long) = (TrackKey::named(Type::Begin, 7), "long ".repeat(30));
        let site = Site::new(Some(&NUMBERS[1]), "site", 3, &Nowhere);
        let track = Track::of(key, "lane");
        let call = Call { site: &site, flow: 5, args: &[0x22, 2, 0x10, 1] };
        for round in 0..ROUNDS {
            let tags = 1 << (round % 2);
            let name = &format!("round {round}")[..];
            let written = [
                write_text(Type::Begin, tags, name),
                write_as::<Named>(Type::Instant, tags, "named", &NUMBERS[0]),
                write_as::<Traced>(Type::Instant, tags, None, &call),
                count(tags, "counter", hash::of_name("counter"), round as i64),
                write_as::<OnTrack>(key, tags, "row", Some(name)),
                write_text(Type::Instant, tags, &long),
                write_as::<TracedOnTrack>(&track, tags, None, (0, &Call { flow: 0, args: &[], ..call })),
            ];
            assert!(written.iter().all(Option::is_some), "{written:?}");
            end(tags);
        }
        let found = [0, 1, 2].map(|number| {
            let arena = arenas[number].1;
            shared.close(number);
            assert!(POOL.reclaim(number, Writer::finish));
            let mut events = Vec::new();
            for chunk in arena.take_completed() {
                arena.read(&chunk, |Part { bytes, .. }| {
                    let event = Reader::first(bytes, 11).map(Value::bytes);
                    let fields =
                        |event| Reader::new(event).map(|(field, value)| (field, text_of(value))).collect();
                    events.extend(event.map(fields).map(|fields: Vec<_>| fields));
                });
            }
            arena.retire();
            events
        });
        assert_eq!(lost(), 0);
        let [first, all, last] = found;
        assert_eq!(all.len(), ROUNDS * 8);
        let of_round = |parity| all.chunks(8).skip(parity).step_by(2).flatten().cloned().collect::<Vec<_>>();
        assert_eq!([first, last], [of_round(0), of_round(1)]);
    }

    /// Tests an event for which `write_several` has found a session, and the session was closed after that.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn an_event_counts_if_its_session_went_with_the_connection() {
        if !is_alone("producer::tests::an_event_counts_if_its_session_went_with_the_connection") {
            return;
        }
        let shared = prepare().unwrap();
        let (arena, _) = Arena::make(2).unwrap();
        shared.open(OWN_SESSION, arena, 0, 1, 0);
        let mut counted = 0;
        for (sessions, counts) in [(1 << OWN_SESSION, 0), (1, 1), (1 << OWN_SESSION | 1, 1), (Event::ALL, 1)]
        {
            startup::presume(shared);
            write(&Event { sessions, ..Event::new(Type::Instant, 1) });
            counted += counts;
            assert_eq!(shared.early.events.load(Ordering::Relaxed), counted, "{sessions:b}");
        }
        shared.close(OWN_SESSION);
        arena.retire();
    }

    /// Tests long events that have a callsite and a name of their own, or other fields that a packet of several chunks
    /// can't have. The name and the arguments are cut, and all fields are there.
    #[test]
    #[cfg_attr(miri, ignore = "maps memory files")]
    fn a_long_event_has_all_of_its_fields() {
        if !is_alone("producer::tests::a_long_event_has_all_of_its_fields") {
            return;
        }
        static NUMBER: Number = Number::new();
        let shared = prepare().unwrap();
        let arena = Arena::make(64).unwrap().0;
        shared.open(0, arena, 1, 1, 0);
        let name = "ü".repeat(4 << 10);
        let args = [0x22, 2, 0x10, 1];
        let whole_args = Some(WholeArgs(&|put| put(&[0x22, 2, 0x10, 0])));
        let site = Site::new(Some(&NUMBER), "site", 3, &Nowhere);
        let known = Some(site);
        let plain = Some(Site { about: None, ..site });
        let unnumbered = Some(Site { number: BEYOND, about: None, ..site });
        let track = Some(Track::of(TrackKey::named(Type::Begin, 7), "track"));
        let long = Event { name: Some(&name), track, args: &args, ..Event::new(Type::Begin, 1) };
        let by_site = Event { name: None, whole_args, ..long };
        let value = Some(Amount::Whole(5));
        // The numbers of the expected fields of each event: the name (23, or 10 if it is interned), the callsite's
        // metadata, and the rest.
        let events = [
            (Event { site: plain, ..long }, &[23, 4][..]),
            (Event { site: known, time: 5, ..long }, &[23, 3, 34, 4, 4]),
            (Event { flow: 5, ..long }, &[23, 47, 4]),
            (Event { kind: Type::Counter, value, ..long }, &[23, 4, 30]),
            (Event { site: plain, ..by_site }, &[10, 4]),
            (Event { site: known, ..by_site }, &[10, 3, 34, 4, 4]),
            (Event { site: unnumbered, ..by_site }, &[23, 4]),
            (Event { site: plain, name: Some("short"), ..by_site }, &[23, 4]),
        ];
        for (event, _) in &events {
            assert!(write(event).is_some());
        }
        let call = Call { site: &site, flow: 5, args: &args };
        assert!(write_as::<Traced>(Type::Instant, 1, Some(&name), &call).is_some());
        shared.close(0);
        assert!(POOL.reclaim(0, Writer::finish));
        let mut found = Vec::new();
        for chunk in arena.take_completed() {
            arena.read(&chunk, |Part { bytes, .. }| found.push(bytes.to_vec()));
        }
        arena.retire();
        found.retain(|packet| Reader::first(packet, 11).is_some());
        let traced = (Event { track: None, ..long }, &[23, 3, 34, 4, 47, 4][..]);
        assert_eq!(found.len(), events.len() + 1);
        for (packet, (event, rest)) in found.iter().zip(events.into_iter().chain([traced])) {
            let number = |field| Reader::first(packet, field).map(Value::number);
            let time = (event.time != 0).then_some(event.time);
            assert!(time.is_none() || (number(8), number(58)) == (time, Some(6)));
            let mut fields = Reader::new(Reader::first(packet, 11).unwrap().bytes());
            let all: Vec<_> = fields.by_ref().collect();
            assert!(fields.is_whole(), "{rest:?}");
            let start = if event.track.is_some() { &[9, 3, 11][..] } else { &[9, 3] };
            assert_eq!(all.iter().map(|(field, _)| *field).collect::<Vec<_>>(), [start, rest].concat());
            let own = all.iter().find(|(field, _)| *field == 23).map(|(_, text)| text.bytes());
            let expected = event.name.map_or("site", |name| cut(name, TRACK_NAME_MAX));
            assert!(own.is_none_or(|own| own == expected.as_bytes()), "{rest:?}");
        }
    }

    /// Returns the value of a field as text.
    fn text_of(value: Value<'_>) -> String {
        let (number, bytes) = (value.number(), value.bytes());
        format!("{number} {bytes:?}")
    }
}

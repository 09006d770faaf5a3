//! This process as a producer: whether it is one, and the events that it writes.
//!
//! The socket's thread (`link`) opens and closes sessions; each event is written for every open one that wants its
//! tags, by a writer of its thread (`writer.rs`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::clock;
use crate::memory::Arena;
use crate::pool::{Inside, Session, Shared};
use crate::socket;
use atrace_sys::OnceRef;
use atrace_sys::fork::generation;
use atrace_sys::process::{self, Undisturbed};
use atrace_sys::text::cut;
use atrace_sys::thread;

use crate::args::TRACK_NAME_MAX;
use crate::callsite::{Number, Site};
use crate::changes::changed;
use crate::early;
use crate::event::{Amount, Event, Track, TrackKey, Type, Written};
use crate::hash;
use crate::link::{self, Environment};
use crate::packet;
use crate::standing::Standing;
use crate::startup::{self, ASK, LINKED, is_linked};
use crate::writer::{self, POOL, PROCESS_TRACK, Place, Writer, process_track};

/// The first event was to connect, in this process or an ancestor of it.
static IS_EXPECTED: AtomicBool = AtomicBool::new(false);
/// How the connection stands, as `Standing` packs it.
static STANDING: AtomicU64 = AtomicU64::new(0);
/// The environment, read before an event could need it.
static ENVIRONMENT: OnceRef<Environment> = OnceRef::new();

/// Starts the socket's thread, unless this process has one. By a thread of the program, where it may allocate.
fn start() -> bool {
    let _undisturbed = Undisturbed::new();
    link(|| thread::spawn_quiet("atrace-perfetto", run).is_ok())
}

/// Starts the socket's thread, and waits for the sessions that are there.
pub fn connect() {
    let _undisturbed = Undisturbed::new();
    if start() {
        startup::wait();
    }
}

/// Has the first event connect, as every event is asked for, and wait for longer. Starts no thread: a program that writes
/// nothing does not connect.
pub fn expect_events() {
    startup::be_patient();
    IS_EXPECTED.store(true, Ordering::Relaxed);
    prepare().into_iter().for_each(startup::expect);
}

/// Starts the socket's thread now, if the first event is to do it.
pub fn start_if_expected() {
    if POOL.shared().is_some_and(|shared| shared.tags.load(Ordering::Relaxed) & ASK != 0) {
        start();
    }
}

fn present_standing() -> Standing {
    Standing::of(STANDING.load(Ordering::Acquire))
}

/// How this process stands to the service, and how many sessions want its events.
pub fn standing() -> (Standing, u32) {
    match POOL.shared() {
        Some(shared) if is_linked() => (present_standing(), shared.open.load(Ordering::Relaxed).count_ones()),
        _ => (Standing::APART, 0),
    }
}

/// How many events were lost.
pub fn lost() -> u64 {
    let of = |shared: &Shared| shared.lost.load(Ordering::Relaxed) + shared.early.load(Ordering::Relaxed);
    POOL.shared().map_or(0, of)
}

/// Makes this process ready to be a producer; returns false where there is no memory for it.
pub fn can_be_used() -> bool {
    prepare().is_some()
}

/// The tags that sessions want. In a forked child the first to ask connects it.
#[inline(always)]
pub fn tags() -> u64 {
    let Some(shared) = POOL.shared() else { return 0 };
    let tags = shared.tags.load(Ordering::Relaxed);
    if tags & ASK != 0 {
        return ask(shared);
    }
    tags
}

/// The first event of a process that is to be connected: it starts the socket's thread. What is called here allocates nothing
/// and takes no lock.
#[cold]
#[inline(never)]
fn ask(shared: &'static Shared) -> u64 {
    let _undisturbed = Undisturbed::new();
    if link(|| thread::spawn_bare(run_bare)) {
        startup::wait();
    }
    shared.tags.load(Ordering::Relaxed) & !ASK
}

/// The word that has these tags.
#[inline(always)]
pub fn tags_word() -> Option<&'static AtomicU64> {
    POOL.shared().map(|shared| &shared.tags)
}

/// Starts the socket's thread by `start`, unless this process has one; false where it can't.
fn link(start: impl FnOnce() -> bool) -> bool {
    let this = generation().number();
    let present = LINKED.load(Ordering::Acquire);
    if present == this || LINKED.compare_exchange(present, this, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return true;
    }
    stand(Standing::CONNECTING);
    let started = prepare().is_some_and(|shared| {
        startup::begin(shared);
        start()
    });
    if !started {
        stand(Standing::THREADLESS);
        POOL.shared().into_iter().for_each(startup::end);
        LINKED.store(0, Ordering::Release);
    }
    started
}

/// The body of the socket's thread.
fn run() {
    if let (Some(shared), Some(environment)) = (POOL.shared(), ENVIRONMENT.get()) {
        link::run(shared, environment, say, changed);
        // Its rights are no longer the process'. The next event starts another one.
        stand(Standing::CONNECTING);
        LINKED.store(0, Ordering::Release);
        startup::expect(shared);
    }
}

extern "C" fn run_bare() {
    run();
}

/// Makes what threads need to write; None where there is no memory for it. In a process that was not prepared, nor forked by
/// one that was, it allocates.
pub(crate) fn prepare() -> Option<&'static Shared> {
    /// The process that it was made in, by its generation.
    static PREPARED: AtomicU64 = AtomicU64::new(0);
    let this = generation().number();
    if PREPARED.load(Ordering::Acquire) != this {
        // Two threads that come at once do the same.
        ENVIRONMENT.get_or_make(|| Environment {
            socket: socket::named_producers(),
            memory: process::variable("ATRACE_SHMEM_KB"),
        });
        // Now, while files may be opened.
        process::with_argv0(|_| ());
        clock::prepare();
        thread::prepare();
        let seed =
            packet::seeded(process::start_time(), hash::hash(&u64::from(process::raw_id()).to_le_bytes()));
        PROCESS_TRACK.store(packet::track(seed), Ordering::Relaxed);
        at_fork();
        PREPARED.store(this, Ordering::Release);
    }
    let shared = POOL.make(&(end_thread as fn(usize))).ok()?;
    POOL.renew(); // Of a child that the handler of fork does not know.
    Some(shared)
}

/// A thread that has written ends.
fn end_thread(place: usize) {
    POOL.end_thread(place, writer::finish);
}

/// Has a forked child leave what is its parent's.
fn at_fork() {
    extern "C" fn in_child() {
        // First: the child may be in the middle of an event, and goes on with it.
        Arena::retire_all();
        early::set_arena(None);
        POOL.wipe();
        // Who had connected, or was to, connects at its first event.
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

fn stand(standing: Standing) {
    STANDING.store(standing.packed(), Ordering::Release);
}

/// It stands so now, which others are told of: on the socket's thread.
fn say(standing: Standing) {
    let standing = standing.packed();
    if STANDING.swap(standing, Ordering::AcqRel) != standing {
        changed();
    }
}

/// The one session that is open, as a rule, and wants an event, and its writer.
struct Sole<'a> {
    writer: &'a mut Writer,
    place: Place,
    now: u64,
}

/// Returns it; None also where several are open, or none. There is no loop around what is written for it: what does not
/// change there would be computed before it, and kept on the stack.
#[inline(always)]
fn sole<'a>(inside: &'a mut Inside<Writer>, event: &Event<'_>) -> Option<Sole<'a>> {
    let (shared, thread) = (inside.shared(), inside.thread());
    let open = shared.open.load(Ordering::Acquire);
    if !open.is_power_of_two() {
        return None;
    }
    let number = open.trailing_zeros() as usize;
    let session = shared.sessions.get(number)?;
    let epoch = wanted(session, event)?;
    let now = clock::now();
    Some(Sole { writer: inside.writer(number), place: Place { session, epoch, number, thread }, now })
}

/// Writes an event to each session that wants it; returns whether it was written to one.
#[inline(never)]
pub fn write(event: &Event<'_>) -> Option<Written> {
    let mut inside = POOL.enter()?;
    let (shared, thread) = (inside.shared(), inside.thread());
    let mut open = shared.open.load(Ordering::Acquire);
    let mut is_written = false;
    if open == 0 && shared.presumed.load(Ordering::Relaxed) != 0 {
        drop(inside);
        return write_early(event);
    }
    let now = clock::now();
    while open != 0 {
        let number = open.trailing_zeros() as usize;
        open &= open - 1;
        let Some(session) = shared.sessions.get(number) else { break };
        if let Some(epoch) = wanted(session, event) {
            let place = Place { session, epoch, number, thread };
            is_written |= inside.writer(number).event(&place, event, now);
        }
    }
    is_written.then_some(Written::ByPerfetto)
}

/// Writes an event at once if there is one session and nothing stands against it, as for nearly all of them. It is compiled for
/// the fields that the caller fills in; a program that is built for size leaves it out. `IS_SHORT` as in
/// [`packet::event`].
///
/// For the rest `again` makes the event another time: the compiler no longer knows the fields of one whose address it has given
/// away.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_quick<'a, const IS_SHORT: bool>(
    event: Event<'_>,
    again: impl FnOnce() -> Event<'a>,
) -> Option<Written> {
    if !cfg!(small) {
        let mut inside = POOL.enter()?;
        if let Some(Sole { writer, place, now }) = sole(&mut inside, &event)
            && writer.quick::<IS_SHORT>(place.epoch, &event, now)
        {
            return Some(Written::ByPerfetto);
        }
    }
    write(&again())
}

/// [`write`] of an event of any length, compiled for the fields that the caller fills in.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_long<'a>(event: Event<'_>, again: impl Fn() -> Event<'a>) -> Option<Written> {
    if !cfg!(small) && event.kind != Type::End {
        let mut inside = POOL.enter()?;
        if let Some(Sole { writer, place, now }) = sole(&mut inside, &event) {
            let is_written = writer.quick::<false>(place.epoch, &event, now);
            // Not entered again: of long events few have room in a chunk.
            return (is_written || writer.any(&{ place }, &again(), now)).then_some(Written::ByPerfetto);
        }
    }
    write(&again())
}

/// [`write`] while the service has not said which sessions there are: waits for that, else the event is lost.
#[cold]
#[inline(never)]
fn write_early(event: &Event<'_>) -> Option<Written> {
    let _undisturbed = Undisturbed::new();
    startup::wait();
    let shared = POOL.shared()?;
    if shared.open.load(Ordering::Acquire) != 0 {
        write(event)
    } else {
        early::lose(shared, event).then_some(Written::ByPerfetto)
    }
}

/// The session's epoch, if it wants the event.
#[inline(always)]
fn wanted(session: &Session, event: &Event<'_>) -> Option<u32> {
    let epoch = session.epoch.now();
    let is_asked = session.tags.load(Ordering::Relaxed) & event.tags != 0;
    let is_old = event.begun == u32::MAX || session.number.load(Ordering::Relaxed) < event.begun;
    (is_asked && is_old).then_some(epoch)
}

/// Writes the begin of a slice of the calling thread, or an instant.
#[inline(never)]
pub fn text(kind: Type, tags: u64, name: &str) -> Option<Written> {
    let make = || Event { name: Some(name), ..Event::new(kind, tags) };
    if name.len() > packet::SHORT {
        return long_text(kind, tags, name);
    }
    if kind == Type::End {
        return None; // It is none, and the compiler leaves out what ends have.
    }
    write_quick::<true>(make(), make)
}

#[inline(never)]
fn long_text(kind: Type, tags: u64, name: &str) -> Option<Written> {
    let name = cut(name, packet::TEXT_MAX);
    let make = || Event { name: Some(name), ..Event::new(kind, tags) };
    write_long(make(), make)
}

/// [`text`] with a name that has this number, if there is one for it.
#[inline(never)]
pub fn named(kind: Type, tags: u64, number: &Number, name: &str) -> Option<Written> {
    let site = Site::named(number, name);
    if !site.has_number() {
        return text(kind, tags, name);
    }
    let make = |name| Event { site: Some(Site { name, ..site }), ..Event::new(kind, tags) };
    if kind == Type::End {
        return None; // See `text`.
    }
    // What is written at once does not need the text.
    write_quick::<true>(make(""), || make(name))
}

/// [`text`] with a tracer's callsite, whose name it has if none is given, and encoded arguments.
#[inline(never)]
pub fn traced(
    kind: Type,
    tags: u64,
    site: &Site<'_>,
    name: Option<&str>,
    flow: u64,
    args: &[u8],
) -> Option<Written> {
    let make = |site| Event { name, site: Some(site), flow, args, ..Event::new(kind, tags) };
    // As nearly always: the compiler leaves out the rest.
    if !site.has_number() || site.about.is_none() || kind == Type::End {
        return write(&make(*site));
    }
    // What is written at once does not need the texts.
    let Site { number, level, about, .. } = *site;
    write_quick::<false>(make(Site { number, name: "", level, about }), || make(*site))
}

/// Writes the end of a slice of the calling thread.
#[inline(never)]
pub fn end(tags: u64) {
    let make = || Event::new(Type::End, tags);
    _ = write_quick::<true>(make(), make);
}

/// Writes an event on the track with this key and name.
#[inline(never)]
pub fn on_track(key: TrackKey, tags: u64, track: &str, name: Option<&str>) -> Option<Written> {
    let kind = key.kind();
    let make = |track, name| Event { track: Some(track), name, ..Event::new(kind, tags) };
    let is_short = |text: &str| text.len() <= packet::SHORT;
    if !is_short(track) || !name.is_none_or(is_short) {
        return write(&make(Track::of(key, track), name.map(|name| cut(name, packet::TEXT_MAX))));
    }
    let track = Track::new(key, track, hash::of_name(track));
    write_quick::<true>(make(track, name), || make(track, name))
}

/// Sets a counter, whose name has this hash, to an integer.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn count(tags: u64, name: &str, hash: u64, value: i64) -> Option<Written> {
    let (track, value) = (Some(Track::counter(name, hash)), Some(Amount::Whole(value)));
    let make = || Event { track, value, ..Event::new(Type::Counter, tags) };
    write_quick::<true>(make(), make)
}

impl<'a> Track<'a> {
    /// The track with this key and name.
    #[inline(never)]
    pub fn of(key: TrackKey, name: &'a str) -> Self {
        Self::new(key, name, hash::of_name(name))
    }

    /// A counter, whose name has this [`hash`](hash::of_name).
    #[inline(always)]
    pub fn counter(name: &'a str, hash: u64) -> Self {
        Self { is_counter: true, ..Self::new(TrackKey::COUNTER, name, hash) }
    }

    #[inline(always)]
    fn new(key: TrackKey, name: &'a str, hash: u64) -> Self {
        let parent = process_track();
        let seed = parent ^ key.number().wrapping_mul(0xd6e8_feb8_6659_fd93);
        let uuid = packet::track(packet::seeded(seed, hash));
        Self { uuid, parent, name: cut(name, TRACK_NAME_MAX), is_counter: false }
    }
}

/// The number of a flow that this process knows by `id`: another one's in each process.
#[inline(always)]
pub fn flow_number(id: u64) -> u64 {
    (process_track() ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How many sessions have begun: what begins now ends only in these.
pub fn begun() -> u32 {
    POOL.shared().map_or(0, |shared| shared.begun.load(Ordering::Relaxed))
}

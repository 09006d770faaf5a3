//! This process as a producer: whether it is one, and the events that it writes.
//!
//! The socket's thread (`link`) opens and closes sessions; each event is written for every open one that wants its
//! tags, by a writer of its thread (`writer.rs`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use atrace_sys::OnceRef;
use atrace_sys::fork::generation;
use atrace_sys::perfetto::clock;
use atrace_sys::perfetto::pool::{Inside, Session, Shared};
use atrace_sys::process::{self, Undisturbed};

use super::link;
use super::packet::{self, Described, Long, Rich};
pub(crate) use super::packet::{Amount, Type};
pub(crate) use super::standing::Standing;
use super::writer::{self, Event, LOST, POOL, PROCESS_TRACK, Place, Writer, process_track};
use crate::AtraceTag;
use crate::args as text;
use crate::callsite::Site;
use crate::gate::ASK;
use crate::hash::hash;
use crate::sink::first;

/// Called when sessions want other tags than before, or the connection stands otherwise, on the socket's thread, where
/// nothing of the program's runs.
static ON_CHANGE: [OnceRef<fn()>; 2] = [const { OnceRef::new() }; 2];
/// The process that has a socket's thread, by its generation.
static LINKED: AtomicU64 = AtomicU64::new(0);
/// How the connection stands, as `Standing` packs it.
static STANDING: AtomicU64 = AtomicU64::new(0);

/// Starts the socket's thread and waits for the sessions that are there; not in a signal's handler, where a thread that is
/// needed may be interrupted.
pub(crate) fn start() {
    let _undisturbed = Undisturbed::new();
    if !link() || process::is_in_handler() {
        return;
    }
    for _ in 0..WAIT_MS {
        if present_standing() != Standing::Connecting {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How long is waited for sessions that are there.
const WAIT_MS: u32 = 100;

fn present_standing() -> Standing {
    Standing::of(STANDING.load(Ordering::Acquire))
}

/// How this process stands to the service, and how many sessions want its events.
pub(crate) fn standing() -> (Standing, u32) {
    match POOL.shared() {
        Some(shared) if LINKED.load(Ordering::Acquire) == generation().number() => {
            (present_standing(), shared.open.load(Ordering::Relaxed).count_ones())
        }
        _ => (Standing::Apart, 0),
    }
}

/// How many events were lost.
pub(crate) fn lost() -> u64 {
    let of_threads = POOL.shared().map_or(0, |shared| shared.lost.load(Ordering::Relaxed));
    LOST.load(Ordering::Relaxed) + of_threads
}

/// In this build a process can be one.
pub(crate) const EXISTS: bool = true;

/// Makes this process ready to be one; false where there is no memory for it.
pub(crate) fn can_be_used() -> bool {
    prepare().is_some()
}

/// Whether this process, or an ancestor of it, was ever made a producer.
#[inline]
pub fn is_used() -> bool {
    first::are_two_ways()
}

/// The tags that sessions want. In a forked child the first to ask connects it.
#[inline(always)]
pub(crate) fn tags() -> AtraceTag {
    let Some(shared) = POOL.shared() else { return AtraceTag::empty() };
    let tags = shared.tags.load(Ordering::Relaxed);
    if tags & ASK != 0 {
        return ask(shared);
    }
    AtraceTag::from_bits_retain(tags)
}

#[cold]
#[inline(never)]
fn ask(shared: &'static Shared) -> AtraceTag {
    if shared.tags.fetch_and(0, Ordering::AcqRel) & ASK != 0 {
        start();
    }
    AtraceTag::from_bits_retain(shared.tags.load(Ordering::Relaxed) & !ASK)
}

/// The word that has these tags.
#[inline(always)]
pub(crate) fn tags_word() -> Option<&'static AtomicU64> {
    POOL.shared().map(|shared| &shared.tags)
}

/// Starts the socket's thread, unless this process has one; false where it can't.
fn link() -> bool {
    let this = generation().number();
    let present = LINKED.load(Ordering::Acquire);
    if present == this || LINKED.compare_exchange(present, this, Ordering::AcqRel, Ordering::Relaxed).is_err()
    {
        return true;
    }
    stand(Standing::Connecting);
    let Some(shared) = prepare() else { return false };
    let started = atrace_sys::thread::spawn_quiet("atrace-perfetto", move || link::run(shared, say, changed));
    if started.is_err() {
        LINKED.store(0, Ordering::Release);
    }
    started.is_ok()
}

/// Makes what threads need to write; None where there is no memory for it.
pub(super) fn prepare() -> Option<&'static Shared> {
    /// The process that it was made in, by its generation.
    static PREPARED: AtomicU64 = AtomicU64::new(0);
    let this = generation().number();
    if PREPARED.swap(this, Ordering::AcqRel) != this {
        let pid = u64::from(process::raw_id());
        let seed = clock::asked();
        PROCESS_TRACK.store(packet::track(packet::seeded(seed, hash(&pid.to_le_bytes()))), Ordering::Relaxed);
        process::with_argv0(|_| ()); // Now, while files may be opened.
        at_fork();
    }
    let shared = POOL.make(&(end_thread as fn())).ok()?;
    first::have_two_ways();
    Some(shared)
}

/// A thread that has written ends.
fn end_thread() {
    POOL.end_thread(writer::finish);
}

/// Has a forked child leave what is its parent's.
fn at_fork() {
    extern "C" fn in_child() {
        POOL.wipe();
        link::leave_memory();
        // Who had connected connects again at its first event.
        if LINKED.load(Ordering::Relaxed) != 0
            && let Some(shared) = POOL.shared()
        {
            shared.tags.store(ASK | AtraceTag::ValidMask.bits(), Ordering::Release);
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

/// Has `body` called when sessions want other tags than before, or the connection stands otherwise, on the socket's thread:
/// it runs nothing of the program's.
pub(crate) fn on_change(body: &'static fn()) {
    // Each of the two that there are has a place; the first of them that is free, or its own.
    for place in &ON_CHANGE {
        match place.set(body) {
            Err(present) if !std::ptr::eq(present, body) => {}
            _ => return,
        }
    }
}

/// It stands so now, which others are told of: on the socket's thread.
fn say(standing: Standing) {
    let standing = standing.packed();
    if STANDING.swap(standing, Ordering::AcqRel) != standing {
        changed();
    }
}

/// Sessions want other tags than before, or it stands otherwise.
pub(super) fn changed() {
    ON_CHANGE.iter().filter_map(OnceRef::get).for_each(|body| body());
}

/// The one session that is open, as a rule, and wants an event, and its writer.
struct Sole<'a> {
    writer: &'a mut Writer,
    place: Place,
    now: u64,
}

/// Returns it, if it began before `begun` sessions had; None also where several are open, or none. There is no loop around
/// what is written for it: what does not change there would be computed before it, and kept on the stack.
#[inline(always)]
fn sole(inside: &mut Inside<Writer>, tags: u64, begun: u32) -> Option<Sole<'_>> {
    let (shared, thread) = (inside.shared(), inside.thread());
    let open = shared.open.load(Ordering::Acquire);
    if !open.is_power_of_two() {
        return None;
    }
    let number = open.trailing_zeros() as usize;
    let session = shared.sessions.get(number)?;
    let epoch = wanted(session, tags, begun)?;
    let now = clock::now();
    Some(Sole { writer: inside.writer(number), place: Place { session, epoch, number, thread }, now })
}

/// Has `write` write an event for each session that wants these tags, and began before `begun` sessions had; tells
/// whether it was written for one.
#[inline(never)]
fn for_each(
    inside: Option<Inside<Writer>>,
    tags: u64,
    begun: u32,
    write: &dyn Fn(&mut Writer, &Place, u64) -> bool,
) -> bool {
    let Some(mut inside) = inside else { return false };
    let (shared, thread) = (inside.shared(), inside.thread());
    let mut open = shared.open.load(Ordering::Acquire);
    let mut is_written = false;
    if open == 0 {
        return false;
    }
    let now = clock::now();
    while open != 0 {
        let number = open.trailing_zeros() as usize;
        open &= open - 1;
        let Some(session) = shared.sessions.get(number) else { break };
        if let Some(epoch) = wanted(session, tags, begun) {
            is_written |= write(inside.writer(number), &Place { session, epoch, number, thread }, now);
        }
    }
    is_written
}

/// The session's number, if it wants these tags and began before `begun` sessions had.
#[inline(always)]
fn wanted(session: &Session, tags: u64, begun: u32) -> Option<u32> {
    let epoch = session.epoch.now();
    let is_asked = session.tags.load(Ordering::Relaxed) & tags != 0;
    (is_asked && (begun == u32::MAX || session.number.load(Ordering::Relaxed) < begun)).then_some(epoch)
}

/// Cuts a text at what a chunk can take.
#[inline]
const fn cut(text: &str) -> &[u8] {
    text::cut(text, packet::TEXT_MAX).as_bytes()
}

/// Writes the begin of a slice of the calling thread, or an instant on its track.
#[inline(always)]
pub(crate) fn short(kind: Type, tags: u64, name: &str) -> bool {
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => {
            writer.short(place.epoch, kind, tags, now, name.as_bytes())
                || slow(writer, &{ place }, kind, tags, name, now)
        }
        None => for_each(Some(inside), tags, u32::MAX, &|writer, place, now| {
            slow(writer, place, kind, tags, name, now)
        }),
    }
}

/// [`short`], with less code and some nanoseconds more: where an event costs more anyway.
#[inline(never)]
pub(crate) fn short_called(kind: Type, tags: u64, name: &str) -> bool {
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => slow(writer, &place, kind, tags, name, now),
        None => for_each(Some(inside), tags, u32::MAX, &|writer, place, now| {
            slow(writer, place, kind, tags, name, now)
        }),
    }
}

#[inline(never)]
fn slow(writer: &mut Writer, place: &Place, kind: Type, tags: u64, name: &str, now: u64) -> bool {
    let name = cut(name);
    let long = || Long { name: Some(name), ..Long::new(kind, tags) };
    (name.len() <= packet::SHORT && writer.short(place.epoch, kind, tags, now, name))
        || writer.lengthy(place.epoch, kind, tags, now, name)
        || writer.any(place, &Event { long: long(), track: None }, now)
}

/// [`short`] with the name of a callsite.
#[inline(always)]
pub(crate) fn named(kind: Type, tags: u64, site: &Site<'_>) -> bool {
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => {
            writer.named(place.epoch, kind, tags, now, site.number)
                || slow_named(writer, &{ place }, kind, tags, &{ *site }, now)
        }
        None => {
            let site = &{ *site };
            for_each(Some(inside), tags, u32::MAX, &|writer, place, now| {
                slow_named(writer, place, kind, tags, site, now)
            })
        }
    }
}

#[inline(never)]
fn slow_named(writer: &mut Writer, place: &Place, kind: Type, tags: u64, site: &Site<'_>, now: u64) -> bool {
    writer.named(place.epoch, kind, tags, now, site.number)
        || slow_rich(writer, place, &Long { site: Some(*site), ..Long::new(kind, tags) }, now)
}

/// [`short`] of a tracer's callsite, whose name it has where none is given, with encoded arguments.
#[inline(never)]
pub(crate) fn known(
    kind: Type,
    tags: u64,
    site: &Site<'_>,
    name: Option<&str>,
    flow: u64,
    args: &[u8],
) -> bool {
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags, u32::MAX) {
        let name = name.map(|name| text::cut(name, NAME_MAX).as_bytes());
        let event = Rich { site: Some((site.number, site.level)), name, flow, args };
        if writer.known(place.epoch, kind, tags, now, event) {
            return true;
        }
    }
    drop(inside);
    rich(kind, tags, (Some(*site), name), flow, args)
}

/// [`short`] with a callsite, whose name it has where none is given, and encoded arguments.
#[inline(never)]
pub(crate) fn rich(
    kind: Type,
    tags: u64,
    (site, name): (Option<Site<'_>>, Option<&str>),
    flow: u64,
    args: &[u8],
) -> bool {
    let name = name.map(|name| text::cut(name, NAME_MAX).as_bytes());
    let long = &Long { name, site, flow, args, ..Long::new(kind, tags) };
    for_each(POOL.enter(), tags, u32::MAX, &|writer, place, now| slow_rich(writer, place, long, now))
}

#[inline(never)]
fn slow_rich(writer: &mut Writer, place: &Place, long: &Long<'_>, now: u64) -> bool {
    writer.rich(place.epoch, long, now) || writer.any(place, &Event { long: *long, track: None }, now)
}

/// The longest name of an event that has more than that.
const NAME_MAX: usize = 1024;

/// Writes the end of a slice of the calling thread.
#[inline(always)]
pub(crate) fn end(tags: u64) -> bool {
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => {
            writer.end(place.epoch, now) || writer.any(&{ place }, &END, now)
        }
        None => for_each(Some(inside), tags, u32::MAX, &|writer, place, now| writer.any(place, &END, now)),
    }
}

const END: Event<'static> = Event { long: Long::new(Type::End, 0), track: None };

/// [`end`] with encoded arguments, which are lost where there is no room for them.
pub(crate) fn end_with(tags: u64, args: &[u8]) -> bool {
    for_each(POOL.enter(), tags, u32::MAX, &|writer, place, now| {
        writer.end_with(place.epoch, now, args) || writer.any(place, &END, now)
    })
}

/// What tells tracks apart that have the same name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Row {
    /// An async slice's, with its cookie.
    Async(i64),
    /// A slice's on a named track, with its cookie.
    Named(i64),
    Instants,
    Counter,
}

/// Writes an event on a track of its own, described before it: `begun` as in [`for_each`].
#[inline]
pub(crate) fn on_track(
    kind: Type,
    tags: u64,
    row: (Row, &str),
    name: Option<&str>,
    amount: Option<Amount>,
    begun: u32,
) -> bool {
    if let (Type::Begin, Some(name)) = (kind, name) {
        return begin_on_track(tags, row, name);
    }
    let tags_named = if kind == Type::End { 0 } else { tags };
    let mut long = Long { name: name.map(cut), amount, ..Long::new(kind, tags_named) };
    put_on_track(tags, row, &mut long, begun)
}

/// [`on_track`] of a begin, most of which have short names.
#[inline(never)]
fn begin_on_track(tags: u64, (row, track): (Row, &str), name: &str) -> bool {
    let (track, name, parent) = (cut(track), cut(name), process_track());
    let number = row.number(parent, hash(track));
    let track = Described { track: number, parent, name: track, is_counter: false };
    let long = || Long { track: Some(number), name: Some(name), ..Long::new(Type::Begin, tags) };
    let write = |writer: &mut Writer, place: &Place, now| {
        writer.begin_on_track(place.epoch, tags, now, &track, name)
            || writer.any(place, &Event { long: long(), track: Some(track) }, now)
    };
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => write(writer, &place, now),
        None => for_each(Some(inside), tags, u32::MAX, &write),
    }
}

/// [`on_track`] with a callsite, whose name it has where none is given, and encoded arguments.
pub(crate) fn rich_on_track(
    kind: Type,
    tags: u64,
    row: (Row, &str),
    (site, name): (Option<Site<'_>>, Option<&str>),
    args: &[u8],
    begun: u32,
) -> bool {
    let tags_named = if kind == Type::End { 0 } else { tags };
    let name = name.map(|name| text::cut(name, NAME_MAX).as_bytes());
    let row = (row.0, text::cut(row.1, NAME_MAX));
    put_on_track(tags, row, &mut Long { name, site, args, ..Long::new(kind, tags_named) }, begun)
}

#[inline(never)]
fn put_on_track(tags: u64, (row, track): (Row, &str), long: &mut Long<'_>, begun: u32) -> bool {
    let (track, parent) = (cut(track), process_track());
    let number = row.number(parent, hash(track));
    let is_counter = matches!(row, Row::Counter);
    let track = Described { track: number, parent, name: track, is_counter };
    // The end's track was described with its begin.
    long.track = Some(number);
    let write = |writer: &mut Writer, place: &Place, now| {
        writer.on_track(place.epoch, long, &track, now)
            || writer.any(place, &Event { long: *long, track: Some(track) }, now)
    };
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, begun) {
        Some(Sole { writer, place, now }) => write(writer, &place, now),
        None => for_each(Some(inside), tags, begun, &write),
    }
}

impl Row {
    /// The number of the track with a name of this hash, below the process'.
    #[inline(always)]
    fn number(self, parent: u64, hash: u64) -> u64 {
        let of = match self {
            Self::Async(cookie) => u64::from(cookie as u32) << 2,
            Self::Named(cookie) => u64::from(cookie as u32) << 2 | 1,
            Self::Instants => 2,
            Self::Counter => 3,
        };
        packet::track(packet::seeded(parent ^ of.wrapping_mul(0xd6e8_feb8_6659_fd93), hash))
    }
}

/// Sets a counter, whose name has this [`hash`].
#[inline(always)]
pub(crate) fn counter(tags: u64, name: &str, hash: u64, value: i64) -> bool {
    let number = Row::Counter.number(process_track(), hash);
    let Some(mut inside) = POOL.enter() else { return false };
    match sole(&mut inside, tags, u32::MAX) {
        Some(Sole { writer, place, now }) => {
            writer.counter(place.epoch, tags, now, number, value)
                || slow_counter(writer, &{ place }, tags, name, value, now)
        }
        None => for_each(Some(inside), tags, u32::MAX, &|writer, place, now| {
            slow_counter(writer, place, tags, name, value, now)
        }),
    }
}

#[inline(never)]
fn slow_counter(writer: &mut Writer, place: &Place, tags: u64, name: &str, value: i64, now: u64) -> bool {
    let (name, parent) = (cut(name), process_track());
    let number = Row::Counter.number(parent, hash(name));
    if writer.counter(place.epoch, tags, now, number, value) {
        return true;
    }
    let track = Some(Described { track: number, parent, name, is_counter: true });
    let amount = Some(Amount::Whole(value));
    let long = Long { track: Some(number), amount, ..Long::new(Type::Counter, tags) };
    writer.any(place, &Event { long, track }, now)
}

/// The number of a flow that this process knows by `id`: another one's in each process.
#[inline(always)]
pub fn flow_number(id: u64) -> u64 {
    (process_track() ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// How many sessions have begun: what begins now ends only in these.
pub(crate) fn begun() -> u32 {
    POOL.shared().map_or(0, |shared| shared.begun.load(Ordering::Relaxed))
}

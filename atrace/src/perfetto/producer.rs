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
use atrace_sys::thread;

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
        if present_standing() != Standing::CONNECTING {
            return;
        }
        thread::pause(Duration::from_millis(1));
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
        _ => (Standing::APART, 0),
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
    stand(Standing::CONNECTING);
    let Some(shared) = prepare() else { return false };
    let started = thread::spawn_quiet("atrace-perfetto", move || link::run(shared, say, changed));
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
    let shared = POOL.make(&(end_thread as fn(usize))).ok()?;
    first::have_two_ways();
    Some(shared)
}

/// A thread that has written ends.
fn end_thread(place: usize) {
    POOL.end_thread(place, writer::finish);
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

/// Returns it; None also where several are open, or none. There is no loop around what is written for it: what does not
/// change there would be computed before it, and kept on the stack.
#[inline(always)]
fn sole(inside: &mut Inside<Writer>, tags: u64) -> Option<Sole<'_>> {
    let (shared, thread) = (inside.shared(), inside.thread());
    let open = shared.open.load(Ordering::Acquire);
    if !open.is_power_of_two() {
        return None;
    }
    let number = open.trailing_zeros() as usize;
    let session = shared.sessions.get(number)?;
    let epoch = wanted(session, tags, u32::MAX)?;
    let now = clock::now();
    Some(Sole { writer: inside.writer(number), place: Place { session, epoch, number, thread }, now })
}

/// Writes an event for each session that wants these tags, and began before `begun` sessions had, whatever stands against it;
/// tells whether it was written for one. What is written often tries to be written at once before, by code of its own: but in
/// a program that is built to be small.
///
/// One of a row is on a track of its own, which is described.
#[inline(never)]
fn write<'a>(tags: u64, begun: u32, row: Option<(Row, &'a str)>, event: &mut Event<'a>) -> bool {
    if let Some((row, name)) = row {
        let track = row.described(name);
        // The end's track was described with its begin.
        event.long.track = Some(track.track);
        event.track = Some(track);
    }
    let Some(mut inside) = POOL.enter() else { return false };
    let (shared, thread) = (inside.shared(), inside.thread());
    let mut open = shared.open.load(Ordering::Acquire);
    let mut is_written = false;
    let now = clock::now();
    while open != 0 {
        let number = open.trailing_zeros() as usize;
        open &= open - 1;
        let Some(session) = shared.sessions.get(number) else { break };
        if let Some(epoch) = wanted(session, tags, begun) {
            let place = Place { session, epoch, number, thread };
            is_written |= inside.writer(number).event(&place, event, now);
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
    if cfg!(small) || name.len() > packet::SHORT {
        return short_called(kind, tags, name);
    }
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags)
        && writer.short(place.epoch, kind, tags, now, name.as_bytes())
    {
        return true;
    }
    drop(inside);
    short_called(kind, tags, name)
}

/// [`short`], with less code and some nanoseconds more: where an event costs more anyway.
#[inline(never)]
pub(crate) fn short_called(kind: Type, tags: u64, name: &str) -> bool {
    let name = cut(name);
    if cfg!(small) {
        let long = Long { name: Some(name), ..Long::new(kind, tags) };
        return write(tags, u32::MAX, None, &mut Event { long, track: None });
    }
    let Some(mut inside) = POOL.enter() else { return false };
    let mut sole = sole(&mut inside, tags);
    if let Some(Sole { writer, place, now }) = &mut sole
        && writer.lengthy(place.epoch, kind, tags, *now, name)
    {
        return true;
    }
    let mut event = Event { long: Long { name: Some(name), ..Long::new(kind, tags) }, track: None };
    // Not again: of long names few have room in a chunk.
    if let Some(Sole { writer, place, now }) = sole {
        return writer.any(&place, &event, now);
    }
    drop(inside);
    write(tags, u32::MAX, None, &mut event)
}

/// [`short`] with the name of a callsite.
#[inline(always)]
pub(crate) fn named(kind: Type, tags: u64, site: &Site<'_>) -> bool {
    if cfg!(small) {
        return rich(kind, tags, (Some(*site), None), 0, &[]);
    }
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags)
        && writer.named(place.epoch, kind, tags, now, site.number)
    {
        return true;
    }
    drop(inside);
    rich(kind, tags, (Some(*site), None), 0, &[])
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
    if cfg!(small) {
        return rich(kind, tags, (Some(*site), name), flow, args);
    }
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags) {
        // One that is too long has no room.
        let name = name.map(str::as_bytes);
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
    let long = Long { name, site, flow, args, ..Long::new(kind, tags) };
    write(tags, u32::MAX, None, &mut Event { long, track: None })
}

/// The longest name of a track, and of an event that has more than that.
const NAME_MAX: usize = 1024;

/// Writes the end of a slice of the calling thread.
#[inline(always)]
pub(crate) fn end(tags: u64) -> bool {
    if cfg!(small) {
        return end_with(tags, None, &[]);
    }
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags)
        && writer.end(place.epoch, now)
    {
        return true;
    }
    drop(inside);
    end_with(tags, None, &[])
}

/// [`end`] with encoded arguments of a callsite, which are lost where there is no room for them.
#[inline(never)]
pub(crate) fn end_with(tags: u64, site: Option<Site<'_>>, args: &[u8]) -> bool {
    let long = Long { site, args, ..Long::new(Type::End, 0) };
    write(tags, u32::MAX, None, &mut Event { long, track: None })
}

/// What tells tracks apart that have the same name: a slice's cookie, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row(u64);

/// Writes an event on a track of its own, described before it; it began before `begun` sessions had.
#[inline]
pub(crate) fn on_track(
    kind: Type,
    tags: u64,
    row: (Row, &str),
    name: Option<&str>,
    amount: Option<Amount>,
    begun: u32,
) -> bool {
    if !cfg!(small)
        && let (Type::Begin, Some(name)) = (kind, name)
    {
        return begin_on_track(tags, row, name);
    }
    let tags_named = if kind == Type::End { 0 } else { tags };
    let long = Long { name: name.map(cut), amount, ..Long::new(kind, tags_named) };
    write(tags, begun, Some(row), &mut Event { long, track: None })
}

/// [`on_track`] of a begin, most of which have short names.
#[inline(never)]
fn begin_on_track(tags: u64, row: (Row, &str), name: &str) -> bool {
    let is_short = row.1.len() <= packet::SHORT && name.len() <= packet::SHORT;
    let Some(mut inside) = POOL.enter() else { return false };
    if is_short
        && let Some(Sole { writer, place, now }) = sole(&mut inside, tags)
        && writer.begin_on_track(place.epoch, tags, now, &row.0.described(row.1), name.as_bytes())
    {
        return true;
    }
    drop(inside);
    let long = Long { name: Some(cut(name)), ..Long::new(Type::Begin, tags) };
    write(tags, u32::MAX, Some(row), &mut Event { long, track: None })
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
    let long = Long { name, site, args, ..Long::new(kind, tags_named) };
    write(tags, begun, Some(row), &mut Event { long, track: None })
}

impl Row {
    pub(crate) const INSTANTS: Self = Self(2);
    pub(crate) const COUNTER: Self = Self(3);

    /// An async slice's.
    pub(crate) const fn of_async(cookie: i64) -> Self {
        Self((cookie as u32 as u64) << 2)
    }

    /// A slice's on a named track.
    pub(crate) const fn named(cookie: i64) -> Self {
        Self((cookie as u32 as u64) << 2 | 1)
    }

    /// The track with this name.
    #[inline(always)]
    fn described(self, name: &str) -> Described<'_> {
        // The same for each event of it, and beside a name as long as can be.
        let name = text::cut(name, NAME_MAX).as_bytes();
        let parent = process_track();
        let is_counter = self == Self::COUNTER;
        Described { track: self.number(parent, hash(name)), parent, name, is_counter }
    }

    /// The number of the track with a name of this hash, below the process'.
    #[inline(always)]
    fn number(self, parent: u64, hash: u64) -> u64 {
        packet::track(packet::seeded(parent ^ self.0.wrapping_mul(0xd6e8_feb8_6659_fd93), hash))
    }
}

/// Sets a counter, whose name has this [`hash`].
#[inline(always)]
pub(crate) fn counter(tags: u64, name: &str, hash: u64, value: i64) -> bool {
    if cfg!(small) {
        return slow_counter(tags, name, value);
    }
    let number = Row::COUNTER.number(process_track(), hash);
    let Some(mut inside) = POOL.enter() else { return false };
    if let Some(Sole { writer, place, now }) = sole(&mut inside, tags)
        && writer.counter(place.epoch, tags, now, number, value)
    {
        return true;
    }
    drop(inside);
    slow_counter(tags, name, value)
}

/// [`counter`], with less code and more time.
#[inline(never)]
pub(crate) fn slow_counter(tags: u64, name: &str, value: i64) -> bool {
    let long = Long { amount: Some(Amount::Whole(value)), ..Long::new(Type::Counter, tags) };
    write(tags, u32::MAX, Some((Row::COUNTER, name)), &mut Event { long, track: None })
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

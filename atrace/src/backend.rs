//! Chooses the backend of each event: ATrace's sink or Perfetto's shared memory, never both.
//!
//! # The rule
//!
//! The rule is AOSP's. It is applied at each event, because sessions begin and end while the program runs:
//!
//! | the event's tag is enabled | the event goes to |
//! |---|---|
//! | for ATrace, whose sink is open | the sink |
//! | in a session of Perfetto | Perfetto's memory |
//! | for both | the sink; Perfetto's memory if the property `debug.atrace.prefer_sdk` has the tag's bit |
//!
//! # Paths
//!
//! A process that never was a producer of Perfetto has one backend, its sink, so there is no choice and no cost: see
//! `sink/first.rs`. In a producer, a tag is usually enabled by Perfetto's sessions only. The two words of the gate show
//! this case, so inlined code tests this case first ([`goes_to_sessions_only`]). A function that is not inlined
//! ([`select_slow`]) handles all other cases.
//!
//! Many functions here are split in two, with `inline` attributes that depend on `debug_assertions`. An event may be
//! written on the stack of a signal handler, whose stack is small. So a function must not reserve stack for buffers
//! that only some of its callers need.

use crate::AtraceTag;
use crate::args::{Arg, Arguments};
use crate::event::Event;
use crate::gate::{self, Glance};
use crate::message::{Kind, Message, NameWriter};
use crate::name::{Interned, Source, Text};
use crate::producer::{self, Amount, Track, TrackKey, Type, Written, hash};
use crate::refresh;
use crate::sink::{Sink, choice, first};

/// The backend of an event whose tag is enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    Atrace(&'static Sink),
    Perfetto,
}

/// `ONLY_ATRACE` and `ONLY_PERFETTO` are not tags: each restricts an event to one backend.
const ONLY_ATRACE: AtraceTag = AtraceTag::from_bits_retain(1 << 61);
const ONLY_PERFETTO: AtraceTag = AtraceTag::from_bits_retain(1 << 62);

/// Returns `tag` with the restriction that its events go to ATrace only.
pub fn only_atrace(tag: AtraceTag) -> AtraceTag {
    (tag - ONLY_PERFETTO) | ONLY_ATRACE
}

/// Returns `tag` with the restriction that its events go to Perfetto's memory only, or [`AtraceTag::Never`] if this
/// process can't be a producer, for lack of memory or because the crate was built without the feature `perfetto`.
pub fn only_perfetto(tag: AtraceTag) -> AtraceTag {
    // The bit is looked at only where the backend is chosen for each event.
    if first::enable_perfetto() { (tag - ONLY_ATRACE) | ONLY_PERFETTO } else { AtraceTag::Never }
}

/// The enabled tags, separately for each backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackendTags {
    atrace: AtraceTag,
    perfetto: AtraceTag,
}

/// Checks that the tags of one backend fit in half of a 64-bit word.
const _: () = assert!(AtraceTag::ValidMask.bits() >> 32 == 0);

impl BackendTags {
    pub(crate) const NONE: Self = Self { atrace: AtraceTag::empty(), perfetto: AtraceTag::empty() };

    /// Returns the tags that are enabled now.
    pub(crate) fn now() -> Self {
        if refresh::is_disabled() {
            return Self { atrace: AtraceTag::NotReady, ..Self::NONE };
        }
        Self { atrace: refresh::atrace_tags(), perfetto: producer::tags() }
    }

    /// Returns the tags that are enabled for at least one backend.
    pub(crate) fn union(self) -> AtraceTag {
        self.atrace | self.perfetto
    }

    /// Packs both sets of tags into one word. The upper half has Perfetto's tags.
    pub(crate) fn to_word(self) -> u64 {
        valid(self.perfetto) << 32 | valid(self.atrace)
    }
}

/// Returns whether a tag is enabled in `word`, a value of [`Watch::backend_tags`](crate::watch::Watch::backend_tags).
/// The tag may be restricted to one backend.
pub fn backend_tags_enable(word: u64, tag: AtraceTag) -> bool {
    let perfetto = if tag.intersects(ONLY_ATRACE) { 0 } else { word >> 32 };
    let atrace = if tag.intersects(ONLY_PERFETTO) { 0 } else { word };
    // `valid` clears the upper half.
    (atrace | perfetto) & valid(tag) != 0
}

/// Returns the backend for events with this tag, or `None` if the tag is not enabled. Call this only after the gate's
/// check, whose result is `glance`, has found that the tag may be enabled.
#[inline(always)]
pub(crate) fn enabled(glance: Glance, tag: AtraceTag) -> Option<Backend> {
    if refresh::is_enabled(glance, tag) { select(first::present(), tag) } else { None }
}

/// Does the same as [`enabled`], inlined: the code is larger, but the common path takes fewer instructions.
#[inline(always)]
pub(crate) fn enabled_inlined(glance: Glance, tag: AtraceTag) -> Option<Backend> {
    if refresh::is_enabled(glance, tag) { select_inlined(first::present(), tag) } else { None }
}

/// Chooses the backend of an event whose tag is enabled for at least one backend.
#[inline(always)]
pub(crate) fn select(sink: &'static Sink, tag: AtraceTag) -> Option<Backend> {
    match sink {
        Sink::PerEvent if producer::EXISTS => select_either(tag),
        sink => Some(Backend::Atrace(sink)),
    }
}

/// Does the same as [`select`], inlined, for [`enabled_inlined`].
#[inline(always)]
fn select_inlined(sink: &'static Sink, tag: AtraceTag) -> Option<Backend> {
    match sink {
        Sink::PerEvent if producer::EXISTS => {
            if is_only_in_sessions(tag) {
                Some(Backend::Perfetto)
            } else {
                select_slow(tag)
            }
        }
        sink => Some(Backend::Atrace(sink)),
    }
}

/// Returns true if the words of the gate show that the tag is enabled only by Perfetto's sessions. The result may be
/// false even if this is so.
#[inline(always)]
fn is_only_in_sessions(tag: AtraceTag) -> bool {
    let is_by = |word| gate::is_by(word, valid(tag)) && !tag.intersects(ONLY_ATRACE);
    producer::tags_word().is_some_and(is_by)
}

/// Chooses between the sink and Perfetto's memory.
#[inline(never)]
fn select_either(tag: AtraceTag) -> Option<Backend> {
    if is_only_in_sessions(tag) { Some(Backend::Perfetto) } else { select_slow(tag) }
}

/// Applies the whole rule of choosing a backend.
#[inline(never)]
fn select_slow(tag: AtraceTag) -> Option<Backend> {
    let tags = tag & AtraceTag::ValidMask;
    let is_wanted = !tag.intersects(ONLY_ATRACE) && producer::tags().intersects(tags);
    let is_atrace = !tag.intersects(ONLY_PERFETTO)
        && refresh::atrace_tags().intersects(tags)
        && choice::present().is_open();
    let prefers = || refresh::preferred().intersects(tags);
    if refresh::is_disabled() {
        None
    } else if is_wanted && (!is_atrace || prefers()) {
        Some(Backend::Perfetto)
    } else if is_atrace {
        Some(Backend::Atrace(choice::present()))
    } else {
        None
    }
}

/// Writes an event if its tag is enabled, and returns the backend that wrote the event. Call this only after the
/// gate's check, whose result is `glance`, has found that the tag may be enabled.
///
/// If the name is not a constant, inlined code builds the message for the marker; functions handle all other cases.
/// (Events with constant names usually go to Perfetto.)
#[inline(always)]
pub(crate) fn emit(glance: Glance, tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    match first::present() {
        Sink::Marker(marker) if event.name.is_none_or(|name| name.interned.is_none()) => {
            marker.write(event).then_some(Written::ByAtrace)
        }
        sink => emit_unless_marker(sink, tag, event),
    }
}

/// Writes the begin of a slice (`IS_BEGIN`) or an instant on the calling thread, as [`emit_named`] does, but not
/// inlined. Events without arguments are passed to a separate function, which is smaller.
#[inline(always)]
pub(crate) fn emit_on_thread<const IS_BEGIN: bool>(
    glance: Glance,
    tag: AtraceTag,
    name: impl Source,
    args: &[Arg<'_>],
) -> Option<Written> {
    const fn event<'a>(is_begin: bool) -> Event<'a> {
        Event::of(if is_begin { Kind::Begin } else { Kind::Instant })
    }
    #[inline(never)]
    fn plain<const IS_BEGIN: bool>(glance: Glance, tag: AtraceTag, name: impl Source) -> Option<Written> {
        emit_named(glance, tag, &event(IS_BEGIN), name)
    }
    #[inline(never)]
    fn with<const IS_BEGIN: bool>(
        glance: Glance,
        tag: AtraceTag,
        name: impl Source,
        args: &[Arg<'_>],
    ) -> Option<Written> {
        emit_named(glance, tag, &event(IS_BEGIN).with(&args), name)
    }
    if args.is_empty() {
        plain::<IS_BEGIN>(glance, tag, name)
    } else {
        with::<IS_BEGIN>(glance, tag, name, args)
    }
}

/// Begins a slice with a constant name as [`emit`] does. Only the message for the marker is built inline;
/// function calls do the rest.
#[inline(always)]
pub(crate) fn emit_constant(
    glance: Glance,
    tag: AtraceTag,
    name: &str,
    interned: &Interned,
) -> Option<Written> {
    #[inline(never)]
    fn unless_marker(
        sink: &'static Sink,
        tag: AtraceTag,
        text: &str,
        interned: &Interned,
    ) -> Option<Written> {
        let name = Some(Text { text, interned: Some(interned) });
        emit_unless_marker(sink, tag, &Event { name, ..Event::of(Kind::Begin) })
    }
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    match first::present() {
        Sink::Marker(marker) => marker.write(&Event::new(Kind::Begin, name)).then_some(Written::ByAtrace),
        sink => unless_marker(sink, tag, name, interned),
    }
}

/// Writes an event as [`emit`] does, with a name of any type.
#[inline(always)]
pub(crate) fn emit_named(
    glance: Glance,
    tag: AtraceTag,
    event: &Event<'_>,
    name: impl Source,
) -> Option<Written> {
    match name.text() {
        Some(text) => emit(glance, tag, &Event { name: Some(text), ..*event }),
        None => enabled(glance, tag)?.write_named(tag, event, name),
    }
}

/// Writes an event by a backend other than the marker.
///
/// The function ends in one of two calls. The first call can be compiled to a jump, so it needs no stack frame. The
/// second call passes the fields of the event instead of a reference: with a reference, the compiler would store the
/// event in memory even if its encoding is inlined.
///
/// This function is not inlined in unoptimised builds. In such a build, each inlined part would make the caller's stack
/// frame larger, and a signal handler's stack may be small.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_unless_marker(sink: &'static Sink, tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
    #[inline(never)]
    fn slow(
        sink: &'static Sink,
        tag: AtraceTag,
        kind: Kind,
        track: Option<&str>,
        name: Option<&str>,
        interned: Option<&Interned>,
        args: Option<&dyn Arguments>,
    ) -> Option<Written> {
        let name = name.map(|text| Text { text, interned });
        select(sink, tag)?.write(tag, &Event { kind, track, name, args })
    }
    if goes_to_sessions_only(sink, tag) {
        return write_packet(tag, event);
    }
    let Event { kind, track, name, args } = *event;
    slow(sink, tag, kind, track, name.map(|name| name.text), name.and_then(|name| name.interned), args)
}

/// Returns true if the tag is certainly enabled only by Perfetto's sessions, so that nothing else has to be checked.
/// The result may be false even if this is so.
#[inline(always)]
pub(crate) fn goes_to_sessions_only(sink: &'static Sink, tag: AtraceTag) -> bool {
    first::is_per_event(sink) && is_only_in_sessions(tag)
}

/// Returns the bits of the tag, without the bits that restrict the event to one backend.
#[inline(always)]
pub(crate) fn valid(tag: AtraceTag) -> u64 {
    (tag & AtraceTag::ValidMask).bits()
}

impl Backend {
    /// Returns whether this backend is Perfetto's memory.
    #[inline(always)]
    pub(crate) const fn is_perfetto(self) -> bool {
        producer::EXISTS && matches!(self, Self::Perfetto)
    }

    /// Writes an event, without checking whether its tag is enabled. This function is not inlined.
    #[inline(never)]
    pub(crate) fn write(self, tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
        match self {
            Self::Atrace(sink) => sink.write(event),
            Self::Perfetto => write_packet(tag, event),
        }
    }

    /// Writes an event as [`write`](Self::write) does, with a name of any type.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write_named(self, tag: AtraceTag, event: &Event<'_>, name: impl Source) -> Option<Written> {
        let text = match self {
            Self::Atrace(sink) => return sink.write_named(event, name),
            Self::Perfetto => name.text(),
        };
        if let Some(text) = text {
            return self.write(tag, &Event { name: Some(text), ..*event });
        }
        let mut name = Some(name);
        let mut write = |writer: &mut NameWriter<'_>| {
            if let Some(name) = name.take() {
                name.write(writer);
            }
        };
        // A copy, for the reason that `emit_unless_marker` says.
        write_packet_by(tag, &Event { name: None, ..*event }, &mut write)
    }

    /// Sets a counter to a floating-point value. ATrace has only integers: the value is rounded, and NaN and infinities
    /// are dropped.
    pub(crate) fn write_f64(self, tag: AtraceTag, name: &str, value: f64) {
        match self {
            Self::Atrace(_) if !value.is_finite() => {}
            // `as` saturates: a value beyond the range of i64 becomes the nearest i64.
            Self::Atrace(_) => {
                self.write(tag, &Event::new(Kind::Int64(value.round() as i64), name));
            }
            Self::Perfetto => {
                let track = Some(Track::counter(name, hash::of_name(name)));
                let value = Some(Amount::Real(value));
                producer::write(&producer::Event {
                    track,
                    value,
                    ..producer::Event::new(Type::Counter, valid(tag))
                });
            }
        }
    }
}

/// Calls `write` to write the name into a buffer, and writes the event into Perfetto's memory.
///
/// The closure `write` may run the program's own code. That code may write events, too, because the thread's writer
/// slot is not in use yet. This function is not inlined: only events whose names must be written need the buffer on
/// the stack, which may be a signal handler's small stack.
#[inline(never)]
fn write_packet_by(
    tag: AtraceTag,
    event: &Event<'_>,
    write: &mut dyn FnMut(&mut NameWriter<'_>),
) -> Option<Written> {
    let mut text = Message::new();
    let name = Some(Text::new(text.plain(write)));
    Backend::Perfetto.write(tag, &Event { name, ..*event })
}

/// Writes an event into Perfetto's memory.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_packet(tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
    #[inline(never)]
    fn count(tags: u64, name: &str, value: i64) -> Option<Written> {
        producer::count(tags, name, hash::of_name(name), value)
    }

    let tags = valid(tag);
    let Event { kind, track, name, args } = *event;
    let name = name.unwrap_or_default();
    let key = match kind {
        Kind::Begin if args.is_none() => return write_on_thread(Type::Begin, tags, name),
        Kind::Instant if args.is_none() => return write_on_thread(Type::Instant, tags, name),
        Kind::End => {
            producer::end(tags);
            return Some(Written::ByPerfetto);
        }
        Kind::Int(value) | Kind::Int64(value) => {
            return match name.interned {
                Some(_) => producer::count(tags, name.text, name.hash(), value),
                None => count(tags, name.text, value),
            };
        }
        Kind::AsyncBegin(cookie) => TrackKey::of_async(Type::Begin, cookie),
        Kind::AsyncEnd(cookie) => {
            return producer::on_track(TrackKey::of_async(Type::End, cookie), tags, name.text, None);
        }
        Kind::TrackBegin(cookie) => TrackKey::named(Type::Begin, cookie),
        Kind::TrackEnd(cookie) => TrackKey::named(Type::End, cookie),
        Kind::Begin => TrackKey::named(Type::Begin, 0),
        Kind::Instant | Kind::TrackInstant => TrackKey::INSTANT,
    };
    if let Some(args) = args {
        return args.write(tags, key, track, name);
    }
    producer::on_track(key, tags, track.unwrap_or(name.text), event.name.map(|name| name.text))
}

/// Writes the begin of a slice or an instant of the calling thread into Perfetto's memory.
#[inline(always)]
fn write_on_thread(kind: Type, tags: u64, name: Text<'_>) -> Option<Written> {
    match name.number() {
        Some(number) => producer::named(kind, tags, number, name.text),
        None => producer::text(kind, tags, name.text),
    }
}

/// Ends the youngest slice of the calling thread, whose begin was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    match choice::present() {
        Sink::Marker(marker) => _ = marker.write(&Event::END),
        sink => _ = Backend::Atrace(sink).write(AtraceTag::Never, &Event::END),
    }
}

/// Begins a slice on a track in Perfetto's memory. Returns a number that [`end_track`] needs, or `None` if no session
/// got the begin. The name is written as [`Backend::write_named`] does.
#[inline(never)]
pub(crate) fn begin_on_track(tag: AtraceTag, track: &str, name: impl Source, cookie: i32) -> Option<u32> {
    if let Some(text) = name.text() {
        return producer::begin_on_track(cookie.into(), valid(tag), track, text.text);
    }
    let mut text = Message::new();
    let text = text.plain(|writer| name.write(writer));
    producer::begin_on_track(cookie.into(), valid(tag), track, text)
}

/// Ends a slice on a track, by the backend that wrote the slice's begin: by Perfetto's backend if `tags` is not empty,
/// otherwise by the sink.
#[inline(never)]
pub(crate) fn end_track(tags: AtraceTag, begun: u32, track: &str, cookie: i32) {
    if tags.is_empty() {
        _ = Backend::Atrace(choice::present())
            .write(tags, &Event::of(Kind::TrackEnd(cookie.into())).on(track));
    } else {
        let key = TrackKey::named(Type::End, cookie.into());
        let track = Some(Track::of(key, track));
        producer::write(&producer::Event { track, begun, ..producer::Event::new(Type::End, valid(tags)) });
    }
}

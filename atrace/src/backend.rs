//! Chooses the backend of each event: ATrace's sink or Perfetto's shared memory, never both.
//!
//! # The rule
//!
//! This is AOSP's rule. It is applied at each event, because sessions come and go:
//!
//! | the event's tag is enabled | the event goes to |
//! |---|---|
//! | for ATrace, whose sink is open | the sink |
//! | in a session of Perfetto | Perfetto's memory |
//! | for both | the sink; Perfetto's memory if the property `debug.atrace.prefer_sdk` has the tag's bit |
//!
//! # Paths
//!
//! A process that never was a producer of Perfetto has one backend, its sink, and pays nothing for the choice: see
//! `sink/first.rs`. In a producer the usual case is that only sessions want the tag. The gate's two words show that case, so
//! it is tested first, inline ([`goes_to_sessions_only`]); a function out of line handles the others ([`select_slow`]).
//!
//! Many functions here are split in two, with `inline` attributes that depend on `debug_assertions`. An event may be written
//! on the stack of a signal handler, so a path must not reserve stack for buffers and variables of another path.

use crate::AtraceTag;
use crate::gate::{self, Glance};
use crate::message::{Kind, Message, NameWriter};
use crate::producer::{self, Amount, Event, Track, TrackKey, Type, Written, hash};
use crate::refresh;
use crate::sink::{Sink, choice, first};

/// The backend of an event whose tag is enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Backend {
    Atrace(&'static Sink),
    Perfetto,
}

/// Bits beside those of tags: the event may go to this backend only.
const ONLY_ATRACE: AtraceTag = AtraceTag::from_bits_retain(1 << 61);
const ONLY_PERFETTO: AtraceTag = AtraceTag::from_bits_retain(1 << 62);

/// Returns the tag for events that go to ATrace only.
pub fn only_atrace(tag: AtraceTag) -> AtraceTag {
    (tag - ONLY_PERFETTO) | ONLY_ATRACE
}

/// Returns the tag for events that go to Perfetto's memory only, or [`AtraceTag::Never`] if there is no memory for a producer.
pub fn only_perfetto(tag: AtraceTag) -> AtraceTag {
    // The bit is looked at only where the backend is chosen for each event.
    if first::enable_perfetto() { (tag - ONLY_ATRACE) | ONLY_PERFETTO } else { AtraceTag::Never }
}

/// The enabled tags, separately for each backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    atrace: AtraceTag,
    perfetto: AtraceTag,
}

/// The tags of a backend fit in half of a word.
const _: () = assert!(AtraceTag::ValidMask.bits() >> 32 == 0);

impl Ways {
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

    /// Packs both sets of tags into one word: Perfetto's in the upper half.
    pub fn to_word(self) -> u64 {
        valid(self.perfetto) << 32 | valid(self.atrace)
    }

    /// Returns whether a packed `word` enables a tag, which may be limited to one backend.
    pub fn word_enables(word: u64, tag: AtraceTag) -> bool {
        let perfetto = if tag.intersects(ONLY_ATRACE) { 0 } else { word >> 32 };
        let atrace = if tag.intersects(ONLY_PERFETTO) { 0 } else { word };
        // `valid` clears the upper half.
        (atrace | perfetto) & valid(tag) != 0
    }
}

/// Returns the backend of `tag`'s events, or `None` if the tag is not enabled; for callers that the gate did not turn away.
#[inline(always)]
pub(crate) fn enabled(glance: Glance, tag: AtraceTag) -> Option<Backend> {
    if refresh::is_enabled(glance, tag) { select(first::present(), tag) } else { None }
}

/// Inlined variant of [`enabled`]: larger, but fewer instructions on the common path.
#[inline(always)]
pub(crate) fn enabled_inlined(glance: Glance, tag: AtraceTag) -> Option<Backend> {
    if refresh::is_enabled(glance, tag) { select_inlined(first::present(), tag) } else { None }
}

/// Chooses the backend of an event whose tag is enabled for at least one.
#[inline(always)]
pub(crate) fn select(sink: &'static Sink, tag: AtraceTag) -> Option<Backend> {
    match sink {
        Sink::PerEvent if producer::EXISTS => select_either(tag),
        sink => Some(Backend::Atrace(sink)),
    }
}

/// Inlined variant of [`select`], for [`enabled_inlined`].
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

/// Returns true if the gate's words show that only sessions want the tag. False is not certain.
#[inline(always)]
fn is_only_in_sessions(tag: AtraceTag) -> bool {
    let is_by = |word| gate::is_by(word, valid(tag)) && !tag.intersects(ONLY_ATRACE);
    producer::tags_word().is_some_and(is_by)
}

/// Chooses between both backends.
#[inline(never)]
fn select_either(tag: AtraceTag) -> Option<Backend> {
    if is_only_in_sessions(tag) { Some(Backend::Perfetto) } else { select_slow(tag) }
}

/// Applies the rule in full.
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

/// Writes an event if its tag is enabled; for callers that the gate did not turn away. Returns the backend that it was
/// written by.
///
/// The name is given twice: as text, and as the closure `write`. Messages to the marker are built here, inlined, by the
/// closure, of which each caller has its own. Other backends are called with the text.
#[inline(always)]
pub(crate) fn emit(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
    write: Option<impl FnOnce(&mut NameWriter<'_>)>,
) -> Option<Written> {
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    let sink = match first::present() {
        Sink::Marker(marker) => return marker.write(kind, track, write).then_some(Written::ByAtrace),
        sink => sink,
    };
    emit_unless_marker(sink, tag, kind, track, name)
}

/// Writes the event by a backend other than the marker.
///
/// Not inlined in unoptimised builds: there each inlined arm would have its own part of the caller's stack frame, and that
/// may be on the small stack of a signal handler.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_unless_marker(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
) -> Option<Written> {
    match kind {
        Kind::Begin => emit_on_thread(sink, tag, Type::Begin, name.unwrap_or_default()),
        Kind::Instant => emit_on_thread(sink, tag, Type::Instant, name.unwrap_or_default()),
        Kind::End => emit_end(sink, tag),
        Kind::Int(value) => emit_counter(sink, tag, name.unwrap_or_default(), value, false),
        Kind::Int64(value) => emit_counter(sink, tag, name.unwrap_or_default(), value, true),
        Kind::AsyncBegin(cookie) => {
            emit_on_track(TrackKey::of_async(Type::Begin, cookie), tag, name.unwrap_or_default(), name)
        }
        Kind::AsyncEnd(cookie) => {
            emit_on_track(TrackKey::of_async(Type::End, cookie), tag, name.unwrap_or_default(), None)
        }
        Kind::TrackBegin(cookie) => {
            emit_on_track(TrackKey::named(Type::Begin, cookie), tag, track.unwrap_or_default(), name)
        }
        Kind::TrackEnd(cookie) => {
            emit_on_track(TrackKey::named(Type::End, cookie), tag, track.unwrap_or_default(), None)
        }
        Kind::TrackInstant => emit_on_track(TrackKey::INSTANT, tag, track.unwrap_or_default(), name),
    }
}

// Each of the following functions ends in one of two calls that the compiler can turn into jumps. So they need no stack
// frame, and neither does the code that writes to the marker.

#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_on_thread(sink: &'static Sink, tag: AtraceTag, kind: Type, name: &str) -> Option<Written> {
    #[inline(never)]
    fn slow(sink: &'static Sink, tag: AtraceTag, kind: Type, name: &str) -> Option<Written> {
        let kind = if kind == Type::Begin { Kind::Begin } else { Kind::Instant };
        emit_slow(sink, tag, kind, None, Some(name))
    }
    if goes_to_sessions_only(sink, tag) {
        return producer::text(kind, valid(tag), name);
    }
    slow(sink, tag, kind, name)
}

#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_end(sink: &'static Sink, tag: AtraceTag) -> Option<Written> {
    #[inline(never)]
    fn slow(sink: &'static Sink, tag: AtraceTag) -> Option<Written> {
        emit_slow(sink, tag, Kind::End, None, None)
    }
    if goes_to_sessions_only(sink, tag) {
        producer::end(valid(tag));
        return Some(Written::ByPerfetto);
    }
    slow(sink, tag)
}

#[inline(never)]
fn emit_on_track(key: TrackKey, tag: AtraceTag, track: &str, name: Option<&str>) -> Option<Written> {
    #[inline(never)]
    fn slow(key: TrackKey, tag: AtraceTag, track: &str, name: Option<&str>) -> Option<Written> {
        let cookie = key.cookie();
        let (kind, track, name) = match (key.kind(), key.is_of_async()) {
            (Type::Begin, true) => (Kind::AsyncBegin(cookie), None, Some(track)),
            (Type::End, true) => (Kind::AsyncEnd(cookie), None, Some(track)),
            (Type::Begin, false) => (Kind::TrackBegin(cookie), Some(track), name),
            (Type::End, false) => (Kind::TrackEnd(cookie), Some(track), name),
            (Type::Instant | Type::Counter, _) => (Kind::TrackInstant, Some(track), name),
        };
        emit_slow(first::present(), tag, kind, track, name)
    }
    if goes_to_sessions_only(first::present(), tag) {
        return producer::on_track(key, valid(tag), track, name);
    }
    slow(key, tag, track, name)
}

#[inline(never)]
fn emit_counter(
    sink: &'static Sink,
    tag: AtraceTag,
    name: &str,
    value: i64,
    is_wide: bool,
) -> Option<Written> {
    if goes_to_sessions_only(sink, tag) {
        return producer::count(valid(tag), name, hash::of_name(name), value);
    }
    let kind = if is_wide { Kind::Int64(value) } else { Kind::Int(value) };
    emit_slow(sink, tag, kind, None, Some(name))
}

/// Returns true if only sessions want the tag, so that nothing else has to be checked. False is not certain.
#[inline(always)]
pub(crate) fn goes_to_sessions_only(sink: &'static Sink, tag: AtraceTag) -> bool {
    first::is_per_event(sink) && is_only_in_sessions(tag)
}

/// Chooses the backend by the full rule, and writes the event. Out of line, so that the faster paths need no stack frame for
/// it.
#[inline(never)]
fn emit_slow(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
) -> Option<Written> {
    select(sink, tag)?.write_str(tag, kind, track, name)
}

/// Returns the tag's bits, without those that limit it to one backend.
#[inline(always)]
pub(crate) fn valid(tag: AtraceTag) -> u64 {
    (tag & AtraceTag::ValidMask).bits()
}

impl Backend {
    /// Returns whether this is Perfetto's memory.
    #[inline(always)]
    pub(crate) const fn is_perfetto(self) -> bool {
        producer::EXISTS && matches!(self, Self::Perfetto)
    }

    /// Writes an event, without a check whether its tag is enabled.
    #[inline(always)]
    pub(crate) fn write(
        self,
        tag: AtraceTag,
        kind: Kind,
        track: Option<&str>,
        name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    ) -> Option<Written> {
        match self {
            Self::Atrace(sink) => sink.write(kind, track, name),
            Self::Perfetto => {
                let (has_name, mut name) = (name.is_some(), name);
                let mut write = |writer: &mut NameWriter<'_>| {
                    if let Some(name) = name.take() {
                        name(writer);
                    }
                };
                write_packet_by(tag, kind, track, if has_name { Some(&mut write) } else { None })
            }
        }
    }

    /// Writes an event as [`write`](Self::write) does, with a name that exists as text. Out of line.
    pub(crate) fn write_str(
        self,
        tag: AtraceTag,
        kind: Kind,
        track: Option<&str>,
        name: Option<&str>,
    ) -> Option<Written> {
        match self {
            Self::Atrace(sink) => sink.write_str(kind, track, name),
            Self::Perfetto => write_packet(tag, kind, track, name),
        }
    }

    /// Sets a counter to a floating-point value. ATrace has only integers: the value is rounded, and NaN and infinities are
    /// dropped.
    pub(crate) fn write_f64(self, tag: AtraceTag, name: &str, value: f64) {
        match self {
            Self::Atrace(_) if !value.is_finite() => {}
            // `as` saturates: a value beyond the range of i64 becomes the nearest i64.
            Self::Atrace(_) => {
                self.write_str(tag, Kind::Int64(value.round() as i64), None, Some(name));
            }
            Self::Perfetto => {
                let track = Some(Track::counter(name, hash::of_name(name)));
                let value = Some(Amount::Real(value));
                producer::write(&Event { track, value, ..Event::new(Type::Counter, valid(tag)) });
            }
        }
    }
}

/// Calls `name` to write the name into a buffer, and writes the event into Perfetto's memory.
///
/// The program's code in `name` runs before the writer of this thread is pinned, so it may trace as well. Out of line: only
/// this path needs the buffer on the stack, which may be a signal handler's.
#[inline(never)]
fn write_packet_by(
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&mut dyn FnMut(&mut NameWriter<'_>)>,
) -> Option<Written> {
    let mut text = Message::new();
    let name = name.map(|name| text.plain(name));
    write_packet(tag, kind, track, name)
}

/// Writes an event into Perfetto's memory.
#[inline(never)]
fn write_packet(tag: AtraceTag, kind: Kind, track: Option<&str>, name: Option<&str>) -> Option<Written> {
    let tags = valid(tag);
    let (text, track) = (name.unwrap_or_default(), track.unwrap_or_default());
    let (key, track, name) = match kind {
        Kind::Begin => return producer::text(Type::Begin, tags, text),
        Kind::Instant => return producer::text(Type::Instant, tags, text),
        Kind::End => {
            producer::end(tags);
            return Some(Written::ByPerfetto);
        }
        Kind::Int(value) | Kind::Int64(value) => {
            let (track, value) = (Track::counter(text, hash::of_name(text)), Amount::Whole(value));
            let (track, value) = (Some(track), Some(value));
            let event = Event { track, value, ..Event::new(Type::Counter, tags) };
            return producer::write(&event);
        }
        Kind::AsyncBegin(cookie) => (TrackKey::of_async(Type::Begin, cookie), text, name),
        Kind::AsyncEnd(cookie) => (TrackKey::of_async(Type::End, cookie), text, None),
        Kind::TrackBegin(cookie) => (TrackKey::named(Type::Begin, cookie), track, name),
        Kind::TrackEnd(cookie) => (TrackKey::named(Type::End, cookie), track, None),
        Kind::TrackInstant => (TrackKey::INSTANT, track, name),
    };
    producer::on_track(key, tags, track, name)
}

/// Ends the youngest slice of the calling thread, whose begin was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    match choice::present() {
        Sink::Marker(marker) => _ = marker.write(Kind::End, None, None::<fn(&mut NameWriter<'_>)>),
        sink => _ = sink.write_str(Kind::End, None, None),
    }
}

/// Returns how many of Perfetto's sessions have begun so far. A slice ends only in sessions that had begun before it did.
#[inline(always)]
pub(crate) fn sessions_begun() -> u32 {
    if first::is_perfetto_enabled() { producer::begun() } else { 0 }
}

/// Ends a slice on a track, by the backend that wrote its begin: Perfetto's if `tags` is not empty, else the sink.
#[inline(never)]
pub(crate) fn end_track(tags: AtraceTag, begun: u32, track: &str, cookie: i32) {
    let cookie = i64::from(cookie);
    if tags.is_empty() {
        choice::present().write_str(Kind::TrackEnd(cookie), Some(track), None);
    } else {
        let track = Some(Track::of(TrackKey::named(Type::End, cookie), track));
        producer::write(&Event { track, begun, ..Event::new(Type::End, valid(tags)) });
    }
}

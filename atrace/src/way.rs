//! Which way an event goes: to ATrace's sink or into Perfetto's memory, never both.
//!
//! AOSP's rule, at each event: the tag is on for ATrace only, or in a session only: there. Both: ATrace, unless the
//! property `debug.atrace.prefer_sdk` has its bit. ATrace counts where its sink is open.

use crate::AtraceTag;
use crate::gate::{self, Glance};
use crate::message::{Kind, Message, NameWriter};
use crate::producer::{self, Amount, Event, Track, TrackKey, Type, Written, hash};
use crate::refresh;
use crate::sink::{Sink, choice, first};

/// Where an event of an enabled tag goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Atrace(&'static Sink),
    Perfetto,
}

/// Bits of a tag beside the tags': its events go this way only.
const ONLY_ATRACE: AtraceTag = AtraceTag::from_bits_retain(1 << 61);
const ONLY_PERFETTO: AtraceTag = AtraceTag::from_bits_retain(1 << 62);

/// The tag for events that go to ATrace only.
pub fn only_atrace(tag: AtraceTag) -> AtraceTag {
    (tag - ONLY_PERFETTO) | ONLY_ATRACE
}

/// The tag for events that go into Perfetto's memory only; none where there is no memory for that.
pub fn only_perfetto(tag: AtraceTag) -> AtraceTag {
    // An event is asked which way it goes where there are two.
    if first::have_two_ways() { (tag - ONLY_ATRACE) | ONLY_PERFETTO } else { AtraceTag::Never }
}

/// The tags that are enabled, those of each way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ways {
    atrace: AtraceTag,
    perfetto: AtraceTag,
}

/// Each way's tags have half of a word.
const _: () = assert!(AtraceTag::ValidMask.bits() >> 32 == 0);

impl Ways {
    pub(crate) const NONE: Self = Self { atrace: AtraceTag::empty(), perfetto: AtraceTag::empty() };

    /// Returns what is enabled now.
    pub(crate) fn now() -> Self {
        if refresh::is_disabled() {
            return Self { atrace: AtraceTag::NotReady, ..Self::NONE };
        }
        Self { atrace: refresh::atrace_tags(), perfetto: producer::tags() }
    }

    /// The tags that are enabled, for whichever way.
    pub(crate) fn union(self) -> AtraceTag {
        self.atrace | self.perfetto
    }

    /// Returns both in one word.
    pub fn to_word(self) -> u64 {
        valid(self.perfetto) << 32 | valid(self.atrace)
    }

    /// Tells whether a tag, perhaps one of one way, is enabled by what a word has.
    pub fn word_enables(word: u64, tag: AtraceTag) -> bool {
        let perfetto = if tag.intersects(ONLY_ATRACE) { 0 } else { word >> 32 };
        let atrace = if tag.intersects(ONLY_PERFETTO) { 0 } else { word };
        // No tag is above the half of a word.
        (atrace | perfetto) & valid(tag) != 0
    }
}

/// Tells for sure whether `tag` is enabled, after a look at the gate; returns which way its events go.
#[inline(always)]
pub(crate) fn enabled(glance: Glance, tag: AtraceTag) -> Option<Way> {
    if refresh::is_enabled(glance, tag) { of(first::present(), tag) } else { None }
}

/// [`enabled`], with the usual answer found here: for events that cost little.
#[inline(always)]
pub(crate) fn enabled_short(glance: Glance, tag: AtraceTag) -> Option<Way> {
    if refresh::is_enabled(glance, tag) { of_short(first::present(), tag) } else { None }
}

/// Which way an event of the tag goes, which is enabled for one.
#[inline(always)]
pub(crate) fn of(sink: &'static Sink, tag: AtraceTag) -> Option<Way> {
    match sink {
        Sink::Ways if producer::EXISTS => of_both(tag),
        sink => Some(Way::Atrace(sink)),
    }
}

/// [`of`], as [`enabled_short`].
#[inline(always)]
fn of_short(sink: &'static Sink, tag: AtraceTag) -> Option<Way> {
    match sink {
        Sink::Ways if producer::EXISTS => {
            if is_perfettos_alone(tag) {
                Some(Way::Perfetto)
            } else {
                of_both_asked(tag)
            }
        }
        sink => Some(Way::Atrace(sink)),
    }
}

/// Whether the tag is on for sessions alone, as a rule, which the gate tells.
#[inline(always)]
fn is_perfettos_alone(tag: AtraceTag) -> bool {
    let is_by = |word| gate::is_by(word, valid(tag)) && !tag.intersects(ONLY_ATRACE);
    producer::tags_word().is_some_and(is_by)
}

/// [`enabled`] where there are two ways.
#[inline(never)]
fn of_both(tag: AtraceTag) -> Option<Way> {
    if is_perfettos_alone(tag) { Some(Way::Perfetto) } else { of_both_asked(tag) }
}

#[inline(never)]
fn of_both_asked(tag: AtraceTag) -> Option<Way> {
    let tags = tag & AtraceTag::ValidMask;
    let is_wanted = !tag.intersects(ONLY_ATRACE) && producer::tags().intersects(tags);
    let is_atrace = !tag.intersects(ONLY_PERFETTO)
        && refresh::atrace_tags().intersects(tags)
        && choice::present().is_open();
    let prefers = || refresh::preferred().intersects(tags);
    if refresh::is_disabled() {
        None
    } else if is_wanted && (!is_atrace || prefers()) {
        Some(Way::Perfetto)
    } else if is_atrace {
        Some(Way::Atrace(choice::present()))
    } else {
        None
    }
}

/// Writes an event whose name is there, if its tag, which was seen at the gate, is enabled; returns which way it was
/// written. To the marker it is written here (by `write`, a closure of each caller's own, as those are inlined), all else
/// in a call.
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
    emit_elsewhere(sink, tag, kind, track, name)
}

/// [`emit`] to all but the marker. (Where nothing is optimized, inlined arms would each have their place in the frame of what
/// writes to the marker, perhaps on a signal handler's small stack.)
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_elsewhere(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
) -> Option<Written> {
    match kind {
        Kind::Begin => emit_short(sink, tag, Type::Begin, name.unwrap_or_default()),
        Kind::Instant => emit_short(sink, tag, Type::Instant, name.unwrap_or_default()),
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

// Each of these has two ways on, both of which can be jumps: whoever calls it has no stack frame for it, and so nor has what
// writes to the marker.

#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_short(sink: &'static Sink, tag: AtraceTag, kind: Type, name: &str) -> Option<Written> {
    #[inline(never)]
    fn asked(sink: &'static Sink, tag: AtraceTag, kind: Type, name: &str) -> Option<Written> {
        let kind = if kind == Type::Begin { Kind::Begin } else { Kind::Instant };
        emit_asked(sink, tag, kind, None, Some(name))
    }
    if is_for_sessions_alone(sink, tag) {
        return producer::text(kind, valid(tag), name);
    }
    asked(sink, tag, kind, name)
}

#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn emit_end(sink: &'static Sink, tag: AtraceTag) -> Option<Written> {
    #[inline(never)]
    fn asked(sink: &'static Sink, tag: AtraceTag) -> Option<Written> {
        emit_asked(sink, tag, Kind::End, None, None)
    }
    if is_for_sessions_alone(sink, tag) {
        producer::end(valid(tag));
        return Some(Written::ByPerfetto);
    }
    asked(sink, tag)
}

#[inline(never)]
fn emit_on_track(key: TrackKey, tag: AtraceTag, track: &str, name: Option<&str>) -> Option<Written> {
    #[inline(never)]
    fn asked(key: TrackKey, tag: AtraceTag, track: &str, name: Option<&str>) -> Option<Written> {
        let cookie = key.cookie();
        let (kind, track, name) = match (key.kind(), key.is_of_async()) {
            (Type::Begin, true) => (Kind::AsyncBegin(cookie), None, Some(track)),
            (Type::End, true) => (Kind::AsyncEnd(cookie), None, Some(track)),
            (Type::Begin, false) => (Kind::TrackBegin(cookie), Some(track), name),
            (Type::End, false) => (Kind::TrackEnd(cookie), Some(track), name),
            (Type::Instant | Type::Counter, _) => (Kind::TrackInstant, Some(track), name),
        };
        emit_asked(first::present(), tag, kind, track, name)
    }
    if is_for_sessions_alone(first::present(), tag) {
        return producer::on_track(key, valid(tag), track, name);
    }
    asked(key, tag, track, name)
}

#[inline(never)]
fn emit_counter(
    sink: &'static Sink,
    tag: AtraceTag,
    name: &str,
    value: i64,
    is_wide: bool,
) -> Option<Written> {
    if is_for_sessions_alone(sink, tag) {
        return producer::count(valid(tag), name, hash::of_name(name), value);
    }
    let kind = if is_wide { Kind::Int64(value) } else { Kind::Int(value) };
    emit_asked(sink, tag, kind, None, Some(name))
}

/// Whether there are two ways, and the tag is on for sessions alone: then nothing else is to be asked.
#[inline(always)]
pub(crate) fn is_for_sessions_alone(sink: &'static Sink, tag: AtraceTag) -> bool {
    first::is_two_ways(sink) && is_perfettos_alone(tag)
}

/// Writes an event of an enabled tag, and asks which way. A call, so that who knows the way has no stack frame for it.
#[inline(never)]
fn emit_asked(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
) -> Option<Written> {
    of(sink, tag)?.write_str(tag, kind, track, name)
}

/// The bits of its tags.
#[inline(always)]
pub(crate) fn valid(tag: AtraceTag) -> u64 {
    (tag & AtraceTag::ValidMask).bits()
}

impl Way {
    /// Whether it is Perfetto's.
    #[inline(always)]
    pub(crate) const fn is_perfetto(self) -> bool {
        producer::EXISTS && matches!(self, Self::Perfetto)
    }

    /// Writes an event, whatever is enabled.
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

    /// [`write`](Self::write) with a name that is there, out of line.
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

    /// Sets a counter to a value with a fraction.
    pub(crate) fn write_f64(self, tag: AtraceTag, name: &str, value: f64) {
        match self {
            Self::Atrace(_) if !value.is_finite() => {}
            // What an integer can't hold becomes the nearest one that it can.
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

/// Has a name written, and writes an event into Perfetto's memory: the program's code runs before anything of that is
/// held. A call: of both ways, one has its text on the stack, perhaps a signal handler's.
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

/// Writes the end of a slice of the calling thread, as its begin was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    match choice::present() {
        Sink::Marker(marker) => _ = marker.write(Kind::End, None, None::<fn(&mut NameWriter<'_>)>),
        sink => _ = sink.write_str(Kind::End, None, None),
    }
}

/// How many sessions have begun: a slice ends in those that it began in.
#[inline(always)]
pub(crate) fn sessions_begun() -> u32 {
    if first::are_two_ways() { producer::begun() } else { 0 }
}

/// Writes the end of a slice on a track, the way that it went: Perfetto's where it has tags.
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

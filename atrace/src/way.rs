//! Which way an event goes: to ATrace's sink or into Perfetto's memory, never both.
//!
//! AOSP's rule, at each event: the tag is on for ATrace only, or in a session only: there. Both: ATrace, unless the
//! property `debug.atrace.prefer_sdk` has its bit. ATrace counts where its sink is open.

use crate::AtraceTag;
use crate::gate::{self, Glance};
use crate::hash;
use crate::message::{Kind, Message, NameWriter};
use crate::perfetto::producer::{self, Amount, Row, Type};
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
    if producer::can_be_used() { (tag - ONLY_ATRACE) | ONLY_PERFETTO } else { AtraceTag::Never }
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

/// Writes an event whose name is there, if its tag, which was seen at the gate, is enabled; tells which way it was
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
) -> Option<Way> {
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    match (first::present(), kind) {
        (sink @ Sink::Marker(marker), _) => marker.write(kind, track, write).then_some(Way::Atrace(sink)),
        (sink, Kind::Begin) => emit_short(sink, tag, Type::Begin, name.unwrap_or_default()),
        (sink, Kind::Instant) => emit_short(sink, tag, Type::Instant, name.unwrap_or_default()),
        (sink, Kind::End) => emit_end(sink, tag),
        (sink, _) => emit_any(sink, tag, kind, track, name),
    }
}

#[inline(never)]
fn emit_short(sink: &'static Sink, tag: AtraceTag, kind: Type, name: &str) -> Option<Way> {
    match of_short(sink, tag)? {
        Way::Perfetto => producer::short(kind, valid(tag), name).then_some(Way::Perfetto),
        way @ Way::Atrace(sink) => {
            let kind = if kind == Type::Begin { Kind::Begin } else { Kind::Instant };
            sink.write_str(kind, None, Some(name)).then_some(way)
        }
    }
}

#[inline(never)]
fn emit_end(sink: &'static Sink, tag: AtraceTag) -> Option<Way> {
    match of_short(sink, tag)? {
        Way::Perfetto => end_by_perfetto(valid(tag)).then_some(Way::Perfetto),
        way @ Way::Atrace(sink) => sink.write_str(Kind::End, None, None).then_some(way),
    }
}

#[inline(never)]
fn emit_any(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<&str>,
) -> Option<Way> {
    let way = of_short(sink, tag)?;
    let is_written = match (way, kind) {
        (Way::Perfetto, Kind::Int(value) | Kind::Int64(value)) => {
            let name = name.unwrap_or_default();
            producer::counter(valid(tag), name, hash::of_name(name), value)
        }
        (Way::Perfetto, _) => write_packet(tag, kind, track, name),
        (Way::Atrace(sink), _) => sink.write_str(kind, track, name),
    };
    is_written.then_some(way)
}

/// The bits of its tags.
#[inline(always)]
fn valid(tag: AtraceTag) -> u64 {
    (tag & AtraceTag::ValidMask).bits()
}

impl Way {
    /// Whether it is Perfetto's.
    #[inline(always)]
    pub(crate) const fn is_perfetto(self) -> bool {
        producer::EXISTS && matches!(self, Self::Perfetto)
    }

    /// Writes an event, whatever is enabled; tells whether it was written.
    #[inline(always)]
    pub(crate) fn write(
        self,
        tag: AtraceTag,
        kind: Kind,
        track: Option<&str>,
        name: Option<impl FnOnce(&mut NameWriter<'_>)>,
    ) -> bool {
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
    ) -> bool {
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
                let tags = valid(tag);
                let amount = Some(Amount::Real(value));
                producer::on_track(Type::Counter, tags, (Row::COUNTER, name), None, amount, u32::MAX);
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
) -> bool {
    let mut text = Message::new();
    let name = name.map(|name| text.plain(name));
    write_packet(tag, kind, track, name)
}

/// Writes an event into Perfetto's memory.
#[inline(never)]
fn write_packet(tag: AtraceTag, kind: Kind, track: Option<&str>, name: Option<&str>) -> bool {
    let tags = valid(tag);
    let (text, row) = (name.unwrap_or_default(), track.unwrap_or_default());
    let (kind, row) = match kind {
        Kind::Begin => return producer::short_called(Type::Begin, tags, text),
        Kind::Instant => return producer::short_called(Type::Instant, tags, text),
        Kind::End => return end_by_perfetto(tags),
        Kind::Int(value) | Kind::Int64(value) => {
            return producer::slow_counter(tags, text, value);
        }
        Kind::AsyncBegin(cookie) => (Type::Begin, (Row::of_async(cookie), text)),
        Kind::AsyncEnd(cookie) => (Type::End, (Row::of_async(cookie), text)),
        Kind::TrackBegin(cookie) => (Type::Begin, (Row::named(cookie), row)),
        Kind::TrackEnd(cookie) => (Type::End, (Row::named(cookie), row)),
        Kind::TrackInstant => (Type::Instant, (Row::INSTANTS, row)),
    };
    producer::on_track(kind, tags, row, name.filter(|_| kind != Type::End), None, u32::MAX)
}

/// Writes the end of a slice of the calling thread, as its begin was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    match choice::present() {
        Sink::Marker(marker) => marker.write(Kind::End, None, None::<fn(&mut NameWriter<'_>)>),
        sink => sink.write_str(Kind::End, None, None),
    };
}

/// Writes the end of a slice of the calling thread, whose begin, with these tags, went Perfetto's way; tells whether it
/// was written.
#[inline(never)]
pub(crate) fn end_by_perfetto(tags: u64) -> bool {
    producer::end(tags)
}

/// How many sessions have begun: a slice ends in those that it began in.
#[inline(always)]
pub(crate) fn sessions_begun() -> u32 {
    if producer::is_used() { producer::begun() } else { 0 }
}

/// Writes the end of a slice on a track, the way that it went: Perfetto's where it has tags.
#[inline(never)]
pub(crate) fn end_track(tags: AtraceTag, begun: u32, track: &str, cookie: i32) {
    let cookie = i64::from(cookie);
    if tags.is_empty() {
        choice::present().write_str(Kind::TrackEnd(cookie), Some(track), None);
    } else {
        producer::on_track(Type::End, valid(tags), (Row::named(cookie), track), None, None, begun);
    }
}

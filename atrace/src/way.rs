//! Which way an event goes: to ATrace's sink or into Perfetto's memory, never both.
//!
//! AOSP's rule, at each event: the tag is on for ATrace only, or in a session only: there. Both: ATrace, unless the
//! property `debug.atrace.prefer_sdk` has its bit. ATrace counts where its sink is open.

use crate::AtraceTag;
use crate::gate::Glance;
use crate::message::{Kind, Message, NameWriter};
use crate::perfetto::producer::{self, Amount, Row, Type};
use crate::refresh;
use crate::sink::{Sink, choice};

/// Where an event of an enabled tag goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    Atrace(&'static Sink),
    Perfetto,
}

/// Tells for sure whether `tag` is enabled, after a look at the gate; returns which way its events go.
#[inline(always)]
pub(crate) fn enabled(glance: Glance, tag: AtraceTag) -> Option<Way> {
    if producer::is_used() {
        return of_both(glance, tag);
    }
    match refresh::enabled(glance, tag) {
        Some(sink) => Some(Way::Atrace(sink)),
        // It may have been chosen just now, by a variable that names Perfetto.
        None if producer::is_used() => of_both(glance, tag),
        None => None,
    }
}

#[inline(never)]
fn of_both(glance: Glance, tag: AtraceTag) -> Option<Way> {
    let tags = tag & AtraceTag::ValidMask;
    let is_wanted = producer::tags().intersects(tags);
    let is_atrace = refresh::atrace_tags(glance).intersects(tags) && choice::present().is_open();
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

impl Way {
    /// Whether it is Perfetto's.
    #[inline(always)]
    pub(crate) const fn is_perfetto(self) -> bool {
        matches!(self, Self::Perfetto)
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
            Self::Perfetto => written_by(tag, kind, track, name),
        }
    }

    /// [`write`](Self::write) with a name that is there.
    #[inline(always)]
    pub(crate) fn write_str(self, tag: AtraceTag, kind: Kind, track: Option<&str>, name: &str) -> bool {
        match self {
            Self::Atrace(sink) => {
                sink.write(kind, track, Some(|writer: &mut NameWriter<'_>| writer.push_str(name)))
            }
            Self::Perfetto => written(tag, kind, track, Some(name)),
        }
    }
}

impl Way {
    /// Sets a counter to a value with a fraction.
    pub(crate) fn write_f64(self, tag: AtraceTag, name: &str, value: f64) {
        match self {
            Self::Atrace(_) if !value.is_finite() => {}
            // What an integer can't hold becomes the nearest one that it can.
            Self::Atrace(_) => {
                self.write_str(tag, Kind::Int64(value.round() as i64), None, name);
            }
            Self::Perfetto => {
                let tags = (tag & AtraceTag::ValidMask).bits();
                let amount = Some(Amount::Real(value));
                producer::on_track(Type::Counter, tags, (Row::Counter, name), None, amount, u32::MAX);
            }
        }
    }
}

/// Has a name written, and writes an event into Perfetto's memory: the program's code runs before anything of that is
/// held. A call: of both ways, one has its text on the stack, perhaps a signal handler's.
#[inline(never)]
fn written_by(
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: Option<impl FnOnce(&mut NameWriter<'_>)>,
) -> bool {
    let mut text = Message::new();
    let name = name.map(|name| text.plain(name));
    written(tag, kind, track, name)
}

/// Writes an event into Perfetto's memory.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn written(tag: AtraceTag, kind: Kind, track: Option<&str>, name: Option<&str>) -> bool {
    let tags = (tag & AtraceTag::ValidMask).bits();
    let (text, row) = (name.unwrap_or_default(), track.unwrap_or_default());
    let on = |kind, row, name, amount| producer::on_track(kind, tags, row, name, amount, u32::MAX);
    match kind {
        Kind::Begin => producer::short(Type::Begin, tags, text),
        Kind::Instant => producer::short(Type::Instant, tags, text),
        Kind::End => producer::end(tags),
        Kind::AsyncBegin(cookie) => on(Type::Begin, (Row::Async(cookie), text), name, None),
        Kind::AsyncEnd(cookie) => on(Type::End, (Row::Async(cookie), text), None, None),
        Kind::TrackBegin(cookie) => on(Type::Begin, (Row::Named(cookie), row), name, None),
        Kind::TrackEnd(cookie) => on(Type::End, (Row::Named(cookie), row), None, None),
        Kind::TrackInstant => on(Type::Instant, (Row::Instants, row), name, None),
        Kind::Int(value) | Kind::Int64(value) => {
            on(Type::Counter, (Row::Counter, text), None, Some(Amount::Whole(value)))
        }
    }
}

/// The way that a slice went: Perfetto's where it has tags.
#[inline(always)]
fn begun(tags: AtraceTag) -> Way {
    if tags.is_empty() { Way::Atrace(choice::present()) } else { Way::Perfetto }
}

/// Writes the end of a slice of the calling thread, the way that it went.
#[inline(always)]
pub(crate) fn end_slice(tags: AtraceTag) {
    begun(tags).write(tags, Kind::End, None, None::<fn(&mut NameWriter<'_>)>);
}

/// How many sessions have begun: a slice ends in those that it began in.
#[inline(always)]
pub(crate) fn sessions_begun() -> u32 {
    if producer::is_used() { producer::begun() } else { 0 }
}

/// Writes the end of a slice on a track, the way that it went.
#[inline(never)]
pub(crate) fn end_track(tags: AtraceTag, begun: u32, track: &str, cookie: i32) {
    match self::begun(tags) {
        Way::Atrace(sink) => {
            sink.write(Kind::TrackEnd(cookie.into()), Some(track), None::<fn(&mut NameWriter<'_>)>);
        }
        Way::Perfetto => {
            let tags = (tags & AtraceTag::ValidMask).bits();
            producer::on_track(Type::End, tags, (Row::Named(cookie.into()), track), None, None, begun);
        }
    }
}

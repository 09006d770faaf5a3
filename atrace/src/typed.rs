//! Events with typed arguments, and names that are sent once: the functions that end in `_args`.
//!
//! By ATrace all of it is the name's text. For Perfetto arguments are encoded on the stack, and a [`Name`](crate::Name) goes
//! as a number.

use crate::args::{self, Arg, Encoder};
use crate::callsite::{EventName, Name, Number};
use crate::gate::{self, Glance};
use crate::message::{Kind, NameWriter};
use crate::perfetto::producer::{self, Row, Type};
use crate::sink::{Sink, first};
use crate::way::{self, Way};
use crate::{AtraceTag, ScopedEvent, Slice, refresh};

/// Writes an event if its tag, which was seen at the gate, is enabled; tells which way it was written.
#[inline(always)]
fn emit(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> Option<Way> {
    match (kind, name.number) {
        (Kind::Begin, Some(number)) if args.is_empty() => {
            emit_named(glance, tag, Type::Begin, number, name.text)
        }
        (Kind::Instant, Some(number)) if args.is_empty() => {
            emit_named(glance, tag, Type::Instant, number, name.text)
        }
        _ => emit_any(glance, tag, kind, track, name, args),
    }
}

/// The begin of a slice of the thread's track, or an instant on it, with nothing but a name that has a number.
#[inline(never)]
fn emit_named(glance: Glance, tag: AtraceTag, kind: Type, number: &Number, text: &str) -> Option<Way> {
    let way = way::enabled_short(glance, tag)?;
    let is_written = match way {
        Way::Perfetto => write_named((tag & AtraceTag::ValidMask).bits(), kind, EventName::at(number, text)),
        Way::Atrace(sink) => {
            let kind = if kind == Type::Begin { Kind::Begin } else { Kind::Instant };
            sink.write_str(kind, None, Some(text))
        }
    };
    is_written.then_some(way)
}

/// [`emit`] of what is more than a name.
#[inline(never)]
fn emit_any(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> Option<Way> {
    let way = way::enabled(glance, tag)?;
    let is_written = match way {
        Way::Perfetto => {
            let (kind, row) = match kind {
                Kind::TrackBegin(cookie) => (Type::Begin, Row::named(cookie)),
                Kind::TrackInstant => (Type::Instant, Row::INSTANTS),
                Kind::Instant => (Type::Instant, Row::INSTANTS),
                _ => (Type::Begin, Row::INSTANTS),
            };
            write_packet(
                (tag & AtraceTag::ValidMask).bits(),
                kind,
                track.map(|track| (row, track)),
                name,
                args,
            )
        }
        Way::Atrace(sink) => sink.write(
            kind,
            track,
            Some(|writer: &mut NameWriter<'_>| {
                writer.push_str(name.text);
                args::push(writer, args);
            }),
        ),
    };
    is_written.then_some(way)
}

/// Writes what [`emit_named`] does into Perfetto's memory.
#[inline(never)]
fn write_named(tags: u64, kind: Type, name: EventName<'_>) -> bool {
    match name.site().filter(|site| site.has_number()) {
        Some(site) => producer::named(kind, tags, &site),
        None => producer::short_called(kind, tags, name.text),
    }
}

/// Writes an event into Perfetto's memory.
fn write_packet(
    tags: u64,
    kind: Type,
    row: Option<(Row, &str)>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> bool {
    if row.is_none() && args.is_empty() {
        return write_named(tags, kind, name);
    }
    let site = name.site().filter(|site| site.has_number());
    with_args(tags, kind, row, (site, site.is_none().then_some(name.text)), args)
}

/// A call, as its buffer is large.
#[inline(never)]
fn with_args(
    tags: u64,
    kind: Type,
    row: Option<(Row, &str)>,
    (site, name): (Option<crate::callsite::Site<'_>>, Option<&str>),
    args: &[Arg<'_>],
) -> bool {
    let mut encoder = Encoder::new();
    encoder.args(args);
    let args = encoder.finish();
    match row {
        Some(row) => producer::rich_on_track(kind, tags, row, (site, name), args, u32::MAX),
        None => producer::rich(kind, tags, (site, name), 0, args),
    }
}

/// Begins a slice as [`atrace_begin`](crate::atrace_begin), with arguments.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, atrace_begin_args, atrace_end};
///
/// atrace_begin_args(AtraceTag::App, "decode", &[Arg::Int("block", 7), Arg::Str("codec", "raw")]);
/// atrace_end(AtraceTag::App);
/// ```
#[inline(always)]
pub fn atrace_begin_args<'a>(tag: AtraceTag, name: impl Into<EventName<'a>>, args: &[Arg<'_>]) {
    if let Some(glance) = gate::glance(tag) {
        emit(glance, tag, Kind::Begin, None, name.into(), args);
    }
}

/// Marks a moment on the calling thread as [`atrace_instant`](crate::atrace_instant), with arguments.
#[inline(always)]
pub fn atrace_instant_args<'a>(tag: AtraceTag, name: impl Into<EventName<'a>>, args: &[Arg<'_>]) {
    if let Some(glance) = gate::glance(tag) {
        emit(glance, tag, Kind::Instant, None, name.into(), args);
    }
}

/// Begins an async slice on a row as [`atrace_async_for_track_begin`](crate::atrace_async_for_track_begin), with arguments.
#[inline(always)]
pub fn atrace_async_for_track_begin_args<'a>(
    tag: AtraceTag,
    track_name: &str,
    name: impl Into<EventName<'a>>,
    cookie: i32,
    args: &[Arg<'_>],
) {
    if let Some(glance) = gate::glance(tag) {
        emit(glance, tag, Kind::TrackBegin(cookie.into()), Some(track_name), name.into(), args);
    }
}

/// Marks a moment on a row as [`atrace_instant_for_track`](crate::atrace_instant_for_track), with arguments.
#[inline(always)]
pub fn atrace_instant_for_track_args<'a>(
    tag: AtraceTag,
    track_name: &str,
    name: impl Into<EventName<'a>>,
    args: &[Arg<'_>],
) {
    if let Some(glance) = gate::glance(tag) {
        emit(glance, tag, Kind::TrackInstant, Some(track_name), name.into(), args);
    }
}

/// Sets a counter as [`atrace_int64`](crate::atrace_int64), one whose name is always the same.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, Name, atrace_int64_name};
///
/// static QUEUED: Name = Name::new("queued");
///
/// atrace_int64_name(AtraceTag::App, &QUEUED, 7);
/// ```
#[inline(always)]
pub fn atrace_int64_name(tag: AtraceTag, name: &'static Name, value: i64) {
    #[inline(never)]
    fn on(glance: Glance, tag: AtraceTag, name: &Name, value: i64) {
        match way::enabled(glance, tag) {
            Some(Way::Perfetto) => {
                let tags = (tag & AtraceTag::ValidMask).bits();
                producer::counter(tags, name.text, name.hash, value);
            }
            Some(way) => _ = way.write_str(tag, Kind::Int64(value), None, Some(name.text)),
            None => {}
        }
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag, name, value);
    }
}

/// Begins a slice that ends when the returned guard is dropped, as
/// [`begin_scoped_event`](crate::begin_scoped_event), with arguments.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, begin_scoped_event_args};
///
/// let _event = begin_scoped_event_args(AtraceTag::App, "load", &[Arg::Str("path", "/tmp/image")]);
/// // What happens here is within "load".
/// ```
#[inline(always)]
pub fn begin_scoped_event_args<'a>(
    tag: AtraceTag,
    name: impl Into<EventName<'a>>,
    args: &[Arg<'_>],
) -> ScopedEvent {
    let slice = gate::glance(tag).map_or(Slice::none(), |glance| {
        Slice::by(emit(glance, tag, Kind::Begin, None, name.into(), args), tag)
    });
    ScopedEvent::of(slice)
}

/// Begins a slice with a name that is always the same where this is the number; `name` is asked for while the tag is on.
#[inline(always)]
pub fn begin_scoped_event_at(
    tag: AtraceTag,
    number: &Number,
    name: impl FnOnce() -> &'static str,
) -> ScopedEvent {
    let slice = gate::glance(tag).map_or(Slice::none(), |glance| begin_at(glance, tag, number, name));
    ScopedEvent::of(slice)
}

/// To the marker it is written here, all else in a call: as [`way::emit`].
#[inline(always)]
fn begin_at(glance: Glance, tag: AtraceTag, number: &Number, name: impl FnOnce() -> &'static str) -> Slice {
    if !refresh::is_enabled(glance, tag) {
        return Slice::none();
    }
    let way = match first::present() {
        sink @ Sink::Marker(marker) => {
            let write = Some(|writer: &mut NameWriter<'_>| writer.push_str(name()));
            marker.write(Kind::Begin, None, write).then_some(Way::Atrace(sink))
        }
        sink => begin_elsewhere(sink, tag, number, name),
    };
    Slice::by(way, tag)
}

#[inline(never)]
fn begin_elsewhere(
    sink: &'static Sink,
    tag: AtraceTag,
    number: &Number,
    name: impl FnOnce() -> &'static str,
) -> Option<Way> {
    let (way, name) = (way::of(sink, tag)?, EventName::at(number, name()));
    let is_written = match way {
        Way::Perfetto => write_named((tag & AtraceTag::ValidMask).bits(), Type::Begin, name),
        way => way.write_str(tag, Kind::Begin, None, Some(name.text)),
    };
    is_written.then_some(way)
}

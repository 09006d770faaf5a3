//! Events with typed arguments or with interned names: the functions that end in `_args`, and those behind the macros.
//!
//! For ATrace the arguments become text after the name. For Perfetto they are encoded on the stack, and a
//! [`Name`](crate::Name) is *interned*: a sequence of packets defines it once, and events refer to it by a number.

use atrace_sys::text::cut;

use crate::args::{self, Arg};
use crate::backend::{self, Backend};
use crate::gate::{self, Glance};
use crate::message::{Kind, NameWriter};
use crate::name::{EventName, Name};
use crate::producer::{self, Encoder, Event, Number, TRACK_NAME_MAX, Track, TrackKey, Type, Written};
use crate::sink::{Sink, first};
use crate::{AtraceTag, ScopedEvent, Slice, refresh};

/// Writes an event if its tag is enabled; for callers that the gate did not turn away. Returns the backend that it was
/// written by.
#[inline(always)]
fn emit(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> Option<Written> {
    match (kind, name.number) {
        (Kind::Begin, Some(number)) if args.is_empty() => {
            emit_named(glance, tag, Type::Begin, number, name.text)
        }
        (Kind::Instant, Some(number)) if args.is_empty() => {
            emit_named(glance, tag, Type::Instant, number, name.text)
        }
        _ => emit_full(glance, tag, kind, track, name, args),
    }
}

/// Writes a begin or an instant of the calling thread that has nothing but an interned name: a fast path of [`emit`].
#[inline(never)]
fn emit_named(glance: Glance, tag: AtraceTag, kind: Type, number: &Number, text: &str) -> Option<Written> {
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    let sink = first::present();
    if backend::goes_to_sessions_only(sink, tag) {
        return producer::named(kind, backend::valid(tag), number, text);
    }
    emit_named_slow(sink, tag, kind, number, text)
}

/// Chooses the backend by the full rule, then does the same as [`emit_named`]. Out of line, so that the faster path needs no
/// stack frame for it.
#[inline(never)]
fn emit_named_slow(
    sink: &'static Sink,
    tag: AtraceTag,
    kind: Type,
    number: &Number,
    text: &str,
) -> Option<Written> {
    match backend::select(sink, tag)? {
        Backend::Perfetto => producer::named(kind, backend::valid(tag), number, text),
        Backend::Atrace(sink) => {
            let kind = if kind == Type::Begin { Kind::Begin } else { Kind::Instant };
            sink.write_str(kind, None, Some(text))
        }
    }
}

/// Writes an event of any kind, with arguments or a track: the general path of [`emit`].
#[inline(never)]
fn emit_full(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> Option<Written> {
    match backend::enabled(glance, tag)? {
        Backend::Perfetto => {
            let of = match kind {
                Kind::TrackInstant | Kind::Instant => Type::Instant,
                _ => Type::Begin,
            };
            let key = match kind {
                Kind::TrackBegin(cookie) => TrackKey::named(Type::Begin, cookie),
                _ => TrackKey::INSTANT,
            };
            let track = track.map(|track| Track::of(key, track));
            write_packet(backend::valid(tag), of, track, name, args)
        }
        Backend::Atrace(sink) => sink.write(
            kind,
            track,
            Some(|writer: &mut NameWriter<'_>| {
                writer.push_str(name.text);
                args::push(writer, args);
            }),
        ),
    }
}

/// Writes an event into Perfetto's memory. Out of line, because its buffer for arguments is large.
#[inline(never)]
fn write_packet(
    tags: u64,
    kind: Type,
    track: Option<Track<'_>>,
    name: EventName<'_>,
    args: &[Arg<'_>],
) -> Option<Written> {
    let site = name.site().filter(|site| site.has_number());
    let name = site.is_none().then(|| cut(name.text, TRACK_NAME_MAX));
    let mut encoder = Encoder::new();
    args::encode(&mut encoder, args);
    let event = Event { track, name, site, args: encoder.finish(), ..Event::new(kind, tags) };
    producer::write(&event)
}

/// Begins a slice as [`atrace_begin`](crate::atrace_begin) does, with arguments.
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

/// Marks a moment on the calling thread as [`atrace_instant`](crate::atrace_instant) does, with arguments.
#[inline(always)]
pub fn atrace_instant_args<'a>(tag: AtraceTag, name: impl Into<EventName<'a>>, args: &[Arg<'_>]) {
    if let Some(glance) = gate::glance(tag) {
        emit(glance, tag, Kind::Instant, None, name.into(), args);
    }
}

/// Begins an async slice on a track as [`atrace_async_for_track_begin`](crate::atrace_async_for_track_begin) does, with
/// arguments.
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

/// Marks a moment on a track as [`atrace_instant_for_track`](crate::atrace_instant_for_track) does, with arguments.
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

/// Sets a counter with a constant name, as [`atrace_int64`](crate::atrace_int64) does.
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
        match backend::enabled(glance, tag) {
            Some(Backend::Perfetto) => {
                let tags = backend::valid(tag);
                producer::count(tags, name.text, name.hash, value);
            }
            Some(backend) => _ = backend.write_str(tag, Kind::Int64(value), None, Some(name.text)),
            None => {}
        }
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag, name, value);
    }
}

/// Begins a slice that ends when the returned guard is dropped, as [`begin_scoped_event`](crate::begin_scoped_event) does,
/// with arguments.
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

/// Begins a slice with the constant name that `number` stands for. `name` returns its text, and is called only if the tag is
/// enabled. For the macros of this crate.
#[inline(always)]
pub fn begin_scoped_event_at(
    tag: AtraceTag,
    number: &Number,
    name: impl FnOnce() -> &'static str,
) -> ScopedEvent {
    let slice = gate::glance(tag).map_or(Slice::none(), |glance| begin_at(glance, tag, number, name));
    ScopedEvent::of(slice)
}

/// Writes the begin inlined for the marker, and by a call for other backends, as [`backend::emit`] does.
#[inline(always)]
fn begin_at(glance: Glance, tag: AtraceTag, number: &Number, name: impl FnOnce() -> &'static str) -> Slice {
    if !refresh::is_enabled(glance, tag) {
        return Slice::none();
    }
    let written = match first::present() {
        Sink::Marker(marker) => {
            let write = Some(|writer: &mut NameWriter<'_>| writer.push_str(name()));
            marker.write(Kind::Begin, None, write).then_some(Written::ByAtrace)
        }
        sink => begin_unless_marker(sink, tag, number, name),
    };
    Slice::by(written, tag)
}

#[inline(never)]
fn begin_unless_marker(
    sink: &'static Sink,
    tag: AtraceTag,
    number: &Number,
    name: impl FnOnce() -> &'static str,
) -> Option<Written> {
    let name = name();
    if backend::goes_to_sessions_only(sink, tag) {
        return producer::named(Type::Begin, backend::valid(tag), number, name);
    }
    emit_named_slow(sink, tag, Type::Begin, number, name)
}

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
//! Many functions here are split in two, and some `inline` attributes depend on `debug_assertions`. An event may be
//! written on the stack of a signal handler, whose stack is small. So a function must not reserve stack for buffers
//! that only some of its callers need.

use crate::AtraceTag;
use crate::args::Arguments;
use crate::event::Event;
use crate::gate::{self, Glance};
use crate::message::{Kind, Message, NameWriter};
use crate::name::{Interned, Source, Text};
use crate::producer::{
    self, Amount, Encoder, Put, Site, TRACK_NAME_MAX, Track, TrackKey, Type, WholeArgs, Written, hash,
};
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
/// Prepares the process to be a producer, and therefore may allocate.
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

/// Writes an event if its tag is enabled. Returns the backend that wrote the event, or `None` if no backend did. Call
/// this only after the gate's check, whose result is `glance`, has found that the tag may be enabled.
///
/// Inlined code builds the message for the marker, except for a constant name: events with constant names usually go to
/// Perfetto.
#[inline(always)]
pub(crate) fn emit<N: Source>(glance: Glance, tag: AtraceTag, event: Event<'_, N>) -> Option<Written> {
    if refresh::is_enabled(glance, tag) { emit_enabled(first::present(), tag, event) } else { None }
}

/// Does the same as [`emit`] for a tag that is enabled. `sink` is the reference that an event loads first.
#[inline(always)]
fn emit_enabled<N: Source>(sink: &'static Sink, tag: AtraceTag, event: Event<'_, N>) -> Option<Written> {
    /// Chooses the backend and writes the event. The function gets the fields of the event instead of a reference: with
    /// a reference, the compiler would store the event in memory even if its encoding is inlined.
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
    let Some(text) = event.as_text() else {
        return select(sink, tag)?.write_named(tag, event);
    };
    if let Sink::Marker(marker) = sink
        && text.name.is_none_or(|name| name.interned.is_none())
    {
        return marker.write(text);
    }
    if goes_to_sessions_only(sink, tag) {
        return write_packet(tag, &text);
    }
    let Event { kind, track, name, args } = text;
    slow(sink, tag, kind, track, name.map(|name| name.text), name.and_then(|name| name.interned), args)
}

/// Begins a slice with a constant name as [`emit`] does. Only the message for the marker is built inline.
#[inline(always)]
pub(crate) fn emit_constant(
    glance: Glance,
    tag: AtraceTag,
    text: &str,
    interned: &Interned,
) -> Option<Written> {
    #[inline(never)]
    fn called(sink: &'static Sink, tag: AtraceTag, text: &str, interned: &Interned) -> Option<Written> {
        emit_enabled(sink, tag, Event::new(Kind::Begin, Text { text, interned: Some(interned) }))
    }
    if !refresh::is_enabled(glance, tag) {
        return None;
    }
    match first::present() {
        Sink::Marker(marker) => marker.write(Event::new(Kind::Begin, text)),
        sink => called(sink, tag, text, interned),
    }
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
        /// Not inlined: a packet does not need the buffer of a message on the stack, and without it the calls of the
        /// producer's functions are compiled to jumps.
        #[inline(never)]
        fn by_sink(sink: &Sink, event: &Event<'_>) -> Option<Written> {
            sink.write(*event)
        }
        match self {
            Self::Atrace(sink) => by_sink(sink, event),
            Self::Perfetto => write_packet(tag, event),
        }
    }

    /// Writes an event as [`write`](Self::write) does, with a name of any type. For Perfetto, a name that must be
    /// formatted is written into a buffer first. Formatting may run the program's own code; that code may write events,
    /// too, because the thread's writer is not in use yet.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write_named<N: Source>(self, tag: AtraceTag, mut event: Event<'_, N>) -> Option<Written> {
        /// Not inlined: only events whose names must be formatted need the buffer on the stack, which may be a signal
        /// handler's small stack.
        #[inline(never)]
        fn formatted(
            tag: AtraceTag,
            event: &Event<'_>,
            write: &mut dyn FnMut(&mut NameWriter<'_>),
        ) -> Option<Written> {
            let mut buffer = Message::new();
            Backend::Perfetto.write(tag, &event.named(Some(Text::new(buffer.plain(write)))))
        }
        if let Self::Atrace(sink) = self {
            return sink.write(event);
        }
        if let Some(text) = event.as_text() {
            return self.write(tag, &text);
        }
        // The closure does not refer to the event, which would then be stored in memory as a whole.
        let mut name = event.name.take();
        formatted(tag, &event.named(None), &mut |writer| {
            if let Some(name) = name.take() {
                name.write(writer);
            }
        })
    }
}

/// Writes an event into Perfetto's memory: by the function of the producer that is made for the fields that the event
/// has.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_packet(tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
    #[inline(never)]
    fn count(tags: u64, name: &str, value: i64) -> Option<Written> {
        producer::count(tags, name, hash::of_name(name), value)
    }
    #[inline(always)]
    fn on_thread(kind: Type, tags: u64, name: Text<'_>) -> Option<Written> {
        match name.number() {
            Some(number) => producer::named(kind, tags, number, name.text),
            None => producer::text(kind, tags, name.text),
        }
    }

    let tags = valid(tag);
    let Event { kind, track, name, args } = *event;
    let name = name.unwrap_or_default();
    let key = match kind {
        Kind::Begin if args.is_none() => return on_thread(Type::Begin, tags, name),
        Kind::Instant if args.is_none() => return on_thread(Type::Instant, tags, name),
        Kind::End => {
            producer::end(tags);
            return Some(Written::ByPerfetto { begun: 0 });
        }
        Kind::Int(value) | Kind::Int64(value) => {
            return match name.interned {
                Some(_) => producer::count(tags, name.text, name.hash(), value),
                None => count(tags, name.text, value),
            };
        }
        Kind::Float(bits) => {
            let track = Some(Track::counter(name.text, name.hash()));
            let value = Some(Amount::Real(f64::from_bits(bits)));
            let event = producer::Event::new(Type::Counter, tags);
            return producer::write(&producer::Event { track, value, ..event });
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
    match args {
        Some(args) => write_packet_with(tags, key, track, name, args),
        None => producer::on_track(key, tags, track.unwrap_or(name.text), event.name.map(|name| name.text)),
    }
}

/// Writes an event with arguments into Perfetto's memory. `key` has the type of the event and identifies its track.
#[inline(never)]
fn write_packet_with(
    tags: u64,
    key: TrackKey,
    track: Option<&str>,
    name: Text<'_>,
    args: &dyn Arguments,
) -> Option<Written> {
    let site = name.number().map(|number| Site::named(number, name.text)).filter(Site::has_number);
    let mut encoder = Encoder::new();
    args.encode(&mut encoder);
    let own_name = site.is_none().then_some(name.text);
    let is_whole = encoder.is_whole() && own_name.is_none_or(|name| name.len() <= TRACK_NAME_MAX);
    let put = |put: &mut Put<'_>| args.put(put);
    producer::write(&producer::Event {
        track: track.map(|track| Track::of(key, track)),
        name: own_name,
        site,
        whole_args: (!is_whole).then_some(WholeArgs(&put)),
        args: encoder.finish(),
        ..producer::Event::new(key.kind(), tags)
    })
}

/// Ends the youngest slice of the calling thread, whose begin was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    match choice::present() {
        Sink::Marker(marker) => _ = marker.write(Event::END),
        sink => _ = Backend::Atrace(sink).write(AtraceTag::Never, &Event::END),
    }
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

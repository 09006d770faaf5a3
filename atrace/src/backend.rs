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
//! A process that never was a producer of Perfetto has one backend, its sink. If the sink is the marker, inlined code
//! finds it by one reference ([`sink::first`]). In a producer, a tag is usually enabled by Perfetto's sessions only.
//! Two words of the gate (`gate/mod.rs`) show whether this is so; inlined code tests these words, too
//! ([`is_only_in_sessions`]). A function that is not inlined ([`select`]) handles all other cases.
//!
//! [`emit`] writes the events of all functions of `events.rs` and of scoped slices: it checks the gate, builds the
//! event, chooses the backend, and passes the event to [`Backend::write`]. All of this is compiled separately for each
//! set of parts that an event can have. So an event makes only one call between the gate and the function that writes
//! the packet, or the system call that writes the message. A tracer's [`Enabled`](crate::tracer::Enabled) holds the
//! backend that was already chosen. It passes events without a callsite to `Backend::write`, too, and events with a
//! callsite to Perfetto's producer. The end of a slice goes to the backend that wrote the slice's begin
//! ([`end_by_sink`], [`end_track_by_sink`], and the producer's functions).
//!
//! Some `inline` attributes depend on `debug_assertions`, because in an unoptimised build each inlined function
//! enlarges the stack frame of its caller. An event may be written on the stack of a signal handler, which is small. So
//! a function must not reserve stack for buffers that only some of its callers need.

use crate::AtraceTag;
use crate::args::{Arg, Arguments};
use crate::event::Event;
use crate::gate::{self, GateCheck};
use crate::message::Kind;
use crate::name::{Source, Text};
use crate::producer::{
    self, Amount, Encoder, Named, OnTrack, Put, Site, TRACK_NAME_MAX, Track, TrackKey, Type, WholeArgs,
    Written, hash,
};
use crate::refresh;
use crate::sink::{self, Sink, choice};

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
/// process can't be a producer, for lack of memory or because the crate was built without the feature `perfetto`. This
/// function prepares the process to be a producer, and therefore may allocate.
pub fn only_perfetto(tag: AtraceTag) -> AtraceTag {
    // The bit has an effect only after `enable_perfetto` has made each event choose its backend.
    if sink::enable_perfetto() { (tag - ONLY_ATRACE) | ONLY_PERFETTO } else { AtraceTag::Never }
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
/// The tag may be restricted to one backend, by [`only_atrace`] or [`only_perfetto`].
pub fn backend_tags_enable(word: u64, tag: AtraceTag) -> bool {
    let perfetto = if tag.intersects(ONLY_ATRACE) { 0 } else { word >> 32 };
    let atrace = if tag.intersects(ONLY_PERFETTO) { 0 } else { word };
    // `valid(tag)` has no bits in the upper half, so the upper half of `atrace` does not count.
    (atrace | perfetto) & valid(tag) != 0
}

/// Returns the backend for events with this tag, or `None` if the tag is not enabled. Call this only after the gate's
/// check, whose result is `check`, has found that the tag may be enabled.
///
/// The result does not depend on `begins_with_sessions`, but the cost does: with `true`, this function looks for
/// Perfetto's sessions before it looks for the marker. This order is cheaper for events with constant names, which
/// usually go to Perfetto's memory.
#[inline(always)]
pub(crate) fn enabled(check: GateCheck, tag: AtraceTag, begins_with_sessions: bool) -> Option<Backend> {
    if !check.is_sure() && !refresh::refreshed().intersects(tag & AtraceTag::ValidMask) {
        return None;
    }
    let sink = sink::first();
    let is_perfetto = || sink::is_per_event(sink) && is_only_in_sessions(tag);
    if begins_with_sessions && is_perfetto() {
        Some(Backend::Perfetto)
    } else if sink.is_marker() {
        Some(Backend::Atrace(sink))
    } else if !begins_with_sessions && is_perfetto() {
        Some(Backend::Perfetto)
    } else {
        select(sink, tag)
    }
}

/// Does the same as [`enabled`] for a caller that needs no backend. This function is not inlined.
#[inline(never)]
pub(crate) fn is_enabled(check: GateCheck, tag: AtraceTag) -> bool {
    enabled(check, tag, false).is_some()
}

/// Returns true if the words of the gate show that the tag is enabled only by Perfetto's sessions. The result may be
/// false even if only sessions enable the tag.
#[inline(always)]
fn is_only_in_sessions(tag: AtraceTag) -> bool {
    gate::is_only_in_sessions(valid(tag)) && !tag.intersects(ONLY_ATRACE)
}

/// Chooses between the sink and Perfetto's memory, by the complete rule (see the top of this file). `sink` is the
/// result of [`sink::first`].
///
/// The function is marked as cold, so that its callers save no registers for this rare call.
#[cold]
#[inline(never)]
fn select(sink: &'static Sink, tag: AtraceTag) -> Option<Backend> {
    if !sink::is_per_event(sink) {
        return Some(Backend::Atrace(sink));
    }
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

/// The result of a function that writes an event: nothing, or a slice that knows whether its begin was written.
pub(crate) trait Outcome {
    /// Returns the result. `written` is the backend that wrote the event, or `None` if no backend did.
    fn of(written: Option<Written>, tag: AtraceTag) -> Self;
}

impl Outcome for () {
    #[inline(always)]
    fn of(_: Option<Written>, _: AtraceTag) {}
}

/// A part of an event as a parameter: a value, or `()` if the event does not have the part. The parameter `()` takes no
/// register, and no code is compiled for the absent part.
pub(crate) trait Part {
    /// The type of the part.
    type Of;

    /// Returns the part, or `None` for `()`.
    fn get(self) -> Option<Self::Of>;
}

/// The part `()` may stand for a track or a name, so its type `Of` is a type that both may have.
impl Part for () {
    type Of = &'static str;

    #[inline(always)]
    fn get(self) -> Option<&'static str> {
        None
    }
}

impl<N: Source> Part for N {
    type Of = N;

    #[inline(always)]
    fn get(self) -> Option<N> {
        Some(self)
    }
}

/// The arguments of an event as a parameter: a slice of arguments, or `()` if the event has none. The type `()` makes
/// the compiler build a separate function for events without arguments, without the code that formats and encodes
/// arguments.
pub(crate) trait Args: Copy {
    /// Returns whether there are no arguments.
    fn is_none(&self) -> bool;

    /// Returns the arguments, or `None` for `()`.
    fn get(&self) -> Option<&dyn Arguments>;
}

impl Args for () {
    #[inline(always)]
    fn is_none(&self) -> bool {
        true
    }

    #[inline(always)]
    fn get(&self) -> Option<&dyn Arguments> {
        None
    }
}

impl Args for &[Arg<'_>] {
    #[inline(always)]
    fn is_none(&self) -> bool {
        self.is_empty()
    }

    #[inline(always)]
    fn get(&self) -> Option<&dyn Arguments> {
        Some(self)
    }
}

/// Writes an event if its tag is enabled. Only the gate's check is inlined into the caller.
///
/// The parts of the event are parameters of their own, so they are passed in registers. `kind` is a closure, because
/// its type tells the compiler which kind of event it returns; the closure captures the event's cookie or value. The
/// code after the gate is compiled for each function that calls `emit`, and for each combination of parts' types that a
/// program uses.
#[inline(always)]
pub(crate) fn emit<'t, R: Outcome>(
    tag: AtraceTag,
    track: impl Part<Of = &'t str>,
    name: impl Part<Of: Source>,
    kind: impl FnOnce() -> Kind,
    args: impl Args,
) -> R {
    #[inline(never)]
    fn on<'t, R: Outcome, N: Part<Of: Source>>(
        check: GateCheck,
        tag: AtraceTag,
        track: impl Part<Of = &'t str>,
        name: N,
        kind: impl FnOnce() -> Kind,
        args: impl Args,
    ) -> R {
        let event = Event { kind: kind(), track: track.get(), name: name.get(), args: args.get() };
        R::of(enabled(check, tag, N::Of::IS_CONSTANT).and_then(|backend| backend.write(tag, event)), tag)
    }
    match gate::check(tag) {
        None => R::of(None, tag),
        Some(check) if args.is_none() => on(check, tag, track, name, kind, ()),
        Some(check) => on(check, tag, track, name, kind, args),
    }
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

    /// Writes an event, without checking whether its tag is enabled. Returns the backend that wrote the event, or `None`
    /// if no backend did.
    ///
    /// For the sink, a name that must be formatted is formatted directly into the message. For Perfetto, it is first
    /// formatted into a buffer, because formatting may run the program's own code. This code may write events, too: at
    /// this time, the thread's writer (its state for writing packets) is not in use yet.
    #[cfg_attr(debug_assertions, inline(never))]
    #[cfg_attr(not(debug_assertions), inline(always))]
    pub(crate) fn write<N: Source>(self, tag: AtraceTag, event: Event<'_, N>) -> Option<Written> {
        /// Writes an event whose name is a text. All such events share this function if the sink is a library, so that
        /// inlined code builds only messages for the marker.
        #[inline(never)]
        fn by_library(sink: &Sink, event: &Event<'_>) -> Option<Written> {
            sink.write(*event)
        }
        if let Self::Atrace(sink) = self
            && (sink.is_marker() || !N::IS_TEXT)
        {
            return sink.write(event);
        }
        let Event { kind, track, name, args } = event;
        let mut buffer = N::buffer();
        let event = Event { kind, track, name: name.map(|name| name.text(&mut buffer)), args };
        match self {
            // Passes a copy: if the address of `event` itself were passed, the compiler would store it in memory in
            // Perfetto's case, too.
            Self::Atrace(sink) => by_library(sink, &{ event }),
            Self::Perfetto => write_packet(tag, &event),
        }
    }
}

/// Writes an event into Perfetto's memory, by the producer's function for the fields that this event has.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn write_packet(tag: AtraceTag, event: &Event<'_>) -> Option<Written> {
    /// Calls `producer::count` for a name whose hash must be computed. This function is not inlined; for a constant
    /// name, `producer::count` is called directly.
    #[inline(never)]
    fn count(tags: u64, name: &str, value: i64) -> Option<Written> {
        producer::count(tags, name, hash::of_name(name), value)
    }
    let tags = valid(tag);
    let Event { kind, track, name, args } = *event;
    let name = name.unwrap_or_default(); // `event.name` still shows whether the event has a name.
    let key = match kind {
        Kind::Begin | Kind::Instant if args.is_none() => {
            let kind = if kind == Kind::Begin { Type::Begin } else { Type::Instant };
            if let Some(number) = name.number() {
                return producer::write_as::<Named>(kind, tags, name.text, number);
            }
            return producer::write_text(kind, tags, name.text);
        }
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
        // The name of the slice is also the name of its track. The packet of an end, unlike that of a begin, has no
        // name besides the track.
        Kind::AsyncEnd(cookie) => {
            return producer::write_as::<OnTrack>(
                TrackKey::of_async(Type::End, cookie),
                tags,
                name.text,
                None,
            );
        }
        Kind::TrackBegin(cookie) => TrackKey::named(Type::Begin, cookie),
        Kind::TrackEnd(cookie) => TrackKey::named(Type::End, cookie),
        // A begin or an instant with arguments has no track of its own; only the event's type in this key is used.
        Kind::Begin => TrackKey::named(Type::Begin, 0),
        Kind::Instant | Kind::TrackInstant => TrackKey::INSTANT,
    };
    match args {
        Some(args) => write_packet_with(tags, key, track, name, args),
        None => producer::write_as::<OnTrack>(
            key,
            tags,
            track.unwrap_or(name.text),
            event.name.map(|name| name.text),
        ),
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

/// Ends the youngest slice of the calling thread. The begin of this slice was written to the sink.
#[inline(always)]
pub(crate) fn end_by_sink() {
    Backend::Atrace(choice::present()).write(AtraceTag::Never, Event::END);
}

/// Ends a slice on a track. The begin of this slice was written to the sink.
#[inline(never)]
pub(crate) fn end_track_by_sink(track: &str, cookie: i32) {
    let event = Event { track: Some(track), ..Event::of(Kind::TrackEnd(cookie.into())) };
    Backend::Atrace(choice::present()).write(AtraceTag::Never, event);
}

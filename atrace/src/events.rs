//! The functions that write events: slices, async slices, instants and counters.
//!
//! Each function checks the gate first, inlined into its caller. If the gate says "off", the function calls nothing.
//! Otherwise it passes the gate's result to [`emit`] (`backend.rs`), which checks for sure whether the tag is enabled, and
//! writes the event by its backend.

use std::fmt;
use std::marker::PhantomData;

use atrace_sys::fork::{Generation, generation};

use crate::AtraceTag;
use crate::backend::{self, emit};
use crate::gate::{self, Glance};
use crate::message::{Kind, NameWriter};
use crate::producer::{self, Event, Site, Track, TrackKey, Type, Written};
use crate::refresh;
use crate::slice_origin::{SliceEnd, SliceOrigin};

/// Reads the properties now, rather than at the first event, and opens the marker if that failed when the library was loaded.
///
/// Calling it is optional. It may allocate, so it must not be called in a signal handler.
#[doc(alias = "atrace_setup")]
pub fn atrace_init() {
    atrace_get_enabled_tags();
}

/// Returns the tags that are enabled in this process, for ATrace or in a session of Perfetto. Returns [`AtraceTag::NotReady`]
/// after [`atrace_set_tracing_enabled`]`(false)`.
pub fn atrace_get_enabled_tags() -> AtraceTag {
    refresh::tags()
}

/// Returns whether one of the tags is enabled. Call it before work that only a trace needs.
///
/// The functions that write events check this themselves.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, atrace_int64, atrace_is_tag_enabled};
///
/// # fn count_everything() -> i64 { 3 }
/// if atrace_is_tag_enabled(AtraceTag::Database) {
///     atrace_int64(AtraceTag::Database, "rows", count_everything());
/// }
/// ```
#[inline(always)]
pub fn atrace_is_tag_enabled(tag: AtraceTag) -> bool {
    match gate::glance(tag) {
        None => false,
        Some(glance) => backend::enabled(glance, tag).is_some(),
    }
}

/// Disables tracing in this process, whatever the properties say, or makes it follow the properties again.
///
/// Android's zygote disables its own tracing like this. A forked child inherits the state.
pub fn atrace_set_tracing_enabled(enabled: bool) {
    refresh::set_enabled(enabled);
    crate::watch::tags_may_have_changed();
}

/// Reads the properties and the name of the process again, and checks whether the marker is still open.
///
/// It is needed in two cases: if the process was renamed, and if `debug.atrace.app_*` was changed without setting
/// `debug.atrace.tags.enableflags` afterwards. As in libcutils, only the latter property is watched.
pub fn atrace_update_tags() {
    refresh::update();
    crate::watch::tags_may_have_changed();
}

/// Writes an event as [`emit`] does, with a name that a closure writes.
#[inline(always)]
fn emit_with(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: impl FnOnce(&mut NameWriter<'_>),
) -> Option<Written> {
    backend::enabled(glance, tag)?.write(tag, kind, track, Some(name))
}

/// Defines the three forms of a function for an event with a name: the name as `&str`, as `format_args!`, and by a closure.
macro_rules! named_event {
    (
        $(#[$doc:meta])*
        $name:ident, $name_fmt:ident, $name_with:ident, $alias:literal,
        $kind:expr, ($($track:ident)?), ($($number:ident: $type:ty)?)
    ) => {
        $(#[$doc])*
        #[doc(alias = $alias)]
        #[inline(always)]
        pub fn $name(tag: AtraceTag, $($track: &str,)? name: &str $(, $number: $type)?) {
            #[inline(never)]
            fn on(glance: Glance, tag: AtraceTag, $($track: &str,)? name: &str $(, $number: $type)?) {
                let write = Some(|writer: &mut NameWriter<'_>| writer.push_str(name));
                let kind = named_event!(@kind $kind $(, $number)?);
                emit(glance, tag, kind, named_event!(@track $($track)?), Some(name), write);
            }
            if let Some(glance) = gate::glance(tag) {
                on(glance, tag, $($track,)? name $(, $number)?);
            }
        }

        #[doc = concat!("Does the same as [`", stringify!($name), "`], with a name from `format_args!`.")]
        ///
        /// The name is formatted directly into the message, only if the tag is enabled. If formatting a value panics,
        /// `<panicked>` is written in its place and the program continues (where panics unwind).
        #[inline(always)]
        pub fn $name_fmt(tag: AtraceTag, $($track: &str,)? name: fmt::Arguments<'_> $(, $number: $type)?) {
            #[inline(never)]
            fn on(glance: Glance, tag: AtraceTag, $($track: &str,)? name: fmt::Arguments<'_> $(, $number: $type)?) {
                let name = |writer: &mut NameWriter<'_>| writer.push_fmt(name);
                emit_with(glance, tag, named_event!(@kind $kind $(, $number)?), named_event!(@track $($track)?), name);
            }
            if let Some(glance) = gate::glance(tag) {
                on(glance, tag, $($track,)? name $(, $number)?);
            }
        }

        #[doc = concat!("Does the same as [`", stringify!($name), "`], with a name that a closure writes.")]
        ///
        /// The closure is called only if the tag is enabled. If it panics, the panic goes on to the caller, and no event is
        /// written.
        #[inline(always)]
        pub fn $name_with(
            tag: AtraceTag, $($track: &str,)? name: impl FnOnce(&mut NameWriter<'_>) $(, $number: $type)?
        ) {
            if let Some(glance) = gate::glance(tag) {
                let kind = named_event!(@kind $kind $(, $number)?);
                emit_with(glance, tag, kind, named_event!(@track $($track)?), name);
            }
        }
    };
    (@track) => { None };
    (@track $track:ident) => { Some($track) };
    (@kind $kind:expr) => { $kind };
    (@kind $kind:expr, $number:ident) => { $kind($number.into()) };
}

named_event! {
    /// Begins a slice named `name` on the calling thread. The matching [`atrace_end`] on this thread ends it.
    ///
    /// Writes `B|pid|name`. Slices of a thread nest. Prefer [`begin_scoped_event`](crate::begin_scoped_event), which always
    /// writes the end.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace::{AtraceTag, atrace_begin, atrace_begin_fmt, atrace_end};
    ///
    /// atrace_begin(AtraceTag::App, "decode");
    /// atrace_begin_fmt(AtraceTag::App, format_args!("block {}", 7));
    /// atrace_end(AtraceTag::App);
    /// atrace_end(AtraceTag::App);
    /// ```
    atrace_begin, atrace_begin_fmt, atrace_begin_with, "atrace_begin_body",
    Kind::Begin, (), ()
}

/// Ends the youngest open slice of the calling thread.
///
/// Writes `E|pid`. Pass the tag of the matching [`atrace_begin`].
#[doc(alias = "atrace_end_body")]
#[inline(always)]
pub fn atrace_end(tag: AtraceTag) {
    #[inline(never)]
    fn on(glance: Glance, tag: AtraceTag) {
        emit(glance, tag, Kind::End, None, None, NO_NAME);
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag);
    }
}

const NO_NAME: Option<fn(&mut NameWriter<'_>)> = None;

named_event! {
    /// Begins an async slice, which may overlap other slices and end on any thread.
    ///
    /// Writes `S|pid|name|cookie`. The end must have the same name and cookie. If several async slices of the process have
    /// one name and are open at the same time, their cookies must differ; otherwise the reader takes them for one slice.
    atrace_async_begin, atrace_async_begin_fmt, atrace_async_begin_with, "atrace_async_begin_body",
    Kind::AsyncBegin, (), (cookie: i32)
}

named_event! {
    /// Ends the async slice with this name and cookie.
    ///
    /// Writes `F|pid|name|cookie`.
    atrace_async_end, atrace_async_end_fmt, atrace_async_end_with, "atrace_async_end_body",
    Kind::AsyncEnd, (), (cookie: i32)
}

named_event! {
    /// Begins an async slice on the track named `track_name`.
    ///
    /// Writes `G|pid|track_name|name|cookie`. The end must have the same track and cookie. The cookie must be unique among
    /// the slices that are open on the track. In a viewer a track is a row. Without a track, each name of async slices makes
    /// a row of its own.
    atrace_async_for_track_begin, atrace_async_for_track_begin_fmt, atrace_async_for_track_begin_with,
    "atrace_async_for_track_begin_body",
    Kind::TrackBegin, (track_name), (cookie: i32)
}

/// Ends the async slice on this track with this cookie.
///
/// Writes `H|pid|track_name|cookie`.
#[doc(alias = "atrace_async_for_track_end_body")]
#[inline(always)]
pub fn atrace_async_for_track_end(tag: AtraceTag, track_name: &str, cookie: i32) {
    #[inline(never)]
    fn on(glance: Glance, tag: AtraceTag, track_name: &str, cookie: i32) {
        emit(glance, tag, Kind::TrackEnd(cookie.into()), Some(track_name), None, NO_NAME);
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag, track_name, cookie);
    }
}

named_event! {
    /// Marks a moment on the calling thread.
    ///
    /// Writes `I|pid|name`.
    atrace_instant, atrace_instant_fmt, atrace_instant_with, "atrace_instant_body",
    Kind::Instant, (), ()
}

named_event! {
    /// Marks a moment on the track named `track_name`.
    ///
    /// Writes `N|pid|track_name|name`.
    atrace_instant_for_track, atrace_instant_for_track_fmt, atrace_instant_for_track_with,
    "atrace_instant_for_track_body",
    Kind::TrackInstant, (track_name), ()
}

named_event! {
    /// Sets the counter named `name` to `value`.
    ///
    /// Writes `C|pid|name|value`.
    atrace_int, atrace_int_fmt, atrace_int_with, "atrace_int_body",
    Kind::Int, (), (value: i32)
}

named_event! {
    /// Sets the counter named `name` to a 64-bit `value`.
    ///
    /// Writes `C|pid|name|value`. Perfetto stores counters as doubles, so values beyond 2^53 are rounded.
    atrace_int64, atrace_int64_fmt, atrace_int64_with, "atrace_int64_body",
    Kind::Int64, (), (value: i64)
}

/// Sets the counter named `name` to a floating-point `value`.
///
/// Perfetto gets the value unchanged. For ATrace it is rounded to an integer and written as `C|pid|name|value`; NaN and
/// infinities are dropped.
#[inline(always)]
pub fn atrace_f64(tag: AtraceTag, name: &str, value: f64) {
    #[inline(never)]
    fn on(glance: Glance, tag: AtraceTag, name: &str, value: f64) {
        if let Some(backend) = backend::enabled(glance, tag) {
            backend.write_f64(tag, name, value);
        }
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag, name, value);
    }
}

/// A slice of the calling thread that knows whether its begin was written.
///
/// It is for code that itself records which slices are open, such as a `tracing` subscriber. Other code should use
/// [`ScopedEvent`](crate::ScopedEvent), which ends its slice when it is dropped. Dropping a `Slice` writes no end.
///
/// It is neither `Send` nor `Sync`, because an end closes a slice of the thread that writes the end.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<atrace::Slice>();
/// ```
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct Slice {
    origin: Option<SliceOrigin>,
    _not_send: PhantomData<*const ()>,
}

impl Slice {
    /// Returns a slice whose begin was not written.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { origin: None, _not_send: PhantomData }
    }

    /// Returns a slice whose begin was written by this backend. If no backend wrote it, the slice has no end either.
    #[inline(always)]
    pub(crate) fn by(written: Option<Written>, tag: AtraceTag) -> Self {
        Self { origin: written.and_then(|written| SliceOrigin::now(written, tag)), _not_send: PhantomData }
    }

    /// Begins a slice as [`atrace_begin`] does.
    #[inline(always)]
    pub fn begin(tag: AtraceTag, name: &str) -> Self {
        #[inline(never)]
        fn on(glance: Glance, tag: AtraceTag, name: &str) -> Slice {
            let write = Some(|writer: &mut NameWriter<'_>| writer.push_str(name));
            Slice::by(emit(glance, tag, Kind::Begin, None, Some(name), write), tag)
        }
        gate::glance(tag).map_or(Self::none(), |glance| on(glance, tag, name))
    }

    /// Begins a slice as [`atrace_begin_with`] does.
    #[inline(always)]
    pub fn begin_with(tag: AtraceTag, name: impl FnOnce(&mut NameWriter<'_>)) -> Self {
        gate::glance(tag)
            .map_or(Self::none(), |glance| Self::by(emit_with(glance, tag, Kind::Begin, None, name), tag))
    }

    /// Returns whether the begin was written.
    ///
    /// For Perfetto this is also true if the begin was [lost](crate::perfetto::Status::lost) because the memory was full. The
    /// end is then lost, too.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        self.origin.is_some()
    }

    /// Writes the end if this process wrote the begin, whatever is enabled by now.
    #[inline(always)]
    pub fn end(self) {
        if let Some(origin) = self.origin {
            end_slice(origin);
        }
    }

    /// Ends the slice as [`end`](Self::end) does. In Perfetto's memory the end has these encoded arguments of the callsite.
    #[doc(hidden)]
    pub fn __end_with(self, site: Site<'_>, args: &[u8]) {
        match self.origin.and_then(SliceOrigin::end) {
            Some(SliceEnd::ByPerfetto { tags }) => {
                producer::write(&Event { site: Some(site), args, ..Event::new(Type::End, tags) });
            }
            _ => self.end(),
        }
    }
}

#[inline(never)]
fn end_slice(origin: SliceOrigin) {
    match origin.end() {
        Some(SliceEnd::ByAtrace) => backend::end_by_sink(),
        Some(SliceEnd::ByPerfetto { tags }) => producer::end(tags),
        None => {}
    }
}

/// An async slice on a named track that knows whether its begin was written, as a [`Slice`] does.
///
/// It may end on any thread. Dropping it writes no end.
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct TrackSlice {
    by: Option<Generation>,
    /// The tags, if the begin is in Perfetto's memory; else empty.
    tags: AtraceTag,
    /// How many sessions had begun when the slice did.
    begun: u32,
}

impl TrackSlice {
    /// Returns a slice whose begin was not written.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { by: None, tags: AtraceTag::Never, begun: 0 }
    }

    /// Begins a slice as [`atrace_async_for_track_begin_with`] does.
    #[inline(always)]
    pub fn begin_with(
        tag: AtraceTag,
        track_name: &str,
        name: impl FnOnce(&mut NameWriter<'_>),
        cookie: i32,
    ) -> Self {
        let Some(glance) = gate::glance(tag) else { return Self::none() };
        let written = emit_with(glance, tag, Kind::TrackBegin(cookie.into()), Some(track_name), name);
        Self::by(written, tag)
    }

    /// Begins a slice as [`begin_with`](Self::begin_with) does, with a name that exists as text. This needs less code.
    #[doc(hidden)]
    #[inline(never)]
    pub fn __begin_named(tag: AtraceTag, track_name: &str, name: &str, cookie: i32) -> Self {
        let Some(glance) = gate::glance(tag) else { return Self::none() };
        let kind = Kind::TrackBegin(cookie.into());
        let backend = backend::enabled(glance, tag);
        Self::by(backend.and_then(|backend| backend.write_str(tag, kind, Some(track_name), Some(name))), tag)
    }

    /// Returns a slice whose begin was written by this backend. If no backend wrote it, the slice has no end either.
    ///
    /// Sessions are counted after the begin was written. So a session that begins in between may get an end without a begin,
    /// but never a begin without its end.
    #[inline]
    pub(crate) fn by(written: Option<Written>, tag: AtraceTag) -> Self {
        written.map_or(Self::none(), |written| {
            let tags = if written == Written::ByPerfetto { tag } else { AtraceTag::Never };
            Self { by: Some(generation()), tags, begun: backend::sessions_begun() }
        })
    }

    /// Ends the slice as [`end`](Self::end) does. In Perfetto's memory the end has these encoded arguments of the callsite.
    #[doc(hidden)]
    pub fn __end_with(self, track_name: &str, site: Site<'_>, args: &[u8], cookie: i32) {
        if self.tags.is_empty() {
            return self.end(track_name, cookie);
        }
        if self.by.is_some_and(|by| by == generation()) {
            let (track, site) =
                (Some(Track::of(TrackKey::named(Type::End, cookie.into()), track_name)), Some(site));
            let end = Event::new(Type::End, (self.tags & AtraceTag::ValidMask).bits());
            producer::write(&Event { track, site, args, begun: self.begun, ..end });
        }
    }

    /// Returns whether the begin is in Perfetto's memory.
    #[doc(hidden)]
    pub fn __is_perfettos(&self) -> bool {
        !self.tags.is_empty()
    }

    /// Returns whether the begin was written.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        self.by.is_some()
    }

    /// Writes the end if this process wrote the begin, whatever is enabled by now. The track and the cookie must be those of
    /// the begin.
    #[inline]
    pub fn end(self, track_name: &str, cookie: i32) {
        if let Some(by) = self.by
            && by == generation()
        {
            backend::end_track(self.tags, self.begun, track_name, cookie);
        }
    }
}

//! The events: slices, async slices, instants and counters.
//!
//! The way of each: its function looks at the gate, inlined, and calls nothing where the gate says "off". Else it hands
//! what the gate saw to [`emit`] (`way.rs`), which makes sure and has it written the way that it goes.

use std::fmt;
use std::marker::PhantomData;

use atrace_sys::fork::{Generation, generation};

use crate::AtraceTag;
use crate::began::{Began, Ends};
use crate::gate::{self, Glance};
use crate::message::{Kind, NameWriter};
use crate::producer::{self, Event, Site, Track, TrackKey, Type, Written};
use crate::refresh;
use crate::way::{self, emit};

/// Opens the marker, if that failed as the library was loaded, and reads the properties now rather than at the first event.
///
/// Calling it is optional. Not in a signal handler: it may allocate.
#[doc(alias = "atrace_setup")]
pub fn atrace_init() {
    atrace_get_enabled_tags();
}

/// Returns the tags enabled in this process, or [`AtraceTag::NotReady`] while
/// [`atrace_set_tracing_enabled`]`(false)` holds.
pub fn atrace_get_enabled_tags() -> AtraceTag {
    refresh::tags()
}

/// Tells whether one of the tags is enabled: ask before work that only a trace needs.
///
/// The functions that write events ask by themselves.
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
        Some(glance) => way::enabled(glance, tag).is_some(),
    }
}

/// Disables tracing in this process, whatever the properties say, or has it follow them again.
///
/// Zygote disables itself so; a child forked meanwhile inherits the state.
pub fn atrace_set_tracing_enabled(enabled: bool) {
    refresh::set_enabled(enabled);
    crate::watch::tags_may_have_changed();
}

/// Reads the properties and the name of the process again, and looks whether the marker is still open.
///
/// Needed only after a change of `debug.atrace.app_*` that was not followed by setting
/// `debug.atrace.tags.enableflags` (as in libcutils, that one alone is watched), and when the process was renamed.
pub fn atrace_update_tags() {
    refresh::update();
    crate::watch::tags_may_have_changed();
}

/// [`emit`] with a name that is to be written.
#[inline(always)]
fn emit_with(
    glance: Glance,
    tag: AtraceTag,
    kind: Kind,
    track: Option<&str>,
    name: impl FnOnce(&mut NameWriter<'_>),
) -> Option<Written> {
    way::enabled(glance, tag)?.write(tag, kind, track, Some(name))
}

/// Defines the three forms of an event with a name: `&str`, `format_args!`, closure.
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

        #[doc = concat!("[`", stringify!($name), "`] with a name from `format_args!`, formatted into the message.")]
        ///
        /// A value whose formatting panics leaves `<panicked>` in its place (where panics unwind).
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

        #[doc = concat!("[`", stringify!($name), "`] with a name that a closure writes, called only when the tag is on.")]
        ///
        /// A panic of the closure is the program's own: it passes through, and nothing is written.
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
    /// Begins a slice named `name` on the calling thread, until the matching [`atrace_end`] on it.
    ///
    /// Writes `B|pid|name`. Slices of a thread nest. Prefer
    /// [`begin_scoped_event`](crate::begin_scoped_event), which can't lose its end.
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

/// Ends the slice of the calling thread that was begun last.
///
/// Writes `E|pid`. Give it the tag of the matching [`atrace_begin`].
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
    /// Begins an async slice, which may overlap others and end on any thread.
    ///
    /// Writes `S|pid|name|cookie`. The end must have the same name and cookie. Async slices of one name that
    /// are open at once need different cookies within the process, or the reader makes one slice of them.
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
    /// Begins an async slice on a row of its own, named `track_name`.
    ///
    /// Writes `G|pid|track_name|name|cookie`. The end must have the same track and cookie; the cookie must be
    /// unique on the track among the slices that are open at once. Of thousands of async names each makes a
    /// row; on a track they share one.
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
    /// Marks a moment on the row named `track_name`.
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
    /// Writes `C|pid|name|value`. Perfetto keeps counters as doubles: beyond 2^53 the last digits go.
    atrace_int64, atrace_int64_fmt, atrace_int64_with, "atrace_int64_body",
    Kind::Int64, (), (value: i64)
}

/// Sets the counter named `name` to a `value` with a fraction, which Perfetto's service gets as it is.
///
/// By ATrace, `C|pid|name|value` has it rounded; there NaN and what is infinite are dropped.
#[inline(always)]
pub fn atrace_f64(tag: AtraceTag, name: &str, value: f64) {
    #[inline(never)]
    fn on(glance: Glance, tag: AtraceTag, name: &str, value: f64) {
        if let Some(way) = way::enabled(glance, tag) {
            way.write_f64(tag, name, value);
        }
    }
    if let Some(glance) = gate::glance(tag) {
        on(glance, tag, name, value);
    }
}

/// A slice of the calling thread that knows whether its begin was written.
///
/// For code that keeps its own account of what is open, such as a `tracing` subscriber; others want
/// [`ScopedEvent`](crate::ScopedEvent), which ends by itself. Dropping a `Slice` ends nothing.
///
/// It is neither `Send` nor `Sync`: an end closes the slice of the thread that writes it.
///
/// ```compile_fail,E0277
/// fn is_send<T: Send>() {}
/// is_send::<atrace::Slice>();
/// ```
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct Slice {
    began: Option<Began>,
    _not_send: PhantomData<*const ()>,
}

impl Slice {
    /// A slice whose begin was not written.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { began: None, _not_send: PhantomData }
    }

    /// A slice that went this way.
    #[inline(always)]
    pub(crate) fn by(written: Option<Written>, tag: AtraceTag) -> Self {
        Self { began: written.and_then(|written| Began::now(written, tag)), _not_send: PhantomData }
    }

    /// Begins a slice, as [`atrace_begin`].
    #[inline(always)]
    pub fn begin(tag: AtraceTag, name: &str) -> Self {
        #[inline(never)]
        fn on(glance: Glance, tag: AtraceTag, name: &str) -> Slice {
            let write = Some(|writer: &mut NameWriter<'_>| writer.push_str(name));
            Slice::by(emit(glance, tag, Kind::Begin, None, Some(name), write), tag)
        }
        gate::glance(tag).map_or(Self::none(), |glance| on(glance, tag, name))
    }

    /// Begins a slice, as [`atrace_begin_with`].
    #[inline(always)]
    pub fn begin_with(tag: AtraceTag, name: impl FnOnce(&mut NameWriter<'_>)) -> Self {
        gate::glance(tag)
            .map_or(Self::none(), |glance| Self::by(emit_with(glance, tag, Kind::Begin, None, name), tag))
    }

    /// Tells whether the begin was written. By Perfetto's way also where it was [lost](crate::perfetto::Status::lost), as its
    /// memory was full: its end is then lost, too.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        self.began.is_some()
    }

    /// Writes the end if the begin was written, by this process; whatever is enabled by now.
    #[inline(always)]
    pub fn end(self) {
        if let Some(began) = self.began {
            end_slice(began);
        }
    }

    /// [`end`](Self::end), with encoded arguments of its callsite where it went Perfetto's way.
    #[doc(hidden)]
    pub fn __end_with(self, site: Site<'_>, args: &[u8]) {
        match self.began.and_then(Began::ends) {
            Some(Ends::ByPerfetto { tags }) => {
                producer::write(&Event { site: Some(site), args, ..Event::new(Type::End, tags) });
            }
            _ => self.end(),
        }
    }
}

#[inline(never)]
fn end_slice(began: Began) {
    match began.ends() {
        Some(Ends::ByAtrace) => way::end_by_sink(),
        Some(Ends::ByPerfetto { tags }) => producer::end(tags),
        None => {}
    }
}

/// An async slice on a named track that knows whether its begin was written: the [`Slice`] of a track.
///
/// It may end on any thread. Dropping it ends nothing.
#[derive(Debug)]
#[must_use = "the slice stays open until `end` is called"]
pub struct TrackSlice {
    by: Option<Generation>,
    /// The tags, where it went Perfetto's way, and how many sessions had begun by then.
    tags: AtraceTag,
    begun: u32,
}

impl TrackSlice {
    /// A slice whose begin was not written.
    #[inline(always)]
    pub const fn none() -> Self {
        Self { by: None, tags: AtraceTag::Never, begun: 0 }
    }

    /// Begins a slice, as [`atrace_async_for_track_begin_with`].
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

    /// [`begin_with`](Self::begin_with) of a name that is there, with less code.
    #[doc(hidden)]
    #[inline(never)]
    pub fn __begin_named(tag: AtraceTag, track_name: &str, name: &str, cookie: i32) -> Self {
        let Some(glance) = gate::glance(tag) else { return Self::none() };
        let kind = Kind::TrackBegin(cookie.into());
        let way = way::enabled(glance, tag);
        Self::by(way.and_then(|way| way.write_str(tag, kind, Some(track_name), Some(name))), tag)
    }

    /// One that went this way. Sessions are counted once its begin is written: one that began meanwhile may see an end without
    /// a begin, but never a begin without its end.
    #[inline]
    pub(crate) fn by(written: Option<Written>, tag: AtraceTag) -> Self {
        written.map_or(Self::none(), |written| {
            let tags = if written == Written::ByPerfetto { tag } else { AtraceTag::Never };
            Self { by: Some(generation()), tags, begun: way::sessions_begun() }
        })
    }

    /// [`end`](Self::end), with encoded arguments of its callsite where it went Perfetto's way.
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

    /// Whether it went Perfetto's way.
    #[doc(hidden)]
    pub fn __is_perfettos(&self) -> bool {
        !self.tags.is_empty()
    }

    /// Tells whether the begin was written.
    #[inline(always)]
    pub fn is_written(&self) -> bool {
        self.by.is_some()
    }

    /// Writes the end if the begin was written, by this process; whatever is enabled by now. Takes the track
    /// and the cookie of the begin.
    #[inline]
    pub fn end(self, track_name: &str, cookie: i32) {
        if let Some(by) = self.by
            && by == generation()
        {
            way::end_track(self.tags, self.begun, track_name, cookie);
        }
    }
}

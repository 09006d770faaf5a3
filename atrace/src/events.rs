//! The functions that write events: slices, async slices, instants and counters.
//!
//! Each function checks the gate first, inlined into its caller. If the gate says "off", the function calls nothing.
//! Otherwise it passes the gate's result to [`emit`] (`backend.rs`). [`emit`] determines whether the tag is enabled
//! and, if so, writes the event by the backend of the tag.

use crate::args::{Arg, Args};
use crate::attach::attach;
use crate::backend::{self, emit};
use crate::event::Event;
use crate::gate::{self, Glance};
use crate::message::Kind;
use crate::name::EventName;
use crate::{AtraceTag, refresh};

/// Reads the properties now, instead of at the first event. Also tries again to open the backend, if opening failed for
/// a temporary reason when the library was loaded.
///
/// On a host, this function also lets `atrace record` find the process. If a Perfetto service runs, this function
/// connects to the service as [`connect`](crate::perfetto::connect) does. Otherwise a thread sleeps until the same user
/// begins a recording, and then connects within a second. The thread does not poll, and no code of the program runs on
/// it. A service that is started in another way is found only when a property of the store changes next, for example at
/// the next recording;
/// [`connect`](crate::perfetto::connect) polls for a service instead. The process is not found if it has elevated rights
/// (`AT_SECURE`), or if the variable `ATRACE_BACKEND` or `ATRACE_MARKER` has a value.
///
/// This function waits until the thread has tried to connect, so that the program may confine itself after the call. This
/// takes some 100 µs; on a busy machine it takes until the thread is scheduled, for at most 5 s.
///
/// A call of this function is optional. It may allocate and start a thread, so a signal handler must not call
/// it.
#[doc(alias = "atrace_setup")]
pub fn atrace_init() {
    attach();
    atrace_get_enabled_tags();
}

/// Returns the tags that are enabled in this process, for ATrace or in a session of Perfetto. Returns
/// [`AtraceTag::NotReady`] after [`atrace_set_tracing_enabled`]`(false)`.
pub fn atrace_get_enabled_tags() -> AtraceTag {
    refresh::tags()
}

/// Returns whether at least one of the tags in `tag` is enabled. Call this before work that is done only for
/// a trace.
///
/// The functions that write events check their tag themselves.
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

/// Disables tracing in this process, whatever the properties say, or makes the process follow the properties
/// again.
///
/// Android's zygote disables its own tracing with libcutils' function of this name. A forked child inherits whether
/// tracing is disabled.
pub fn atrace_set_tracing_enabled(enabled: bool) {
    refresh::set_enabled(enabled);
    crate::watch::tags_may_have_changed();
}

/// Reads the properties and the name of the process again, and checks whether the marker is still open.
///
/// A call is needed if the process was renamed, or if a property `debug.atrace.app_*` was changed and
/// `debug.atrace.tags.enableflags` was not set after it. As in libcutils, an event notices only that
/// `debug.atrace.tags.enableflags` was set. ([Descriptors](crate#descriptors) and [Confinement](crate#confinement) name
/// two other cases.)
pub fn atrace_update_tags() {
    refresh::update();
    crate::watch::tags_may_have_changed();
}

/// Defines a function that writes an event. The function checks the gate, which is inlined into the function's
/// caller; the code that writes the event is not inlined.
///
/// The arguments of an event come after a semicolon. The function for events without arguments is compiled apart.
macro_rules! event {
    (
        $(#[$doc:meta])*
        fn $function:ident($($argument:ident: $type:ty),*) => $event:expr
    ) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $function(tag: AtraceTag, $($argument: $type),*) {
            #[inline(never)]
            fn on(glance: Glance, tag: AtraceTag, $($argument: $type),*) {
                emit(glance, tag, $event);
            }
            if let Some(glance) = gate::glance(tag) {
                on(glance, tag, $($argument),*);
            }
        }
    };
    (
        $(#[$doc:meta])*
        fn $function:ident($($argument:ident: $type:ty),*; $args:ident) => $event:expr
    ) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $function(tag: AtraceTag, $($argument: $type,)* $args: &[Arg<'_>]) {
            #[inline(never)]
            fn on(glance: Glance, tag: AtraceTag, $($argument: $type,)* $args: impl Args) {
                emit(glance, tag, $event);
            }
            match gate::glance(tag) {
                None => {}
                Some(glance) if $args.is_empty() => on(glance, tag, $($argument,)* ()),
                Some(glance) => on(glance, tag, $($argument,)* $args),
            }
        }
    };
}

event! {
    /// Begins a slice named `name` on the calling thread. The matching [`atrace_end`] on this thread ends the
    /// slice.
    ///
    /// The message for ATrace is `B|pid|name`. Slices of a thread nest. Prefer
    /// [`begin_scoped_event`](crate::begin_scoped_event), whose value ends the slice when it is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace::{AtraceTag, atrace_begin, atrace_end};
    ///
    /// atrace_begin(AtraceTag::App, "decode");
    /// atrace_end(AtraceTag::App);
    /// ```
    #[doc(alias = "atrace_begin_body")]
    fn atrace_begin(name: &str) => Event::new(Kind::Begin, name)
}

event! {
    /// Begins a slice as [`atrace_begin`] does, with arguments and a name of any type.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace::{Arg, AtraceTag, atrace_begin_args, atrace_end};
    ///
    /// atrace_begin_args(AtraceTag::App, "decode", &[Arg::Int("block", 7), Arg::Str("codec", "raw")]);
    /// atrace_begin_args(AtraceTag::App, format_args!("block {}", 7), &[]);
    /// atrace_end(AtraceTag::App);
    /// atrace_end(AtraceTag::App);
    /// ```
    fn atrace_begin_args(name: impl EventName; args) => Event::new(Kind::Begin, name).with(args.get())
}

event! {
    /// Ends the youngest open slice of the calling thread.
    ///
    /// The message for ATrace is `E|pid`. Pass the tag of the matching [`atrace_begin`].
    #[doc(alias = "atrace_end_body")]
    fn atrace_end() => Event::END
}

event! {
    /// Begins an async slice, which may overlap other slices and end on any thread.
    ///
    /// The message for ATrace is `S|pid|name|cookie`. The end must have the same name and cookie. If several async
    /// slices of the process have the same name and are open at the same time, their cookies must differ; otherwise a
    /// reader of the trace takes them for one slice.
    #[doc(alias = "atrace_async_begin_body")]
    fn atrace_async_begin(name: &str, cookie: i32) =>
        Event::new(Kind::AsyncBegin(cookie.into()), name)
}

event! {
    /// Begins an async slice as [`atrace_async_begin`] does, with a name of any type.
    fn atrace_async_begin_named(name: impl EventName, cookie: i32) =>
        Event::new(Kind::AsyncBegin(cookie.into()), name)
}

event! {
    /// Ends the async slice with this name and cookie.
    ///
    /// The message for ATrace is `F|pid|name|cookie`.
    #[doc(alias = "atrace_async_end_body")]
    fn atrace_async_end(name: &str, cookie: i32) =>
        Event::new(Kind::AsyncEnd(cookie.into()), name)
}

event! {
    /// Ends an async slice as [`atrace_async_end`] does, with a name of any type. The name must have the same text as
    /// the name of the begin.
    fn atrace_async_end_named(name: impl EventName, cookie: i32) =>
        Event::new(Kind::AsyncEnd(cookie.into()), name)
}

event! {
    /// Begins an async slice on the track named `track_name`.
    ///
    /// The message for ATrace is `G|pid|track_name|name|cookie`. The end must have the same track and cookie. The
    /// cookie must be unique among the slices that are open on the track. A viewer shows each track as a row. Async
    /// slices without a track share one row for each name.
    #[doc(alias = "atrace_async_for_track_begin_body")]
    fn atrace_async_for_track_begin(track_name: &str, name: &str, cookie: i32) =>
        Event::new(Kind::TrackBegin(cookie.into()), name).on(track_name)
}

event! {
    /// Begins an async slice on a track as [`atrace_async_for_track_begin`] does, with arguments and a name of any
    /// type.
    fn atrace_async_for_track_begin_args(
        track_name: &str, name: impl EventName, cookie: i32; args
    ) => Event::new(Kind::TrackBegin(cookie.into()), name).on(track_name).with(args.get())
}

event! {
    /// Ends the async slice on this track with this cookie.
    ///
    /// The message for ATrace is `H|pid|track_name|cookie`.
    #[doc(alias = "atrace_async_for_track_end_body")]
    fn atrace_async_for_track_end(track_name: &str, cookie: i32) =>
        Event::of(Kind::TrackEnd(cookie.into())).on(track_name)
}

event! {
    /// Marks a moment on the calling thread.
    ///
    /// The message for ATrace is `I|pid|name`.
    #[doc(alias = "atrace_instant_body")]
    fn atrace_instant(name: &str) => Event::new(Kind::Instant, name)
}

event! {
    /// Marks a moment as [`atrace_instant`] does, with arguments and a name of any type.
    fn atrace_instant_args(name: impl EventName; args) => Event::new(Kind::Instant, name).with(args.get())
}

event! {
    /// Marks a moment on the track named `track_name`.
    ///
    /// The message for ATrace is `N|pid|track_name|name`.
    #[doc(alias = "atrace_instant_for_track_body")]
    fn atrace_instant_for_track(track_name: &str, name: &str) =>
        Event::new(Kind::TrackInstant, name).on(track_name)
}

event! {
    /// Marks a moment on a track as [`atrace_instant_for_track`] does, with arguments and a name of any type.
    fn atrace_instant_for_track_args(track_name: &str, name: impl EventName; args) =>
        Event::new(Kind::TrackInstant, name).on(track_name).with(args.get())
}

event! {
    /// Sets the counter named `name` to `value`.
    ///
    /// The message for ATrace is `C|pid|name|value`.
    #[doc(alias = "atrace_int_body")]
    fn atrace_int(name: &str, value: i32) => Event::new(Kind::Int(value.into()), name)
}

event! {
    /// Sets the counter named `name` to a 64-bit `value`.
    ///
    /// The message for ATrace is `C|pid|name|value`. Perfetto stores counters as doubles, so values beyond 2^53 are
    /// rounded.
    #[doc(alias = "atrace_int64_body")]
    fn atrace_int64(name: &str, value: i64) => Event::new(Kind::Int64(value), name)
}

event! {
    /// Sets a counter as [`atrace_int64`] does, with a name of any type.
    fn atrace_counter(name: impl EventName, value: i64) => Event::new(Kind::Int64(value), name)
}

event! {
    /// Sets the counter named `name` to a floating-point `value`.
    ///
    /// Perfetto gets the value unchanged. For ATrace it is rounded to an integer and written as `C|pid|name|value`; NaN and
    /// infinities are dropped.
    fn atrace_f64(name: &str, value: f64) => Event::new(Kind::Float(value.to_bits()), name)
}

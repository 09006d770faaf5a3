//! The functions that write events: slices, async slices, instants and counters.
//!
//! Each function passes the parts of its event to [`emit`] (`backend.rs`). [`emit`] first checks, by code that is
//! inlined into the function's caller, whether the tag may be enabled (the *gate*, `gate/mod.rs`). If not, it calls no
//! function. Otherwise it determines whether the tag is enabled and, if so, writes the event by the tag's backend.

use crate::args::Arg;
use crate::attach::attach;
use crate::backend::{self, emit};
use crate::gate;
use crate::message::Kind;
use crate::name::EventName;
use crate::{AtraceTag, refresh};

/// Reads the properties now, instead of at the first event. Also tries again to open the backend, if opening failed for
/// a temporary reason when the library was loaded.
///
/// On a Linux host (not on Android), this function also lets `atrace record` find the process. If a Perfetto service
/// runs, this function connects to the service as [`connect`](crate::perfetto::connect) does. Otherwise a thread sleeps
/// until the same user begins a recording, and then connects within a second. The thread does not poll, and no code of
/// the program runs on it. A service that `atrace record` did not start is found only when a property of the user's
/// store changes next, for example at the next recording. In contrast, [`connect`](crate::perfetto::connect) polls for
/// a service. The process is not found if it has elevated rights (`AT_SECURE`), or if the variable `ATRACE_BACKEND` or
/// `ATRACE_MARKER` has a value.
///
/// This function waits until the thread has tried to connect, so that the program may give up system calls (seccomp)
/// after the call. The wait takes some 100 µs. On a busy machine it lasts until the thread is scheduled, but at most 5
/// s.
///
/// A call of this function is optional. It may allocate and start a thread, so a signal handler must not call
/// it.
#[doc(alias = "atrace_setup")]
pub fn atrace_init() {
    attach();
    atrace_get_enabled_tags();
}

/// Returns the tags that are enabled in this process, for ATrace or in a session of Perfetto. As long as the process
/// does not know which sessions exist, all tags count as enabled. Returns [`AtraceTag::NotReady`] after
/// [`atrace_set_tracing_enabled`]`(false)`.
pub fn atrace_get_enabled_tags() -> AtraceTag {
    refresh::tags()
}

/// Returns whether at least one of the tags in `tag` is enabled. Call this before work that is done only for
/// a trace.
///
/// As long as the process does not know which sessions of Perfetto exist, all tags count as enabled. Like the first
/// event of a process, the first call may connect to Perfetto's service and wait for its answer.
///
/// The functions that write events make this check themselves.
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
    match gate::check(tag) {
        None => false,
        Some(check) => backend::is_enabled(check, tag),
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
/// A call is needed if the process was renamed, or if a property `debug.atrace.app_*` or `debug.atrace.prefer_sdk` was
/// changed and `debug.atrace.tags.enableflags` was not set after it. As in libcutils, an event notices a change of the
/// properties only if `debug.atrace.tags.enableflags` was set. ([Descriptors](crate#descriptors) and
/// [Confinement](crate#confinement) describe two other cases in which a call is needed.)
pub fn atrace_update_tags() {
    refresh::update();
    crate::watch::tags_may_have_changed();
}

/// Begins a slice named `name` on the calling thread. The matching [`atrace_end`] on this thread ends the
/// slice.
///
/// The message for ATrace is `B|pid|name`. Slices of a thread nest. Prefer
/// [`begin_scoped_event`](crate::begin_scoped_event), which returns a guard that ends the slice.
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
#[inline(always)]
pub fn atrace_begin(tag: AtraceTag, name: &str) {
    emit(tag, (), name, || Kind::Begin, ())
}

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
#[inline(always)]
pub fn atrace_begin_args(tag: AtraceTag, name: impl EventName, args: &[Arg<'_>]) {
    emit(tag, (), name, || Kind::Begin, args)
}

/// Ends the youngest open slice of the calling thread.
///
/// The message for ATrace is `E|pid`. Pass the tag of the matching [`atrace_begin`].
#[doc(alias = "atrace_end_body")]
#[inline(always)]
pub fn atrace_end(tag: AtraceTag) {
    emit(tag, (), (), || Kind::End, ())
}

/// Begins an async slice, which may overlap other slices and end on any thread.
///
/// The message for ATrace is `S|pid|name|cookie`. The end must have the same name and cookie. If several async
/// slices of the process have the same name and are open at the same time, their cookies must differ; otherwise a
/// reader of the trace takes them for one slice.
#[doc(alias = "atrace_async_begin_body")]
#[inline(always)]
pub fn atrace_async_begin(tag: AtraceTag, name: &str, cookie: i32) {
    emit(tag, (), name, move || Kind::AsyncBegin(cookie.into()), ())
}

/// Begins an async slice as [`atrace_async_begin`] does, with a name of any type.
#[inline(always)]
pub fn atrace_async_begin_named(tag: AtraceTag, name: impl EventName, cookie: i32) {
    emit(tag, (), name, move || Kind::AsyncBegin(cookie.into()), ())
}

/// Ends the async slice with this name and cookie.
///
/// The message for ATrace is `F|pid|name|cookie`.
#[doc(alias = "atrace_async_end_body")]
#[inline(always)]
pub fn atrace_async_end(tag: AtraceTag, name: &str, cookie: i32) {
    emit(tag, (), name, move || Kind::AsyncEnd(cookie.into()), ())
}

/// Ends an async slice as [`atrace_async_end`] does, with a name of any type. The name must have the same text as
/// the name of the begin.
#[inline(always)]
pub fn atrace_async_end_named(tag: AtraceTag, name: impl EventName, cookie: i32) {
    emit(tag, (), name, move || Kind::AsyncEnd(cookie.into()), ())
}

/// Begins an async slice on the track named `track_name`.
///
/// The message for ATrace is `G|pid|track_name|name|cookie`. The end must have the same track and cookie. The cookie
/// must be unique among the slices that are open on the track. A viewer shows each track as a row. It shows async
/// slices without a track in one row for each name.
#[doc(alias = "atrace_async_for_track_begin_body")]
#[inline(always)]
pub fn atrace_async_for_track_begin(tag: AtraceTag, track_name: &str, name: &str, cookie: i32) {
    emit(tag, track_name, name, move || Kind::TrackBegin(cookie.into()), ())
}

/// Begins an async slice on a track as [`atrace_async_for_track_begin`] does, with arguments and a name of any
/// type.
#[inline(always)]
pub fn atrace_async_for_track_begin_args(
    tag: AtraceTag,
    track_name: &str,
    name: impl EventName,
    cookie: i32,
    args: &[Arg<'_>],
) {
    emit(tag, track_name, name, move || Kind::TrackBegin(cookie.into()), args)
}

/// Ends the async slice on this track with this cookie.
///
/// The message for ATrace is `H|pid|track_name|cookie`.
#[doc(alias = "atrace_async_for_track_end_body")]
#[inline(always)]
pub fn atrace_async_for_track_end(tag: AtraceTag, track_name: &str, cookie: i32) {
    emit(tag, track_name, (), move || Kind::TrackEnd(cookie.into()), ())
}

/// Marks a moment on the calling thread.
///
/// The message for ATrace is `I|pid|name`.
#[doc(alias = "atrace_instant_body")]
#[inline(always)]
pub fn atrace_instant(tag: AtraceTag, name: &str) {
    emit(tag, (), name, || Kind::Instant, ())
}

/// Marks a moment as [`atrace_instant`] does, with arguments and a name of any type.
#[inline(always)]
pub fn atrace_instant_args(tag: AtraceTag, name: impl EventName, args: &[Arg<'_>]) {
    emit(tag, (), name, || Kind::Instant, args)
}

/// Marks a moment on the track named `track_name`.
///
/// The message for ATrace is `N|pid|track_name|name`.
#[doc(alias = "atrace_instant_for_track_body")]
#[inline(always)]
pub fn atrace_instant_for_track(tag: AtraceTag, track_name: &str, name: &str) {
    emit(tag, track_name, name, || Kind::TrackInstant, ())
}

/// Marks a moment on a track as [`atrace_instant_for_track`] does, with arguments and a name of any type.
#[inline(always)]
pub fn atrace_instant_for_track_args(
    tag: AtraceTag,
    track_name: &str,
    name: impl EventName,
    args: &[Arg<'_>],
) {
    emit(tag, track_name, name, || Kind::TrackInstant, args)
}

/// Sets the counter named `name` to `value`.
///
/// The message for ATrace is `C|pid|name|value`.
#[doc(alias = "atrace_int_body")]
#[inline(always)]
pub fn atrace_int(tag: AtraceTag, name: &str, value: i32) {
    emit(tag, (), name, move || Kind::Int(value.into()), ())
}

/// Sets the counter named `name` to a 64-bit `value`.
///
/// The message for ATrace is `C|pid|name|value`. Perfetto stores counters as doubles, so values beyond 2^53 are
/// rounded.
#[doc(alias = "atrace_int64_body")]
#[inline(always)]
pub fn atrace_int64(tag: AtraceTag, name: &str, value: i64) {
    emit(tag, (), name, move || Kind::Int64(value), ())
}

/// Sets a counter as [`atrace_int64`] does, with a name of any type.
#[inline(always)]
pub fn atrace_counter(tag: AtraceTag, name: impl EventName, value: i64) {
    emit(tag, (), name, move || Kind::Int64(value), ())
}

/// Sets the counter named `name` to a floating-point `value`.
///
/// Perfetto gets the value unchanged. For ATrace the value is rounded to an integer and written as `C|pid|name|value`;
/// a counter event with NaN or an infinity is dropped.
#[inline(always)]
pub fn atrace_f64(tag: AtraceTag, name: &str, value: f64) {
    emit(tag, (), name, move || Kind::Float(value.to_bits()), ())
}

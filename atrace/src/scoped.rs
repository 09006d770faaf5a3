//! Slices that end at the end of a scope.

use crate::AtraceTag;
use crate::args::Arg;
use crate::backend::{self, Outcome, emit};
use crate::event::Event;
use crate::gate;
use crate::message::Kind;
use crate::name::{EventName, Name};
use crate::producer::Written;
use crate::slice::Slice;

/// A guard that ends its slice when it is dropped.
///
/// The guard writes the end if and only if the begin was written. So each begin in the trace has its end, even if
/// tracing is switched between them. (libandroid omits the end if tracing was switched off.) In a forked child the guard writes nothing, because the slice belongs to the
/// parent.
///
/// The guard can't be sent to another thread, because an end closes the youngest slice of the thread that
/// writes it:
///
/// ```compile_fail,E0277
/// use atrace::{AtraceTag, begin_scoped_event};
///
/// let event = begin_scoped_event(AtraceTag::App, "here");
/// std::thread::spawn(move || drop(event));
/// ```
///
/// If the guard is passed to `mem::forget`, the end is never written.
#[derive(Debug)]
#[must_use = "the event ends when this is dropped"]
pub struct ScopedEvent {
    slice: Option<Slice>,
}

impl Outcome for ScopedEvent {
    #[inline(always)]
    fn of(written: Option<Written>, tag: AtraceTag) -> Self {
        Self { slice: Outcome::of(written, tag) }
    }
}

impl Drop for ScopedEvent {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(slice) = self.slice.take() {
            slice.end(None);
        }
    }
}

/// Begins a slice named `name` that ends when the returned guard is dropped.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, begin_scoped_event};
///
/// let _event = begin_scoped_event(AtraceTag::App, "load");
/// // Events of this thread are now inside the slice "load".
/// ```
#[inline(always)]
pub fn begin_scoped_event(tag: AtraceTag, name: &str) -> ScopedEvent {
    emit(tag, (), name, || Kind::Begin, ())
}

/// Begins a slice as [`begin_scoped_event`] does, with arguments and a name of any type.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, begin_scoped_event_args};
///
/// let _event = begin_scoped_event_args(AtraceTag::App, "load", &[Arg::Str("path", "/tmp/image")]);
/// // Events of this thread are now inside the slice "load".
/// ```
#[inline(always)]
pub fn begin_scoped_event_args(tag: AtraceTag, name: impl EventName, args: &[Arg<'_>]) -> ScopedEvent {
    emit(tag, (), name, || Kind::Begin, args)
}

/// Begins a slice whose name has the identity of the constant `name`, and the text that `text` returns. Only the macros
/// of this crate call this. It costs fewer instructions than [`emit`], because the compiler knows the text in the caller.
#[inline(always)]
pub(crate) fn begin_scoped_event_at(
    tag: AtraceTag,
    name: &Name,
    text: impl FnOnce() -> &'static str,
) -> ScopedEvent {
    let begin = |check| {
        let event = Event::new(Kind::Begin, name.with_text(text()));
        Outcome::of(backend::enabled(check, tag, false)?.write(tag, event), tag)
    };
    ScopedEvent { slice: gate::check(tag).and_then(begin) }
}

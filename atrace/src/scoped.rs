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
/// tracing is switched between them. (Exception: libandroid omits the end if tracing was switched off.) In a forked
/// child the guard writes nothing, because the slice belongs to the parent.
///
/// The guard can't be sent to another thread, because an end closes the youngest slice of the thread that writes the
/// end:
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

/// Begins a slice that is named by the path of a function, and that ends when the guard is dropped. Only the macros of
/// this crate call this function. `callsite` identifies the name; the text of `callsite` is not used. `marker` is an
/// item with the name `here` that is defined in the body of the function to trace. This takes fewer instructions than
/// [`emit`], because the compiler knows the path in the caller.
#[doc(hidden)]
#[inline(always)]
pub fn begin_scoped_event_at<T>(tag: AtraceTag, callsite: &'static Name, marker: &T) -> ScopedEvent {
    let begin = |check| {
        let event = Event::new(Kind::Begin, callsite.with_text(path_of(marker)));
        Outcome::of(backend::enabled(check, tag, false)?.write(tag, event), tag)
    };
    ScopedEvent { slice: gate::check(tag).and_then(begin) }
}

/// Returns the path of a function without the `here` at its end, nor the closures and `async` blocks around `here`.
#[inline]
fn path_of<T>(_marker: &T) -> &'static str {
    let path = std::any::type_name::<T>();
    // The compiler knows the text, so it can compute the result.
    let mut path = path.strip_suffix("::here").unwrap_or(path);
    while let Some(outer) = path.strip_suffix("::{{closure}}") {
        path = outer;
    }
    path
}

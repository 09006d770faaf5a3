//! Slices that end at the end of a scope.

use std::fmt;

use crate::message::NameWriter;
use crate::{AtraceTag, Slice};

/// A guard that ends its slice when it is dropped.
///
/// It writes the end if and only if the begin was written. So the trace stays balanced even if tracing is switched in
/// between. In a forked child it writes nothing, because the slice belongs to the parent.
///
/// It can't be sent to another thread, because slices nest on their thread:
///
/// ```compile_fail,E0277
/// use atrace::{AtraceTag, begin_scoped_event};
///
/// let event = begin_scoped_event(AtraceTag::App, "here");
/// std::thread::spawn(move || drop(event));
/// ```
///
/// `mem::forget` of a guard loses the end.
#[derive(Debug)]
#[must_use = "the event ends when this is dropped"]
pub struct ScopedEvent {
    slice: Slice,
}

impl ScopedEvent {
    #[inline(always)]
    pub(crate) const fn of(slice: Slice) -> Self {
        Self { slice }
    }
}

impl Drop for ScopedEvent {
    #[inline(always)]
    fn drop(&mut self) {
        std::mem::replace(&mut self.slice, Slice::none()).end();
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
    ScopedEvent { slice: Slice::begin(tag, name) }
}

/// Does the same as [`begin_scoped_event`], with a name from `format_args!`, which is formatted only if the tag is enabled.
#[inline(always)]
pub fn begin_scoped_event_fmt(tag: AtraceTag, name: fmt::Arguments<'_>) -> ScopedEvent {
    begin_scoped_event_with(tag, |writer| writer.push_fmt(name))
}

/// Does the same as [`begin_scoped_event`], with a name that a closure writes. The closure is called only if the tag is
/// enabled.
#[inline(always)]
pub fn begin_scoped_event_with(tag: AtraceTag, name: impl FnOnce(&mut NameWriter<'_>)) -> ScopedEvent {
    ScopedEvent { slice: Slice::begin_with(tag, name) }
}

//! Slices that end with a scope.

use std::fmt;

use crate::message::NameWriter;
use crate::{AtraceTag, Slice};

/// A slice that ends when this is dropped.
///
/// It writes its end exactly when its begin was written: tracing may be switched on or off in between, the
/// trace stays balanced. In a forked child it writes nothing, the slice being its parent's.
///
/// It can't leave its thread, whose slices nest:
///
/// ```compile_fail,E0277
/// use atrace::{AtraceTag, begin_scoped_event};
///
/// let event = begin_scoped_event(AtraceTag::App, "here");
/// std::thread::spawn(move || drop(event));
/// ```
///
/// `mem::forget` of one loses the end.
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
/// // What happens here is within "load".
/// ```
#[inline(always)]
pub fn begin_scoped_event(tag: AtraceTag, name: &str) -> ScopedEvent {
    ScopedEvent { slice: Slice::begin(tag, name) }
}

/// [`begin_scoped_event`] with a name from `format_args!`, formatted only when the tag is on.
#[inline(always)]
pub fn begin_scoped_event_fmt(tag: AtraceTag, name: fmt::Arguments<'_>) -> ScopedEvent {
    begin_scoped_event_with(tag, |writer| writer.push_fmt(name))
}

/// [`begin_scoped_event`] with a name that a closure writes, called only when the tag is on.
#[inline(always)]
pub fn begin_scoped_event_with(tag: AtraceTag, name: impl FnOnce(&mut NameWriter<'_>)) -> ScopedEvent {
    ScopedEvent { slice: Slice::begin_with(tag, name) }
}

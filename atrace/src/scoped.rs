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

/// Traces the rest of the function (or block) as a slice named by its path, such as `my_crate::Type::method`.
///
/// Takes the tag. Costs nothing but the question while the tag is off; works under any name of this crate.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, trace_method};
///
/// fn decode() {
///     trace_method!(AtraceTag::App);
///     // …
/// }
/// # decode();
/// ```
#[macro_export]
macro_rules! trace_method {
    ($tag:expr $(,)?) => {
        let _atrace_scoped_event = {
            fn here() {}
            static NUMBER: $crate::__private::Number = $crate::__private::Number::new();
            $crate::__private::begin_scoped_event_at($tag, &NUMBER, || $crate::__private::path_of(&here))
        };
    };
}

/// Traces the rest of the function (or block) as a slice with this name, a constant, and arguments.
///
/// As [`begin_scoped_event_args`](crate::begin_scoped_event_args) with a [`Name`](crate::Name), which it keeps: Perfetto's
/// service is sent the name once.
///
/// # Examples
///
/// ```
/// use atrace::{Arg, AtraceTag, trace_name};
///
/// fn decode(block: u64) {
///     trace_name!(AtraceTag::App, "decode");
///     for row in 0..2 {
///         trace_name!(AtraceTag::App, "row", Arg::Uint("block", block), Arg::Int("row", row));
///         // …
///     }
/// }
/// # decode(7);
/// ```
#[doc(alias = "ATRACE_NAME")]
#[macro_export]
macro_rules! trace_name {
    ($tag:expr, $name:expr $(, $arg:expr)* $(,)?) => {
        let _atrace_scoped_event = {
            static NAME: $crate::Name = $crate::Name::new($name);
            $crate::begin_scoped_event_args($tag, &NAME, &[$($arg),*])
        };
    };
}

/// For the macros of this crate.
#[doc(hidden)]
pub mod private {
    pub use crate::callsite::Number;
    pub use crate::typed::begin_scoped_event_at;

    /// The path of the function in whose body the item `marker`, named `here`, is defined: without the item itself, nor the
    /// closures (of `async`, too) around it.
    #[inline]
    pub fn path_of<T>(_marker: &T) -> &'static str {
        let path = std::any::type_name::<T>();
        // Nothing is searched for: the compiler knows the text, and so what is left of it.
        let mut path = path.strip_suffix("::here").unwrap_or(path);
        while let Some(outer) = path.strip_suffix("::{{closure}}") {
            path = outer;
        }
        path
    }
}

//! Constant names, which Perfetto's service is sent once (they are *interned*).

use crate::producer::{Number, Site, hash};

/// A constant name. Perfetto's service is sent the name once per thread and some chunks of memory, and a number with each
/// event.
///
/// Define it as a `static`, and pass a reference to the functions that end in `_args` or to
/// [`atrace_int64_name`](crate::atrace_int64_name). [`trace_name!`](crate::trace_name) does this by itself. For ATrace it is
/// the same as its text.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, Name, atrace_begin_args, atrace_end};
///
/// static DECODE: Name = Name::new("decode");
///
/// atrace_begin_args(AtraceTag::App, &DECODE, &[]);
/// atrace_end(AtraceTag::App);
/// ```
#[derive(Debug)]
pub struct Name {
    pub(crate) text: &'static str,
    number: Number,
    /// The hash of the name, from which the number of a counter's track is made.
    pub(crate) hash: u64,
}

impl Name {
    /// Creates a name with this text.
    pub const fn new(text: &'static str) -> Self {
        Self { text, number: Number::new(), hash: hash::of_name(text) }
    }
}

/// The name of an event: a text or a [`Name`].
#[derive(Clone, Copy, Debug)]
pub struct EventName<'a> {
    pub(crate) text: &'a str,
    pub(crate) number: Option<&'a Number>,
}

impl<'a> EventName<'a> {
    /// Returns a constant name, which `number` identifies.
    #[inline(always)]
    pub(crate) const fn at(number: &'a Number, text: &'a str) -> Self {
        Self { text, number: Some(number) }
    }

    /// Returns the callsite of a constant name.
    #[inline(always)]
    pub(crate) fn site(self) -> Option<Site<'a>> {
        self.number.map(|number| Site::named(number, self.text))
    }
}

impl<'a> From<&'a str> for EventName<'a> {
    #[inline(always)]
    fn from(text: &'a str) -> Self {
        Self { text, number: None }
    }
}

impl From<&'static Name> for EventName<'static> {
    #[inline(always)]
    fn from(name: &'static Name) -> Self {
        Self::at(&name.number, name.text)
    }
}

//! Names of events: [`EventName`], and constant names, which are *interned*: each thread sends the text to Perfetto's
//! service once, and later usually only a number.

use std::fmt;

use crate::message::{Message, NameWriter, WriteName};
use crate::producer::{Number, hash};

pub(crate) use self::source::{Source, Text};

/// A constant name. Each thread sends the text to Perfetto's service once, and again only after many events. (The name
/// of a counter is sent as the name of its track. A thread remembers the names of up to eight tracks, or fewer if they
/// share a place in its table.) An event for Perfetto contains only a number that stands for the name. Async slices and
/// events on named tracks are exceptions if they have no arguments: they contain the text, and a session's option
/// `filter_dynamic_event_names` treats this text like a name that is not constant.
///
/// Define a `Name` as a `static`, and pass a reference to any function that takes an [`EventName`]. The macro
/// [`trace_name!`](crate::trace_name) defines such a static itself. Events for ATrace contain the whole text.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, Name, atrace_begin_args, atrace_counter, atrace_end};
///
/// static DECODE: Name = Name::new("decode");
/// static QUEUED: Name = Name::new("queued");
///
/// atrace_begin_args(AtraceTag::App, &DECODE, &[]);
/// atrace_counter(AtraceTag::App, &QUEUED, 7);
/// atrace_end(AtraceTag::App);
/// ```
#[derive(Debug)]
pub struct Name {
    text: &'static str,
    interned: Interned,
}

impl Name {
    /// Creates a name with this text.
    pub const fn new(text: &'static str) -> Self {
        Self { text, interned: Interned { number: Number::new(), hash: hash::of_name(text) } }
    }

    /// Returns a name that has the identity of this constant, and the text `text`: the constant's own text or, for a
    /// traced function, the function's path. All calls for the same constant must pass the same text.
    #[inline(always)]
    pub(crate) const fn with_text<'a>(&'a self, text: &'a str) -> Text<'a> {
        Text { text, interned: Some(&self.interned) }
    }
}

/// The identity of a constant name: the number of its callsite, and the hash of its text, from which the number of a
/// counter's track is computed.
#[derive(Debug)]
pub(crate) struct Interned {
    number: Number,
    hash: u64,
}

/// A name of an event. Nothing is formatted, and no closure is called, unless the tag is enabled.
///
/// | type | the name is |
/// |---|---|
/// | `&str`, `&String` | this text |
/// | `&'static` [`Name`] | a constant, which each thread sends to Perfetto's service only once in many events |
/// | [`fmt::Arguments`], from `format_args!` | formatted directly into the message. If formatting a value panics, `<panicked>` takes the place of the rest, and the program continues (where panics unwind) |
/// | a closure `FnOnce(&mut NameWriter<'_>)` | what the closure writes, piece by piece. If it panics, the panic goes on to the caller, and no event is written |
///
/// If a closure, or code that formats a value, forks the process, both processes write the event. In the child's
/// message to the marker, the process id is that of the parent.
///
/// # Examples
///
/// ```
/// use atrace::{AtraceTag, NameWriter, atrace_begin_args, atrace_end};
///
/// let block = 7;
/// atrace_begin_args(AtraceTag::App, format_args!("block {block}"), &[]);
/// atrace_end(AtraceTag::App);
/// atrace_begin_args(
///     AtraceTag::App,
///     |writer: &mut NameWriter<'_>| {
///         writer.push_str("block ");
///         writer.push_str(["odd", "even"][block % 2]);
///     },
///     &[],
/// );
/// atrace_end(AtraceTag::App);
/// ```
pub trait EventName: Source {}

impl<N: Source> EventName for N {}

mod source {
    use crate::message::WriteName;
    use crate::name::Interned;

    /// The operations that backends need on a name. Other crates have no access to this trait, so their types can't be
    /// names of events.
    pub trait Source: WriteName {
        /// Whether the name exists as text, so that it need not be formatted.
        const IS_TEXT: bool;

        /// Whether the name is a constant, so that an event may contain the name's number instead of its text.
        const IS_CONSTANT: bool = false;

        /// The buffer in which a name that must be formatted becomes a text. A name that exists as text needs no
        /// buffer, so its `Buffer` is `()`.
        type Buffer;

        /// Returns an empty buffer.
        fn buffer() -> Self::Buffer;

        /// Returns the name as text.
        fn text<'a>(self, buffer: &'a mut Self::Buffer) -> Text<'a>
        where
            Self: 'a;
    }

    /// A name that exists as text.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Text<'a> {
        pub(crate) text: &'a str,
        /// The identity of the name if it is a constant, otherwise `None`.
        pub(crate) interned: Option<&'a Interned>,
    }
}

impl<'a> Text<'a> {
    /// Returns a name that is not a constant.
    #[inline(always)]
    pub(crate) const fn new(text: &'a str) -> Self {
        Self { text, interned: None }
    }

    /// Returns the callsite number of a constant name, or `None` if the name is not a constant.
    #[inline]
    pub(crate) fn number(self) -> Option<&'a Number> {
        self.interned.map(|interned| &interned.number)
    }

    /// Returns the hash of the name.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.interned.map_or_else(|| hash::of_name(self.text), |interned| interned.hash)
    }
}

impl WriteName for Text<'_> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        writer.push_str(self.text);
    }
}

impl Source for Text<'_> {
    const IS_TEXT: bool = true;
    type Buffer = ();

    #[inline(always)]
    fn buffer() {}

    #[inline(always)]
    fn text<'a>(self, _: &'a mut ()) -> Text<'a>
    where
        Self: 'a,
    {
        self
    }
}

impl Source for &str {
    const IS_TEXT: bool = true;
    type Buffer = ();

    #[inline(always)]
    fn buffer() {}

    #[inline(always)]
    fn text<'a>(self, _: &'a mut ()) -> Text<'a>
    where
        Self: 'a,
    {
        Text::new(self)
    }
}

impl Source for &String {
    const IS_TEXT: bool = true;
    type Buffer = ();

    #[inline(always)]
    fn buffer() {}

    #[inline(always)]
    fn text<'a>(self, _: &'a mut ()) -> Text<'a>
    where
        Self: 'a,
    {
        Text::new(self)
    }
}

impl WriteName for &'static Name {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        writer.push_str(self.text);
    }
}

impl Source for &'static Name {
    const IS_TEXT: bool = true;
    const IS_CONSTANT: bool = true;
    type Buffer = ();

    #[inline(always)]
    fn buffer() {}

    #[inline(always)]
    fn text<'a>(self, _: &'a mut ()) -> Text<'a>
    where
        Self: 'a,
    {
        self.with_text(self.text)
    }
}

impl WriteName for fmt::Arguments<'_> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        writer.push_fmt(self);
    }
}

impl Source for fmt::Arguments<'_> {
    const IS_TEXT: bool = false;
    type Buffer = Message;

    #[inline(always)]
    fn buffer() -> Message {
        Message::new()
    }

    #[inline(always)]
    fn text<'a>(self, buffer: &'a mut Message) -> Text<'a>
    where
        Self: 'a,
    {
        Text::new(buffer.plain(|writer| self.write(writer)))
    }
}

impl<F: FnOnce(&mut NameWriter<'_>)> Source for F {
    const IS_TEXT: bool = false;
    type Buffer = Message;

    #[inline(always)]
    fn buffer() -> Message {
        Message::new()
    }

    #[inline(always)]
    fn text<'a>(self, buffer: &'a mut Message) -> Text<'a>
    where
        Self: 'a,
    {
        Text::new(buffer.plain(self))
    }
}

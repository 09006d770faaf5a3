//! One event, before it is encoded for a backend.
//!
//! `backend.rs` builds an [`Event`] from the parts that a function of `events.rs` passes, and the event then becomes a
//! message for ATrace or a packet for Perfetto. Building and encoding are inlined into one function for each kind of
//! event, so the compiler drops the code for the parts that a kind of event does not have.
//!
//! The name of an event has one of the types of [`Source`]: a text, a constant, or a value that writes the name into the
//! message. The marker takes an event with a name of any type; the other backends take an event whose name is a [`Text`].

use atrace_sys::process;

use crate::args::Arguments;
use crate::message::{Kind, Message, NameWriter, Texts, WriteName};
use crate::name::{Source, Text};

/// An event: its kind, track, name and arguments.
#[derive(Clone, Copy)]
pub(crate) struct Event<'a, N = Text<'a>> {
    pub(crate) kind: Kind,
    /// The name of the track. `None` means the calling thread's track or, for a counter or an async slice without a
    /// named track, the track of that counter or slice.
    pub(crate) track: Option<&'a str>,
    /// The name, or `None` if the kind has no name.
    pub(crate) name: Option<N>,
    pub(crate) args: Option<&'a dyn Arguments>,
}

impl Event<'static> {
    /// The end of the calling thread's youngest slice.
    pub(crate) const END: Self = Self::of(Kind::End);
}

impl<'a> Event<'a> {
    /// Returns an event of this kind, without name, track and arguments.
    #[inline(always)]
    pub(crate) const fn of(kind: Kind) -> Self {
        Self { kind, track: None, name: None, args: None }
    }
}

impl<'a, N> Event<'a, N> {
    /// Returns an event with this name, without track and arguments.
    #[inline(always)]
    pub(crate) const fn new(kind: Kind, name: N) -> Self {
        Self { kind, track: None, name: Some(name), args: None }
    }
}

impl<'a, N: Source> Event<'a, N> {
    /// Returns the event with its name as text.
    #[inline(always)]
    pub(crate) fn with_text<'b>(self, buffer: &'b mut N::Buffer) -> Event<'b>
    where
        Self: 'b,
    {
        let Self { kind, track, name, args } = self;
        let Some(name) = name else { return Event { kind, track, name: None, args } };
        Event { kind, track, name: Some(name.text(buffer)), args }
    }
}

impl<N: WriteName> Event<'_, N> {
    /// Encodes the event as a message. Returns the positions of the texts in the message.
    #[inline(always)]
    pub(crate) fn encode(self, message: &mut Message) -> Texts {
        let Self { kind, track, name, args } = self;
        message.encode(kind, process::id(), track, name.map(|name| NameAndArgs { name, args }))
    }
}

/// A name, and the arguments that are appended to it as text.
struct NameAndArgs<'a, N> {
    name: N,
    args: Option<&'a dyn Arguments>,
}

impl<N: WriteName> WriteName for NameAndArgs<'_, N> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        self.name.write(writer);
        if let Some(args) = self.args {
            args.push(writer);
        }
    }
}

/// A part of an event as a parameter: a value, or `()` if the event does not have the part. The parameter `()` takes no
/// register, and no code is compiled for the absent part.
pub(crate) trait Part {
    /// The type of the part.
    type Of;

    /// Returns the part, or `None` for `()`.
    fn get(self) -> Option<Self::Of>;
}

impl Part for () {
    type Of = &'static str;

    #[inline(always)]
    fn get(self) -> Option<&'static str> {
        None
    }
}

impl<N: Source> Part for N {
    type Of = N;

    #[inline(always)]
    fn get(self) -> Option<N> {
        Some(self)
    }
}

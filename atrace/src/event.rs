//! One event, before it is encoded for a backend.
//!
//! The functions of `events.rs`, and most others that write events, build an [`Event`] and pass it to `backend.rs`. The
//! event then becomes a message for ATrace or a packet for Perfetto. Building and encoding are inlined into one
//! function for each kind of event, so the compiler drops the code for the parts that a kind of event does not have.
//!
//! The name of an event has one of the types of [`Source`]: a text, a constant, or a value that writes the name into the
//! message. If the name exists as text, [`Event::as_text`] returns the event with the type `Event<Text>`.

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

    /// Returns the event with `track` as its track.
    #[inline(always)]
    pub(crate) fn on(self, track: &'a str) -> Self {
        Self { track: Some(track), ..self }
    }

    /// Returns the event with `args` as its arguments.
    #[inline(always)]
    pub(crate) fn with(self, args: Option<&'a dyn Arguments>) -> Self {
        Self { args, ..self }
    }

    /// Returns the event with `name` as its name.
    #[inline(always)]
    pub(crate) fn named<'b>(&self, name: Option<Text<'b>>) -> Event<'b>
    where
        'a: 'b,
    {
        Event { kind: self.kind, track: self.track, name, args: self.args }
    }
}

impl<N: Source> Event<'_, N> {
    /// Returns the event with its name as text, or `None` if the name must be formatted.
    #[inline(always)]
    pub(crate) fn as_text(&self) -> Option<Event<'_>> {
        match &self.name {
            None => Some(self.named(None)),
            Some(name) => name.text().map(|text| self.named(Some(text))),
        }
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

//! One event, before it is encoded for a backend.
//!
//! Each public function builds an [`Event`] and passes it to `backend.rs`. The event then becomes a message for ATrace
//! or a packet for Perfetto. Building and encoding are inlined into one function for each kind of event, so the
//! compiler drops the code for the parts that a kind of event does not have.
//!
//! A name that must still be formatted is not part of the event, but a separate argument, a
//! [`Source`](crate::name::Source).

use atrace_sys::process;

use crate::args::Arguments;
use crate::message::{Kind, Message, NameWriter, Texts, WriteName};
use crate::name::Text;

/// An event: its kind, track, name and arguments.
#[derive(Clone, Copy)]
pub(crate) struct Event<'a> {
    pub(crate) kind: Kind,
    /// The name of the track. `None` means the calling thread's track or, for an async slice without a named
    /// track, the track of that slice.
    pub(crate) track: Option<&'a str>,
    /// The name. It is `None` if the kind has no name, or if the name is a separate argument.
    pub(crate) name: Option<Text<'a>>,
    pub(crate) args: Option<&'a dyn Arguments>,
}

impl<'a> Event<'a> {
    /// The end of the calling thread's youngest slice.
    pub(crate) const END: Self = Self::of(Kind::End);

    /// Returns an event of this kind, without name, track and arguments.
    #[inline(always)]
    pub(crate) const fn of(kind: Kind) -> Self {
        Self { kind, track: None, name: None, args: None }
    }

    /// Returns an event with this name, without track and arguments.
    #[inline(always)]
    pub(crate) const fn new(kind: Kind, name: &'a str) -> Self {
        Self { kind, track: None, name: Some(Text::new(name)), args: None }
    }

    /// Returns the event with `track` as its track.
    #[inline(always)]
    pub(crate) const fn on(self, track: &'a str) -> Self {
        Self { track: Some(track), ..self }
    }

    /// Returns the event with `args` as its arguments.
    #[inline(always)]
    pub(crate) const fn with(self, args: &'a dyn Arguments) -> Self {
        Self { args: Some(args), ..self }
    }

    /// Encodes the event as a message. Returns the positions of the texts in the message.
    #[inline(always)]
    pub(crate) fn encode(&self, message: &mut Message) -> Texts {
        message.encode(self.kind, process::id(), self.track, self.name.is_some().then_some(self))
    }

    /// Encodes the event as [`encode`](Self::encode) does, with `name` as its name.
    #[inline(always)]
    pub(crate) fn encode_named(&self, message: &mut Message, name: impl WriteName) -> Texts {
        message.encode(self.kind, process::id(), self.track, Some(Named { name, event: self }))
    }

    /// Appends the arguments to the name, as text.
    #[inline(always)]
    fn write_args(&self, writer: &mut NameWriter<'_>) {
        if let Some(args) = self.args {
            args.push(writer);
        }
    }
}

/// Writes the name and the arguments. The trait is implemented for a reference, because in an unoptimised build copies
/// of the event would take room on the stack.
impl WriteName for &Event<'_> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        if let Some(name) = &self.name {
            writer.push_str(name.text);
        }
        self.write_args(writer);
    }
}

/// An event with a separate name, which is used instead of the name in the event.
struct Named<'a, N> {
    name: N,
    event: &'a Event<'a>,
}

impl<N: WriteName> WriteName for Named<'_, N> {
    #[inline(always)]
    fn write(self, writer: &mut NameWriter<'_>) {
        self.name.write(writer);
        self.event.write_args(writer);
    }
}

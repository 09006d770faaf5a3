//! One event, before it is encoded for a backend.
//!
//! An [`Event`] becomes a message for ATrace (`sink/mod.rs`) or a packet for Perfetto (`backend.rs`). The code that
//! builds and encodes an event is inlined into one function for each kind of event, so the compiler drops the code for
//! parts that this kind of event does not have.
//!
//! The name of an event has one of the types of [`Source`](crate::name::Source): a text, a constant, or a value that
//! writes the name into the message. A packet needs an event whose name is a [`Text`].

use crate::args::Arguments;
use crate::message::Kind;
use crate::name::Text;

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

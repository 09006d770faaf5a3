//! Callsites: the places in the program that write events, and the constant data of each place.
//!
//! The constant data (name, target, source location, names of arguments) is *interned*: in a sequence (the packets of
//! one thread for one session), the data of a callsite is written before the callsite's first event, and again each
//! time that the sequence's incremental state begins anew. The events contain the callsite's number in place of the
//! data.
//!
//! A callsite gets a unique number on first use (`number.rs`). The address of the callsite can't serve as the number:
//! after `dlclose` another callsite may have the same address. There are numbers for 16,352 callsites. If a program has
//! more callsites, the events of the further callsites contain the texts themselves. So no table grows without a bound.

mod number;

use std::sync::atomic::AtomicU32;

use crate::args::Key;

pub use self::number::{BEYOND, FIRST, Number};

static NEXT: AtomicU32 = AtomicU32::new(FIRST);

impl Number {
    /// Creates a number that is not assigned yet.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// Metadata of a callsite. The metadata is provided by the tracer that writes the callsite's events. The metadata must
/// never change.
pub trait About: std::fmt::Debug {
    /// Returns the part of the program to which the callsite belongs, usually as a module path.
    fn target(&self) -> &str;
    /// Returns the source file and the line, or `None` if they are not known.
    fn location(&self) -> Option<(&str, u32)>;
    /// Calls `each` with the names of the arguments, in their order.
    fn arguments(&self, each: &mut dyn FnMut(&str));
}

/// A reference to a callsite, as part of an event.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub(crate) number: u32,
    pub(crate) name: &'a str,
    /// The level of an event: from 1 (error) to 5 (trace), or 0 if there is no metadata.
    pub(crate) level: u8,
    pub(crate) about: Option<&'a dyn About>,
}

impl<'a> Site<'a> {
    /// Returns the callsite with this number, level (1 for errors to 5 for traces) and metadata. If `number` is
    /// `None`, the texts of the callsite are not interned.
    #[inline]
    pub fn new(number: Option<&Number>, name: &'a str, level: u8, about: &'a dyn About) -> Self {
        Self { number: number.map_or(BEYOND, |number| number.of(&NEXT)), name, level, about: Some(about) }
    }

    /// Returns the callsite with this number and name, without metadata.
    #[inline(always)]
    pub fn named(number: &Number, name: &'a str) -> Self {
        Self { number: number.of(&NEXT), name, level: 0, about: None }
    }

    /// Returns the key of an argument: the interned number of the argument's name if the callsite has a number,
    /// otherwise the name. `at` is the argument's index.
    #[inline(always)]
    pub fn key<'b>(&self, at: usize, name: &'b str) -> Key<'b> {
        if self.has_number() { Key::Interned(self.number, at as u32) } else { Key::Text(name) }
    }

    /// Returns whether the callsite has a number, so that its texts can be interned.
    #[inline(always)]
    pub const fn has_number(&self) -> bool {
        self.number < BEYOND
    }
}

//! Callsites: places in the program that trace, and the constant data of each.
//!
//! The constant data (name, target, source location, names of arguments) is *interned*: each sequence sends it once
//! with every new state, and each event refers to it by the callsite's number.
//!
//! A callsite gets a unique number on first use (`number.rs`). Its address would be unsuitable: after `dlclose`
//! another callsite may have the same address. There are numbers for 16,352 callsites. Events of all later callsites
//! contain the texts, so no table grows without a bound.

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

/// Metadata of a callsite, which the tracer that writes the events provides. It must never change.
pub trait About: std::fmt::Debug {
    /// The part of the program, as a module path.
    fn target(&self) -> &str;
    /// The file and the line.
    fn place(&self) -> Option<(&str, u32)>;
    /// Calls `each` with the names of the arguments, in their order.
    fn arguments(&self, each: &mut dyn FnMut(&str));
}

/// A reference to a callsite, as part of an event.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub(crate) number: u32,
    pub(crate) name: &'a str,
    /// The level: 1 (error) to 5 (trace); 0 if there is no metadata.
    pub(crate) level: u8,
    pub(crate) about: Option<&'a dyn About>,
}

impl<'a> Site<'a> {
    /// Returns the callsite with this number, level (1 for errors to 5 for traces) and metadata. Without a number its texts are
    /// not interned.
    #[inline]
    pub fn new(number: Option<&Number>, name: &'a str, level: u8, about: &'a dyn About) -> Self {
        Self { number: number.map_or(BEYOND, |number| number.of(&NEXT)), name, level, about: Some(about) }
    }

    /// Returns the callsite with this number and name, without metadata.
    #[inline(always)]
    pub fn named(number: &Number, name: &'a str) -> Self {
        Self { number: number.of(&NEXT), name, level: 0, about: None }
    }

    /// Returns how an argument is named in an event: by number if the callsite has one, otherwise by its name. `at`
    /// is the argument's index.
    #[inline(always)]
    pub fn key<'b>(&self, at: usize, name: &'b str) -> Key<'b> {
        if self.has_number() { Key::Interned(self.number, at as u32) } else { Key::Text(name) }
    }

    /// Returns whether the callsite can be interned.
    #[inline(always)]
    pub const fn has_number(&self) -> bool {
        self.number < BEYOND
    }
}

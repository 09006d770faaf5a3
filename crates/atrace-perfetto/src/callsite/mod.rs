//! What is the same at each event of a place in the program, a *callsite*, so that a reader is told of it once.
//!
//! A callsite has a number, which it takes once; an address would be another one's after a library was unloaded. Perfetto's
//! way tells what a callsite never changes once a thread and state (`told.rs`), and its number with each event.
//! Beyond 16,384 callsites names go with each event.

mod number;

use std::sync::atomic::AtomicU32;

use crate::args::Key;

pub use self::number::Number;
pub use self::number::{BEYOND, FIRST};

static NEXT: AtomicU32 = AtomicU32::new(FIRST);

impl Number {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// What a tracer built on this crate knows of a callsite beside its name. None of it changes.
pub trait About: std::fmt::Debug {
    /// The part of the program.
    fn target(&self) -> &str;
    /// The file and the line.
    fn place(&self) -> Option<(&str, u32)>;
    /// Calls `each` with the names of its arguments.
    fn arguments(&self, each: &mut dyn FnMut(&str));
}

/// A callsite, as an event has it.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub(crate) number: u32,
    pub(crate) name: &'a str,
    /// From 1, an error, to 5, where something is known about it.
    pub(crate) level: u8,
    pub(crate) about: Option<&'a dyn About>,
}

impl<'a> Site<'a> {
    /// The callsite with this number, or without one.
    #[inline]
    pub fn new(number: Option<&Number>, name: &'a str, level: u8, about: &'a dyn About) -> Self {
        Self { number: number.map_or(BEYOND, |number| number.of(&NEXT)), name, level, about: Some(about) }
    }

    /// The callsite with this number, of which nothing but its name is known.
    #[inline(always)]
    pub fn named(number: &Number, name: &'a str) -> Self {
        Self { number: number.of(&NEXT), name, level: 0, about: None }
    }

    /// How its argument with this name and place among all of them is named.
    #[inline(always)]
    pub fn key<'b>(&self, at: usize, name: &'b str) -> Key<'b> {
        if self.has_number() { Key::Told(self.number, at as u32) } else { Key::Text(name) }
    }

    /// Whether a state can tell it by its number.
    #[inline(always)]
    pub const fn has_number(&self) -> bool {
        self.number < BEYOND
    }
}

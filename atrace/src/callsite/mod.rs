//! What is the same at each event of a place in the program, a *callsite*, so that a reader is told of it once.
//!
//! A callsite has a number, which it takes once; an address would be another one's after a library was unloaded. Perfetto's
//! way tells what a callsite never changes once a thread and state (`perfetto/told.rs`), and its number with each event.
//! Beyond 16,384 callsites names go with each event.

mod number;

use std::sync::atomic::AtomicU32;

use crate::args::Key;
use crate::hash;

pub use self::number::Number;
pub(crate) use self::number::{BEYOND, FIRST};

static NEXT: AtomicU32 = AtomicU32::new(FIRST);

impl Number {
    /// None yet.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }
}

/// A name that is always the same: Perfetto's service is sent it once, and a number with each event.
///
/// Make it a `static`, and hand a reference to it to the functions that end in `_args`, or to
/// [`atrace_int64_name`](crate::atrace_int64_name); [`trace_name!`](crate::trace_name) does so by itself. By ATrace it is
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
    /// What the number of a track of this name is made of.
    pub(crate) hash: u64,
}

impl Name {
    /// A name with this text.
    pub const fn new(text: &'static str) -> Self {
        Self { text, number: Number::new(), hash: hash::of_name(text) }
    }
}

/// The name of an event: a text, or a [`Name`].
#[derive(Clone, Copy, Debug)]
pub struct EventName<'a> {
    pub(crate) text: &'a str,
    pub(crate) number: Option<&'a Number>,
}

impl<'a> EventName<'a> {
    /// One that is always the same where this is the number.
    #[inline(always)]
    pub(crate) const fn at(number: &'a Number, text: &'a str) -> Self {
        Self { text, number: Some(number) }
    }

    /// The callsite that it is of.
    #[inline(always)]
    pub(crate) fn site(self) -> Option<Site<'a>> {
        self.number.map(|number| Site { number: number.of(&NEXT), name: self.text, level: 0, about: None })
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
#[allow(dead_code, reason = "in a build without Perfetto's way nobody is told")]
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

    /// How its argument with this name and place among all of them is named.
    #[inline(always)]
    pub fn key<'b>(&self, at: usize, name: &'b str) -> Key<'b> {
        if self.has_number() { Key::Told(self.number, at as u32) } else { Key::Text(name) }
    }

    /// Whether a state can tell it by its number.
    #[inline(always)]
    pub(crate) const fn has_number(&self) -> bool {
        self.number < BEYOND
    }
}

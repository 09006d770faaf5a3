//! What exists to be measured, each thing said once: who runs a case, in which state, what it is called, how many
//! messages it writes, what is promised of it, and what the original benchmarks published.
//!
//! | list | of what |
//! |---|---|
//! | [`EVENTS`], [`LITERALS`] | the kinds of event, in Rust and C++; those that Perfetto's way has beside |
//! | [`TracingCase`], [`SUBSCRIBERS`] | what a program does with `tracing`, and the kinds of subscriber it does it under |
//! | [`BENCHES`] | the benches, how to run each, and the rows that each leaves |
//! | [`promises`] | what is promised of ratios |
//! | [`published`] | the numbers of the original benchmarks |
//!
//! An [`Id`] is the name of a row. It prints and parses itself: nobody else takes one apart.

mod benches;
mod case;
mod event;
mod id;
pub mod promises;
pub mod published;
mod subscriber;

pub use self::benches::{ATRACE, BENCHES, Bench, INSTRUCTIONS, SUBSCRIBER};
pub use self::case::TracingCase;
pub use self::event::{EVENTS, Event, LITERALS};
pub use self::id::{Id, State, What, Who};
pub use self::subscriber::{SUBSCRIBERS, Subscriber, Way};

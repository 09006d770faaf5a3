//! The catalogue of all measurements. Each fact is stated only once: the implementation, state and name of a
//! case, the number of messages that the case writes, the promised limits, and the results that the original
//! benchmarks published.
//!
//! | list | content |
//! |---|---|
//! | [`EVENTS`], [`LITERALS`] | the kinds of event, in Rust and C++; the kinds that only the Perfetto backend has |
//! | [`TracingCase`], [`SUBSCRIBERS`] | the operations with `tracing`, and the subscribers that receive them |
//! | [`BENCHES`] | the benches, their commands, and the rows that each bench leaves |
//! | [`promises`] | the promised ratios, differences and counts |
//! | [`published`] | the numbers of the original benchmarks |
//!
//! An [`Id`] is the name of a row. Only [`Id`] formats and parses row names.

mod benches;

mod id;
mod kinds;
pub mod promises;
pub mod published;

pub use self::benches::{ATRACE, BENCHES, Bench, INSTRUCTIONS, SUBSCRIBER};
pub use self::id::{Id, State, Who};
pub use self::kinds::{EVENTS, Event, LITERALS, SUBSCRIBERS, Subscriber, TracingCase, Way, tracing_name};

//! The catalogue of what the benches share. Each fact is stated only once: the implementation, state and name of a
//! case, the number of messages that the case writes, the promised limits, and the results that the original benchmarks
//! published. The workloads list their own cases.
//!
//! | list | content |
//! |---|---|
//! | [`EVENTS`], [`LITERALS`] | the kinds of event, in Rust and C++; the kinds that are only measured for Perfetto |
//! | [`TracingCase`], [`SUBSCRIBERS`] | the operations with `tracing`, and the subscribers that receive them |
//! | [`BENCHES`] | the benches, their commands, and the rows that each bench leaves |
//! | [`promises`] | the promised ratios, differences and counts |
//! | [`published`] | the numbers of the original benchmarks |
//!
//! An [`Id`] is the name of a row. It parses row names, and formats most of them.

mod benches;

mod id;
mod kinds;
pub mod promises;
pub mod published;

pub use self::benches::{ATRACE, BENCHES, Bench, INSTRUCTIONS, SUBSCRIBER};
pub use self::id::{Id, State, Who};
pub use self::kinds::{Backend, EVENTS, Event, LITERALS, SUBSCRIBERS, Subscriber, TracingCase, tracing_name};

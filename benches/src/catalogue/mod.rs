//! The catalogue of the facts that the benches share. Each fact is stated only once: the implementation, state and name
//! of a case (a measured operation), the number of messages that the case writes, the promised limits, and the results
//! that the original benchmarks published. The cases of workloads (whole programs) are not in the catalogue.
//!
//! | list | content |
//! |---|---|
//! | [`EVENTS`], [`LITERALS`] | the kinds of event, in Rust and C++; the kinds that are only measured with Perfetto |
//! | [`TracingCase`], [`SUBSCRIBERS`] | the operations with `tracing`, and the subscribers that receive them |
//! | [`BENCHES`] | the benches, their commands, and the rows (results) that each bench writes |
//! | [`promises`] | the promised ratios, differences and counts |
//! | [`published`] | the numbers of the original benchmarks |
//!
//! An [`Id`] is the parsed name of a row, the result of a case. Most row names are formatted by `Id`, too.

mod benches;

mod id;
mod kinds;
pub mod promises;
pub mod published;

pub use self::benches::{ATRACE, BENCHES, Bench, INSTRUCTIONS, SUBSCRIBER};
pub use self::id::{Id, State, Who};
pub use self::kinds::{Backend, EVENTS, Event, LITERALS, SUBSCRIBERS, Subscriber, TracingCase, tracing_name};

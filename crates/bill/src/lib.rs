//! The bill of a traced program: which callsite costs how much processor time.
//!
//! A meter in the program counts and times the calls of a subscriber (`atrace_subscriber::metered`), and writes the numbers
//! with [`Writer`]. [`Bill::read`] estimates the costs from them, in the same process or in another one. So a program that
//! is only asked for its numbers contains neither the estimates nor the table.

#![forbid(unsafe_code)]

mod bill;
mod directives;
mod estimate;
mod json;
mod raw;
mod table;

pub use self::bill::Bill;
pub use self::estimate::{Sample, Sampled};
pub use self::raw::{Call, Callsite, Kind, Process, Writer};

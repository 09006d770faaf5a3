//! The bill of a traced program: how much processor time each callsite costs.
//!
//! A meter in the program counts and times the calls of a subscriber (`atrace_subscriber::metered`), and writes its
//! measurements with [`Writer`]. From these measurements, [`Bill::read`] estimates the costs, in the same process or in
//! another process. A program that only writes measurements contains neither the code that estimates costs nor the code
//! that formats the table.

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

//! Measures the cost of tracing, with confidence intervals.
//!
//! The modules, in this order: a module only uses itself and the modules above it in the list.
//!
//! - [`catalogue`]: all benches, cases and promises, and the results that the original benchmarks published.
//! - [`stats`]: the crate `atrace-paired`, which computes medians with 95 % intervals from rounds.
//! - [`instruments`]: clocks, CPUs, the allocation counter, the kernel's information about threads.
//! - [`row`]: the exchange format: a measured row, the file of rows, and the environment of the measurement.
//! - [`table`]: tables, and how they are written.
//! - [`promise`]: judges promises by measurements.
//! - [`harness`]: the command line, the sink and the cleanup of a measuring process.
//! - [`subjects`]: the measured code: every kind of event, in Rust and in C++, and every kind of subscriber.
//! - [`measure`]: runs cases side by side, so that changes of the machine cancel out: in one process, in several
//!   processes, on several threads, and as whole programs. Also counts instructions.
//! - [`report`]: makes a report of all measurements, from the files that the benches have written.
//!
//! A measured number takes this path: a loop (`subjects/events.rs`) is timed beside other loops (`measure/paired.rs`),
//! its rounds become a row (`measure/paired.rs`, or `measure/workload/results.rs` for whole programs), and the row is
//! written (`harness/output.rs`), read (`report/input.rs`) and shown (`report/content`).

pub mod catalogue;
pub mod harness;
pub mod instruments;
pub mod measure;
pub mod promise;
pub mod report;
pub mod row;
pub mod subjects;
pub mod table;

pub use atrace_paired as stats;

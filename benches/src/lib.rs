//! Measures the cost of tracing, with confidence intervals.
//!
//! The modules are listed in the order of their dependencies: a module uses only itself and the modules above it.
//!
//! - [`catalogue`]: all benches, cases (measured operations) and promises (limits for results), and the results that
//!   the original benchmarks published.
//! - [`stats`]: the crate `atrace-paired`, which computes medians with 95 % intervals from repeated measurements.
//! - [`instruments`]: clocks, CPUs, the allocation counter, the kernel's information about threads.
//! - [`row`]: the exchange format: a row (the result of a case), the file of rows, and the environment of the
//!   measurement.
//! - [`table`]: tables, and how they are written.
//! - [`promise`]: decides by the measurements whether the promises are kept.
//! - [`harness`]: the command line, the sink and the cleanup of a measuring process.
//! - [`subjects`]: the measured code: every kind of event, in Rust and in C++, and every kind of subscriber.
//! - [`measure`]: runs cases side by side, so that changes of the machine's speed cancel out in comparisons: in one
//!   process, in several processes, on several threads, and as whole programs. Also counts instructions.
//! - [`report`]: makes a report of all measurements, from the files that the benches have written.
//!
//! A measured number takes this path: a loop (`subjects/events.rs`) is timed alternately with other loops
//! (`measure/paired.rs`). The times become a row (`measure/paired.rs`, or `measure/workload/results.rs` for whole
//! programs). The row is written to a file (`harness/output.rs`), read from the file (`report/input.rs`) and shown in
//! the report (`report/content`).

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

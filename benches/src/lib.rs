//! Measures what tracing costs, and says how sure it is.
//!
//! The rooms, in the order in which a number comes to be: each knows only those above it.
//!
//! - [`catalogue`]: what exists, and what the original benchmarks published of it.
//! - [`row`]: what everybody exchanges: a measured row, the file of them, and what it was measured on.
//! - [`table`]: lines of cells, and how they are written.
//! - [`promise`]: what was promised, beside what was measured.
//! - [`stats`]: turns rounds into medians with 95 % intervals, and tells which mean nothing.
//! - [`instruments`]: clocks, processors, counted allocations, what the kernel knows of a thread.
//! - [`harness`]: where a measuring process lives: its command line, its sink, who cleans up behind it.
//! - [`measure`]: runs cases beside each other, so that drifts cancel: in one process, in several, on threads, as whole
//!   programs, and in instructions.
//! - [`report`]: makes one report of all that was measured. It knows rows only.
//!
//! The way of one number: a loop (`subjects/events.rs`) is timed beside others (`measure/paired.rs`), its rounds become a row
//! (`measure/measured.rs`; of programs `measure/workload/results/rows.rs`), which is written (`harness/output.rs`), read
//! (`report/input.rs`) and shown (`report/content`).

pub mod catalogue;
pub mod harness;
pub mod instruments;
pub mod measure;
pub mod promise;
pub mod report;
pub mod row;
pub mod stats;
pub mod subjects;
pub mod table;

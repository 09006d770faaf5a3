//! Measures cases side by side, so that changes of the machine's speed cancel out in the comparisons of the cases.
//!
//! - [`paired`] runs cases in interleaved rounds in one process. [`threads`] runs a case on different numbers of
//!   threads.
//! - [`workload`] runs whole programs without instrumentation, with instrumentation, and traced, each in a process of
//!   its own. The processes run alternately.
//! - [`instructions`] counts instructions and compares the counts with bounds.

pub mod instructions;
pub mod paired;
pub mod rounds;
#[cfg(test)]
mod simulation;
pub mod threads;
pub mod workload;

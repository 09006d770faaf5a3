//! Runs cases side by side, so that changes of the machine's speed cancel out in the comparisons.
//!
//! - [`paired`] runs cases in interleaved rounds in one process; [`threads`] runs a case with several numbers of
//!   threads.
//! - [`workload`] runs whole programs, in processes that take turns: without instrumentation, with instrumentation,
//!   and traced.
//! - [`instructions`] counts instructions and compares the counts with bounds.

pub mod instructions;
pub mod paired;
pub mod rounds;
#[cfg(test)]
mod simulation;
pub mod threads;
pub mod workload;

//! Runs cases beside each other, so that drifts of the machine cancel in what is compared.
//!
//! - [`paired`] does so in interleaved rounds in one process; [`threads`] with a growing number of threads.
//! - [`workload`] does so with processes that take turns: whole programs, without instrumentation, with it, and traced.
//! - [`instructions`] counts instructions, and holds them against bounds.

mod config;
pub mod instructions;
pub mod measured;
pub mod paired;
pub mod rounds;
#[cfg(test)]
mod simulation;
pub mod threads;
pub mod workload;

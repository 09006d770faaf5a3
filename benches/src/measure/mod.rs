//! Runs cases beside each other, so that drifts of the machine cancel in what is compared.
//!
//! - [`paired`] does so in interleaved rounds in one process; [`processes`] with whole processes; [`threads`] with a growing
//!   number of threads.
//! - [`workload`] runs whole programs, without instrumentation, with it, and traced.
//! - [`instructions`] counts instructions, and holds them against bounds.

pub mod instructions;
pub mod measured;
pub mod paired;
pub mod processes;
pub mod threads;
pub mod workload;

//! Measures what tracing costs, and says how sure it is.
//!
//! The parts, each independent of what is measured:
//!
//! - [`paired`] runs cases in interleaved rounds in one process, so that drifts cancel in their
//!   ratios; [`processes`] does that with whole processes; [`threads`] with a growing number of
//!   threads.
//! - [`workload`] runs whole programs, without instrumentation, with it, and traced.
//! - [`stats`] turns rounds into medians with 95 % intervals, and tells which mean nothing.
//! - [`alloc`] counts allocations exactly; [`profile`] says what the kernel knows of the threads.
//! - [`row`] is the measured file, [`environment`] what it was measured on, [`table`] what a person sees of it.
//! - [`http`] is someone to talk to.
//! - [`supervise`] gives a bench a sink of its own and cleans up behind it, however it ends;
//!   [`args`] reads its command line.
//! - [`instructions`] counts instructions, and holds them against bounds.
//! - [`report`] makes one report of all that was measured, beside the original benchmark's numbers ([`seed`]).
//! - [`device`] runs all of it on an Android device.
//! - [`chain`] is work of a known cost, for the tests that prove the harness.

pub mod alloc;
pub mod args;
pub mod chain;
pub mod clock;
pub mod cpu;
pub mod device;
pub mod environment;
pub mod http;
pub mod instructions;
pub mod measured;
pub mod paired;
pub mod processes;
pub mod profile;
pub mod report;
pub mod row;
pub mod seed;
mod shuffle;
pub mod stats;
pub mod supervise;
pub mod table;
mod terminal;
pub mod threads;
pub mod workload;

//! The command `atrace` and its parts. Tests, benches and other programs that record traces use the parts.
//!
//! - [`doctor`]: explains why nothing is traced;
//! - [`service`]: a tracing service for a few programs, which speaks Perfetto's protocol;
//! - [`consumer`]: a client that starts and stops recordings of the system's tracing service;
//! - [`tracefs`]: instances of the kernel's trace buffer;
//! - [`escape`]: makes text of other users safe to print;
//! - [`main`]: the command itself.
//!
//! `cargo install --path crates/atrace-cli` installs `atrace`. `atrace run` starts a program and saves its trace in a
//! file for <https://ui.perfetto.dev>. `atrace record` saves a trace of programs that are already running. `atrace
//! cost` measures what tracing costs a program. `on`, `off` and `status` switch tracing and show its state, and
//! `doctor` explains why nothing is traced. A program that switches tracing of other programs uses [`atrace::control`].
//!
//! # Features
//!
//! - `perfetto` (default): [`doctor::examine_program`] assumes that the program has Perfetto's backend.
//!
//! This library is for Linux and Android. On other systems it is empty.
#![cfg(any(target_os = "linux", target_os = "android"))]

mod command;
pub mod consumer;
pub mod doctor;
pub mod escape;
mod privsep;
mod process;
pub mod service;
pub mod tracefs;

pub use command::main;

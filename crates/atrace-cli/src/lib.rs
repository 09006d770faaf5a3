//! The command `atrace` and its parts, for tests, benches and other programs that record.
//!
//! - [`doctor`]: explains why nothing is traced;
//! - [`service`]: a tracing service for a few programs, by Perfetto's protocol;
//! - [`consumer`]: a client of the system's tracing service, which makes it record;
//! - [`tracefs`]: instances of the kernel's trace buffer;
//! - [`escape`]: makes text of other users safe to print;
//! - [`main`]: the command itself.
//!
//! `cargo install atrace-cli` installs `atrace`: `run` starts a program and saves its trace in a file for
//! <https://ui.perfetto.dev>, `record` does so for programs that are already running, `on`, `off` and `status` switch and
//! show tracing, and `doctor` explains why nothing is traced. [`atrace::control`] switches programs.
//!
//! Linux and Android only: on other systems this library is empty.
#![cfg(any(target_os = "linux", target_os = "android"))]

mod command;
pub mod consumer;
pub mod doctor;
pub mod escape;
mod process;
pub mod service;
pub mod tracefs;

pub use command::main;

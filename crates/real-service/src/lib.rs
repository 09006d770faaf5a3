//! Runs Perfetto's own tracing service for tests: a [`Service`] is the running service, and a [`Session`] is a
//! recording by the service. A [`Setup`] runs a test's program as a producer of the service.
//!
//! The service is Perfetto's C++ code, which is compiled if the feature `real` is enabled. This crate reads the trace
//! packet by packet. Perfetto's trace processor reads the trace, too, if `.ci/perfetto/setup.sh` has fetched the trace
//! processor.
#![cfg(not(no_tracing))]

mod consumer;
mod service;
mod setup;
mod trace;

pub use consumer::{Config, Session};
pub use service::{Service, program};
pub use setup::{Setup, is_program, place, step, until, wait_for};
pub use trace::{Event, Losses, Trace, WRONG, processed};

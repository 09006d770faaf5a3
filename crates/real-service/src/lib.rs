//! Runs Perfetto's own tracing service for tests: a [`Service`], and a [`Session`] of it. A [`Setup`] runs a test's
//! program as a producer of the service.
//!
//! The service is the C++ one, compiled with the feature `real`. The trace is read here packet by packet, and by
//! Perfetto's trace processor if `.ci/perfetto/setup.sh` has fetched it.
#![cfg(not(no_tracing))]

mod consumer;
mod service;
mod setup;
mod trace;

pub use consumer::{Config, Session};
pub use service::{Service, program};
pub use setup::{Setup, is_program, place, step, until, wait_for};
pub use trace::{Event, Losses, Trace, WRONG, processed};

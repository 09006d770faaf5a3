//! Perfetto's own tracing service, a [`Service`], and a [`Session`] of it: what the tests of Perfetto's way out measure
//! themselves by. A [`Setup`] has a test's program traced by it.
//!
//! The service is the C++ one, compiled with the feature `real`; what it hands out is read here packet by packet, and by
//! Perfetto's trace processor where `.ci/perfetto/setup.sh` has fetched it.
#![cfg(not(no_tracing))]

mod consumer;
mod service;
mod setup;
mod trace;

pub use consumer::{Config, Session};
pub use service::{Service, program};
pub use setup::{Setup, is_program, place, step, until, wait_for};
pub use trace::{Event, Losses, Trace, WRONG, processed};

//! A producer of Perfetto's tracing service.
//!
//! - [`proto`], [`wire`]: the bytes that go over the socket;
//! - [`abi`], [`memory`]: the shared memory's words, and its mapping;
//! - [`handed`], [`presence`]: what threads leave to each other, model-checked;
//! - [`pool`]: the places of threads, sessions and writers;
//! - [`clock`]: time stamps without a call;
//! - [`socket`]: the connection;
//! - [`foreign`]: the memory of another process, as a service sees it;
//! - [`trace_file`]: the file that a recording or a service writes.
//!
//! On systems without tracing it is empty.
#![cfg(not(no_tracing))]
#![allow(unsafe_code, reason = "the memory is written by threads that agree by atomics alone")]

pub mod abi;
pub mod args;
pub mod callsite;
pub mod category;
pub mod changes;
pub mod clock;
mod debts;
mod early;
pub mod event;
pub mod foreign;
pub mod handed;
pub mod hash;
mod link;
pub mod memory;
mod packet;
pub mod pool;
pub mod presence;
pub mod producer;
pub mod proto;
pub mod recording;
pub mod socket;
pub mod standing;
mod startup;
mod told;
pub mod trace_file;
pub mod wire;
mod words;
mod writer;

pub use startup::ASK;

/// What threads share; in the models, loom's.
mod sync {
    pub(crate) use atrace_sys::fence::{heavy_fence, light_fence};
    pub(crate) use std::sync::atomic;
}

#[cfg(test)]
mod tests;

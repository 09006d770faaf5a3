//! A producer for Perfetto's tracing service, without Perfetto's SDK.
//!
//! An event is encoded as a protobuf packet, directly in memory that is shared with the service. One thread per
//! process, the *socket thread*, communicates with the service: it opens and closes sessions, and reports which chunks
//! are complete. On the common path an event makes no system call. No event takes a lock or allocates.
//!
//! # Examples
//!
//! Records events of this process to a file, without a service:
//!
//! ```
//! use atrace_perfetto::event::Type;
//! use atrace_perfetto::{producer, recording};
//!
//! # fn main() -> std::io::Result<()> {
//! const APP: u64 = 1 << 12; // The bit of the category `app`.
//! let path = std::env::temp_dir().join(format!("example-{}.pftrace", std::process::id()));
//! let recording = recording::begin(&path, APP)?;
//! producer::write_text(Type::Begin, APP, "a slice");
//! producer::write_text(Type::Instant, APP, "an instant");
//! producer::end(APP);
//! recording.finish()?;
//!
//! let trace = std::fs::read(&path)?;
//! # std::fs::remove_file(&path)?;
//! let contains = |name: &str| trace.windows(name.len()).any(|bytes| bytes == name.as_bytes());
//! assert!(contains("a slice") && contains("an instant"));
//! # Ok(())
//! # }
//! ```
//!
//! A program that a service may record calls [`producer::connect`] instead of beginning a recording.
//!
//! # Modules
//!
//! The parts, from an event down to the memory:
//!
//! - [`producer`]: the interface for tracers: the connection, and the functions that write events;
//! - [`event`], [`args`], [`callsite`], [`category`], [`hash`], `track`: the parts of an event;
//! - `writer`: the state with which one thread writes for one session; `unmatched` and `interned` are parts of
//!   this state;
//! - `packet`: the encoding of packets;
//! - `pool`, `pin`: the slots of threads and sessions, and the rules by which a thread may use a writer;
//! - [`memory`], [`abi`], `completed`, `filling`: the shared memory, its words, the list of completed chunks, and the
//!   waking of its reader;
//! - [`clock`]: timestamps without a system call.
//!
//! The parts of the socket thread:
//!
//! - `link`: the client's side of the protocol; [`proto`], [`wire`]: the messages; [`socket`]: the
//!   connection;
//! - `options`: the options that a session requests in addition to its categories;
//! - `startup`, `early`: events that are written before the service has reported the existing
//!   sessions;
//! - [`connection_state`], [`changes`]: the state of the connection, and callbacks for its changes.
//!
//! [`recording`] writes this process's events to a file, without a service. For programs that are a tracing
//! service themselves, [`foreign`] reads the memory of another process, and [`trace_file`] writes the trace.
//!
//! `pin`, `completed`, `abi` and `callsite::number` are model-checked with loom (`crates/models`). On systems
//! without tracing the crate is empty.
#![cfg(not(no_tracing))]
#![allow(unsafe_code, reason = "threads and processes share memory that is synchronized by atomics alone")]

pub mod abi;
pub mod args;
pub mod callsite;
pub mod category;
pub mod changes;
pub mod clock;
mod completed;
pub mod connection_state;
mod early;
pub mod event;
mod filling;
pub mod foreign;
pub mod hash;
mod interned;
mod link;
pub mod memory;
mod names;
mod options;
mod packet;
mod pin;
mod pool;
pub mod producer;
pub mod proto;
pub mod recording;
pub mod socket;
mod startup;
pub mod trace_file;
mod track;
mod unmatched;
pub mod wire;
mod writer;

pub use pool::{ASK, COMPARE};

/// The synchronization primitives. The models replace this module with loom's.
mod sync {
    pub(crate) use atrace_sys::fence::{heavy_fence, light_fence};
    pub(crate) use std::sync::atomic;
}

#[cfg(test)]
mod tests;

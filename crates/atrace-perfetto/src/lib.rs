//! A producer for Perfetto's tracing service, without Perfetto's SDK.
//!
//! An event is encoded as a protobuf packet, directly in memory that is shared with the service. One thread per
//! process, the *socket thread*, communicates with the service: it opens and closes sessions, and reports which chunks
//! (pieces of the shared memory) are complete. On the common path, writing an event makes no system call. Writing an
//! event never takes a lock, and never allocates.
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
//! A program that is to be recorded by a service calls [`producer::connect`] in place of [`recording::begin`].
//!
//! # Modules
//!
//! The modules for writing events, from the event down to the memory:
//!
//! - [`producer`]: the interface for tracers: the connection, and the functions that write events;
//! - [`event`], [`args`], [`callsite`], [`category`], [`hash`], `track`: the parts of an event;
//! - `writer`: the state with which one thread writes events for one session; `unmatched` and `interned` are parts of
//!   this state;
//! - `packet`: the encoding of packets;
//! - `pool`, `pin`: the table with the slots of threads and sessions, and the rules that decide which thread may use a
//!   writer;
//! - [`memory`], [`abi`], `completed`, `filling`: the shared memory, the format of its headers, the list of completed
//!   chunks, and the code that wakes the thread which reads this list;
//! - [`clock`]: timestamps without a system call.
//!
//! The modules of the socket thread:
//!
//! - `link`: the client's side of the protocol; [`proto`], [`wire`]: the encoding of the messages; [`socket`]: the
//!   connection to the service;
//! - `options`: the options that a session requests in addition to its categories;
//! - `startup`, `early`: the handling of events that are written before the service has reported which sessions exist;
//! - [`connection_state`], [`changes`]: the state of the connection, and callbacks for its changes.
//!
//! [`recording`] writes this process's events to a file, without a service. For programs that are a tracing service
//! themselves, [`foreign`] reads the memory that a producer in another process shares with the service, and
//! [`trace_file`] writes the trace.
//!
//! `pin`, `completed`, `abi` and `callsite::number` are model-checked with loom (`crates/models`). On systems for which
//! there is no tracing (`cfg(no_tracing)`), the crate is empty.
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

/// The synchronization primitives. The loom models (`crates/models`) replace them with loom's.
mod sync {
    pub(crate) use atrace_sys::fence::{heavy_fence, light_fence};
    pub(crate) use std::sync::atomic;
}

#[cfg(test)]
mod tests;

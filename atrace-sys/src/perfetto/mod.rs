//! What Perfetto's way out stands on: the tracing service's socket, the memory shared with it, the clock.
//!
//! - [`proto`], [`wire`]: the bytes that go over the socket;
//! - [`abi`], [`memory`]: the shared memory's words, and its mapping;
//! - [`handed`], [`presence`]: what threads leave to each other, model-checked;
//! - [`pool`]: the places of threads, sessions and writers;
//! - [`clock`]: time stamps without a call;
//! - [`socket`]: the connection;
//! - [`foreign`]: the memory of another process, as a service sees it.
//!
//! What an event looks like and when it is written is told by `atrace`.

pub mod abi;
pub mod clock;
pub mod foreign;
pub mod handed;
pub mod memory;
pub mod pool;
pub mod presence;
pub mod proto;
pub mod socket;
pub mod wire;

#[cfg(test)]
mod tests;

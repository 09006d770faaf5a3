//! The measured code: every kind of event, in Rust and in C++; the `tracing` cases under every kind of subscriber;
//! copies to shared memory; the HTTP server of the bench `threads`; and the futures of the bench `suspension`, which
//! wait for each other.

pub mod cases;
pub mod events;
pub mod http;
pub mod shared;
pub mod subscribers;
pub mod waiting;

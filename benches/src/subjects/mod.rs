//! What is measured: every kind of event, in Rust and in C++; what a program does with `tracing`, under every kind of
//! subscriber; the server that programs ask; and what waits for each other.

pub mod cases;
pub mod events;
pub mod http;
mod peers;
pub mod shared;
pub mod subject;
pub mod subscribers;
pub mod waiting;

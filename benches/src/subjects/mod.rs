//! What is measured: every kind of event, in Rust and in C++; and what a program does with `tracing`, under every kind of
//! subscriber.

pub mod cases;
pub mod events;
mod peers;
pub mod subject;
pub mod subscribers;

//! What the feature `tracefs` adds: buffers of the kernel to trace into, and how to find out why nothing is traced.

#[path = "doctor/mod.rs"]
pub mod doctor;
#[path = "shown.rs"]
pub mod shown;
#[path = "tracefs/mod.rs"]
pub mod tracefs;

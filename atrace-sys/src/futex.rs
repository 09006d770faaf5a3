//! Sleeping until a word of memory changes, and waking threads that sleep.
//!
//! Both functions are async-signal-safe and do not change errno.

pub use crate::system::futex::{wait, wake};

//! Futexes: sleeping until a word of memory changes, and waking the threads that sleep.
//!
//! [`wait`] and [`wake`] are async-signal-safe and do not change errno.

pub use crate::system::futex::{wait, wake};

//! The program that `atrace run` starts: from its start to its end, with its signals and its processes.

pub(crate) mod child;
pub(crate) mod signals;
pub(crate) mod stage;
pub(crate) mod store;
pub(crate) mod tree;
pub(crate) mod witness;

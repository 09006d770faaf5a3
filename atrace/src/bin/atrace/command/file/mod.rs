//! The file that a recording is saved to.

pub(crate) mod directory;
pub(crate) mod output;
pub(crate) mod systrace;
mod target;

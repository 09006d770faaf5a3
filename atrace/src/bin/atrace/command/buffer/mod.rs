//! What holds the events while they are recorded: the kernel's ring buffers.

pub(crate) mod categories;
pub(crate) mod leftover;
pub(crate) mod names;
pub(crate) mod ring;
pub(crate) mod save;
pub(crate) mod tally;
mod text;
pub(crate) mod top;

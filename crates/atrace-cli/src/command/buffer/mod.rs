//! The kernel's ring buffers, which hold the events during a recording.

mod categories;
mod leftover;
mod ring;
mod text;
mod top;

pub(crate) use self::categories::events;
pub(crate) use self::leftover::sweep;
pub(crate) use self::ring::{Names, Tally, enable, kept, make, prepare, remove, save, save_from};
pub(crate) use self::top::Top;

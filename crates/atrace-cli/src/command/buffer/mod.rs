//! The kernel's ring buffers, which hold the events during a recording.

mod categories;
mod leftover;
mod names;
mod ring;
mod save;
mod tally;
mod text;
mod top;

pub(crate) use self::categories::{events, events_unseen};
pub(crate) use self::leftover::sweep;
pub(crate) use self::names::Names;
pub(crate) use self::ring::{enable, make, prepare, remove};
pub(crate) use self::save::{kept, save, save_from};
pub(crate) use self::tally::Tally;
pub(crate) use self::top::Top;

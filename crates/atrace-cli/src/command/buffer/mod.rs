//! The kernel's ring buffers, which hold the events during a recording.

mod categories;
mod copies;
mod leftover;
mod ring;
mod text;
mod top;
mod typed;

pub(crate) use self::categories::events;
pub(crate) use self::copies::{Copies, copied};
pub(crate) use self::leftover::sweep;
pub(crate) use self::ring::{Names, PREFIX, Tally, enable, keep_all, make, prepare, remove, save_from};
pub(crate) use self::top::{Silence, Top};
pub(crate) use self::typed::{Packets, Stream, has_clock, messages, names};

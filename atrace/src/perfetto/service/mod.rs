//! A tracing service for a few programs: what Perfetto's `traced` is for a machine, without its sessions.
//!
//! - [`Service`]: its thread, its socket, who may connect;
//! - `producer`, `sequence`: one producer's protocol, and its packets in their order;
//! - `packets`: what is looked at of a packet, and those that the service writes;
//! - [`Keep`]: a file, or the last of what came in memory;
//! - [`Report`]: what there was, and who was cut off.
//!
//! There is one session, from the start of the service to its end, of the data source `track_event` with all its
//! categories. Producers are this library, and Perfetto's own SDKs. They are strangers: every size, state and index is
//! checked, on a copy of what they wrote, and their memory is mapped only if it can't shrink. Who sends what can't be is
//! cut off; the trace stays one that can be read.

pub(crate) mod keep;
mod packets;
pub(crate) mod producer;
pub(crate) mod report;
mod sequence;
mod serve;

use std::fmt;

pub use self::keep::Keep;
pub(crate) use self::packets::source_config;
pub use self::report::{Counts, CutOff, Ended, Report};
pub use self::serve::Service;

/// The data source that is recorded.
const SOURCE: &[u8] = b"track_event";

/// Why a producer was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A frame that makes no sense, or is too long.
    Frame,
    /// A request before those that must come first, or twice.
    Order,
    /// Memory that can shrink, or of a wrong size; or there is none. The errno.
    Memory(i32),
    /// A page or chunk that does not exist.
    Place,
    /// A writer that can't be.
    Writer,
    /// A packet that does not end where its chunk does.
    Packet,
    /// A count of packets that became less.
    Count,
    /// Bytes to be mended outside of their chunk.
    Patch,
    /// It does not read what is said to it.
    Deaf,
    /// It asks for nothing.
    Silent,
    /// More than it may have.
    TooMuch,
}

impl Fault {
    /// By what failed as memory was shared.
    fn memory(error: std::io::Error) -> Self {
        Self::Memory(error.raw_os_error().unwrap_or_default())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "it sent what makes no sense",
            Self::Order => "it did not begin as it must",
            Self::Memory(code) => {
                return write!(f, "its memory can't be used: {}", std::io::Error::from_raw_os_error(*code));
            }
            Self::Place => "it named memory that does not exist",
            Self::Writer => "it has a writer that can't be",
            Self::Packet => "a packet goes beyond its chunk",
            Self::Count => "a count of packets became less",
            Self::Patch => "it mends what is not there",
            Self::Deaf => "it does not read what is said to it",
            Self::Silent => "it connected and said nothing",
            Self::TooMuch => "it wants more than it may have",
        })
    }
}

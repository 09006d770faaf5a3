//! A tracing service for a few programs: what Perfetto's `traced` is for a machine, without its sessions.
//!
//! - [`Service`]: the thread, the socket, and which programs may connect;
//! - `producer`, `sequence`: the protocol of one producer, and the order of its packets;
//! - `room`: the limits for the memory of unfinished packets;
//! - `elsewhere`: threads for calls that a producer can make slow;
//! - `packets`: the fields that the service reads of a packet, and the packets that it writes itself;
//! - [`Keep`]: a file, or a ring in memory with the newest packets;
//! - [`Report`]: what was recorded and lost, and which producers were cut off.
//!
//! There is one session, from the start of the service to its end, of the data source `track_event` with all its
//! categories. Producers are programs with the crate `atrace` or with an SDK of Perfetto's. None is trusted: every
//! size, state and index is checked on a copy, and memory is mapped only if it can't shrink. A producer that breaks the
//! protocol is cut off, and the trace stays readable.

mod elsewhere;
pub(crate) mod keep;
mod packets;
pub(crate) mod producer;
pub(crate) mod report;
mod room;
mod sequence;
mod serve;

use std::fmt;

pub use self::keep::Keep;
pub(crate) use self::packets::source_config;
pub use self::report::{Counts, CutOff, Ended, Lost, Report};
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

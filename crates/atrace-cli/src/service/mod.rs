//! A tracing service for a few programs. It does for one recording what Perfetto's `traced` does for a whole machine.
//!
//! # How it works
//!
//! A program connects to the service's socket as a *producer* and registers its data sources. The service creates
//! memory for the producer, or uses memory that the producer offers, and starts the data source `track_event` with
//! all categories. The producer writes packets into *chunks* of that memory and tells the service over the socket
//! which chunks are complete. The service copies the packets out of the chunks into a file or a ring in memory, and
//! frees the chunks. There is one session, from the start of the service to its end.
//!
//! Producers are programs that use the crate `atrace` or one of Perfetto's SDKs. The protocol is that of Perfetto's
//! producer port, described in `atrace_perfetto::wire` and `atrace_perfetto::abi`.
//!
//! # Trust
//!
//! No producer is trusted. Every size, state and index is checked on a copy, and memory is mapped only if it can't
//! shrink. A producer that breaks the protocol is disconnected (a [`Fault`]), and the trace stays readable. Memory,
//! descriptors and time are limited per producer and in total, so no producer can keep the others from being
//! recorded.
//!
//! # Modules
//!
//! - [`Service`]: the thread, the socket, and the rule which programs may connect;
//! - `producer`, `sequence`: the protocol of one producer, and the order of its packets;
//! - `room`: the limits for the memory of unfinished packets;
//! - `blocking`: threads for calls that a producer can make slow;
//! - `packets`: the fields of a packet that the service reads, and the packets that it writes itself;
//! - [`Keep`]: a file, or a ring in memory with the newest packets;
//! - [`Report`]: what was recorded and lost, and which producers were disconnected.

mod blocking;
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

/// The reason why the service disconnected a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A frame that can't be parsed or is too long.
    Frame,
    /// A request that came twice, or before the requests that must come first.
    Order,
    /// Memory that can shrink, has a wrong size, or could not be created. The value is the errno.
    Memory(i32),
    /// A page or chunk that does not exist.
    Place,
    /// An invalid number of a writer.
    Writer,
    /// A packet that does not end within its chunk.
    Packet,
    /// The number of packets in a chunk decreased.
    Count,
    /// A patch for bytes outside of the chunk.
    Patch,
    /// The producer does not read the service's messages.
    Deaf,
    /// The producer connected and sent nothing.
    Silent,
    /// The producer exceeds a limit.
    TooMuch,
}

impl Fault {
    /// Returns the reason for ending a connection whose memory could not be mapped or created.
    fn memory(error: std::io::Error) -> Self {
        Self::Memory(error.raw_os_error().unwrap_or_default())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "it sent an invalid frame",
            Self::Order => "it sent a request out of order",
            Self::Memory(code) => {
                return write!(f, "its memory can't be used: {}", std::io::Error::from_raw_os_error(*code));
            }
            Self::Place => "it named memory that does not exist",
            Self::Writer => "it used an invalid number of a writer",
            Self::Packet => "a packet does not end within its chunk",
            Self::Count => "the number of packets in a chunk decreased",
            Self::Patch => "it patched bytes outside of a chunk",
            Self::Deaf => "it does not read its messages",
            Self::Silent => "it connected and sent nothing",
            Self::TooMuch => "it exceeds a limit",
        })
    }
}

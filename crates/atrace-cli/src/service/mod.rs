//! A tracing service for a few programs. This service makes one recording, whereas Perfetto's `traced` serves a whole
//! machine.
//!
//! # How it works
//!
//! A program connects to the service's socket as a *producer* and registers its data sources. The service creates
//! shared memory for the producer, or uses shared memory that the producer offers, and starts the producer's data
//! source `track_event` with all categories enabled. The producer writes packets into *chunks* of that memory and
//! reports over the socket which chunks are complete. The service copies the packets out of the chunks into a file or a
//! ring in memory, and frees the chunks. There is one session, from the start of the service to its end
//! ([`Service::start_sessions`] starts several).
//!
//! Producers are programs that use the crate `atrace` or one of Perfetto's SDKs. The protocol is Perfetto's protocol
//! for producers (the producer port), described in `atrace_perfetto::wire` and `atrace_perfetto::abi`.
//!
//! # Trust
//!
//! No producer is trusted. Every size, state and index that comes from a producer is checked on a copy, and a
//! producer's memory is mapped only if it can't shrink. A producer that breaks the protocol is disconnected ([`Fault`]
//! lists the reasons), and the trace stays readable. Memory, descriptors and time are limited per producer and in
//! total, so no producer can prevent the recording of other producers.
//!
//! # Modules
//!
//! - [`Service`]: the service's thread, its socket, and the check whether a program may connect;
//! - `producer`: the protocol with one producer; `sequence`: the packets of one writer of a producer, and the limits
//!   for the memory of unfinished packets;
//! - `blocking`: threads for calls that a producer could slow down;
//! - `packets`: the packet fields that the service reads, and the packets that the service itself writes;
//! - [`Storage`]: a file, or a ring in memory with the newest packets;
//! - [`Report`]: the numbers of recorded and lost events, and the producers that were disconnected.

mod blocking;
mod packets;
pub(crate) mod producer;
pub(crate) mod report;
mod sequence;
mod serve;
pub(crate) mod storage;

pub(crate) use self::packets::{bytes, number, packet, source_config, thread};
pub use self::report::{Counts, CutOff, Ended, Fault, Lost, Report};
pub use self::serve::Service;
pub(crate) use self::serve::Terms;
pub use self::storage::Storage;

/// The data source that is recorded.
const SOURCE: &[u8] = b"track_event";

/// The result of handling a producer's data.
type Result<T = ()> = std::result::Result<T, Fault>;

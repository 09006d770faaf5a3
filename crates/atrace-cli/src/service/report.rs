//! The results of a service: counts, losses, and the producers that were disconnected.

use std::fmt;
use std::io;

/// The reason why the service disconnected a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The producer sent a frame that can't be parsed, is too long, or is not a request to the producer port.
    Frame,
    /// The producer sent `InitializeConnection` twice, or sent a request before the requests that must precede it.
    Order,
    /// The producer's memory can shrink, has a wrong size, or could not be created. The value is the errno.
    Memory(i32),
    /// The producer named a page or chunk that its shared memory does not have.
    Place,
    /// The producer used an invalid number for a writer, which is the source of one sequence of packets.
    Writer,
    /// A packet does not end within its chunk.
    Packet,
    /// The number of packets in a chunk was smaller than when the chunk was read before.
    Count,
    /// The producer sent an invalid patch (bytes to be filled into a complete chunk), for example one that exceeds the
    /// chunk.
    Patch,
    /// The producer does not read the service's messages.
    Deaf,
    /// The producer connected, but sent no `InitializeConnection` within the time limit, or before the connection was
    /// closed to make room for another connection.
    Silent,
    /// The producer exceeds a limit, such as the memory limit.
    TooMuch,
}

impl Fault {
    /// Returns the fault of a connection whose memory could not be mapped or created.
    pub(super) fn memory(error: io::Error) -> Self {
        Self::Memory(error.raw_os_error().unwrap_or_default())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "it sent an invalid frame",
            Self::Order => "it sent a request out of order",
            Self::Memory(code) => {
                return write!(f, "its memory can't be used: {}", io::Error::from_raw_os_error(*code));
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

/// Counts of events, packets and producers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of events of programs.
    pub events: u64,
    /// The number of places in the trace where one event or several in a row are missing, as reported by a producer or
    /// found by the service.
    pub losses: u64,
    /// The number of lost events, as counted by producers.
    pub lost: u64,
    /// The number of `losses` of producers that do not count their lost events.
    pub uncounted: u64,
    /// The number of events that arrived and were not stored, because the recording had ended, or because writing to
    /// the file failed.
    pub unsaved: u64,
    /// The number of packets that were left out because they can't be parsed or contain fields that only the
    /// service may write.
    pub invalid: u64,
    /// The number of producers that have connected.
    pub producers: u64,
    /// The number of producers that are connected or, if the service has ended, were connected when its end began.
    pub connected: u64,
    /// The number of data sources that producers have registered.
    pub sources: u64,
    /// The total size of the stored packets in bytes.
    pub bytes: u64,
    /// The number of complete chunks that were read.
    pub chunks: u64,
    /// The number of times that a producer has patched a chunk after the chunk was complete.
    pub patches: u64,
    /// The number of producers that were disconnected because of a [`Fault`].
    pub lies: u64,
    /// The number of connections that were refused because they came from another user, or because there were too many.
    pub refused: u64,
}

/// A producer that was disconnected because of a [`Fault`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The process id of the producer.
    pub pid: u32,
    /// The name that the producer has given itself, which is untrusted.
    pub name: Vec<u8>,
    /// The reason why the producer was disconnected.
    pub fault: Fault,
}

/// The events that a producer lost, as counted by the producer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The process id of the producer.
    pub pid: u32,
    /// The name that the producer has given itself, which is untrusted.
    pub name: Vec<u8>,
    /// The number of events that were lost because no chunk of the shared memory was free, or because they end a slice
    /// whose begin was lost.
    pub room: u64,
    /// The number of events that were lost because a signal handler wrote them while its thread was writing another
    /// event, or because their thread had no slot (there were too many threads).
    pub inside: u64,
    /// The number of events that were lost because they were written before the service had reported its sessions to
    /// the process.
    pub early: u64,
    /// The size of the producer's shared memory in KiB.
    pub kib: u64,
    /// The thread ids and names of at most eight threads that lost events.
    pub threads: Vec<(u32, Vec<u8>)>,
}

impl Lost {
    /// Returns the total number of lost events.
    pub const fn events(&self) -> u64 {
        self.room.saturating_add(self.inside).saturating_add(self.early)
    }
}

/// The reason why the recording ended before the service was stopped.
#[derive(Debug)]
pub enum Ended {
    /// The file has reached its maximum size.
    Full,
    /// The file can't be written to (the disk may be full), or there is no memory for the ring.
    Failed(io::Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the file has reached its maximum size"),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

/// The results of a service.
#[derive(Debug, Default)]
pub struct Report {
    /// The counts of events, packets and producers.
    pub counts: Counts,
    /// The first producers that were disconnected because of a [`Fault`], at most 20.
    pub cut_off: Vec<CutOff>,
    /// The producers that lost the most events, at most 20.
    pub lost: Vec<Lost>,
    /// The reason why the recording ended early, if it did.
    pub ended: Option<Ended>,
}

/// The maximum length of the lists [`Report::cut_off`] and [`Report::lost`].
const NAMED: usize = 20;

impl Report {
    pub(super) fn cut_off(&mut self, who: CutOff) {
        if self.cut_off.len() < NAMED {
            self.cut_off.push(who);
        }
    }

    pub(super) fn lost(&mut self, lost: Lost) {
        self.lost.push(lost);
        self.lost.sort_by_key(|lost| std::cmp::Reverse(lost.events()));
        self.lost.truncate(NAMED);
    }
}

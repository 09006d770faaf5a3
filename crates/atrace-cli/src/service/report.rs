//! The results of a service: counts, and which producers it cut off.

use std::fmt;
use std::io;

use super::Fault;

/// How much of what there was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events of programs.
    pub events: u64,
    /// How often a producer said, or it was seen, that events were lost.
    pub losses: u64,
    /// Events that producers lost, by their own count.
    pub lost: u64,
    /// How often one said so that does not count them.
    pub uncounted: u64,
    /// Events that came and were not kept, as the recording had ended.
    pub unsaved: u64,
    /// Packets that are no such, or claim to be somebody else's; they were left out.
    pub invalid: u64,
    /// Producers that connected.
    pub producers: u64,
    /// Those that are connected.
    pub connected: u64,
    /// Sources of events that producers registered.
    pub sources: u64,
    /// Bytes of packets.
    pub bytes: u64,
    /// Chunks of producers' memory.
    pub chunks: u64,
    /// Chunks that were mended later.
    pub patches: u64,
    /// Producers that were cut off.
    pub lies: u64,
    /// Connections that were refused: another user's, or too many.
    pub refused: u64,
}

/// A producer that was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// The process.
    pub pid: u32,
    /// As it calls itself: bytes of a stranger.
    pub name: Vec<u8>,
    /// Why.
    pub fault: Fault,
}

/// What a producer lost, by its own count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// The process.
    pub pid: u32,
    /// As it calls itself: bytes of a stranger.
    pub name: Vec<u8>,
    /// Events that found no room in its memory.
    pub room: u64,
    /// Events within another event of their thread, or of more threads than can be told apart.
    pub inside: u64,
    /// Events before the recording reached it.
    pub early: u64,
    /// The size of its memory, in KiB.
    pub kib: u64,
    /// The threads that lost events, as far as they said so: the system's number, and the name.
    pub threads: Vec<(u32, Vec<u8>)>,
}

impl Lost {
    /// All of them.
    pub const fn events(&self) -> u64 {
        self.room.saturating_add(self.inside).saturating_add(self.early)
    }
}

/// Why no more was recorded, before the service was to end.
#[derive(Debug)]
pub enum Ended {
    /// The file has as many bytes as it may.
    Full,
    /// The file can't be written to: the disk is full, perhaps.
    Failed(io::Error),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("it has the size that it may have"),
            Self::Failed(e) => e.fmt(f),
        }
    }
}

/// What a service did.
#[derive(Debug, Default)]
pub struct Report {
    /// How much there was.
    pub counts: Counts,
    /// The first of those that were cut off.
    pub cut_off: Vec<CutOff>,
    /// Those that lost most.
    pub lost: Vec<Lost>,
    /// Why it ended early.
    pub ended: Option<Ended>,
}

/// As many of those that were cut off, and of those that lost events, are remembered.
const NAMED: usize = 20;

impl Report {
    pub(super) fn cut_off(&mut self, who: CutOff) {
        self.counts.lies += 1;
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

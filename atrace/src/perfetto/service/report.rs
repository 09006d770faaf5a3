//! What a service did: counts, and whom it cut off.

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
    /// Why it ended early.
    pub ended: Option<Ended>,
}

/// As many of those that were cut off are remembered.
const NAMED: usize = 20;

impl Report {
    pub(super) fn cut_off(&mut self, who: CutOff) {
        self.counts.lies += 1;
        if self.cut_off.len() < NAMED {
            self.cut_off.push(who);
        }
    }
}

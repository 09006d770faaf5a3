//! Where packets are kept: in a file as they come, or the last of them in memory.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;

use super::packets::{self, Facts};
use super::report::{Counts, Ended};
use crate::perfetto::trace_file::{TraceFile, Whose, add};

/// Where what is recorded goes.
#[derive(Debug)]
pub enum Keep {
    /// Into a file, as it comes.
    File {
        /// The file: empty, and this service's.
        file: File,
        /// It may have so many bytes.
        max: Option<u64>,
    },
    /// The last so many bytes stay in memory, until they are saved.
    Ring {
        /// How many.
        bytes: u64,
    },
}

/// The service's own sequence.
const OWN: u32 = 1;
/// What is left of a file's size for how it ends.
const END_ROOM: u64 = 512;
/// Packets are kept in blocks of so many bytes, which go, or are written, as a whole.
const BLOCK: usize = 64 << 10;

/// Packets that are kept.
#[derive(Debug)]
pub(crate) struct Kept {
    to: To,
    /// Whole packets that are not yet there.
    bytes: Vec<u8>,
    own: Whose,
    /// Why no more is kept.
    ended: Option<Ended>,
}

#[derive(Debug)]
enum To {
    File { file: TraceFile, max: u64 },
    Ring { blocks: VecDeque<Block>, len: u64, max: u64 },
}

/// Packets in a ring: what they are, one after the other.
#[derive(Debug, Default)]
struct Block {
    bytes: Vec<u8>,
    packets: Vec<Packet>,
}

#[derive(Clone, Copy, Debug)]
struct Packet {
    len: u32,
    sequence: u32,
    facts: Facts,
}

impl Kept {
    pub(crate) fn new(keep: Keep, pid: u32, uid: u32) -> Self {
        let to = match keep {
            Keep::File { file, max } => {
                To::File { file: TraceFile::new(file), max: max.unwrap_or(u64::MAX).saturating_sub(END_ROOM) }
            }
            Keep::Ring { bytes } => To::Ring { blocks: VecDeque::new(), len: 0, max: bytes },
        };
        let mut kept = Self { to, bytes: Vec::new(), own: Whose::new(OWN, pid, uid), ended: None };
        if let To::File { .. } = kept.to {
            kept.say(&packets::clocks());
            kept.say(&packets::config(0, false));
        }
        kept
    }

    /// Whether the oldest packets go.
    pub(crate) const fn is_ring(&self) -> bool {
        matches!(self.to, To::Ring { .. })
    }

    /// Whether no more is kept.
    pub(crate) const fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Keeps a producer's packet; tells whether it did.
    pub(crate) fn add(
        &mut self,
        packet: &[u8],
        facts: Facts,
        sequence: u32,
        whose: &Whose,
        is_after_loss: bool,
    ) -> bool {
        if self.is_over() {
            return false;
        }
        match &mut self.to {
            To::File { file, max } => {
                let before = self.bytes.len();
                add(&mut self.bytes, packet, whose, is_after_loss);
                if file.size() + self.bytes.len() as u64 > *max {
                    self.bytes.truncate(before);
                    self.ended = Some(Ended::Full);
                }
            }
            To::Ring { blocks, len, .. } => {
                if blocks.back().is_none_or(|block| block.bytes.len() >= BLOCK) {
                    blocks.push_back(Block::default());
                }
                let Some(block) = blocks.back_mut() else { return false };
                let before = block.bytes.len();
                add(&mut block.bytes, packet, whose, is_after_loss);
                let added = block.bytes.len() - before;
                let facts = Facts { tells_loss: facts.tells_loss || is_after_loss, ..facts };
                block.packets.push(Packet { len: added as u32, sequence, facts });
                *len += added as u64;
            }
        }
        // So that on a full disk no more than this has no room.
        if self.bytes.len() >= BLOCK {
            self.flush();
        }
        !self.is_over()
    }

    /// Keeps a packet of the service's own.
    fn say(&mut self, packet: &[u8]) {
        add(&mut self.bytes, packet, &self.own, false);
    }

    /// Says what all clocks show now.
    pub(crate) fn say_clocks(&mut self) {
        if !self.is_over() && !self.is_ring() {
            self.say(&packets::clocks());
        }
    }

    /// What was kept is in the file; the oldest that is too much in a ring is gone.
    pub(crate) fn flush(&mut self) {
        match &mut self.to {
            To::File { file, .. } => {
                if !self.bytes.is_empty()
                    && !matches!(self.ended, Some(Ended::Failed(_)))
                    && let Err(e) = file.write(&self.bytes)
                {
                    self.ended = Some(Ended::Failed(e));
                }
                self.bytes.clear();
            }
            To::Ring { blocks, len, max } => {
                while *len > *max
                    && blocks.len() > 1
                    && let Some(oldest) = blocks.pop_front()
                {
                    *len -= oldest.bytes.len() as u64;
                }
            }
        }
    }

    /// Ends the trace; returns why it ended before.
    pub(crate) fn end(mut self, counts: &Counts) -> Option<Ended> {
        if let To::File { .. } = self.to {
            self.say(&packets::clocks());
            self.say(&packets::stats(counts));
        }
        self.flush();
        self.ended
    }

    /// Saves what is in the ring.
    pub(crate) fn save(&self, file: File, counts: &Counts) -> io::Result<()> {
        let To::Ring { blocks, max, .. } = &self.to else {
            return Err(io::Error::other("what is recorded is in a file already"));
        };
        let mut file = TraceFile::new(file);
        let mut bytes = Vec::new();
        for packet in [packets::clocks(), packets::config(*max >> 10, true)] {
            add(&mut bytes, &packet, &self.own, false);
        }
        // Whether a sequence's state is known: it may have been told in what is gone.
        let mut knows = HashMap::<u32, bool>::new();
        for block in blocks {
            let mut rest = block.bytes.as_slice();
            for Packet { len, sequence, facts } in &block.packets {
                let (packet, behind) = rest.split_at_checked(*len as usize).unwrap_or((rest, &[]));
                rest = behind;
                let knows = knows.entry(*sequence).or_default();
                *knows = facts.clears_state || *knows && !facts.tells_loss;
                if *knows || !facts.needs_state {
                    bytes.extend_from_slice(packet);
                }
            }
            file.write(&bytes)?;
            bytes.clear();
        }
        for packet in [packets::clocks(), packets::stats(counts)] {
            add(&mut bytes, &packet, &self.own, false);
        }
        file.write(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use atrace_sys::perfetto::foreign::Foreign;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no files")]
    fn where_there_is_no_more_room_what_had_some_is_there() {
        const ROOM: usize = 4 * BLOCK;
        // A file that does not grow.
        let (_, file) = Foreign::make(ROOM, 4096).unwrap();
        let mut kept = Kept::new(Keep::File { file: file.into(), max: None }, 1, 0);
        let whose = Whose::new(2, 1, 0);
        // From one look at a producer that wrote much.
        let is_kept = (0..1000).filter(|_| kept.add(&[0; 1000], Facts::default(), 2, &whose, false));
        assert!(is_kept.count() < ROOM / 1000);
        kept.flush();
        let To::File { file, .. } = &kept.to else { unreachable!() };
        assert!(file.size() > (ROOM - 2 * BLOCK) as u64, "{}", file.size());
        assert!(kept.is_over());
    }
}

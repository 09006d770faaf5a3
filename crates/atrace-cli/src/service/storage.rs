//! Stores the packets: all packets in a file, or the newest packets in a ring in memory.
//!
//! A full ring drops its oldest packets. These may contain definitions that later packets of the same sequence need. So
//! when the ring is saved, the packets of a sequence that need definitions are left out until a packet begins the
//! sequence's incremental state (its definitions) anew. At intervals, the service asks the producers to begin the
//! incremental state anew (`clear_each` in `serve`).

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;

use super::packets::{self, Facts};
use super::report::{Counts, Ended};
use atrace_perfetto::proto::varint;
use atrace_perfetto::trace_file::{PacketOrigin, TraceFile, add};

/// The place where packets are stored: a file, or a ring in memory.
#[derive(Debug)]
pub enum Storage {
    /// Packets are written to a file as they arrive.
    File {
        /// The file. It must be empty at first, and no other process may write to it.
        file: File,
        /// The file's maximum size in bytes, or `None` for no limit.
        max: Option<u64>,
    },
    /// The newest packets are stored in a ring in memory, and can be saved in a file.
    Ring {
        /// The size of the ring in bytes.
        bytes: u64,
    },
}

/// The number of the service's own sequence of packets.
const OWN: u32 = 1;
/// The number of bytes of a file's maximum size that are reserved for the last packets of the trace.
const END_ROOM: u64 = 512;
/// The size in bytes at which the buffered packets are written to the file. Also the minimum size of a ring.
const BLOCK: usize = 64 << 10;

/// The stored packets.
pub(crate) struct StoredPackets {
    to: Destination,
    /// Whole packets that are not in the file or the ring yet.
    bytes: Vec<u8>,
    own: PacketOrigin,
    /// The number of events in `bytes`.
    events: u64,
    /// The reason why no more packets are stored, or `None` while packets are stored.
    ended: Option<Ended>,
    /// The number of events that arrived after the recording had ended.
    late: u64,
    /// The number of events that were lost because writing `bytes` to the file failed.
    failed: u64,
}

enum Destination {
    File {
        file: TraceFile,
        max: u64,
    },
    /// Whole packets, in the format of the file. The ring has no index of its packets, because an index would need as
    /// much memory as the packets.
    Ring {
        packets: VecDeque<u8>,
        max: usize,
    },
}

impl StoredPackets {
    pub(crate) fn new(keep: Storage, pid: u32, uid: u32) -> Self {
        let mut ended = None;
        let to = match keep {
            Storage::File { file, max } => Destination::File {
                file: TraceFile::new(file),
                max: max.unwrap_or(u64::MAX).saturating_sub(END_ROOM),
            },
            Storage::Ring { bytes } => {
                let max = usize::try_from(bytes).unwrap_or(usize::MAX).max(BLOCK);
                let mut packets = VecDeque::new();
                // The ring's whole size is reserved at once. This uses memory only for the pages that are touched.
                // Growing the ring later would need memory for both the old and the new buffer for a moment.
                if packets.try_reserve_exact(max).is_err() {
                    ended = Some(Ended::Failed(io::ErrorKind::OutOfMemory.into()));
                }
                Destination::Ring { packets, max }
            }
        };
        let own = PacketOrigin::new(OWN, pid, uid);
        let mut kept = Self { to, bytes: Vec::new(), own, events: 0, ended, late: 0, failed: 0 };
        if let Destination::File { .. } = kept.to {
            kept.say(&packets::clocks());
            kept.say(&packets::config(0, false));
        }
        kept
    }

    /// Returns whether the recording has ended.
    pub(crate) const fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Stores a packet of a producer. Returns whether it was stored.
    pub(crate) fn add(
        &mut self,
        packet: &[u8],
        facts: Facts,
        whose: &PacketOrigin,
        is_after_loss: bool,
    ) -> bool {
        let event = u64::from(facts.is_event);
        if self.is_over() {
            self.late += event;
            return false;
        }
        match &mut self.to {
            Destination::File { file, max } => {
                let before = self.bytes.len();
                add(&mut self.bytes, packet, whose, is_after_loss);
                if file.size() + self.bytes.len() as u64 > *max {
                    self.bytes.truncate(before);
                    self.ended = Some(Ended::Full);
                    self.late += event;
                    return false;
                }
                self.events += event;
            }
            Destination::Ring { packets, max } => {
                add(&mut self.bytes, packet, whose, is_after_loss);
                if self.bytes.len() > *max {
                    self.bytes.clear();
                    return false;
                }
                while packets.len() + self.bytes.len() > *max {
                    packets.drain(..len_at(packets, 0));
                }
                packets.extend(&self.bytes);
                self.bytes.clear();
            }
        }
        // Writing each block as soon as it is full limits the loss to one block if the disk is full.
        if self.bytes.len() >= BLOCK {
            self.flush();
        }
        true
    }

    /// Stores a packet that does not come from a producer.
    pub(crate) fn add_own(&mut self, packet: &[u8]) {
        let own = self.own;
        self.add(packet, Facts::default(), &own, false);
    }

    /// Stores a packet of the service itself, in the service's own sequence.
    fn say(&mut self, packet: &[u8]) {
        add(&mut self.bytes, packet, &self.own, false);
    }

    /// Stores a snapshot of the system's clocks, if packets are stored in a file.
    pub(crate) fn say_clocks(&mut self) {
        if let (Destination::File { .. }, None) = (&self.to, &self.ended) {
            self.say(&packets::clocks());
        }
    }

    /// Writes the buffered packets to the file.
    pub(crate) fn flush(&mut self) {
        let Destination::File { file, .. } = &mut self.to else { return };
        if !self.bytes.is_empty()
            && !matches!(self.ended, Some(Ended::Failed(_)))
            && let Err(e) = file.write(&self.bytes)
        {
            self.ended = Some(Ended::Failed(e));
            self.failed += self.events;
        }
        self.bytes.clear();
        self.events = 0;
    }

    /// Ends the trace. Returns the reason if the recording ended early, and two numbers of events that are missing in
    /// the trace: the events that arrived after the end, and the events that could not be written.
    pub(crate) fn end(mut self, counts: &Counts) -> (Option<Ended>, u64, u64) {
        if let Destination::File { .. } = self.to {
            self.say(&packets::clocks());
            self.say(&packets::stats(counts));
        }
        self.flush();
        (self.ended, self.late, self.failed)
    }

    /// Saves the ring's packets in a file.
    pub(crate) fn save(&self, file: File, counts: &Counts) -> io::Result<()> {
        let Destination::Ring { packets, max } = &self.to else {
            return Err(io::Error::other("the recording is already in a file"));
        };
        let mut file = TraceFile::new(file);
        let mut bytes = Vec::new();
        for packet in [packets::clocks(), packets::config(*max as u64 >> 10, true)] {
            add(&mut bytes, &packet, &self.own, false);
        }
        // For each sequence, whether the part of the ring that was read so far has the sequence's incremental state.
        // The packets with this state may have been overwritten.
        let mut knows = HashMap::<u64, bool>::new();
        let mut at = 0;
        while at < packets.len() {
            let len = len_at(packets, at);
            let start = bytes.len();
            bytes.extend(packets.range(at..at + len));
            at += len;
            let facts = packets::look_again(&bytes[start..]);
            let knows = knows.entry(facts.sequence).or_default();
            *knows = facts.clears_state || *knows && !facts.tells_loss;
            if !*knows && facts.needs_state {
                bytes.truncate(start);
            }
            if bytes.len() >= BLOCK {
                file.write(&bytes)?;
                bytes.clear();
            }
        }
        for packet in [packets::clocks(), packets::stats(counts)] {
            add(&mut bytes, &packet, &self.own, false);
        }
        file.write(&bytes)
    }
}

/// Returns the length of the packet at the index `at`, including its header. The header is a key of one byte, and a
/// varint with the length of the rest.
fn len_at(packets: &VecDeque<u8>, at: usize) -> usize {
    let all = packets.len() - at;
    let byte = |index| packets.get(at + 1 + index).copied();
    varint(10, byte).map_or(all, |(rest, len)| all.min(1 + len + rest as usize))
}

#[cfg(test)]
mod tests {
    use atrace_perfetto::foreign::Foreign;

    use super::*;

    #[test]
    fn where_there_is_no_more_room_what_had_some_is_there() {
        const ROOM: usize = 4 * BLOCK;
        // The packets are stored in a memory file that can't grow.
        let (_, file) = Foreign::make(ROOM, 4096).unwrap();
        let mut kept = StoredPackets::new(Storage::File { file: file.into(), max: None }, 1, 0);
        let whose = PacketOrigin::new(2, 1, 0);
        // Adds packets as when the service reads the memory of a producer that has written many packets.
        let is_kept = (0..1000).filter(|_| kept.add(&[0; 1000], Facts::default(), &whose, false));
        assert!(is_kept.count() < ROOM / 1000);
        kept.flush();
        let Destination::File { file, .. } = &kept.to else { unreachable!() };
        assert!(file.size() > (ROOM - 2 * BLOCK) as u64, "{}", file.size());
        assert!(kept.is_over());
    }
}

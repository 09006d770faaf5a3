//! A trace file while it is written: packets, each with the process that wrote it. The file is a whole trace after each write.
//!
//! A process that records itself writes such a file, and so does a tracing service.

use std::fs::File;
use std::io::{self, Write as _};

use super::proto::Writer;

/// The fields that are added to each packet: its sequence, and the process and the user that wrote it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Whose {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Whose {
    /// Three numbers, each with a key of at most two bytes and a value of at most five.
    const MAX: usize = 24;

    /// Encodes the fields of a sequence that this process of this user writes.
    pub fn new(sequence: u32, pid: u32, uid: u32) -> Self {
        let mut bytes = [0; Self::MAX];
        let mut writer = Writer::new(&mut bytes);
        writer.number(10, sequence.into()).number(79, pid.into()).number(3, uid.into());
        let len = writer.finish().map_or(0, <[u8]>::len);
        Self { bytes, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The most bytes that [`add`] writes in addition to the packet.
pub const ADDED_MAX: usize = 64;

/// `previous_packet_dropped`.
const DROPPED: &[u8] = &[0xd0, 2, 1];

/// Appends a packet to a trace, with the fields of its sequence; `is_after_loss` marks packets lost before it.
pub fn add(trace: &mut Vec<u8>, packet: &[u8], whose: &Whose, is_after_loss: bool) {
    let lost = if is_after_loss { DROPPED } else { &[] };
    let mut head = [0; 16];
    let mut writer = Writer::new(&mut head);
    writer.length(1, packet.len() + whose.len + lost.len());
    let head = writer.finish().unwrap_or_default();
    for part in [head, packet, whose.bytes(), lost] {
        trace.extend_from_slice(part);
    }
}

/// A file of whole packets.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    written: u64,
}

impl TraceFile {
    /// Begins a trace in a file that is empty.
    pub fn new(file: File) -> Self {
        Self { file, written: 0 }
    }

    /// Writes whole packets: all of them, or none.
    ///
    /// # Errors
    ///
    /// When the file does not take all of them.
    pub fn write(&mut self, packets: &[u8]) -> io::Result<()> {
        let done = self.file.write_all(packets);
        match done {
            Ok(()) => self.written += packets.len() as u64,
            Err(_) => {
                let _ = self.file.set_len(self.written);
            }
        }
        done
    }

    /// Returns how many bytes were written.
    pub fn size(&self) -> u64 {
        self.written
    }
}

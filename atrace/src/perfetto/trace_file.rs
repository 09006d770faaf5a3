//! A trace in the making: a file of packets, each with whose it is. It is a whole trace after each write.

use std::fs::File;
use std::io::{self, Write as _};

use atrace_sys::perfetto::proto::Writer;

/// What is added to a packet: the sequence that it is of, the process and the user that wrote it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Whose {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl Whose {
    /// Three numbers, each with a key of at most two bytes and a value of at most five.
    const MAX: usize = 24;

    pub(crate) fn new(sequence: u32, pid: u32, uid: u32) -> Self {
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

/// `previous_packet_dropped`.
const DROPPED: &[u8] = &[0xd0, 2, 1];

/// Adds a packet to a trace, with whose it is, and whether something before it was lost.
pub(crate) fn add(trace: &mut Vec<u8>, packet: &[u8], whose: &Whose, is_after_loss: bool) {
    let lost = if is_after_loss { DROPPED } else { &[] };
    let mut head = [0; 16];
    let mut writer = Writer::new(&mut head);
    writer.length(1, packet.len() + whose.len + lost.len());
    let head = writer.finish().unwrap_or_default();
    for part in [head, packet, whose.bytes(), lost] {
        trace.extend_from_slice(part);
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct TraceFile {
    file: File,
    written: u64,
}

impl TraceFile {
    pub(crate) fn new(file: File) -> Self {
        Self { file, written: 0 }
    }

    /// Writes whole packets. Where not all of them have room, none of them is there.
    pub(crate) fn write(&mut self, packets: &[u8]) -> io::Result<()> {
        let done = self.file.write_all(packets);
        match done {
            Ok(()) => self.written += packets.len() as u64,
            Err(_) => {
                let _ = self.file.set_len(self.written);
            }
        }
        done
    }

    /// How many bytes it has.
    #[allow(dead_code, reason = "the service's, which has limits")]
    pub(crate) fn size(&self) -> u64 {
        self.written
    }
}

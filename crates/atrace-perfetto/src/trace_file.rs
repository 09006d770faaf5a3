//! Writes a trace file. Each packet in the file contains the number of its sequence, and the ids of the process and the
//! user that wrote the packet.
//!
//! Both a recording of this process and a tracing service write a file in this format. The file is a valid trace after
//! each write.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};

use super::proto::Writer;

/// The protobuf fields that are added to each packet: the packet's sequence, and the ids of the process and the user
/// that wrote the packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct PacketOrigin {
    bytes: [u8; Self::MAX],
    len: usize,
}

impl PacketOrigin {
    /// An upper limit for the size of the fields that are added to a packet, in bytes: three numbers, each with a key
    /// of at most two bytes and a value of at most five.
    const MAX: usize = 24;

    /// Encodes the fields that are added to each packet of this origin.
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

/// The maximum number of bytes that [`add`] appends in addition to the packet.
pub const ADDED_MAX: usize = 64;

/// The field `previous_packet_dropped` with the value 1.
const DROPPED: &[u8] = &[0xd0, 2, 1];

/// Appends a packet to a trace, together with `whose`, the fields that name the packet's origin. If `is_after_loss` is
/// true, the packet also gets the field that reports a loss of packets before it.
pub fn add(trace: &mut Vec<u8>, packet: &[u8], whose: &PacketOrigin, is_after_loss: bool) {
    let lost = if is_after_loss { DROPPED } else { &[] };
    let mut head = [0; 16];
    let mut writer = Writer::new(&mut head);
    writer.length(1, packet.len() + whose.len + lost.len());
    let head = writer.finish().unwrap_or_default();
    for part in [head, packet, whose.bytes(), lost] {
        trace.extend_from_slice(part);
    }
}

/// A file that consists of whole packets.
#[derive(Debug)]
pub struct TraceFile {
    file: File,
    written: u64,
}

impl TraceFile {
    /// Begins a trace in `file`, which must be empty, or be [emptied](Self::empty) before the first write.
    pub fn new(file: File) -> Self {
        Self { file, written: 0 }
    }

    /// Removes the former content of the file, if it is a regular file.
    ///
    /// # Errors
    ///
    /// Returns the error of the file.
    pub fn empty(&self) -> io::Result<()> {
        if self.file.metadata()?.is_file() { self.file.set_len(0) } else { Ok(()) }
    }

    /// Writes encoded packets. If the write fails, the file is cut to its former length, so that it contains none of
    /// the packets. The next write continues at that place.
    ///
    /// # Errors
    ///
    /// Returns the error of the file if not all bytes could be written.
    pub fn write(&mut self, packets: &[u8]) -> io::Result<()> {
        let done = self.file.write_all(packets);
        match done {
            Ok(()) => self.written += packets.len() as u64,
            Err(_) => {
                let _ = self.file.set_len(self.written);
                let _ = self.file.seek(SeekFrom::Start(self.written));
            }
        }
        done
    }

    /// Returns the number of bytes that were written to the file.
    pub fn size(&self) -> u64 {
        self.written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd as _, FromRawFd as _};

    /// Tests that a write that fails in the middle leaves no gap before the next write.
    #[test]
    #[cfg_attr(miri, ignore = "makes a memory file")]
    fn after_a_failed_write_the_file_goes_on_at_its_end() {
        const SIZE: usize = 64 << 10;
        // SAFETY: the name is a C string.
        let number = unsafe { libc::memfd_create(c"trace".as_ptr(), libc::MFD_ALLOW_SEALING) };
        // SAFETY: the new descriptor has no other owner.
        let mut file = unsafe { File::from_raw_fd(number) };
        file.set_len(SIZE as u64).unwrap();
        // SAFETY: the arguments are numbers.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_GROW) }, 0);
        // The clone shares the position in the file with `file`.
        let mut trace = TraceFile::new(file.try_clone().unwrap());
        trace.write(b"whole").unwrap();
        trace.write(&vec![0; SIZE]).unwrap_err();
        let len = file.metadata().unwrap().len();
        assert_eq!((trace.size(), len, file.stream_position().unwrap()), (5, 5, 5));
    }
}

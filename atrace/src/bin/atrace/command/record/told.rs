//! What a finished trace tells about itself: what the service, its producers and the kernel have lost.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt as _;

use atrace_sys::perfetto::proto::{Reader, Value};

use crate::command::terminal::thousands;

/// A trace is a row of packets: the key of such a field, of bytes.
const PACKET: u8 = 1 << 3 | 2;

/// How often something was lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// In a sequence, between two of its packets.
    gaps: u64,
    /// Pieces of the service's buffer, before they were written to the file.
    overwritten: u64,
    /// How often a program did not hand over what it had when it was asked to.
    late: u64,
    /// In the kernel's buffers.
    kernel: u64,
}

impl Told {
    /// Reads the file from its start, wherever who else has it open stands. What is cut at the end is left out.
    pub(super) fn read(file: &File) -> io::Result<Self> {
        let mut packets = BufReader::with_capacity(1 << 16, At(file, 0));
        let (mut told, mut begun, mut packet) = (Self::default(), HashSet::new(), Vec::new());
        while packets.fill_buf()?.first() == Some(&PACKET) {
            packets.consume(1);
            let Some(len) = length(&mut packets)? else { break };
            packet.clear();
            if packets.by_ref().take(len).read_to_end(&mut packet)? as u64 != len {
                break;
            }
            told.look(&packet, &mut begun);
        }
        Ok(told)
    }

    /// `begun` are the sequences that had a packet: before its first one nothing was lost of a recording.
    fn look(&mut self, packet: &[u8], begun: &mut HashSet<u64>) {
        let is_set = |value: Option<Value<'_>>| value.is_some_and(|value| value.number() != 0);
        if let Some(sequence) = Reader::first(packet, 10)
            && !begun.insert(sequence.number())
            && is_set(Reader::first(packet, 42))
        {
            self.gaps += 1;
        }
        for (field, value) in Reader::new(packet) {
            match field {
                1 if is_set(Reader::first(value.bytes(), 3)) => self.kernel += 1,
                35 => {
                    self.overwritten = overwritten(value.bytes());
                    self.late = Reader::first(value.bytes(), 14).map_or(0, Value::number);
                }
                _ => {}
            }
        }
    }

    /// The same in words.
    pub(super) fn lines(&self) -> Vec<String> {
        let times = |count| match count {
            1 => "once".to_owned(),
            count => format!("{} times", thousands(count)),
        };
        let all = [
            (
                self.gaps,
                format!(
                    "{} events were lost, as a program wrote faster than they could be taken",
                    times(self.gaps)
                ),
            ),
            (
                self.overwritten,
                format!(
                    "{} pieces of memory were overwritten before they were saved: --buffer has more of it",
                    thousands(self.overwritten)
                ),
            ),
            (self.late, format!("{} a program did not hand over in time what it had", times(self.late))),
            (self.kernel, format!("{} events of the kernel were lost", times(self.kernel))),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, line)| line).collect()
    }
}

/// Of all buffers, until now.
fn overwritten(stats: &[u8]) -> u64 {
    let buffers = Reader::new(stats).filter(|(field, _)| *field == 1);
    buffers.filter_map(|(_, buffer)| Reader::first(buffer.bytes(), 3)).map(Value::number).sum()
}

/// A varint; None where it is cut.
fn length(from: &mut impl Read) -> io::Result<Option<u64>> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        match from.read_exact(&mut byte) {
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

/// A file, read from a place of its own.
struct At<'a>(&'a File, u64);

impl Read for At<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let len = self.0.read_at(bytes, self.1)?;
        self.1 += len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_file_that_is_cut_is_read_to_there() {
        // A packet of sequence 1, and a second one after a loss.
        let whole = [10, 2, 80, 1, 10, 5, 80, 1, 208, 2, 1];
        for len in 0..=whole.len() {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&whole[..len]).unwrap();
            let told = Told::read(&file).unwrap();
            assert_eq!(told, Told { gaps: u64::from(len == whole.len()), ..Told::default() }, "{len}");
        }
        // No packet, or one of a length that makes no sense.
        for bytes in [&[8, 1][..], &[10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(Told::read(&file).unwrap(), Told::default());
        }
    }
}

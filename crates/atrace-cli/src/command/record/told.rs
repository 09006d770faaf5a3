//! Reads from a finished trace which events the service, its producers and the kernel have lost.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileExt as _;

use crate::escape::shown;
use atrace_perfetto::proto::{Reader, Value};

use crate::command::terminal::thousands;

/// A trace is a row of packets: the key of such a field, of bytes.
const PACKET: u8 = 1 << 3 | 2;

/// The longest packet that is looked at, and of how many sequences it is known that they had one.
const PACKET_MAX: u64 = 64 << 20;
const SEQUENCES_MAX: usize = 1 << 20;

/// How often something was lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// In a sequence, between two of its packets, or, as its program says, before them.
    gaps: u64,
    /// The threads of these sequences: the system's number, and the name.
    threads: BTreeSet<(u64, Vec<u8>)>,
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
        let (mut told, mut sequences, mut packet) = (Self::default(), HashMap::new(), Vec::new());
        while packets.fill_buf()?.first() == Some(&PACKET) {
            packets.consume(1);
            // Who wrote the file is not this command.
            let Some(len) = length(&mut packets)?.filter(|len| *len <= PACKET_MAX) else { break };
            packet.clear();
            if packets.by_ref().take(len).read_to_end(&mut packet)? as u64 != len {
                break;
            }
            told.look(&packet, &mut sequences);
        }
        let losers = sequences.into_values().filter(|sequence| sequence.has_lost);
        told.threads = losers.filter_map(|sequence| sequence.thread).collect();
        Ok(told)
    }

    /// `sequences` are those that had a packet. What the service says was lost before the first one was of no recording.
    fn look(&mut self, packet: &[u8], sequences: &mut HashMap<u64, Sequence>) {
        let is_set = |value: Option<Value<'_>>| value.is_some_and(|value| value.number() != 0);
        if let Some(number) = Reader::first(packet, 10)
            && (sequences.len() < SEQUENCES_MAX || sequences.contains_key(&number.number()))
        {
            let is_first = !sequences.contains_key(&number.number());
            let sequence = sequences.entry(number.number()).or_default();
            let dropped = Reader::first(packet, 42).map_or(0, Value::number);
            if dropped & PROGRAM_SAYS != 0 || dropped != 0 && !is_first {
                self.gaps += 1;
                sequence.has_lost = true;
            }
            if let Some(thread) = thread(packet) {
                sequence.thread = Some(thread);
            }
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

    fn in_threads(&self) -> String {
        let threads = self.threads.iter().take(THREADS_MAX);
        let names: Vec<_> = threads.map(|(tid, name)| format!("{} ({tid})", shown(name))).collect();
        if names.is_empty() { String::new() } else { format!(" in the threads {}", names.join(", ")) }
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
                    "{} events were lost{}, as a program wrote faster than they could be taken, or before the recording \
                     reached it; `atrace status` says how many while it runs: with \
                     ATRACE_SHMEM_KB=4096 in its environment it has four times as much memory as without",
                    times(self.gaps),
                    self.in_threads()
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

/// As many threads are named.
const THREADS_MAX: usize = 8;
/// In `previous_packet_dropped`: what a program says whose memory was full.
const PROGRAM_SAYS: u64 = 256;

/// What is known of a sequence.
#[derive(Debug, Default)]
struct Sequence {
    has_lost: bool,
    thread: Option<(u64, Vec<u8>)>,
}

/// The thread that a packet describes.
fn thread(packet: &[u8]) -> Option<(u64, Vec<u8>)> {
    let thread = Reader::first(Reader::first(packet, 60)?.bytes(), 4)?.bytes();
    let name = Reader::first(thread, 5).map_or(&[][..], Value::bytes);
    Some((Reader::first(thread, 2)?.number(), name.to_vec()))
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
        // A thread's, whose program says that it lost something before.
        let packet = [80, 1, 208, 2, 129, 2, 226, 3, 7, 34, 5, 16, 9, 42, 1, b'w'];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&[10, packet.len() as u8][..], &packet].concat()).unwrap();
        let said = Told::read(&file).unwrap().lines().concat();
        assert!(said.contains("once events were lost in the threads w (9), "), "{said}");
        // No packet, or one of a length that makes no sense.
        for bytes in [&[8, 1][..], &[10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(Told::read(&file).unwrap(), Told::default());
        }
    }
}

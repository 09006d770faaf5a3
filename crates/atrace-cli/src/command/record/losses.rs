//! Finds in a finished trace how many times the service, the producers and the kernel have lost events.
//!
//! The trace was written by another process and is untrusted. So sizes are limited, and the reader stops at an
//! incomplete packet. Field numbers are from Perfetto's `trace_packet.proto` and `trace_stats.proto`.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt as _;

use crate::escape::shown;
use crate::service;
use atrace_perfetto::proto::{Reader, Value, varint};

use crate::command::terminal::thousands;

/// The first byte of a packet in a trace file: field 1, of type bytes.
const PACKET: u8 = 1 << 3 | 2;

/// The maximum size of a packet in bytes.
const PACKET_MAX: u64 = 64 << 20;
/// The maximum number of sequences whose losses are counted.
const SEQUENCES_MAX: usize = 1 << 20;

/// Counts of losses in a trace.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    /// The number of gaps in sequences of packets. A gap is a position at which packets are missing between two packets
    /// of a sequence, or a position at which the program itself reports a loss.
    gaps: u64,
    /// The ids and names of the threads whose sequences have gaps.
    threads: BTreeSet<(u32, Vec<u8>)>,
    /// The number of chunks in the service's buffer that were overwritten before they were written to
    /// the file.
    overwritten: u64,
    /// The number of times that the service asked a program to commit its chunks, and the program did not do so in
    /// time.
    late: u64,
    /// The number of times that the kernel's buffers lost events.
    kernel: u64,
}

impl Losses {
    /// Reads the file from its start, without changing the file position, which other handles share. Ignores
    /// an incomplete packet at the end.
    pub(super) fn read(file: &File) -> io::Result<Self> {
        let mut packets = BufReader::with_capacity(1 << 16, FileReader(file, 0));
        let (mut losses, mut sequences, mut packet) = (Self::default(), HashMap::new(), Vec::new());
        while packets.fill_buf()?.first() == Some(&PACKET) {
            packets.consume(1);
            // Another process wrote the file, so the length may be anything.
            let Some(len) = length(&mut packets)?.filter(|len| *len <= PACKET_MAX) else { break };
            packet.clear();
            if packets.by_ref().take(len).read_to_end(&mut packet)? as u64 != len {
                break;
            }
            losses.look(&packet, &mut sequences);
        }
        let losers = sequences.into_values().filter(|sequence| sequence.has_lost);
        losses.threads = losers.filter_map(|sequence| sequence.thread).collect();
        Ok(losses)
    }

    /// Counts the losses that a packet reports. `sequences` are the sequences of the packets that were read before. If
    /// the service reports a loss in the first packet of a sequence, the loss is not counted, because the lost packets
    /// were written before this recording.
    fn look(&mut self, packet: &[u8], sequences: &mut HashMap<u64, Sequence>) {
        if let Some(number) = Reader::first(packet, 10).map(Value::number)
            && (sequences.len() < SEQUENCES_MAX || sequences.contains_key(&number))
        {
            let is_first = !sequences.contains_key(&number);
            let sequence = sequences.entry(number).or_default();
            let dropped = service::number(packet, 42);
            if dropped & PROGRAM_SAYS != 0 || dropped != 0 && !is_first {
                self.gaps += 1;
                sequence.has_lost = true;
            }
            if let Some((tid, name)) = service::thread(packet) {
                sequence.thread = Some((tid, name.to_vec()));
            }
        }
        for (field, value) in Reader::new(packet) {
            match field {
                1 if service::number(value.bytes(), 3) != 0 => self.kernel += 1,
                35 => {
                    self.overwritten = overwritten(value.bytes());
                    self.late = service::number(value.bytes(), 14);
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

    /// Returns the losses as lines of text.
    pub(super) fn lines(&self) -> Vec<String> {
        let times = |count| match count {
            1 => "once".to_owned(),
            count => format!("{} times", thousands(count)),
        };
        let all = [
            (
                self.gaps,
                format!(
                    "{} events were lost{}, because a program wrote faster than they could be read, or before the recording \
                     reached it; `atrace status` says how many while it runs: with \
                     ATRACE_SHMEM_KB=4096 in its environment it has four times as much memory as without",
                    times(self.gaps),
                    self.in_threads()
                ),
            ),
            (
                self.overwritten,
                format!(
                    "{} chunks of the buffer were overwritten before they were saved: a larger --buffer avoids this",
                    thousands(self.overwritten)
                ),
            ),
            (self.late, format!("{} a program did not commit its chunks in time", times(self.late))),
            (self.kernel, format!("{} events of the kernel were lost", times(self.kernel))),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(_, line)| line).collect()
    }
}

/// The maximum number of threads whose names are printed.
const THREADS_MAX: usize = 8;
/// The bit in the field `previous_packet_dropped` with which the program itself reports a loss, because its memory was
/// full.
const PROGRAM_SAYS: u64 = 256;

/// The data about a sequence of packets that is needed to detect losses.
#[derive(Debug, Default)]
struct Sequence {
    has_lost: bool,
    thread: Option<(u32, Vec<u8>)>,
}

/// Returns the number of overwritten chunks in the statistics `stats`, summed over all buffers.
fn overwritten(stats: &[u8]) -> u64 {
    let buffers = Reader::new(stats).filter(|(field, _)| *field == 1);
    buffers.map(|(_, buffer)| service::number(buffer.bytes(), 3)).sum()
}

/// Reads the length of a packet, which is a varint. Returns `None` if the varint is incomplete or too long.
fn length(from: &mut impl BufRead) -> io::Result<Option<u64>> {
    let mut failed = None;
    let mut bytes = from.bytes();
    let read = varint(10, |_| bytes.next()?.map_err(|e| failed = Some(e)).ok());
    failed.map_or(Ok(read.map(|(value, _)| value)), Err)
}

/// A file with a reading position that is not shared with other handles of the file.
struct FileReader<'a>(&'a File, u64);

impl Read for FileReader<'_> {
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
        // A packet of the sequence 1, and a second packet that says that packets before it were lost.
        let whole = [10, 2, 80, 1, 10, 5, 80, 1, 208, 2, 1];
        for len in 0..=whole.len() {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&whole[..len]).unwrap();
            let losses = Losses::read(&file).unwrap();
            assert_eq!(losses, Losses { gaps: u64::from(len == whole.len()), ..Losses::default() }, "{len}");
        }
        // A packet of a thread, which says that its program has lost events before it.
        let packet = [80, 1, 208, 2, 129, 2, 226, 3, 7, 34, 5, 16, 9, 42, 1, b'w'];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[&[10, packet.len() as u8][..], &packet].concat()).unwrap();
        let said = Losses::read(&file).unwrap().lines().concat();
        assert!(said.contains("once events were lost in the threads w (9), "), "{said}");
        // Files with no packet, and with a packet of an invalid length, show no losses.
        for bytes in [&[8, 1][..], &[10, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255]] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            assert_eq!(Losses::read(&file).unwrap(), Losses::default());
        }
    }
}

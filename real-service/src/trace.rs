//! What was traced: its events, and what Perfetto's trace processor makes of them.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use atrace_sys::perfetto::proto::{Reader, Value};

/// A trace, packet by packet.
#[derive(Clone, Debug)]
pub struct Trace {
    packets: Vec<Vec<u8>>,
}

/// An event of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The process that wrote it.
    pub pid: u64,
    /// The sequence, a thread's in one session.
    pub sequence: u64,
    /// `CLOCK_BOOTTIME`.
    pub time: u64,
    /// 1 begin, 2 end, 3 instant, 4 counter.
    pub kind: u64,
    /// What stands in the packet.
    pub name: Option<Vec<u8>>,
    /// The names of the categories.
    pub categories: Vec<String>,
    /// The track, if it is not the thread's.
    pub track: Option<u64>,
    /// A counter's value.
    pub value: Option<i64>,
}

/// How often a trace says that something was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The producer told it.
    pub told: usize,
    /// The service missed a chunk.
    pub found: usize,
}

/// In `previous_packet_dropped`: what a producer says whose memory was full.
const SHARED_MEMORY_FULL: u64 = 256;

/// What a sequence's packets refer to.
#[derive(Default)]
struct State {
    is_valid: bool,
    time: u64,
    categories: HashMap<u64, String>,
}

impl Trace {
    pub(crate) fn new(packets: Vec<Vec<u8>>) -> Self {
        Self { packets }
    }

    /// Reads a file.
    ///
    /// # Panics
    ///
    /// When it is no trace.
    pub fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).expect("a file");
        let mut packets = Reader::new(&bytes);
        let found = packets.by_ref().map(|(field, value)| {
            assert_eq!(field, 1);
            value.bytes().to_vec()
        });
        let trace = Self { packets: found.collect() };
        assert!(packets.is_whole(), "the last packet is cut");
        trace
    }

    /// The events, in the order of the trace. Those that lack their state, as a reader sees it, are not there.
    pub fn events(&self) -> Vec<Event> {
        let mut sequences: HashMap<u64, State> = HashMap::new();
        self.packets
            .iter()
            .filter_map(|packet| {
                let number = |field| Reader::first(packet, field).map_or(0, Value::number);
                let sequence = number(10);
                let state = sequences.entry(sequence).or_default();
                let flags = number(13);
                if flags & 1 != 0 {
                    *state = State { is_valid: true, ..State::default() };
                }
                if number(42) != 0 && flags & 1 == 0 {
                    state.is_valid = false;
                }
                if let Some(snapshot) = Reader::first(packet, 6) {
                    for (_, clock) in Reader::new(snapshot.bytes()).filter(|(field, _)| *field == 1) {
                        let of = |field| Reader::first(clock.bytes(), field).map_or(0, Value::number);
                        if of(1) == 64 {
                            state.time = of(2);
                        }
                    }
                }
                if let Some(interned) = Reader::first(packet, 12) {
                    for (_, entry) in Reader::new(interned.bytes()).filter(|(field, _)| *field == 1) {
                        let id = Reader::first(entry.bytes(), 1).map_or(0, Value::number);
                        let name = Reader::first(entry.bytes(), 2).map_or(&[][..], Value::bytes);
                        state.categories.insert(id, String::from_utf8_lossy(name).into_owned());
                    }
                }
                if number(58) == 0 && flags & 2 != 0 && state.is_valid {
                    state.time += number(8);
                }
                let event = Reader::first(packet, 11).filter(|_| state.is_valid)?.bytes();
                let of = |field| Reader::first(event, field);
                let categories = Reader::new(event).filter(|(field, _)| *field == 3);
                Some(Event {
                    pid: number(79),
                    sequence,
                    time: state.time,
                    kind: of(9).map_or(0, Value::number),
                    name: of(23).map(|name| name.bytes().to_vec()),
                    categories: categories
                        .map(|(_, id)| state.categories.get(&id.number()).cloned().unwrap_or_default())
                        .collect(),
                    track: of(11).map(Value::number),
                    value: of(30).map(|value| value.number() as i64),
                })
            })
            .collect()
    }

    /// How often a sequence says that something was lost: as the producer told it, and as only the service found it. (It
    /// says so before the first packet of each sequence, whatever was there.)
    pub fn losses(&self) -> Losses {
        let mut known = HashSet::new();
        let mut losses = Losses::default();
        for packet in &self.packets {
            let number = |field| Reader::first(packet, field).map_or(0, Value::number);
            let is_first = known.insert(number(10));
            match number(42) {
                0 => {}
                said if said & SHARED_MEMORY_FULL != 0 => losses.told += 1,
                _ if !is_first => losses.found += 1,
                _ => {}
            }
        }
        losses
    }

    /// How many packets there are.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Writes it as a file that Perfetto opens.
    ///
    /// # Errors
    ///
    /// As a write has them.
    pub fn save(&self, path: &Path) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        for packet in &self.packets {
            bytes.push(0x0a);
            let mut len = packet.len();
            while len > 0x7f {
                bytes.push(len as u8 | 0x80);
                len >>= 7;
            }
            bytes.push(len as u8);
            bytes.extend_from_slice(packet);
        }
        std::fs::write(path, bytes)
    }
}

/// What Perfetto's trace processor answers, a line for each statement; None, said so, where it was not fetched.
///
/// # Panics
///
/// When it can't read the trace.
pub fn processed(trace: &Path, statements: &[&str]) -> Option<Vec<String>> {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.ci/perfetto");
    let processor = std::env::var_os("PERFETTO_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/perfetto"), PathBuf::from);
    if !processor.join("trace_processor.wasm").exists() {
        eprintln!("skipped: Perfetto's trace processor is not there, see .ci/perfetto/setup.sh");
        return None;
    }
    let output = Command::new("node").arg(tools.join("query.mjs")).arg(trace).args(statements).output();
    let output = output.expect("node is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

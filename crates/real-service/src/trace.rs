//! A recorded trace: its events, and the results of Perfetto's trace processor for it.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use atrace_perfetto::proto::{Reader, Value};

/// A trace as a list of packets.
#[derive(Clone, Debug)]
pub struct Trace {
    packets: Vec<Vec<u8>>,
}

/// An event of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The id of the process that wrote the event.
    pub pid: u64,
    /// The number of the packet sequence. Each thread has one sequence in each session.
    pub sequence: u64,
    /// The timestamp in nanoseconds of `CLOCK_BOOTTIME`.
    pub time: u64,
    /// The type: 1 for a begin, 2 for an end, 3 for an instant, 4 for a counter.
    pub kind: u64,
    /// The name, either from the event itself or, if the name is interned, from a definition in the event's sequence.
    pub name: Option<Vec<u8>>,
    /// Whether the name is interned: the event refers to a definition of the name.
    pub is_interned: bool,
    /// The names of the categories.
    pub categories: Vec<String>,
    /// The number of the event's track, if that is not the thread's track.
    pub track: Option<u64>,
    /// The value of an integer counter, or `None` for all other events, including counters of other types.
    pub value: Option<i64>,
    /// The arguments: names and values as text.
    pub args: Vec<(String, String)>,
    /// The numbers of the event's flows.
    pub flows: Vec<u64>,
    /// The file and line of the event's callsite.
    pub place: Option<(String, u64)>,
}

impl Event {
    /// Returns the name as text, or `end` if the event has no name.
    pub fn name(&self) -> String {
        self.name.as_deref().map_or("end".to_owned(), |name| String::from_utf8_lossy(name).into_owned())
    }
}

/// The losses that a trace reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The number of times that a producer reported a loss.
    pub told: usize,
    /// The number of times that the service detected a missing chunk.
    pub found: usize,
}

/// A bit in `previous_packet_dropped`: the producer reports that its shared memory was full.
const SHARED_MEMORY_FULL: u64 = 256;

/// The incremental state of a sequence: the definitions and the time that its later packets need.
#[derive(Default)]
struct State {
    is_valid: bool,
    time: u64,
    categories: HashMap<u64, String>,
    names: HashMap<u64, Vec<u8>>,
    arguments: HashMap<u64, String>,
    values: HashMap<u64, String>,
    places: HashMap<u64, (String, u64)>,
}

fn text(value: Option<Value<'_>>) -> String {
    String::from_utf8_lossy(value.map_or(&[][..], Value::bytes)).into_owned()
}

impl State {
    /// Adds the definitions in a packet's `interned_data`.
    fn learn(&mut self, interned: &[u8]) {
        for (field, entry) in Reader::new(interned) {
            let of = |field| Reader::first(entry.bytes(), field);
            let (number, told) = (of(1).map_or(0, Value::number), of(2));
            match field {
                1 => _ = self.categories.insert(number, text(told)),
                2 => _ = self.names.insert(number, told.map_or(&[][..], Value::bytes).to_vec()),
                3 => _ = self.arguments.insert(number, text(told)),
                4 => _ = self.places.insert(number, (text(told), of(4).map_or(0, Value::number))),
                29 => _ = self.values.insert(number, text(told)),
                _ => {}
            }
        }
    }

    /// Returns the name and the value of an argument. If the name or the value is interned, and the definition of its
    /// number is missing, `?` is returned in its place.
    fn argument(&self, annotation: &[u8]) -> (String, String) {
        let unknown = || "?".to_owned();
        let (mut name, mut shown) = (unknown(), unknown());
        for (field, value) in Reader::new(annotation) {
            match field {
                1 => name = self.arguments.get(&value.number()).cloned().unwrap_or_else(unknown),
                10 => name = text(Some(value)),
                2 => shown = (value.number() != 0).to_string(),
                3 => shown = value.number().to_string(),
                4 => shown = value.number().cast_signed().to_string(),
                5 => shown = format!("{:?}", f64::from_bits(value.number())),
                6 => shown = text(Some(value)),
                17 => shown = self.values.get(&value.number()).cloned().unwrap_or_else(unknown),
                _ => {}
            }
        }
        (name, shown)
    }
}

impl Trace {
    pub(crate) fn new(packets: Vec<Vec<u8>>) -> Self {
        Self { packets }
    }

    /// Reads a trace file.
    ///
    /// # Panics
    ///
    /// Panics if the file is not a trace.
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

    /// Returns the events in the order of the trace. Like every reader, this function leaves out events whose
    /// incremental state (the definitions to which they refer) is missing.
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
                    state.learn(interned.bytes());
                }
                if number(58) == 0 && flags & 2 != 0 && state.is_valid {
                    state.time += number(8);
                }
                let time = if number(58) == 0 { state.time } else { number(8) };
                let event = Reader::first(packet, 11).filter(|_| state.is_valid)?.bytes();
                let of = |field| Reader::first(event, field);
                let all = |wanted| Reader::new(event).filter(move |(field, _)| *field == wanted);
                let told =
                    of(10).map(|number| state.names.get(&number.number()).cloned().unwrap_or(b"?".to_vec()));
                let inline = |place: Value<'_>| {
                    let of = |field| Reader::first(place.bytes(), field);
                    (text(of(2)), of(4).map_or(0, Value::number))
                };
                Some(Event {
                    pid: number(79),
                    sequence,
                    time,
                    kind: of(9).map_or(0, Value::number),
                    is_interned: told.is_some(),
                    name: of(23).map(|name| name.bytes().to_vec()).or(told),
                    categories: all(3)
                        .map(|(_, id)| state.categories.get(&id.number()).cloned().unwrap_or_default())
                        .chain(all(22).map(|(_, name)| text(Some(name))))
                        .collect(),
                    track: of(11).map(Value::number),
                    value: of(30).map(|value| value.number() as i64),
                    args: all(4).map(|(_, annotation)| state.argument(annotation.bytes())).collect(),
                    flows: all(47).map(|(_, flow)| flow.number()).collect(),
                    place: of(34)
                        .and_then(|number| state.places.get(&number.number()).cloned())
                        .or_else(|| of(33).map(inline)),
                })
            })
            .collect()
    }

    /// Returns the numbers of the tracks that are described for a process, and the numbers of the tracks of its
    /// threads, with the threads' ids.
    pub fn tracks_of(&self, pid: u64) -> (HashSet<u64>, HashSet<(u64, u64)>) {
        let (mut processes, mut threads) = (HashSet::new(), HashSet::new());
        for track in self.packets.iter().filter_map(|packet| Reader::first(packet, 60)) {
            let of = |field| Reader::first(track.bytes(), field);
            let id = |of: Value<'_>, field| Reader::first(of.bytes(), field).map(Value::number);
            let uuid = of(1).map_or(0, Value::number);
            if of(3).is_some_and(|process| id(process, 1) == Some(pid)) {
                processes.insert(uuid);
            }
            if let Some(thread) = of(4).filter(|thread| id(*thread, 1) == Some(pid)) {
                threads.insert((uuid, id(thread, 2).unwrap_or_default()));
            }
        }
        (processes, threads)
    }

    /// Returns the names of the described tracks that have a name of their own, by their numbers. (The tracks of
    /// processes and threads have no name of their own.)
    pub fn names_of_tracks(&self) -> HashMap<u64, String> {
        let described = self.packets.iter().filter_map(|packet| Reader::first(packet, 60));
        let named = described.filter_map(|track| {
            let of = |field| Reader::first(track.bytes(), field);
            Some((of(1)?.number(), text(Some(of(2)?))))
        });
        named.collect()
    }

    /// Counts the packets of a process that clear the incremental state.
    pub fn states_of(&self, pid: u64) -> usize {
        let is_state = |packet: &&Vec<u8>| {
            let number = |field| Reader::first(packet, field).map_or(0, Value::number);
            number(79) == pid && number(13) & 1 != 0
        };
        self.packets.iter().filter(is_state).count()
    }

    /// Counts the losses that producers reported, and the losses that only the service detected. (The service marks the
    /// first packet of every sequence as if it followed a loss. These marks are not counted.)
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

    /// Returns the number of packets.
    pub fn packets(&self) -> usize {
        self.packets.len()
    }

    /// Writes the trace as a file that Perfetto can open.
    ///
    /// # Errors
    ///
    /// Returns an error if the file can't be written.
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

/// A statement for the trace processor that lists errors and losses in a trace.
pub const WRONG: &str =
    "select name, value from stats where severity in ('error', 'data_loss') and value > 0";

/// Returns the trace processor's answers, one line for each statement. If the trace processor was not fetched,
/// prints a message and returns `None`.
///
/// # Panics
///
/// Panics if the trace processor can't read the trace.
pub fn processed(trace: &Path, statements: &[&str]) -> Option<Vec<String>> {
    // The tests of several crates include this file, so the workspace is searched above the crate's directory.
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let workspace = above.find(|directory| directory.join(".ci").is_dir()).expect("the workspace has it");
    let tools = workspace.join(".ci/perfetto");
    let processor =
        std::env::var_os("PERFETTO_DIR").map_or_else(|| workspace.join("target/perfetto"), PathBuf::from);
    if !processor.join("trace_processor.wasm").exists() {
        // Does not use `eprintln!`, because libtest hides its output.
        let _ = writeln!(
            std::io::stderr(),
            "skipped: Perfetto's trace processor is not there, see .ci/perfetto/setup.sh"
        );
        return None;
    }
    let output = Command::new("node").arg(tools.join("query.mjs")).arg(trace).args(statements).output();
    let output = output.expect("node is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

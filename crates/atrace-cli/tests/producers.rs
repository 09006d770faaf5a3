//! Tests producers that send false data to the service: each such producer is disconnected, the other producers are
//! still recorded, and the trace stays valid.

#![cfg(any(target_os = "linux", target_os = "android"))]
#![allow(unsafe_code, reason = "memory is mapped and sealed as a C program does it")]

mod peer;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../real-service/src/trace.rs"]
mod trace;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atrace_cli::service::{Ended, Fault, Report, Service, Storage};
use atrace_perfetto::proto::Reader;
use atrace_perfetto::wire;

use self::peer::{
    COMPLETE, EVENT, Memory, OPEN, PAGE, PAGES, Producer, SEALS, memory, memory_called, method,
};
use self::trace::Trace;

/// A tracing service that runs in this process, its socket, and the file that it records into.
struct Place {
    directory: tempfile::TempDir,
    socket: PathBuf,
    service: Option<Service>,
}

/// The path of the service's socket.
impl AsRef<Path> for Place {
    fn as_ref(&self) -> &Path {
        &self.socket
    }
}

impl Place {
    fn new() -> Self {
        Self::of(user())
    }

    /// Starts a service for programs of this user.
    fn of(uid: u32) -> Self {
        Self::with(uid, None)
    }

    /// Does the same as [`of`](Self::of), with a maximum size of the file.
    fn with(uid: u32, max: Option<u64>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = File::create(directory.path().join("trace")).unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let service = Some(Service::start(listener, uid, Storage::File { file, max }).unwrap());
        Self { directory, socket, service }
    }

    /// Ends the service. The trace must be complete.
    fn end(mut self) -> (Report, Trace) {
        let report = self.service.take().unwrap().finish();
        (report, Trace::open(&self.directory.path().join("trace")))
    }
}

fn user() -> u32 {
    // SAFETY: no preconditions.
    unsafe { libc::geteuid() }
}

/// Returns the only fault in a report.
fn fault(report: &Report) -> Fault {
    assert_eq!((report.cut_off.len(), report.counts.lies), (1, 1), "{report:?}");
    report.cut_off[0].fault
}

/// Waits until the condition is true.
fn until(mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < Duration::from_secs(600), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A function with which a producer attacks the service.
type Harm = fn(&mut Producer);

/// Checks that a producer is disconnected because of this fault. The producer's earlier events, and the events of other
/// producers, stay in the trace.
fn is_cut_off(what: &str, harm: Harm, expected: Fault) {
    let place = Place::new();
    let mut good = Producer::new(&place);
    let mut bad = Producer::new(&place);
    bad.chunk(0, 0, 1, 1, EVENT, COMPLETE);
    bad.commit(0, 0);
    harm(&mut bad);
    bad.is_cut_off();
    good.chunk(3, 0, 1, 1, EVENT, COMPLETE);
    good.commit(3, 0);
    let (report, trace) = place.end();
    assert_eq!(fault(&report), expected, "{what}");
    assert_eq!((report.counts.events, trace.events().len()), (2, 2), "{what}: {report:?}");
    let this = u64::from(std::process::id());
    assert!(trace.events().iter().all(|event| event.pid == this && event.sequence > 1));
}

#[test]
fn who_lies_is_cut_off() {
    let lies: [(&str, Harm, Fault); 16] = [
        ("a page that there is not", |bad| assert!(bad.commit(4, 0)), Fault::Place),
        ("a page far away", |bad| assert!(bad.commit(u32::MAX, 0)), Fault::Place),
        ("a chunk that there is not", |bad| assert!(bad.commit(1, 14)), Fault::Place),
        (
            "a number that is none of a page",
            |bad| {
                bad.invoke(4, |commit| {
                    commit.message(1, |entry| {
                        entry.number(1, 1 << 32).number(3, 1);
                    });
                });
            },
            Fault::Place,
        ),
        (
            "a packet beyond its chunk",
            |bad| {
                bad.chunk(1, 1, 1, 1, b"\xff\x7f", COMPLETE);
                bad.commit(1, 0);
            },
            Fault::Packet,
        ),
        (
            "more packets than have room",
            |bad| {
                bad.chunk(1, 1, 1, 1023, &[0x83, 0x80, 0x80, 0x80], COMPLETE);
                bad.commit(1, 0);
            },
            Fault::Packet,
        ),
        (
            "no writer",
            |bad| {
                bad.chunk(1, 1, 0, 1, EVENT, COMPLETE);
                bad.commit(1, 0);
            },
            Fault::Writer,
        ),
        (
            "bytes outside of a chunk",
            |bad| {
                bad.chunk(1, 1, 1, 4 << 10 | 1, EVENT, COMPLETE);
                bad.commit(1, 0);
                patch(bad, 1, 1, 5000);
            },
            Fault::Patch,
        ),
        (
            "bytes far outside of a chunk",
            |bad| {
                bad.chunk(1, 1, 1, 4 << 10 | 1, EVENT, COMPLETE);
                bad.commit(1, 0);
                patch(bad, 1, 1, u64::MAX - 1);
            },
            Fault::Patch,
        ),
        ("bytes of no writer", |bad| patch(bad, 1 << 16, 1, 0), Fault::Patch),
        (
            "a frame that is too long",
            |bad| assert!(bad.socket.send(&[0xff, 0xff, 0xff, 0xff, 0, 0], None)),
            Fault::Frame,
        ),
        (
            "a frame that makes no sense",
            |bad| assert!(bad.socket.send(&[3, 0, 0, 0, 0x2a, 0x7f, 0], None)),
            Fault::Frame,
        ),
        (
            "a commit that makes no sense",
            |bad| {
                let commit = [9, 0, 0, 0, 0x2a, 7, 0x08, 1, 0x10, 4, 0x1a, 1, 0x0a];
                assert!(bad.socket.send(&commit, None));
            },
            Fault::Frame,
        ),
        (
            "two beginnings",
            |bad| {
                bad.invoke(1, |_| ());
            },
            Fault::Order,
        ),
        (
            "sources without end",
            |bad| {
                for number in 0..100_u32 {
                    bad.register(&number.to_le_bytes());
                }
            },
            Fault::TooMuch,
        ),
        (
            "it never reads",
            |bad| {
                // Sends requests without reading the answers, until the socket's buffer is full. Then the service
                // disconnects the producer.
                while bad.invoke(11, |_| ()) {}
            },
            Fault::Deaf,
        ),
    ];
    // All cases run at the same time, each with a separate service, because each service waits at its end for an answer
    // that its good producer never sends.
    std::thread::scope(|scope| {
        for (what, harm, expected) in lies {
            scope.spawn(move || is_cut_off(what, harm, expected));
        }
    });
}

/// Tests a producer that reports a false count of lost events, which would make the sum of all producers' counts
/// smaller.
#[test]
fn a_false_count_of_losses_hides_no_losses_of_others() {
    let place = Place::new();
    let producer = || Producer::of_version(&place, memory(PAGE * PAGES, SEALS), b"atrace test");
    let tells = |producer: &mut Producer, count: u32| {
        // Stores the count of events that were lost because the memory had no room.
        producer.memory.store(4, count);
        producer.chunk(3, 0, 1, 1, EVENT, COMPLETE);
        assert!(producer.commit(3, 0));
    };
    let (mut honest, mut liar) = (producer(), producer());
    tells(&mut honest, 5);
    until(|| place.service.as_ref().unwrap().events() == 1);
    tells(&mut liar, 0x8000_0000);
    until(|| place.service.as_ref().unwrap().events() == 2);
    drop((honest, liar));
    let (report, _) = place.end();
    assert_eq!((report.counts.lost, report.lost.len()), (5, 1), "{report:?}");
}

#[test]
fn a_count_that_becomes_less_is_a_lie() {
    let place = Place::new();
    let mut bad = Producer::new(&place);
    bad.chunk(1, 1, 1, 3, &[EVENT, EVENT, EVENT].concat(), OPEN);
    // The service reads an open chunk from time to time: two of its three events.
    until(|| place.service.as_ref().unwrap().events() == 2);
    bad.chunk(1, 1, 1, 1, EVENT, COMPLETE);
    bad.commit(1, 0);
    bad.is_cut_off();
    let (report, trace) = place.end();
    assert_eq!((fault(&report), trace.events().len()), (Fault::Count, 2));
}

/// Tests a complete chunk that the service reads before the producer commits the chunk, and an open chunk that the
/// service reads before the chunk is complete.
#[test]
fn a_chunk_that_is_read_twice_counts_once() {
    let place = Place::new();
    let mut producer = Producer::new(&place);
    producer.chunk(0, 0, 1, 1, EVENT, COMPLETE);
    producer.chunk(1, 1, 1, 2, &[EVENT, EVENT].concat(), OPEN);
    until(|| place.service.as_ref().unwrap().events() == 2);
    producer.commit(0, 0);
    producer.chunk(1, 1, 1, 2, &[EVENT, EVENT].concat(), COMPLETE);
    producer.commit(1, 0);
    until(|| place.service.as_ref().unwrap().events() == 3);
    let (report, trace) = place.end();
    assert_eq!((report.counts.chunks, trace.events().len()), (2, 3), "{report:?}");
}

fn patch(producer: &mut Producer, writer: u64, chunk: u64, offset: u64) {
    producer.invoke(4, |commit| {
        commit.message(2, |entry| {
            entry.number(1, 1).number(2, writer).number(3, chunk).message(4, |patch| {
                patch.number(1, offset).bytes(2, b"abcd");
            });
        });
    });
}

#[test]
fn memory_that_can_change_its_size_is_not_mapped() {
    let sealed = |size, page| (memory(size, SEALS), page);
    let wrong = [
        (memory(PAGE, 0), PAGE),
        (memory(PAGE, libc::F_SEAL_GROW | libc::F_SEAL_SEAL), PAGE),
        (tempfile::tempfile().unwrap().into(), PAGE),
        (File::open("/dev/zero").unwrap().into(), PAGE),
        (std::io::pipe().unwrap().0.into(), PAGE),
        sealed(0, PAGE),
        sealed(PAGE + 1, PAGE),
        sealed(PAGE, 2 * PAGE),
        sealed(64 << 20, PAGE),
        sealed(PAGE, 0),
        sealed(PAGE, 1 << 40),
        (memory(PAGE, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE), PAGE),
    ];
    for (at, (file, page)) in wrong.into_iter().enumerate() {
        let place = Place::new();
        let mut bad = Producer::bare(&place);
        bad.initialize(&file, page as u64);
        bad.is_cut_off();
        assert!(matches!(fault(&place.end().0), Fault::Memory(_)), "{at}");
    }
}

/// Tests 50 producers whose shared memory and commits are random.
#[test]
fn memory_full_of_chance_harms_nobody() {
    // A packet with a track event: an instant with a name.
    const GOOD: &[u8] = b"\x0f\x40\x01\x68\x01\x5a\x09\x48\x03\xba\x01\x04good";
    let place = Place::new();
    let mut good = Producer::new(&place);
    let mut chance = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        chance ^= chance << 13;
        chance ^= chance >> 7;
        chance ^= chance << 17;
        chance.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    for _ in 0..50 {
        let mut bad = Producer::new(&place);
        for at in (0..PAGE * PAGES).step_by(4) {
            bad.memory.store(at, next() as u32);
        }
        for page in 0..PAGES {
            // Marks all chunks of the page as complete, in a random layout.
            bad.memory.store(page * PAGE, (next() as u32 & 7) << 28 | 0x0fff_ffff);
        }
        for _ in 0..next() % 8 {
            if !bad.commit(next() as u32 % 4, next() as u32 % 14) {
                break;
            }
        }
    }
    good.chunk(0, 0, 1, 1, GOOD, COMPLETE);
    good.commit(0, 0);
    let (report, trace) = place.end();
    assert!(report.counts.events >= 1 && report.ended.is_none(), "{report:?}");
    assert!(trace.events().iter().any(|event| event.name.as_deref() == Some(b"good")), "{report:?}");
}

#[test]
fn a_flood_of_connections_leaves_room() {
    let place = Place::new();
    let mut idle = Vec::new();
    for _ in 0..3000 {
        match UnixStream::connect(&place) {
            Ok(socket) => idle.push(socket),
            Err(_) => break, // This process has no more descriptors.
        }
        if idle.len() > 400 {
            idle.remove(0);
        }
    }
    idle.truncate(300);
    let mut good = Producer::new(&place);
    good.chunk(0, 0, 1, 1, EVENT, COMPLETE);
    good.commit(0, 0);
    let (report, trace) = place.end();
    assert_eq!((report.counts.events, trace.events().len()), (1, 1), "{report:?}");
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let place = Place::new();
    let mut good = Producer::new(&place);
    let file = memory_called(c"flood", PAGE, SEALS);
    for _ in 0..2000 {
        let mut bytes = [0; 64];
        let frame = wire::invoke(&mut bytes, 9, method(11), false, |_| ()).unwrap();
        assert!(good.socket.send(frame, Some(file.as_raw_fd())));
    }
    good.chunk(0, 0, 1, 1, EVENT, COMPLETE);
    good.commit(0, 0);
    until(|| place.service.as_ref().unwrap().events() == 1);
    let is_of_flood = |entry: std::io::Result<std::fs::DirEntry>| {
        let leads_to = std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        leads_to.to_string_lossy().starts_with("/memfd:flood")
    };
    // At most two descriptors may be open: the test's own, and the last one that the service received.
    assert!(
        std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|it| is_of_flood(it).then_some(())).count()
            <= 2
    );
    assert_eq!(place.end().0.cut_off, []);
}

#[test]
fn another_users_programs_are_refused() {
    let place = Place::of(user() + 1);
    let mut bad = Producer::bare(&place);
    bad.is_cut_off();
    let (report, trace) = place.end();
    assert_eq!((report.counts.refused, report.counts.producers, trace.events().len()), (1, 0, 0));
}

/// Tests that the service waits only a limited time for a producer that does not stop its data source.
#[test]
fn who_does_not_answer_keeps_nobody_from_ending() {
    let place = Place::new();
    let producer = Producer::new(&place);
    producer.chunk(0, 0, 1, 2, &[EVENT, EVENT].concat(), OPEN);
    let (report, trace) = place.end();
    // The last packet of an open chunk is left out, because it may be incomplete.
    assert_eq!((trace.events().len(), report.cut_off.len()), (1, 0), "{report:?}");
}

#[test]
fn packets_that_claim_to_be_others_are_left_out() {
    let place = Place::new();
    let mut producer = Producer::new(&place);
    // Three packets with fields that only the service may write (a user, a sequence, a process), a cut packet, and a
    // good one.
    let packets =
        [b"\x02\x18\x00".as_slice(), b"\x02\x50\x05", b"\x03\xf8\x04\x01", b"\x02\x5a\x07", EVENT].concat();
    producer.chunk(0, 0, 1, 5, &packets, COMPLETE);
    producer.commit(0, 0);
    let (report, trace) = place.end();
    assert_eq!((report.counts.invalid, report.counts.events, trace.events().len()), (4, 1, 1), "{report:?}");
}

/// Tests a producer that offers no memory. The service gives it memory of the size that the producer requests.
#[test]
fn who_has_no_memory_is_given_some() {
    let place = Place::new();
    let mut producer = Producer::bare(&place);
    let mut bytes = [0; 256];
    assert!(producer.socket.send(wire::bind(&mut bytes, 1, "ProducerPort").unwrap(), None));
    producer.invoke(1, |arguments| {
        arguments.number(1, 8192).number(2, 64 << 10);
    });
    producer.invoke(5, |_| ());
    producer.register(b"track_event");
    let mut file = None;
    while file.is_none() {
        let mut bytes = [0; 4096];
        assert!(producer.socket.wait(Some(Duration::from_secs(600))));
        file = producer.socket.receive(&mut bytes).unwrap().and_then(|(_, file)| file);
    }
    let file = std::os::fd::OwnedFd::from(file.unwrap());
    let memory = Memory::new(&file, 8192);
    assert_eq!(memory.seen.size(), 64 << 10);
    memory.store(16, u32::from_le_bytes(EVENT[..4].try_into().unwrap()));
    memory.store(20, u32::from_le_bytes(EVENT[4..8].try_into().unwrap()));
    memory.store(24, u32::from(EVENT[8]));
    memory.store(12, 1 << 16 | 5);
    memory.store(0, 1 << 28 | COMPLETE);
    producer.commit(0, 0);
    assert_eq!(place.end().1.events().len(), 1);
}

#[test]
fn a_file_that_is_full_ends_the_recording() {
    let place = Place::with(user(), Some(4096));
    let mut producer = Producer::new(&place);
    for number in 0..500 {
        producer.chunk(0, number, 1, 1, EVENT, COMPLETE);
        producer.commit(0, 0);
        until(|| {
            producer.memory.seen.state(0, 0) != Some(atrace_perfetto::foreign::State::Complete)
                || place.service.as_ref().unwrap().is_over()
        });
    }
    producer.is_cut_off();
    let size = |place: &Place| std::fs::metadata(place.directory.path().join("trace")).unwrap().len();
    until(|| place.service.as_ref().unwrap().is_over());
    assert!((3500..=4096).contains(&size(&place)), "{}", size(&place));
    let (report, trace) = place.end();
    assert!(matches!(report.ended, Some(Ended::Full)));
    assert_eq!(report.counts.events, trace.events().len() as u64);
}

#[test]
fn the_trace_says_what_it_is_and_how_it_went() {
    let mut place = Place::new();
    let mut producer = Producer::new(&place);
    producer.chunk(0, 0, 1, 1, EVENT, COMPLETE);
    producer.commit(0, 0);
    place.service.take().unwrap().finish();
    let bytes = std::fs::read(place.directory.path().join("trace")).unwrap();
    let packets: Vec<_> = Reader::new(&bytes).map(|(_, packet)| packet.bytes()).collect();
    // The trace has five packets: clocks, configuration, event, clocks, statistics.
    let says = |packet: usize, field| Reader::first(packets[packet], field).is_some();
    assert_eq!(packets.len(), 5);
    assert!(says(0, 6) && says(1, 33) && says(2, 11) && says(3, 6) && says(4, 35));
    for (packet, sequence) in packets.iter().zip([1, 1, 2, 1, 1]) {
        let number = |field| Reader::first(packet, field).unwrap().number();
        let whose = (number(10), number(79), number(3));
        assert_eq!(whose, (sequence, std::process::id().into(), user().into()));
    }
    let stats = Reader::first(packets[4], 35).unwrap().bytes();
    let of = |field| Reader::first(stats, field).map(|value| value.number());
    assert_eq!((of(2), of(3), of(5), of(10)), (Some(1), Some(1), Some(1), Some(0)));
}

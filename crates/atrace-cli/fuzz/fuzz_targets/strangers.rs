//! Fuzzes the service with a producer that sends arbitrary messages and has arbitrary content in its shared memory. The
//! service reads this memory at arbitrary times.
//!
//! Whatever the producer does, the service must store a valid trace, in which each packet names its producer exactly
//! once.
//!
//! The service's modules are not public, so their sources are compiled into this target.

#![no_main]

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;

use arbitrary::Arbitrary;
use atrace_perfetto::foreign::Foreign;
use atrace_perfetto::proto::{Reader, Writer};
use atrace_perfetto::wire::{self, Method};
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../src/service/mod.rs"]
mod service;

use service::producer::{Books, Producer};
use service::storage::{Storage, StoredPackets};

#[derive(Arbitrary, Debug)]
enum Act<'a> {
    /// Sends bytes that may be no valid frame.
    Send(&'a [u8]),
    /// Sends a request with these arguments.
    Invoke {
        method: u8,
        wants_reply: bool,
        arguments: &'a [u8],
    },
    /// Writes a word at any place in the shared memory.
    Store {
        at: u16,
        value: u32,
    },
    /// Writes a chunk with a plausible header into the shared memory.
    Chunk {
        page: u8,
        chunk: u8,
        layout: u8,
        state: u8,
        number: u8,
        writer: u8,
        counted: u16,
        bytes: &'a [u8],
    },
    Commit {
        page: u8,
        chunk: u8,
    },
    Patch {
        writer: u8,
        chunk: u8,
        offset: u16,
        bytes: &'a [u8],
        has_more: bool,
    },
    Look,
    ClearState,
    Stop,
}

const PAGE: usize = 4096;
const PAGES: usize = 2;

fuzz_target!(|acts: Vec<Act<'_>>| {
    let kept = StoredPackets::new(Storage::Ring { bytes: 1 << 20 }, 1, 0);
    let mut books = Books::new(kept, Vec::new(), 1, false);
    let mut producer = Producer::new(7, 1000);
    let memory = Memory::new();
    let mut bytes = [0; 256];
    let hello = wire::invoke(&mut bytes, 1, Method { service: 1, method: 1 }, true, |arguments| {
        arguments.number(1, PAGE as u64).number(6, 1);
    });
    let hello = hello.expect("it fits").to_vec();
    assert_eq!(producer.receive(&hello, Some(memory.0.as_fd().try_clone_to_owned()), &mut books), Ok(()));
    let mut is_there = true;
    for act in acts {
        is_there = is_there && perform(&act, &mut producer, &memory, &mut books);
    }
    if is_there {
        let _ = producer.finish(&mut books);
    }
    producer.leave(&mut books);
    assert_eq!((books.mapped, books.unfinished), (0, 0));
    books.kept.flush();
    check(&books);
});

/// The producer's memory. Bytes that are written to the file appear in the service's mapping of it.
struct Memory(File);

impl Memory {
    fn new() -> Self {
        let (_, file) = Foreign::make(PAGE * PAGES, PAGE).expect("there is memory");
        Self(file.into())
    }

    /// Writes a word, unless the place is beyond the end of the memory.
    fn store(&self, at: usize, word: u32) {
        if at + 4 <= PAGE * PAGES {
            self.0.write_all_at(&word.to_ne_bytes(), at as u64).expect("it can be written");
        }
    }
}

/// Performs one act of the producer. Returns false if the service has disconnected the producer.
fn perform(act: &Act<'_>, producer: &mut Producer, memory: &Memory, books: &mut Books) -> bool {
    let mut frame = vec![0; 64 << 10];
    let mut invoke = |number, wants_reply, arguments: &dyn Fn(&mut Writer<'_>)| {
        let method = Method { service: 1, method: number };
        wire::invoke(&mut frame, 9, method, wants_reply, arguments).map_or_else(Vec::new, <[u8]>::to_vec)
    };
    let done = match *act {
        Act::Send(bytes) => producer.receive(bytes, None, books),
        Act::Invoke { method, wants_reply, arguments } => {
            // Puts arbitrary bytes in the place of the request's encoded arguments.
            let mut bytes = invoke(method.into(), wants_reply, &|_| ());
            if arguments.len() < 100 && bytes.ends_with(&[0x1a, 0]) {
                let len = arguments.len() as u8;
                bytes.truncate(bytes.len() - 1);
                bytes.push(len);
                bytes.extend_from_slice(arguments);
                let whole = (bytes.len() - 4) as u32;
                bytes[..4].copy_from_slice(&whole.to_le_bytes());
                if let Some(inner) = bytes.iter().position(|byte| *byte == 0x2a) {
                    bytes[inner + 1] += len;
                }
            }
            producer.receive(&bytes, None, books)
        }
        Act::Store { at, value } => {
            memory.store(usize::from(at) & !3, value);
            Ok(())
        }
        Act::Chunk { page, chunk, layout, state, number, writer, counted, bytes } => {
            let page = usize::from(page) % PAGES * PAGE;
            let chunks = [1, 2, 4, 7, 14][usize::from(layout) % 5];
            let size = (PAGE - 8) / chunks & !3;
            let chunk = usize::from(chunk) % chunks;
            let start = page + 8 + chunk * size;
            for (at, word) in bytes.chunks_exact(4).take(size / 4 - 2).enumerate() {
                memory.store(start + 8 + 4 * at, u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            }
            memory.store(start, number.into());
            memory.store(start + 4, u32::from(counted) << 16 | u32::from(writer));
            memory.store(page, (1 + u32::from(layout) % 5) << 28 | u32::from(state & 3) << (2 * chunk));
            Ok(())
        }
        Act::Commit { page, chunk } => {
            let bytes = invoke(4, false, &|commit| {
                commit.message(1, |entry| {
                    entry.number(1, page.into()).number(2, chunk.into()).number(3, 1);
                });
            });
            producer.receive(&bytes, None, books)
        }
        Act::Patch { writer, chunk, offset, bytes, has_more } => {
            let bytes = invoke(4, false, &|commit| {
                commit.message(2, |entry| {
                    entry.number(2, writer.into()).number(3, chunk.into()).number(5, has_more.into());
                    entry.message(4, |patch| {
                        patch.number(1, offset.into()).bytes(2, bytes);
                    });
                });
            });
            producer.receive(&bytes, None, books)
        }
        Act::Look => producer.scrape(books),
        Act::ClearState => {
            producer.clear_state();
            Ok(())
        }
        Act::Stop => {
            producer.stop();
            Ok(())
        }
    };
    producer.outbox.clear();
    producer.descriptor = None;
    done.and_then(|()| producer.settle(books)).is_ok()
}

/// Checks that the stored packets are a valid trace.
fn check(books: &Books) {
    let path = std::env::temp_dir().join(format!("atrace-fuzz-{}", std::process::id()));
    let mut file =
        File::options().read(true).write(true).create(true).truncate(true).open(&path).expect("a file");
    let _ = std::fs::remove_file(&path);
    books.kept.save(file.try_clone().expect("a descriptor"), &books.counts).expect("there is room");
    let mut bytes = Vec::new();
    file.rewind().expect("a file");
    file.read_to_end(&mut bytes).expect("a file");
    let mut packets = Reader::new(&bytes);
    for (field, packet) in &mut packets {
        assert_eq!(field, 1);
        let mut fields = Reader::new(packet.bytes());
        let mut whose = [0; 3];
        for (field, _) in &mut fields {
            if let Some(known) = [3, 10, 79].iter().position(|known| *known == field) {
                whose[known] += 1;
            }
        }
        assert!(fields.is_whole() && whose == [1; 3]);
    }
    assert!(packets.is_whole());
}

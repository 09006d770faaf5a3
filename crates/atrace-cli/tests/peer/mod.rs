//! A producer that can send any bytes to the service, and shared memory to which the producer can write any bytes.

#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of this")]
#![allow(unsafe_code, reason = "memory is made and sealed as a C program does it")]

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use atrace_perfetto::foreign::Foreign;
use atrace_perfetto::proto::Writer;
use atrace_perfetto::socket::Socket;
use atrace_perfetto::wire::{self, Body, ChunkPlace, Command, Method};

pub const PAGE: usize = 4096;
pub const PAGES: usize = 4;
pub const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Returns a memory file with these seals.
pub fn memory(size: usize, seals: i32) -> OwnedFd {
    memory_called(c"test", size, seals)
}

pub fn memory_called(name: &std::ffi::CStr, size: usize, seals: i32) -> OwnedFd {
    // SAFETY: the name is a C string, and the descriptor was created here.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        assert_eq!(libc::ftruncate(fd, size as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, seals), 0);
        OwnedFd::from_raw_fd(fd)
    }
}

/// The memory of a producer. Bytes that are written to the file appear in the service's mapping of it.
pub struct Memory {
    pub file: File,
    pub seen: Foreign,
}

impl Memory {
    pub fn new(file: &OwnedFd, page: usize) -> Self {
        Self { file: file.try_clone().unwrap().into(), seen: Foreign::map(file.as_fd(), page).unwrap() }
    }

    pub fn store(&self, offset: usize, word: u32) {
        self.file.write_all_at(&word.to_ne_bytes(), offset as u64).unwrap();
    }
}

/// A producer that can send any bytes.
pub struct Producer {
    pub socket: Socket,
    pub inbox: Vec<u8>,
    pub request: u64,
    pub memory: Memory,
    version: &'static [u8],
}

impl Producer {
    /// Connects a producer that has sent the correct first requests.
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self::with(socket, memory(PAGE * PAGES, SEALS))
    }

    pub fn with(socket: impl AsRef<Path>, file: OwnedFd) -> Self {
        Self::of_version(socket, file, b"")
    }

    /// Connects a producer with this version of its library.
    pub fn of_version(socket: impl AsRef<Path>, file: OwnedFd, version: &'static [u8]) -> Self {
        let mut producer = Self::bare(socket);
        producer.version = version;
        producer.initialize(&file, PAGE as u64);
        producer.begin();
        producer.memory = Memory::new(&file, PAGE);
        producer
    }

    pub fn bare(socket: impl AsRef<Path>) -> Self {
        let socket = Socket::new(UnixStream::connect(socket).unwrap().into());
        let memory = Memory::new(&memory(PAGE, SEALS), PAGE);
        Self { socket, inbox: Vec::new(), request: 0, version: b"", memory }
    }

    pub fn initialize(&mut self, file: &OwnedFd, page: u64) {
        let mut bytes = [0; 256];
        assert!(self.socket.send(wire::bind(&mut bytes, 1, "ProducerPort").unwrap(), None));
        let frame = wire::invoke(&mut bytes, 2, method(1), true, |arguments| {
            arguments.number(1, page).bytes(3, b"a \x1b[31mtest").number(6, 1).bytes(8, self.version);
        });
        self.request = 2;
        // The number of a user's descriptors that are being sent is limited (ETOOMANYREFS), and other attacks of this
        // user may run at the same time.
        let (frame, begun) = (frame.unwrap(), Instant::now());
        while !self.socket.send(frame, Some(file.as_raw_fd())) {
            assert!(begun.elapsed() < Duration::from_secs(30), "the memory can't be sent");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Registers the data source `track_event`, and waits until the service has started it.
    pub fn begin(&mut self) {
        self.invoke(5, |_| ());
        self.register(b"track_event");
        loop {
            match self.command() {
                Some(Command::Start { .. }) => return,
                Some(_) => {}
                None => panic!("cut off"),
            }
        }
    }

    pub fn register(&mut self, name: &[u8]) {
        self.invoke(2, |arguments| {
            arguments.message(1, |source| {
                source.bytes(1, name);
            });
        });
    }

    pub fn invoke(&mut self, number: u32, arguments: impl FnOnce(&mut Writer<'_>)) -> bool {
        self.request += 1;
        let mut bytes = vec![0; 4096];
        let frame = wire::invoke(&mut bytes, self.request, method(number), true, arguments).unwrap();
        self.socket.send(frame, None)
    }

    /// Returns the kind of the service's next command, or `None` if the service has closed the connection. The
    /// command's content is ignored.
    pub fn command(&mut self) -> Option<Command<'static>> {
        loop {
            while let Some((frame, len)) = wire::split(&self.inbox).unwrap() {
                let found = match frame.body {
                    Body::Reply { has_more: true, reply, .. } => match Command::read(reply).unwrap() {
                        Command::Start { instance, .. } => Some(Command::Start { instance, config: &[] }),
                        Command::Stop { instance } => Some(Command::Stop { instance }),
                        Command::SetupTracing { page_size } => Some(Command::SetupTracing { page_size }),
                        _ => Some(Command::Other),
                    },
                    _ => None,
                };
                self.inbox.drain(..len);
                if found.is_some() {
                    return found;
                }
            }
            assert!(self.socket.wait(Some(Duration::from_secs(600))), "the service does nothing");
            let old = self.inbox.len();
            self.inbox.resize(old + 4096, 0);
            let got = self.socket.receive(&mut self.inbox[old..]).ok()?;
            self.inbox.truncate(old + got.map_or(0, |(len, _)| len));
        }
    }

    /// Waits until the service has disconnected the producer.
    pub fn is_cut_off(&mut self) {
        while self.command().is_some() {}
    }

    /// Writes a chunk that fills a page: the chunk's number, its writer, the count of packets with the flags, and the
    /// packets. Then sets the state of the page.
    pub fn chunk(&self, page: usize, number: u32, writer: u16, counted: u16, packets: &[u8], state: u32) {
        let start = page * PAGE + 8;
        let mut bytes = packets.to_vec();
        bytes.resize(packets.len().next_multiple_of(4), 0);
        for (word, at) in bytes.chunks(4).zip((start + 8..).step_by(4)) {
            self.memory.store(at, u32::from_le_bytes(word.try_into().unwrap()));
        }
        self.memory.store(start, number);
        self.memory.store(start + 4, u32::from(counted) << 16 | u32::from(writer));
        self.memory.store(page * PAGE, 1 << 28 | state);
    }

    pub fn commit(&mut self, page: u32, chunk: u32) -> bool {
        self.invoke(4, |commit| ChunkPlace { page, chunk, buffer: 1 }.write(commit))
    }
}

pub fn method(number: u32) -> Method {
    Method { service: 1, method: number }
}

/// The bytes of an event, preceded by its length.
pub const EVENT: &[u8] = b"\x08\x40\x01\x68\x01\x5a\x02\x48\x03";
pub const COMPLETE: u32 = 3;
pub const OPEN: u32 = 1;

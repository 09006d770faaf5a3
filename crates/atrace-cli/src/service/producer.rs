//! One producer: its requests, its memory, and its packets.
//!
//! All data in this module is untrusted. Data that breaks the protocol causes a [`Fault`]: the producer is
//! disconnected, but its earlier packets stay in the trace. A packet whose fields can't be parsed is only left out of
//! the trace. This module has no socket: bytes come in through [`Producer::receive`] and go out through `outbox`. So
//! the module can be tested and fuzzed without a socket.
//!
//! # The order of requests
//!
//! 1. `InitializeConnection` has the producer's name, and may offer a memory file;
//! 2. `GetAsyncCommand` is the request whose replies are the service's commands;
//! 3. `RegisterDataSource` names a data source. The service provides memory if the producer has none, and starts the
//!    source;
//! 4. `CommitData` names complete chunks, and may have patches for chunks.
//!
//! # Scraping
//!
//! A producer may be killed before it commits its chunks. So the service also reads the producer's memory without a
//! request ([`Producer::scrape`]): at intervals, before a ring is saved, and when the connection ends.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use atrace_perfetto::abi::CHUNKS_MAX;
use atrace_perfetto::foreign::{Foreign, Head, PAGES, SIZE_MAX, State};
use atrace_perfetto::memory::Loss;
use atrace_perfetto::proto::{Reader, Writer};
use atrace_perfetto::trace_file::PacketOrigin;
use atrace_perfetto::wire::{self, Body};
use atrace_sys::process;

use super::packets::{self, bytes, number};
use super::report::{Counts, Lost};
use super::sequence::{PacketTarget, Room, Sequence};
use super::storage::StoredPackets;
use super::{Fault, Result, SOURCE};

/// The methods that producers may invoke. A method's number is its index in this list plus 1.
const METHODS: [&str; 12] = [
    "InitializeConnection",
    "RegisterDataSource",
    "UnregisterDataSource",
    "CommitData",
    "GetAsyncCommand",
    "RegisterTraceWriter",
    "UnregisterTraceWriter",
    "NotifyDataSourceStarted",
    "NotifyDataSourceStopped",
    "ActivateTriggers",
    "Sync",
    "UpdateDataSource",
];

/// The number by which producers name the service's only trace buffer.
const BUFFER: u32 = 1;
/// The size of the shared memory, in bytes, of a producer that offers no memory and requests no valid size.
const SIZE: usize = 1 << 20;
/// The maximum length of names in bytes. A producer's name is cut off there; a longer name of a data source is a fault.
const NAME_MAX: usize = 255;
/// The maximum number of bytes that may wait to be sent to a producer.
const OUTBOX_MAX: usize = 256 << 10;
/// The maximum number of data sources of a producer.
const SOURCES_MAX: usize = 64;
/// The maximum size of a frame from the service, in bytes.
const SAY_MAX: usize = 1024;

/// The state that all producers share: the destination of their packets, counts, and limits.
pub(crate) struct Books {
    pub(crate) kept: StoredPackets,
    pub(crate) counts: Counts,
    /// The number of the sequence that was begun last.
    pub(crate) sequences: u32,
    /// The total size of the shared memory of all producers in bytes.
    pub(crate) mapped: usize,
    /// Patterns for the names of the producers that are recorded. If there are none, all producers are
    /// recorded.
    pub(crate) patterns: Vec<CString>,
    /// The number of sessions. Each data source has an instance in each session.
    pub(crate) sessions: u32,
    /// Whether data sources must not be started at present.
    pub(crate) is_paused: bool,
    /// Whether the producers' threads wait for room in the shared memory before an event is lost.
    pub(crate) waits: bool,
    /// The size in bytes of all producers' unfinished data (see `sequence`).
    pub(crate) unfinished: usize,
    /// The amount of work that was done for all producers: the number of bytes that were received or copied.
    pub(crate) work: u64,
}

impl Books {
    /// Returns the state of a service without producers.
    pub(crate) fn new(kept: StoredPackets, patterns: Vec<CString>, sessions: u32, waits: bool) -> Self {
        let counts = Counts::default();
        // Sequence 1 belongs to the service itself.
        Self {
            kept,
            counts,
            sequences: 1,
            mapped: 0,
            patterns,
            sessions,
            waits,
            is_paused: false,
            unfinished: 0,
            work: 0,
        }
    }

    /// Returns whether a producer may have memory of this size. A size up to [`SIZE`] is always allowed, and a larger
    /// size if it is at most an eighth of the unused part of [`MAPPED_MAX`].
    const fn has_room_for(&self, size: usize) -> bool {
        size <= SIZE || size <= MAPPED_MAX.saturating_sub(self.mapped) / 8
    }

    /// Returns a destination for a writer's packets. The destination checks, counts and stores each packet. `own` is
    /// the size of the producer's unfinished data.
    fn taker<'a>(
        &'a mut self,
        own: &'a mut usize,
        origin: &'a mut Origin,
        is_counting: bool,
    ) -> PacketTarget<'a> {
        let Self { kept, counts, unfinished: all, .. } = self;
        let take = move |packet: &[u8], is_after_loss| {
            let Some(facts) = packets::look(packet) else {
                counts.invalid += 1;
                return false;
            };
            if !kept.add(packet, facts, &origin.whose, is_after_loss) {
                return false;
            }
            counts.bytes += packet.len() as u64;
            counts.events += u64::from(facts.is_event);
            if facts.tells_loss || is_after_loss {
                origin.has_lost = true;
                counts.losses += 1;
                counts.uncounted += u64::from(!is_counting);
            }
            if let Some((number, name)) = packets::thread(packet).filter(|_| !facts.is_event) {
                (origin.tid, origin.name) = (number, name[..name.len().min(THREAD_NAME_MAX)].to_vec());
            }
            true
        };
        PacketTarget { room: Room { own, all }, take: Box::new(take) }
    }
}

/// The maximum size of the memory of all producers, in bytes.
const MAPPED_MAX: usize = 1 << 30;

/// A writer of a producer: its sequence of packets, and its thread.
#[derive(Default)]
struct Track {
    sequence: Sequence,
    origin: Origin,
}

/// The origin of a writer's packets.
#[derive(Default)]
struct Origin {
    whose: PacketOrigin,
    /// The id of the writer's thread, as reported by the producer.
    tid: u32,
    /// The name of the writer's thread, as reported by the producer.
    name: Vec<u8>,
    has_lost: bool,
}

/// The maximum length of a thread's name in bytes. A producer may report a longer name than the kernel has for the
/// thread.
const THREAD_NAME_MAX: usize = 64;
/// The maximum number of a producer's threads that are listed as having lost events.
const THREADS_MAX: usize = 8;
/// The prefix of the SDK version that producers of this library report. Such producers count their lost events, and
/// store the counts in their shared memory.
const COUNTING: &[u8] = b"atrace ";
/// The size of the memory that each writer is assumed to need, including its entry in the map, in bytes.
const TRACK: usize = 256;

/// A data source in a session.
struct Source {
    name: Vec<u8>,
    instance: u64,
    is_started: bool,
    has_stopped: bool,
}

/// A connected producer.
#[derive(Default)]
pub(crate) struct Producer {
    pub(crate) pid: u32,
    uid: u32,
    pub(crate) name: Vec<u8>,
    inbox: Vec<u8>,
    /// The bytes that wait to be sent to the producer.
    pub(crate) outbox: Vec<u8>,
    pub(crate) descriptor: Option<(usize, OwnedFd)>,
    /// The memory file that came with the bytes that are being handled, or the reason why it can't
    /// be used.
    received: Option<Received>,
    pub(crate) is_initialized: bool,
    /// The page size and the memory size that the producer has requested.
    hints: (usize, usize),
    memory: Option<Foreign>,
    /// The number of the `GetAsyncCommand` request. The service's commands are replies to that request.
    commands: Option<u64>,
    sources: Vec<Source>,
    instances: u64,
    tracks: HashMap<u16, Track>,
    /// Whether the producer counts the events that it loses.
    is_counting: bool,
    /// The producer's counts of lost events, as the service last read them.
    counted: [u32; Loss::ALL.len()],
    lost: [u64; Loss::ALL.len()],
    /// A buffer for the copy of a chunk.
    copy: Vec<u8>,
    /// The size of this producer's unfinished data.
    unfinished: usize,
    /// The part of `unfinished` that is in `inbox` and `outbox`.
    buffers: usize,
}

/// A chunk in use. The chunks in use are sorted by their writer, and then by their position in the writer's sequence.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Present {
    writer: u16,
    age: u32,
    page: u32,
    chunk: u32,
}

/// The memory file that was received, or the reason why a received descriptor can't be used as memory.
pub(crate) type Received = std::io::Result<OwnedFd>;

impl Producer {
    pub(crate) fn new(pid: u32, uid: u32) -> Self {
        Self { pid, uid, ..Self::default() }
    }

    /// Returns the size of the producer's memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.memory.as_ref().map_or(0, Foreign::size)
    }

    /// Handles the requests whose last byte is in `bytes`. `file` is the descriptor that arrived with `bytes`. The
    /// frame to which it belongs must end within `bytes`, because the descriptor is dropped at the end of this call.
    pub(crate) fn receive(&mut self, bytes: &[u8], file: Option<Received>, books: &mut Books) -> Result {
        books.work += bytes.len() as u64;
        self.received = file;
        let mut inbox = std::mem::take(&mut self.inbox);
        inbox.extend_from_slice(bytes);
        let mut at = 0;
        while let Some((frame, len)) = wire::split(&inbox[at..]).map_err(|_| Fault::Frame)? {
            self.handle(frame.request, frame.body, books)?;
            at += len;
            if self.outbox.len() > OUTBOX_MAX {
                return Err(Fault::Deaf);
            }
        }
        self.received = None;
        inbox.drain(..at);
        self.inbox = inbox;
        Ok(())
    }

    /// Accounts for the size of `inbox` and `outbox`, and frees empty buffers.
    pub(crate) fn settle(&mut self, books: &mut Books) -> Result {
        for buffer in [&mut self.inbox, &mut self.outbox].into_iter().filter(|buffer| buffer.is_empty()) {
            *buffer = Vec::new();
        }
        let mut room = Room { own: &mut self.unfinished, all: &mut books.unfinished };
        room.give(std::mem::take(&mut self.buffers));
        let buffers = self.inbox.capacity() + self.outbox.capacity();
        if !room.take(buffers) {
            return Err(Fault::TooMuch);
        }
        self.buffers = buffers;
        Ok(())
    }

    fn send(&mut self, write: impl FnOnce(&mut [u8]) -> Option<&[u8]>) {
        let mut bytes = [0; SAY_MAX];
        if let Some(frame) = write(&mut bytes) {
            self.outbox.extend_from_slice(frame);
        }
    }

    fn reply(&mut self, request: u64, reply: impl FnOnce(&mut Writer<'_>)) {
        self.send(|bytes| wire::reply_to(bytes, request, false, Some(reply)));
    }

    /// Sends a command, if the producer has sent `GetAsyncCommand`.
    fn command(&mut self, command: impl FnOnce(&mut Writer<'_>)) {
        if let Some(request) = self.commands {
            self.send(|bytes| wire::reply_to(bytes, request, true, Some(command)));
        }
    }

    fn handle(&mut self, request: u64, body: Body<'_>, books: &mut Books) -> Result {
        match body {
            Body::Bind(b"ProducerPort") => {
                self.send(|bytes| wire::bound(bytes, request, &METHODS));
            }
            Body::Invoke { method, wants_reply, arguments } if method.service == 1 => {
                match METHODS.get((method.method as usize).wrapping_sub(1)) {
                    Some(name) => self.invoke(name, request, wants_reply, arguments, books)?,
                    None => {
                        self.send(|bytes| wire::reply_to(bytes, request, false, None::<fn(&mut Writer<'_>)>));
                    }
                }
            }
            _ => return Err(Fault::Frame),
        }
        Ok(())
    }

    fn invoke(
        &mut self,
        method: &str,
        request: u64,
        wants_reply: bool,
        arguments: &[u8],
        books: &mut Books,
    ) -> Result {
        match method {
            "InitializeConnection" => {
                let is_its_own = self.initialize(arguments, books)?;
                // The reply has only the field `using_shmem_provided_by_producer`, because the service offers no
                // optional features.
                self.reply(request, |reply| {
                    reply.number(1, is_its_own.into());
                });
                return Ok(());
            }
            "GetAsyncCommand" => {
                self.commands = Some(request);
                return self.start(books);
            }
            _ if !self.is_initialized => return Err(Fault::Order),
            "RegisterDataSource" => {
                self.register(bytes(bytes(arguments, 1), 1), books)?;
            }
            "UnregisterDataSource" => {
                let name = bytes(arguments, 1);
                self.sources.retain(|source| source.name != name);
            }
            "CommitData" => self.commit(arguments, books)?,
            // `RegisterTraceWriter` is ignored: the writer's sequence may have begun before this request, with packets
            // that the service has already read.
            "UnregisterTraceWriter" => {
                let writer = u16::try_from(number(arguments, 1)).map_err(|_| Fault::Writer)?;
                if let Some(Track { sequence, origin }) = self.tracks.get_mut(&writer) {
                    let mut to = books.taker(&mut self.unfinished, origin, self.is_counting);
                    sequence.begin_anew(&mut to)?;
                }
            }
            "NotifyDataSourceStopped" => {
                let instance = number(arguments, 1);
                if let Some(source) = self.sources.iter_mut().find(|source| source.instance == instance) {
                    source.has_stopped = true;
                }
            }
            _ => {}
        }
        if wants_reply {
            self.reply(request, |_| ());
        }
        Ok(())
    }

    /// Handles `InitializeConnection`. Returns whether the memory that the producer offers is used.
    fn initialize(&mut self, arguments: &[u8], books: &mut Books) -> Result<bool> {
        if self.is_initialized {
            return Err(Fault::Order);
        }
        self.is_initialized = true;
        let name = bytes(arguments, 3);
        self.name = name[..name.len().min(NAME_MAX)].to_vec();
        self.hints = (number(arguments, 1) as usize, number(arguments, 2) as usize);
        self.is_counting = bytes(arguments, 8).starts_with(COUNTING);
        let is_offered = number(arguments, 6) != 0;
        let Some(file) = self.received.take().filter(|_| is_offered) else { return Ok(false) };
        let map = |file: OwnedFd| Foreign::map(file.as_fd(), self.hints.0);
        let memory = file.and_then(map).map_err(Fault::memory)?;
        if !books.has_room_for(memory.size()) {
            return Ok(false);
        }
        self.adopt(memory, books)?;
        Ok(true)
    }

    fn adopt(&mut self, memory: Foreign, books: &mut Books) -> Result {
        if books.mapped + memory.size() > MAPPED_MAX {
            return Err(Fault::TooMuch);
        }
        books.mapped += memory.size();
        self.memory = Some(memory);
        Ok(())
    }

    fn register(&mut self, name: &[u8], books: &mut Books) -> Result {
        if self.sources.len() >= SOURCES_MAX || name.len() > NAME_MAX {
            return Err(Fault::TooMuch);
        }
        if self.sources.iter().any(|source| source.name == name) {
            return Ok(());
        }
        books.counts.sources += 1;
        for _ in 0..books.sessions {
            self.instances += 1;
            let (name, instance) = (name.to_vec(), self.instances);
            self.sources.push(Source { name, instance, is_started: false, has_stopped: false });
        }
        self.start(books)
    }

    fn is_wanted(&self, patterns: &[CString]) -> bool {
        let name = CString::new(self.name.as_slice()).unwrap_or_default();
        patterns.is_empty() || patterns.iter().any(|pattern| process::matches_name(pattern, &name))
    }

    /// Starts the data sources that should be recorded, if the producer accepts commands already.
    pub(crate) fn start(&mut self, books: &mut Books) -> Result {
        if self.commands.is_none()
            || books.is_paused
            || books.kept.is_over()
            || !self.is_wanted(&books.patterns)
        {
            return Ok(());
        }
        let wanted = |source: &&mut Source| source.name == SOURCE && !source.is_started;
        while let Some(source) = self.sources.iter_mut().find(wanted) {
            source.is_started = true;
            let instance = source.instance;
            if self.memory.is_none() {
                self.provide_memory(books)?;
            }
            // SetupDataSource, then StartDataSource.
            for field in [6, 1] {
                self.command(|command| {
                    command.message(field, |start| {
                        start.number(1, instance);
                        start.message(2, |config| packets::source_config(config, BUFFER, books.waits));
                    });
                });
            }
        }
        Ok(())
    }

    /// Creates memory for the producer and sends it with the command `SetupTracing`.
    fn provide_memory(&mut self, books: &mut Books) -> Result {
        let page = if PAGES.contains(&self.hints.0) { self.hints.0 } else { PAGES[0] };
        let is_size = |size: &usize| (page..=SIZE_MAX).contains(size) && size.is_multiple_of(page);
        let size =
            Some(self.hints.1).filter(|size| is_size(size) && books.has_room_for(*size)).unwrap_or(SIZE);
        let (memory, file) = Foreign::make(size, page).map_err(Fault::memory)?;
        self.adopt(memory, books)?;
        self.descriptor = Some((self.outbox.len(), file));
        self.command(|command| {
            command.message(3, |setup| {
                setup.number(1, page as u64 >> 10);
            });
        });
        Ok(())
    }

    /// Asks the producer to stop all sources that were started.
    pub(crate) fn stop(&mut self) {
        self.command_started(2);
    }

    /// Asks the producer to stop all sources. The sources can be started again later, with other instance numbers.
    pub(crate) fn pause(&mut self, books: &mut Books) -> Result {
        self.stop();
        for source in self.sources.iter_mut().filter(|source| source.is_started) {
            self.instances += 1;
            (source.instance, source.is_started, source.has_stopped) = (self.instances, false, false);
        }
        // While the sources are stopped, no event counts as lost. The events that were lost before are counted now.
        self.count_lost(books);
        Ok(())
    }

    /// Sends a command to the producer for each of its data sources that was started. `field` selects the command.
    fn command_started(&mut self, field: u32) {
        let started = self.sources.iter().filter(|source| source.is_started);
        for instance in started.map(|source| source.instance).collect::<Vec<_>>() {
            self.command(|command| {
                command.message(field, |source| {
                    source.number(1, instance);
                });
            });
        }
    }

    /// Returns whether all sources that were started have stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.sources.iter().all(|source| !source.is_started || source.has_stopped)
    }

    /// Asks the producer to write the incremental state anew.
    pub(crate) fn clear_state(&mut self) {
        self.command_started(7);
    }

    fn commit(&mut self, arguments: &[u8], books: &mut Books) -> Result {
        // A valid frame names each chunk once at most, so the size of the producer's memory limits the work for one
        // frame.
        let work_max = books.work + self.memory() as u64;
        let mut fields = Reader::new(arguments);
        for (_, entry) in fields.by_ref().filter(|(field, _)| *field == 1) {
            let index = |field| u32::try_from(number(entry.bytes(), field)).map_err(|_| Fault::Place);
            let is_ours = number(entry.bytes(), 3) == u64::from(BUFFER);
            self.move_chunk(index(1)?, index(2)?, is_ours, books)?;
            if books.work > work_max {
                return Err(Fault::TooMuch);
            }
        }
        if !fields.is_whole() {
            return Err(Fault::Frame);
        }
        for (_, entry) in Reader::new(arguments).filter(|(field, _)| *field == 2) {
            self.patch(entry.bytes(), books)?;
        }
        Ok(())
    }

    /// Reads and stores the packets of a complete chunk, and frees the chunk.
    fn move_chunk(&mut self, page: u32, chunk: u32, is_ours: bool, books: &mut Books) -> Result {
        let memory = self.memory.as_ref().ok_or(Fault::Order)?;
        if page >= memory.pages() || chunk >= CHUNKS_MAX {
            return Err(Fault::Place);
        }
        if memory.state(page, chunk) != Some(State::Complete) {
            return Ok(()); // Not complete yet: a later commit or a scrape reads it.
        }
        if is_ours {
            self.take(page, chunk, true, books)?;
        }
        if let Some(memory) = &self.memory {
            memory.free(page, chunk);
        }
        Ok(())
    }

    /// Reads and stores the new packets of a chunk.
    fn take(&mut self, page: u32, chunk: u32, is_complete: bool, books: &mut Books) -> Result {
        let Self { memory, tracks, copy, unfinished, .. } = self;
        let Some(head) = memory.as_ref().and_then(|memory| memory.copy(page, chunk, copy)) else {
            return Ok(());
        };
        books.work += copy.len() as u64;
        // A chunk that is just being acquired has no writer yet.
        if head.writer == 0 {
            return if is_complete { Err(Fault::Writer) } else { Ok(()) };
        }
        let mut room = Room { own: unfinished, all: &mut books.unfinished };
        if !tracks.contains_key(&head.writer) && !room.take(TRACK) {
            return Err(Fault::TooMuch);
        }
        let Track { sequence, origin } = tracks.entry(head.writer).or_insert_with(|| {
            books.sequences += 1;
            let whose = PacketOrigin::new(books.sequences, self.pid, self.uid);
            Track { origin: Origin { whose, ..Origin::default() }, ..Track::default() }
        });
        books.counts.chunks += u64::from(is_complete && !sequence.is_over(head.number));
        let mut to = books.taker(unfinished, origin, self.is_counting);
        sequence.chunk(head, copy, is_complete, &mut to)
    }

    fn patch(&mut self, entry: &[u8], books: &mut Books) -> Result {
        let (writer, chunk) = (u16::try_from(number(entry, 2)), u32::try_from(number(entry, 3)));
        let (writer, chunk) = writer.ok().zip(chunk.ok()).ok_or(Fault::Patch)?;
        let Some(Track { sequence, origin }) = self.tracks.get_mut(&writer) else { return Ok(()) };
        let is_last = number(entry, 5) == 0;
        let patches = Reader::new(entry).filter(|(field, _)| *field == 4).map(|(_, patch)| patch.bytes());
        let patches = patches.map(|patch| (number(patch, 1), bytes(patch, 2)));
        let mut to = books.taker(&mut self.unfinished, origin, self.is_counting);
        let is_known = sequence.patch(chunk, patches, is_last, &mut to)?;
        drop(to);
        books.counts.patches += u64::from(is_known);
        Ok(())
    }

    /// Returns the chunks that are in use, except the chunks that are older than the last chunk read from the same
    /// writer.
    fn present(&self) -> impl Iterator<Item = Present> {
        let chunks = self.memory.iter().flat_map(|memory| {
            (0..memory.touched()).flat_map(move |page| {
                (0..memory.chunks(page).unwrap_or(0)).map(move |chunk| (memory, page, chunk))
            })
        });
        chunks.filter_map(|(memory, page, chunk)| {
            let is_used = !matches!(memory.state(page, chunk), None | Some(State::Free));
            let Head { writer, number, .. } =
                memory.head(page, chunk).filter(|head| is_used && head.writer != 0)?;
            let age = self.tracks.get(&writer).map_or(number, |it| it.sequence.age(number));
            (age.cast_signed() >= 0).then_some(Present { writer, age, page, chunk })
        })
    }

    /// Reads and stores the packets in chunks that were not committed. The chunks are not freed.
    pub(crate) fn scrape(&mut self, books: &mut Books) -> Result {
        self.count_lost(books);
        // While the first round goes through the pages, a thread may complete a chunk on a page that the round has
        // passed, and open its next chunk on a page that comes later. Then the first round finds the newer chunk but
        // not the older one. Only this service frees chunks, so the second round finds all chunks that are older than a
        // chunk of the first round.
        let newest: HashMap<u16, u32> =
            self.present().map(|it| (it.writer, it.age)).fold(HashMap::new(), |mut newest, (writer, age)| {
                let known = newest.entry(writer).or_insert(age);
                *known = age.max(*known);
                newest
            });
        let mut found: Vec<_> = self
            .present()
            .filter(|it| newest.get(&it.writer).is_some_and(|newest| it.age <= *newest))
            .collect();
        found.sort_unstable();
        for Present { page, chunk, .. } in found {
            // The state is read again, because the writer may have completed the chunk since. When a writer has a later
            // chunk, its earlier chunks are complete.
            let state = self.memory.as_ref().and_then(|memory| memory.state(page, chunk));
            if matches!(state, Some(State::Open | State::Complete)) {
                self.take(page, chunk, state == Some(State::Complete), books)?;
            }
        }
        self.forget();
        Ok(())
    }

    /// Makes the kernel remove the pages of the producer's memory from this process. The pages do not count as memory
    /// of this process until the process reads them again.
    pub(crate) fn forget(&self) {
        if let Some(memory) = &self.memory {
            memory.forget();
        }
    }

    /// Reads and stores all packets that a producer left in its memory when it ended.
    pub(crate) fn finish(&mut self, books: &mut Books) -> Result {
        let done = self.scrape(books);
        for Track { sequence, origin } in self.tracks.values_mut() {
            sequence.give_up(&mut books.taker(&mut self.unfinished, origin, self.is_counting))?;
        }
        done
    }

    /// Reads the producer's counts of lost events, if the producer is recorded.
    fn count_lost(&mut self, books: &mut Books) {
        let Some(memory) = self.memory.as_ref().filter(|_| self.is_counting) else { return };
        if books.kept.is_over() || !self.is_wanted(&books.patterns) {
            return;
        }
        for (place, loss) in Loss::ALL.into_iter().enumerate() {
            let count = memory.lost(loss);
            // A count may decrease: the end of a slice counts as lost if there was no room for it, until the thread
            // writes the end later.
            let more = i64::from(count.wrapping_sub(self.counted[place]).cast_signed());
            self.counted[place] = count;
            // The counts are not trusted. A false count changes only this producer's part of the sum.
            let others = books.counts.lost.saturating_sub(self.lost[place]);
            self.lost[place] = self.lost[place].saturating_add_signed(more);
            books.counts.lost = others.saturating_add(self.lost[place]);
        }
    }

    /// Returns the producer's losses, if there are any.
    pub(crate) fn lost(&self) -> Option<Lost> {
        let [room, inside, early] = self.lost;
        let losers = self.tracks.values().map(|track| &track.origin).filter(|origin| origin.has_lost);
        let threads: BTreeSet<_> = losers.map(|origin| (origin.tid, origin.name.clone())).collect();
        let threads = threads.into_iter().take(THREADS_MAX).collect();
        let kib = self.memory() as u64 / 1024;
        let lost = Lost { pid: self.pid, name: self.name.clone(), room, inside, early, kib, threads };
        (lost.events() > 0).then_some(lost)
    }

    /// Removes a producer that has ended: frees its memory, and subtracts its memory and unfinished data from the
    /// totals of all producers.
    pub(crate) fn leave(self, books: &mut Books) {
        books.unfinished -= self.unfinished;
        books.mapped -= self.memory();
    }
}

//! One producer: what it asks for, its memory, and what it wrote there.
//!
//! Everything here comes from a stranger. What can't be is a [`Fault`], and the producer is cut off; what was taken from
//! it before stays. Bytes come and go through [`Producer::receive`] and `outbox`: there is no socket here.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd as _, OwnedFd};

use atrace_sys::perfetto::abi::CHUNKS_MAX;
use atrace_sys::perfetto::foreign::{Foreign, PAGES, SIZE_MAX, State};
use atrace_sys::perfetto::proto::{Reader, Value, Writer};
use atrace_sys::perfetto::wire::{self, Body};
use atrace_sys::process;

use super::keep::Kept;
use super::report::Counts;
use super::sequence::Sequence;
use super::{Fault, SOURCE, packets};
use crate::perfetto::trace_file::Whose;

/// The methods of a service, in the order of their numbers, from 1.
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

/// The number of the one buffer.
const BUFFER: u32 = 1;
/// The memory of a producer that brings none and asks for none of a size.
const SIZE: usize = 1 << 20;
/// As much of a producer's name is kept.
const NAME_MAX: usize = 255;
/// A producer that does not read has so many bytes wait for it at most.
const OUTBOX_MAX: usize = 256 << 10;
/// As many sources of events may a producer have.
const SOURCES_MAX: usize = 64;
/// What the service says in one frame has room in so many bytes.
const SAY_MAX: usize = 1024;

/// What all producers share: where their packets go, and how many there are.
#[derive(Debug)]
pub(crate) struct Books {
    pub(crate) kept: Kept,
    pub(crate) counts: Counts,
    /// The last number of a sequence that was given.
    pub(crate) sequences: u32,
    /// How much memory all producers have.
    pub(crate) mapped: usize,
    /// Producers with such names are recorded; none: all.
    pub(crate) patterns: Vec<CString>,
    /// As many sessions each source has.
    pub(crate) sessions: u32,
}

/// As much memory may all producers have.
const MAPPED_MAX: usize = 1 << 30;

/// A writer of a producer's, as the trace has it.
#[derive(Debug)]
struct Track {
    number: u32,
    whose: Whose,
    sequence: Sequence,
}

/// A source of events.
#[derive(Debug)]
struct Source {
    name: Vec<u8>,
    instance: u64,
    is_started: bool,
    has_stopped: bool,
}

/// A producer.
#[derive(Debug)]
pub(crate) struct Producer {
    pid: u32,
    uid: u32,
    pub(crate) name: Vec<u8>,
    inbox: Vec<u8>,
    /// What is to be sent, and where in it a descriptor goes along.
    pub(crate) outbox: Vec<u8>,
    pub(crate) descriptor: Option<(usize, OwnedFd)>,
    received: Option<OwnedFd>,
    pub(crate) is_initialized: bool,
    /// The size of a page and of the memory that it asks for.
    hints: (usize, usize),
    memory: Option<Foreign>,
    /// The request that commands are replies to.
    commands: Option<u64>,
    sources: Vec<Source>,
    instances: u64,
    tracks: HashMap<u16, Track>,
    /// A chunk's bytes.
    copy: Vec<u8>,
}

impl Producer {
    pub(crate) fn new(pid: u32, uid: u32) -> Self {
        Self {
            pid,
            uid,
            name: Vec::new(),
            inbox: Vec::new(),
            outbox: Vec::new(),
            descriptor: None,
            received: None,
            is_initialized: false,
            hints: (0, 0),
            memory: None,
            commands: None,
            sources: Vec::new(),
            instances: 0,
            tracks: HashMap::new(),
            copy: Vec::new(),
        }
    }

    pub(crate) const fn pid(&self) -> u32 {
        self.pid
    }

    /// Does what these bytes ask for, once they are whole.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        descriptor: Option<OwnedFd>,
        books: &mut Books,
    ) -> Result<(), Fault> {
        if descriptor.is_some() {
            self.received = descriptor;
        }
        self.inbox.extend_from_slice(bytes);
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        while let Some((frame, len)) = wire::split(&inbox[at..]).map_err(|_| Fault::Frame)? {
            self.handle(frame.request, frame.body, books)?;
            at += len;
            if self.outbox.len() > OUTBOX_MAX {
                return Err(Fault::Deaf);
            }
        }
        self.inbox = inbox;
        self.inbox.drain(..at);
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

    /// Has the producer do something, if it listens already.
    fn command(&mut self, command: impl FnOnce(&mut Writer<'_>)) {
        if let Some(request) = self.commands {
            self.send(|bytes| wire::reply_to(bytes, request, true, Some(command)));
        }
    }

    fn handle(&mut self, request: u64, body: Body<'_>, books: &mut Books) -> Result<(), Fault> {
        match body {
            Body::Bind(b"ProducerPort") => {
                self.send(|bytes| wire::bound(bytes, request, &METHODS));
                Ok(())
            }
            Body::Invoke { method, wants_reply, arguments } if method.service == 1 => {
                let name = usize::try_from(method.method).ok().and_then(|number| number.checked_sub(1));
                let Some(name) = name.and_then(|index| METHODS.get(index)) else {
                    self.send(|bytes| wire::reply_to(bytes, request, false, None::<fn(&mut Writer<'_>)>));
                    return Ok(());
                };
                self.invoke(name, request, wants_reply, arguments, books)
            }
            _ => Err(Fault::Frame),
        }
    }

    fn invoke(
        &mut self,
        method: &str,
        request: u64,
        wants_reply: bool,
        arguments: &[u8],
        books: &mut Books,
    ) -> Result<(), Fault> {
        let first = |field| Reader::first(arguments, field);
        let number = |field| first(field).map_or(0, Value::number);
        match method {
            "InitializeConnection" => {
                let is_its_own = self.initialize(arguments, books)?;
                // using_shmem_provided_by_producer; what is optional beside it is not offered.
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
                let name = first(1).and_then(|source| Reader::first(source.bytes(), 1));
                self.register(name.map_or(&[], Value::bytes), books)?;
            }
            "UnregisterDataSource" => {
                let name = first(1).map_or(&[][..], Value::bytes);
                self.sources.retain(|source| source.name != name);
            }
            "CommitData" => self.commit(arguments, books)?,
            // Not when it registers: it may have written already, and that was taken.
            "UnregisterTraceWriter" => {
                let writer = u16::try_from(number(1)).map_err(|_| Fault::Writer)?;
                if let Some(track) = self.tracks.get_mut(&writer) {
                    track.sequence.begin_anew();
                }
            }
            "NotifyDataSourceStopped" => {
                let stopped = self.sources.iter_mut().find(|source| source.instance == number(1));
                if let Some(source) = stopped {
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

    /// Tells whether the producer's own memory is used.
    fn initialize(&mut self, arguments: &[u8], books: &mut Books) -> Result<bool, Fault> {
        if self.is_initialized {
            return Err(Fault::Order);
        }
        self.is_initialized = true;
        let number = |field| Reader::first(arguments, field).map_or(0, |value| value.number() as usize);
        let name = Reader::first(arguments, 3).map_or(&[][..], Value::bytes);
        self.name = name[..name.len().min(NAME_MAX)].to_vec();
        self.hints = (number(1), number(2));
        let Some(file) = self.received.take().filter(|_| number(6) != 0) else { return Ok(false) };
        let memory = Foreign::map(file.as_fd(), self.hints.0).map_err(Fault::memory)?;
        self.adopt(memory, books)?;
        Ok(true)
    }

    fn adopt(&mut self, memory: Foreign, books: &mut Books) -> Result<(), Fault> {
        if books.mapped + memory.size() > MAPPED_MAX {
            return Err(Fault::TooMuch);
        }
        books.mapped += memory.size();
        self.memory = Some(memory);
        Ok(())
    }

    fn register(&mut self, name: &[u8], books: &mut Books) -> Result<(), Fault> {
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
        patterns.is_empty() || patterns.iter().any(|pattern| process::matches(pattern, &name))
    }

    /// Starts the sources that are wanted, as soon as the producer listens.
    fn start(&mut self, books: &mut Books) -> Result<(), Fault> {
        if self.commands.is_none() || books.kept.is_over() || !self.is_wanted(&books.patterns) {
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
                        start.message(2, |config| packets::source_config(config, BUFFER));
                    });
                });
            }
        }
        Ok(())
    }

    /// Makes memory for the producer and sends it along with SetupTracing.
    fn provide_memory(&mut self, books: &mut Books) -> Result<(), Fault> {
        let page = if PAGES.contains(&self.hints.0) { self.hints.0 } else { PAGES[0] };
        let is_size = |size: &usize| (page..=SIZE_MAX).contains(size) && size.is_multiple_of(page);
        let size = Some(self.hints.1).filter(is_size).unwrap_or(SIZE);
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

    /// Asks for an end of what was started.
    pub(crate) fn stop(&mut self) {
        let running: Vec<_> = self.sources.iter().filter(|source| source.is_started).collect();
        for instance in running.iter().map(|source| source.instance).collect::<Vec<_>>() {
            self.command(|command| {
                command.message(2, |stop| {
                    stop.number(1, instance);
                });
            });
        }
    }

    /// Whether nothing runs that was started.
    pub(crate) fn has_stopped(&self) -> bool {
        self.sources.iter().all(|source| !source.is_started || source.has_stopped)
    }

    /// Has the producer tell anew what it told once.
    pub(crate) fn clear_state(&mut self) {
        let started = self.sources.iter().filter(|source| source.is_started);
        for instance in started.map(|source| source.instance).collect::<Vec<_>>() {
            self.command(|command| {
                command.message(7, |clear| {
                    clear.number(1, instance);
                });
            });
        }
    }

    fn commit(&mut self, arguments: &[u8], books: &mut Books) -> Result<(), Fault> {
        let mut fields = Reader::new(arguments);
        for (_, entry) in fields.by_ref().filter(|(field, _)| *field == 1) {
            let number = |field| Reader::first(entry.bytes(), field).map_or(0, Value::number);
            let place = u32::try_from(number(1)).ok().zip(u32::try_from(number(2)).ok());
            let (page, chunk) = place.ok_or(Fault::Place)?;
            self.move_chunk(page, chunk, number(3) == u64::from(BUFFER), books)?;
        }
        if !fields.is_whole() {
            return Err(Fault::Frame);
        }
        for (_, entry) in Reader::new(arguments).filter(|(field, _)| *field == 2) {
            self.patch(entry.bytes(), books)?;
        }
        Ok(())
    }

    /// Takes a complete chunk, and gives it back.
    fn move_chunk(&mut self, page: u32, chunk: u32, is_ours: bool, books: &mut Books) -> Result<(), Fault> {
        let memory = self.memory.as_ref().ok_or(Fault::Order)?;
        if page >= memory.pages() || chunk >= CHUNKS_MAX {
            return Err(Fault::Place);
        }
        if memory.state(page, chunk) != Some(State::Complete) {
            return Ok(()); // Named too early: it will be named again, or looked for.
        }
        if is_ours {
            self.take(page, chunk, true, books)?;
        }
        if let Some(memory) = &self.memory {
            memory.free(page, chunk);
        }
        Ok(())
    }

    /// Takes what is new in a chunk.
    fn take(&mut self, page: u32, chunk: u32, is_complete: bool, books: &mut Books) -> Result<(), Fault> {
        let Self { memory, tracks, copy, pid, uid, .. } = self;
        let Some(head) = memory.as_ref().and_then(|memory| memory.copy(page, chunk, copy)) else {
            return Ok(());
        };
        // A chunk that is being opened has no writer yet.
        if head.writer == 0 {
            return if is_complete { Err(Fault::Writer) } else { Ok(()) };
        }
        books.counts.chunks += u64::from(is_complete);
        let track = tracks.entry(head.writer).or_insert_with(|| {
            books.sequences += 1;
            let whose = Whose::new(books.sequences, *pid, *uid);
            Track { number: books.sequences, whose, sequence: Sequence::default() }
        });
        track.sequence.chunk(head, copy, is_complete, &mut taker(books, track.number, &track.whose))
    }

    fn patch(&mut self, entry: &[u8], books: &mut Books) -> Result<(), Fault> {
        let number = |field| Reader::first(entry, field).map_or(0, Value::number);
        let (writer, chunk) = (u16::try_from(number(2)), u32::try_from(number(3)));
        let (writer, chunk) = writer.ok().zip(chunk.ok()).ok_or(Fault::Patch)?;
        let Some(track) = self.tracks.get_mut(&writer) else { return Ok(()) };
        let patches = Reader::new(entry).filter(|(field, _)| *field == 4).map(|(_, patch)| {
            let offset = Reader::first(patch.bytes(), 1).map_or(0, Value::number);
            (offset, Reader::first(patch.bytes(), 2).map_or(&[][..], Value::bytes))
        });
        let mut take = taker(books, track.number, &track.whose);
        let is_known = track.sequence.patch(chunk, patches, number(5) == 0, &mut take)?;
        drop(take);
        books.counts.patches += u64::from(is_known);
        Ok(())
    }

    /// Takes what is in the memory and was not handed over, and leaves it there.
    pub(crate) fn scrape(&mut self, books: &mut Books) -> Result<(), Fault> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let mut found = Vec::new();
        for page in 0..memory.pages() {
            for chunk in 0..memory.chunks(page).unwrap_or(0) {
                let is_free = matches!(memory.state(page, chunk), None | Some(State::Free));
                if let Some(head) = memory.head(page, chunk).filter(|head| !is_free && head.writer != 0) {
                    let age =
                        self.tracks.get(&head.writer).map_or(head.number, |it| it.sequence.age(head.number));
                    found.push((head.writer, age, page, chunk));
                }
            }
        }
        found.sort_unstable();
        for (_, _, page, chunk) in found {
            // Asked again: of two chunks of a writer, the first is complete once the second is there.
            let state = self.memory.as_ref().and_then(|memory| memory.state(page, chunk));
            if matches!(state, Some(State::Open | State::Complete)) {
                self.take(page, chunk, state == Some(State::Complete), books)?;
            }
        }
        Ok(())
    }

    /// The producer is gone: takes all that it left.
    pub(crate) fn finish(&mut self, books: &mut Books) -> Result<(), Fault> {
        let done = self.scrape(books);
        for track in self.tracks.values_mut() {
            track.sequence.give_up(&mut taker(books, track.number, &track.whose))?;
        }
        done
    }

    /// Gives its memory back.
    pub(crate) fn leave(self, books: &mut Books) {
        books.mapped -= self.memory.as_ref().map_or(0, Foreign::size);
    }
}

/// What takes the packets of a sequence: looks at each, counts it and keeps it.
fn taker<'a>(books: &'a mut Books, number: u32, whose: &'a Whose) -> impl FnMut(&[u8], bool) -> bool + 'a {
    let Books { kept, counts, .. } = books;
    move |packet, is_after_loss| {
        let Some(facts) = packets::look(packet) else {
            counts.invalid += 1;
            return false;
        };
        if !kept.add(packet, facts, number, whose, is_after_loss) {
            return false;
        }
        counts.bytes += packet.len() as u64;
        counts.events += u64::from(facts.is_event);
        counts.losses += u64::from(facts.tells_loss || is_after_loss);
        true
    }
}

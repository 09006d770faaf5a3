//! The socket's thread: the connection to the service, and what it has this process do.
//!
//! One thread a process, in which no code of the program runs. It connects, tries again with a growing back-off where
//! nobody listens, opens and closes sessions as it is told, and names completed chunks to the service: every few
//! milliseconds while there are such, ever more seldom while there are none, at last once a second, and without a session
//! never. Events never wake it.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use atrace_sys::perfetto::abi;
use atrace_sys::perfetto::clock::{self, Speed};
use atrace_sys::perfetto::memory::Arena;
use atrace_sys::perfetto::pool::{SERVICES, Shared, THREADS, writer_number};
use atrace_sys::perfetto::proto::{Reader, Writer};
use atrace_sys::perfetto::socket::{self, Refused, Socket};
use atrace_sys::perfetto::wire::{self, Body, Command, FRAME_MAX, Malformed, Method, Moved, PREFIX};
use atrace_sys::process;

use super::category;
use super::writer::POOL;

/// The memory that is shared: 1 MiB, of which what is never written costs nothing.
const PAGES: u32 = 128;
/// As many writers more than there are threads are made known to the service.
const AHEAD: usize = 64;
/// As many chunks are named in one frame.
const MOVED_MAX: usize = 4000;

/// How long an ended session waits for threads in the middle of an event.
const DRAIN_MS: u32 = 50;
const SHORTEST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_secs(1);
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LAST_BACK_OFF: Duration = Duration::from_secs(30);

/// Why there is no connection, or that there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nobody asked for one.
    Apart,
    Connecting,
    Connected,
    Refused(Refused),
    /// It came to an end, by this errno or the service's fault.
    Gone(Gone),
}

/// How a connection came to an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gone {
    Errno(i32),
    Malformed,
    /// It does not know what every service knows.
    Unable,
    /// It wants memory that can shrink, or of pages that are not ours.
    Memory(i32),
}

impl From<Malformed> for Gone {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// The last arena, for a child of fork: see [`leave_memory`].
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

/// In a child of fork: what threads of the parent write is not written by it. Async-signal-safe.
pub(super) fn leave_memory() {
    // SAFETY: null, or a leaked arena.
    #[expect(unsafe_code, reason = "a handler of fork finds the arena by a pointer")]
    if let Some(arena) = unsafe { ARENA.load(Ordering::Relaxed).as_ref() } {
        arena.retire();
    }
}

/// The thread's body.
pub(super) fn run(shared: &'static Shared, say: impl Fn(Standing), changed: fn()) {
    atrace_sys::thread::have_descriptors_of_its_own();
    let mut back_off = FIRST_BACK_OFF;
    loop {
        match Link::connect(shared, changed) {
            Ok(mut link) => {
                back_off = FIRST_BACK_OFF;
                let gone = link.serve(&say);
                link.close_all();
                say(Standing::Gone(gone));
            }
            Err(refused) => say(Standing::Refused(refused)),
        }
        std::thread::sleep(back_off);
        back_off = LAST_BACK_OFF.min(back_off * 2);
    }
}

/// The methods of the service that are used, in the order of [`METHODS`].
const METHODS: [&[u8]; 9] = [
    b"InitializeConnection",
    b"RegisterDataSource",
    b"CommitData",
    b"GetAsyncCommand",
    b"RegisterTraceWriter",
    b"UnregisterTraceWriter",
    b"NotifyDataSourceStarted",
    b"NotifyDataSourceStopped",
    b"Sync",
];
const INITIALIZE: usize = 0;
const REGISTER: usize = 1;
const COMMIT: usize = 2;
const COMMANDS: usize = 3;
const REGISTER_WRITER: usize = 4;
const UNREGISTER_WRITER: usize = 5;
const STARTED: usize = 6;
const STOPPED: usize = 7;
const SYNC: usize = 8;

/// A session that the service has started.
#[derive(Clone, Copy, Debug)]
struct Running {
    instance: u64,
    buffer: u32,
    /// Of the writers of how many threads the service knows.
    known: usize,
}

/// A connection.
struct Link {
    shared: &'static Shared,
    /// Called when sessions want other tags than before.
    changed: fn(),
    socket: Socket,
    /// What was received and is not whole yet.
    inbox: Vec<u8>,
    /// What is to be sent.
    outbox: Vec<u8>,
    scratch: Box<[u8]>,
    request: u64,
    methods: [Option<Method>; METHODS.len()],
    /// The requests whose replies are waited for.
    initialize: u64,
    commands: u64,
    sync: u64,
    arena: Option<&'static Arena>,
    /// A descriptor that came along with something, until it is asked for.
    received: Option<OwnedFd>,
    running: [Option<Running>; SERVICES],
    /// Sessions that have ended with a thread in the middle of an event, a bit for each.
    draining: u32,
    /// Of the writers of how many threads the service knows that are of such sessions.
    leaving: [usize; SERVICES],
    speed: Speed,
    anchored: u64,
    is_settled: bool,
    /// As often are those told again that sessions want other tags.
    tell_again: u8,
}

impl Link {
    fn connect(shared: &'static Shared, changed: fn()) -> Result<Self, Refused> {
        let (name, trust) = socket::producers();
        let socket = Socket::connect(&name, trust)?;
        Ok(Self {
            shared,
            changed,
            socket,
            inbox: Vec::new(),
            outbox: Vec::new(),
            scratch: vec![0; FRAME_MAX + PREFIX].into_boxed_slice(),
            request: 0,
            methods: [None; METHODS.len()],
            initialize: 0,
            commands: 0,
            sync: 0,
            arena: None,
            received: None,
            running: [None; SERVICES],
            draining: 0,
            leaving: [0; SERVICES],
            speed: Speed::default(),
            anchored: 0,
            is_settled: false,
            tell_again: 0,
        })
    }

    /// Does what the service says until it is gone.
    fn serve(&mut self, say: &impl Fn(Standing)) -> Gone {
        // The counter's speed is known by the time that a session comes.
        self.anchor();
        match self.introduce().and_then(|()| self.attend(say)) {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    fn introduce(&mut self) -> Result<(), Gone> {
        self.request += 1;
        let bytes = wire::bind(&mut self.scratch, self.request, "ProducerPort").ok_or(Gone::Unable)?;
        self.outbox.extend_from_slice(bytes);
        Ok(())
    }

    fn attend(&mut self, say: &impl Fn(Standing)) -> Result<std::convert::Infallible, Gone> {
        let mut period = SHORTEST;
        loop {
            let is_idle = self.running.iter().all(Option::is_none) && self.draining == 0;
            let is_new = self.anchored == 0 || self.is_speed_unknown() || self.tell_again > 0;
            let timeout = if is_idle && !is_new { None } else { Some(period) };
            self.send(None)?;
            let is_told = self.socket.wait(timeout);
            if is_told {
                self.receive(say)?;
            }
            // Soon again where something happens: a session that starts is followed by events, which may fill the memory
            // in some milliseconds.
            period = if self.tick()? || is_told { SHORTEST } else { LONGEST.min(period * 2) };
        }
    }

    /// What is to be done now and then; tells whether there was something.
    fn tick(&mut self) -> Result<bool, Gone> {
        // Who was told may have been about to sleep, and missed it.
        if self.tell_again > 0 {
            self.tell_again -= 1;
            (self.changed)();
        }
        let now = clock::asked();
        if now.wrapping_sub(self.anchored) > 900_000_000 || self.is_speed_unknown() {
            self.anchor();
            POOL.look_for_ended(|session, writer| writer.finish(session.epoch.now()));
        }
        self.drain();
        self.make_known()?;
        let is_any = self.commit(None)?;
        self.unregister()?;
        Ok(is_any)
    }

    fn is_speed_unknown(&self) -> bool {
        !self.speed.is_known() && clock::asked().wrapping_sub(self.anchored) < 1_000_000_000
    }

    fn anchor(&mut self) {
        clock::anchor(&mut self.speed);
        self.anchored = clock::asked();
    }

    /// Invokes a method; returns the request's number. A method that the service does not have is not missed. Requests
    /// are sent together, before the next wait.
    fn invoke(
        &mut self,
        method: usize,
        wants_reply: bool,
        mut arguments: impl FnMut(&mut Writer<'_>),
    ) -> Result<u64, Gone> {
        self.invoke_by(method, wants_reply, &mut arguments)
    }

    fn invoke_by(
        &mut self,
        method: usize,
        wants_reply: bool,
        arguments: &mut dyn FnMut(&mut Writer<'_>),
    ) -> Result<u64, Gone> {
        let Some(found) = self.methods[method] else { return Ok(0) };
        self.request += 1;
        let bytes = wire::invoke(&mut self.scratch, self.request, found, wants_reply, arguments);
        self.outbox.extend_from_slice(bytes.ok_or(Gone::Unable)?);
        Ok(self.request)
    }

    /// Sends the requests, the first of them with a descriptor.
    fn send(&mut self, descriptor: Option<i32>) -> Result<(), Gone> {
        let is_sent = self.socket.send(&self.outbox, descriptor);
        self.outbox.clear();
        if is_sent { Ok(()) } else { Err(Gone::Errno(EPIPE)) }
    }

    fn receive(&mut self, say: &impl Fn(Standing)) -> Result<(), Gone> {
        let old = self.inbox.len();
        self.inbox.resize(old + (16 << 10), 0);
        let got = self.socket.receive(&mut self.inbox[old..]);
        let (len, descriptor) = match got {
            Ok(Some(got)) => got,
            Ok(None) => (0, None),
            Err(code) => return Err(Gone::Errno(code)),
        };
        self.inbox.truncate(old + len);
        if descriptor.is_some() {
            self.received = descriptor;
        }
        let inbox = std::mem::take(&mut self.inbox);
        let mut at = 0;
        while let Some((frame, len)) = wire::split(&inbox[at..])? {
            self.handle(frame.request, frame.body, say)?;
            at += len;
        }
        self.inbox = inbox;
        self.inbox.drain(..at);
        Ok(())
    }

    fn handle(&mut self, request: u64, body: Body<'_>, say: &impl Fn(Standing)) -> Result<(), Gone> {
        match body {
            Body::Bound(bound) if self.methods[COMMIT].is_none() => {
                for (name, method) in wire::methods(bound).ok_or(Gone::Unable)? {
                    if let Some(known) = METHODS.iter().position(|known| *known == name) {
                        self.methods[known] = Some(method);
                    }
                }
                if [INITIALIZE, REGISTER, COMMIT, COMMANDS]
                    .iter()
                    .any(|needed| self.methods[*needed].is_none())
                {
                    return Err(Gone::Unable);
                }
                self.initialize()
            }
            Body::Reply { is_success, reply, .. } if request == self.initialize => {
                if !is_success {
                    return Err(Gone::Unable);
                }
                let is_ours = Reader::first(reply, 1).is_some_and(|value| value.number() != 0);
                if !is_ours && let Some(arena) = self.arena.take() {
                    arena.retire(); // Memory will come along with SetupTracing.
                }
                self.register()
            }
            Body::Reply { is_success: true, reply, .. } if request == self.commands => {
                self.obey(Command::read(reply)?)
            }
            Body::Reply { .. } if request == self.sync && !self.is_settled => {
                // Sessions that were there have been told of by now.
                self.is_settled = true;
                say(Standing::Connected);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn initialize(&mut self) -> Result<(), Gone> {
        let (arena, file) = Arena::make(PAGES).map_err(Gone::Memory)?;
        self.use_arena(arena);
        self.initialize = process::with_argv0(|name| {
            let name = name.map_or(&[][..], std::ffi::CStr::to_bytes);
            let size = (PAGES as usize * abi::PAGE) as u64;
            self.invoke(INITIALIZE, true, |arguments| {
                arguments.number(1, abi::PAGE as u64).number(2, size).bytes(3, &name[..name.len().min(255)]);
                // smb_scraping_mode: enabled; producer_provided_shmem; sdk_version
                arguments.number(4, 1).number(6, 1);
                arguments.bytes(8, concat!("atrace ", env!("CARGO_PKG_VERSION")).as_bytes());
            })
        })?;
        self.send(Some(file.as_raw_fd()))
    }

    fn use_arena(&mut self, arena: &'static Arena) {
        self.arena = Some(arena);
        ARENA.store(std::ptr::from_ref(arena).cast_mut(), Ordering::Release);
    }

    fn register(&mut self) -> Result<(), Gone> {
        self.commands = self.invoke(COMMANDS, true, |_| ())?;
        self.invoke(REGISTER, true, |arguments| {
            arguments.message(1, |source| {
                // will_notify_on_stop, will_notify_on_start, handles_incremental_state_clear
                source.bytes(1, b"track_event").number(2, 1).number(3, 1).number(4, 1);
                source.message(6, |categories| {
                    for name in category::NAMES {
                        categories.message(1, |category| {
                            category.bytes(1, name.as_bytes());
                        });
                    }
                });
            });
        })?;
        self.sync = self.invoke(SYNC, true, |_| ())?;
        Ok(())
    }

    fn obey(&mut self, command: Command<'_>) -> Result<(), Gone> {
        match command {
            Command::SetupTracing { page_size } if self.arena.is_none() => {
                let file = self.received.take().ok_or(Gone::Unable)?;
                if page_size != abi::PAGE as u64 {
                    return Err(Gone::Memory(0));
                }
                let arena = Arena::of_service(file.as_fd()).map_err(Gone::Memory)?;
                self.use_arena(arena);
                Ok(())
            }
            Command::Start { instance, config } => self.start(instance, config),
            Command::Stop { instance } => self.stop(instance),
            Command::Flush { request } => self.commit(Some(request)).map(|_| ()),
            Command::ClearState => {
                for session in &self.shared.sessions {
                    session.clears.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }
            Command::SetupTracing { .. } | Command::Setup { .. } | Command::Other => Ok(()),
        }
    }

    fn start(&mut self, instance: u64, config: &[u8]) -> Result<(), Gone> {
        self.drain();
        self.commit(None)?;
        self.unregister()?;
        let is_free = |number: &usize| self.running[*number].is_none() && self.draining & 1 << number == 0;
        // More sessions than there are places: the service is told that it began, and gets nothing.
        if let Some(number) = (0..SERVICES).find(is_free)
            && let Some(arena) = self.arena
        {
            self.anchor();
            let buffer = Reader::first(config, 2).map_or(0, |buffer| buffer.number() as u32);
            self.running[number] = Some(Running { instance, buffer, known: 0 });
            self.make_known()?;
            self.send(None)?;
            self.shared.open(number, arena, buffer, category::wanted(config));
            self.tell();
        }
        self.invoke(STARTED, false, |arguments| {
            arguments.number(1, instance);
        })?;
        Ok(())
    }

    fn stop(&mut self, instance: u64) -> Result<(), Gone> {
        let found = self.running.iter().position(|one| one.is_some_and(|one| one.instance == instance));
        if let Some(number) = found {
            self.close(number);
            // Who is inside is so for nanoseconds, unless it was put to sleep there.
            for _ in 0..DRAIN_MS {
                self.drain();
                if self.draining & 1 << number == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.commit(None)?;
            self.leaving[number] = self.running[number].take().map_or(0, |one| one.known);
            self.unregister()?;
        }
        self.invoke(STOPPED, false, |arguments| {
            arguments.number(1, instance);
        })?;
        Ok(())
    }

    /// Has the service forget the writers of sessions that have ended. Of one with a thread in the middle of an event it
    /// then takes what that thread had written before.
    fn unregister(&mut self) -> Result<(), Gone> {
        for number in 0..SERVICES {
            if self.draining & 1 << number != 0 {
                continue;
            }
            for thread in 0..std::mem::take(&mut self.leaving[number]) {
                self.invoke(UNREGISTER_WRITER, false, |arguments| {
                    arguments.number(1, writer_number(number, thread).into());
                })?;
            }
        }
        Ok(())
    }

    /// Closes a session: no event begins to be written for it any more.
    fn close(&mut self, number: usize) {
        self.shared.close(number);
        self.tell();
        self.draining |= 1 << number;
    }

    /// Takes the chunks of sessions that have ended.
    fn drain(&mut self) {
        for number in (0..SERVICES).filter(|number| self.draining & 1 << number != 0).collect::<Vec<_>>() {
            if POOL.reclaim(number, |writer| writer.take_away()) {
                self.draining &= !(1 << number);
            }
        }
    }

    /// The connection is gone: all sessions end, and what is written is nobody's.
    fn close_all(&mut self) {
        for number in 0..SERVICES {
            if self.running[number].take().is_some() {
                self.close(number);
            }
        }
        // Before another connection has sessions at the same places.
        while self.draining != 0 {
            self.drain();
            std::thread::sleep(Duration::from_millis(1));
        }
        ARENA.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(arena) = self.arena.take() {
            arena.retire();
        }
    }

    fn tell(&mut self) {
        (self.changed)();
        self.tell_again = 3;
    }

    /// Makes writers known to the service before threads use them: what unknown ones wrote is lost when the process
    /// is killed.
    fn make_known(&mut self) -> Result<(), Gone> {
        let wanted = THREADS.min(self.shared.threads.load(Ordering::Relaxed) as usize + AHEAD);
        for number in 0..SERVICES {
            let Some(mut running) = self.running[number] else { continue };
            if running.known + AHEAD / 2 > wanted {
                continue;
            }
            for thread in running.known..wanted {
                self.invoke(REGISTER_WRITER, false, |arguments| {
                    arguments
                        .number(1, writer_number(number, thread).into())
                        .number(2, running.buffer.into());
                })?;
            }
            running.known = wanted;
            self.running[number] = Some(running);
        }
        Ok(())
    }

    /// Names completed chunks to the service; tells whether there were any. With the number of a flush, always.
    fn commit(&mut self, flush: Option<u64>) -> Result<bool, Gone> {
        let mut moved: Vec<Moved> = Vec::new();
        if let Some(arena) = self.arena {
            arena.take_handed(|place| moved.push(place));
        }
        let is_any = !moved.is_empty();
        let mut parts = moved.chunks(MOVED_MAX).peekable();
        while let Some(part) = parts.next() {
            let is_last = parts.peek().is_none();
            self.invoke(COMMIT, false, |commit| {
                for place in part {
                    place.write(commit);
                }
                if let Some(flush) = flush.filter(|_| is_last) {
                    commit.number(3, flush);
                }
            })?;
        }
        if let Some(flush) = flush.filter(|_| !is_any) {
            self.invoke(COMMIT, false, |commit| {
                commit.number(3, flush);
            })?;
        }
        Ok(is_any)
    }
}

/// How a send fails whose peer is gone.
const EPIPE: i32 = 32;

impl Standing {
    /// In one word: what it is, and a number that goes with it.
    pub(super) const fn packed(self) -> u64 {
        let (kind, number) = match self {
            Self::Apart => (0, 0),
            Self::Connecting => (1, 0),
            Self::Connected => (2, 0),
            Self::Refused(Refused::Errno(code)) => (3, code as u32),
            Self::Refused(Refused::Stranger(user)) => (4, user),
            Self::Refused(Refused::Name) => (5, 0),
            Self::Gone(Gone::Errno(code)) => (6, code as u32),
            Self::Gone(Gone::Malformed) => (7, 0),
            Self::Gone(Gone::Unable) => (8, 0),
            Self::Gone(Gone::Memory(code)) => (9, code as u32),
        };
        (kind << 32) | number as u64
    }

    /// From [`packed`](Self::packed).
    pub(super) const fn of(word: u64) -> Self {
        let number = word as u32;
        match word >> 32 {
            1 => Self::Connecting,
            2 => Self::Connected,
            3 => Self::Refused(Refused::Errno(number as i32)),
            4 => Self::Refused(Refused::Stranger(number)),
            5 => Self::Refused(Refused::Name),
            6 => Self::Gone(Gone::Errno(number as i32)),
            7 => Self::Gone(Gone::Malformed),
            8 => Self::Gone(Gone::Unable),
            9 => Self::Gone(Gone::Memory(number as i32)),
            _ => Self::Apart,
        }
    }
}

impl std::fmt::Display for Standing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let error = |code: i32| std::io::Error::from_raw_os_error(code);
        match *self {
            Self::Apart => f.write_str("not asked for"),
            Self::Connecting => f.write_str("being connected to"),
            Self::Connected => f.write_str("connected"),
            Self::Refused(Refused::Errno(code)) => write!(f, "nobody to talk to: {}", error(code)),
            Self::Refused(Refused::Stranger(user)) => write!(f, "its socket is another user's, {user}"),
            Self::Refused(Refused::Name) => f.write_str("PERFETTO_PRODUCER_SOCK_NAME is no socket's name"),
            Self::Gone(Gone::Errno(code)) => write!(f, "gone: {}", error(code)),
            Self::Gone(Gone::Malformed) => f.write_str("what it said made no sense"),
            Self::Gone(Gone::Unable) => f.write_str("it lacks what is needed"),
            Self::Gone(Gone::Memory(code)) => write!(f, "no memory to share: {}", error(code)),
        }
    }
}

//! The socket thread: the client of the tracing service.
//!
//! # Tasks
//!
//! Each process has at most one socket thread. The thread connects to the service. If the attempt fails, the thread
//! tries again after 100 ms, and then after pauses that double up to 30 s (`attempts.rs`). In a process that did not
//! ask for the connection, but only [seeks](crate::producer::seek) a service, the thread sleeps instead, until a word
//! in memory changes, which means that there may be a service. The thread opens and closes sessions when the service
//! requests this (`sessions.rs`), and reports the complete chunks to the service (`requests.rs`): every 4 ms while
//! there are complete chunks, then at intervals that double up to 50 ms. An event wakes the thread in two cases
//! (`filling.rs`): if the program's threads have taken half of the memory since the last report, and if the event waits
//! for room, in a session that requests such waits. The socket thread can't sleep on the socket and on such a wake-up
//! (a futex) at the same time. So during a session, it checks the socket at the same intervals as the chunks. Without a
//! session, it soon sleeps on the socket until the service sends a message.
//!
//! A busy service may read nothing from the socket for seconds, while it stores the chunks of earlier messages. If the
//! socket's queue is more than a quarter full, the completed chunks wait, and the thread sleeps on the socket until
//! there is room.
//!
//! # Rules
//!
//! No code of the program runs on the socket thread. The socket thread may be a *bare* thread, started by an event
//! without the C library ([`spawn_bare`](atrace_sys::thread::spawn_bare)). So the code of this module never allocates,
//! panics or uses a thread-local: buffers are mapped or on the stack.
//!
//! The C library's `setuid()` does not change the rights of a bare thread. A bare thread that has rights (capabilities)
//! therefore wakes once a second, even without a session, and ends when the process has given up these rights. The next
//! event starts another thread.
//!
//! # Failure
//!
//! The connection ends after an invalid message, if the socket is broken, if the service is silent for some time during
//! the greeting (the first requests), or if the socket's queue has no room for a minute. Then all sessions are closed,
//! their memory is *retired* (anonymous memory is mapped over it), and the thread connects again: at once if the next
//! connection has other memory (`requests.rs`), otherwise after a pause.

mod attempts;
mod requests;
mod sessions;

use std::ffi::OsString;
use std::time::Duration;

use self::attempts::Attempts;
pub(crate) use self::attempts::{be_persistent, is_persistent, set_serial, wait_for_first};
use crate::clock::{self, Speed};
use crate::connection_state::ConnectionState;
use crate::memory::{Arena, Buffer, Completed};
use crate::names::Names;
use crate::pool::{SERVICES, Shared};
use crate::socket::{self, Socket};
use crate::startup;
use crate::wire::{FRAME_MAX, Method, PREFIX};
use crate::writer::{self, POOL};
use atrace_sys::{Descriptor, process, thread};

/// The shortest timeout of the sleep between two checks of the completed chunks and the socket, in milliseconds.
const SHORTEST: u64 = 4;
/// The longest timeout of the sleep between two checks of the completed chunks and the socket during a session, in
/// milliseconds.
const LONGEST: u64 = 50;
/// How long the service may be silent while it has not yet reported the existing sessions, in nanoseconds. Until the
/// report, all tags count as wanted, so each event costs the program more.
const GREETING_NS: u64 = if cfg!(test) { 5_000_000_000 } else { 10_000_000_000 };
/// The interval at which a bare thread that has rights (capabilities) checks whether the process still has these
/// rights, in milliseconds.
const RIGHTS: u64 = 1000;

/// The number of checks in a row that may find no room in the socket's queue; at the next such check, the connection is
/// given up. The checks are up to [`LONGEST`] apart, so this takes a minute, and longer on a busy machine. The limit is
/// this high because a busy service first stores the chunks of the messages that it has read, which may take many
/// seconds.
const LOOKS_MAX: u32 = 1200;

/// The names of the service's methods that this client uses. The constants after this list, except [`NEEDED`] and
/// [`METHODS_COUNT`], are indices into this list.
const METHODS: Names = Names(
    "InitializeConnection RegisterDataSource CommitData GetAsyncCommand RegisterTraceWriter UnregisterTraceWriter \
    NotifyDataSourceStarted NotifyDataSourceStopped Sync",
    b' ',
);
const INITIALIZE: usize = 0;
const REGISTER: usize = 1;
const COMMIT: usize = 2;
const COMMANDS: usize = 3;
/// The number of methods, from the start of [`METHODS`] on, that every service must have.
const NEEDED: usize = 4;
const REGISTER_WRITER: usize = 4;
const UNREGISTER_WRITER: usize = 5;
const STARTED: usize = 6;
const STOPPED: usize = 7;
const SYNC: usize = 8;
const METHODS_COUNT: usize = 9;

/// The size of the buffer for requests. The buffer is small, so that a connection without a session costs little
/// memory.
const REQUEST_MAX: usize = 4 << 10;

/// Settings from environment variables.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The address of the service's socket.
    pub(crate) socket: Option<OsString>,
    /// The size of the shared memory in KiB.
    pub(crate) memory: Option<OsString>,
}

/// The data of a session slot (the place of a session in the pool) that only the socket thread needs.
#[derive(Clone, Copy, Debug)]
struct Session {
    /// The number by which the service identifies the session.
    instance: u64,
    buffer: u32,
    /// The number of thread slots, from the first one on, whose writer for this session is registered with the service.
    known: usize,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The slot is free.
    Free,
    Open,
    /// The session has ended, but a thread may still be in the middle of an event for it.
    Draining,
    /// The session has ended, and no thread has a chunk of it.
    Drained,
}

/// The connection to the service. After a connection has ended, the same value is used for the next connection.
struct Link {
    shared: &'static Shared,
    environment: &'static Environment,
    /// The rights of the process when this thread started, if this is a bare thread (which keeps rights that
    /// the process gives up); otherwise 0.
    rights: u64,
    /// A function that is called when the tags that sessions want have changed.
    changed: fn(),
    socket: Option<Socket>,
    terms: Terms,
    /// Requests that were not sent yet. `unsent` is their size in bytes.
    outbox: [u8; REQUEST_MAX],
    unsent: usize,
    /// The completed chunks for which the socket had no room.
    rest: Option<Completed>,
    /// The number of checks in a row in which the socket had no room.
    looks: u32,
    arena: Option<&'static Arena>,
    /// The descriptor that was received last and is not used yet.
    received: Option<Descriptor>,
    /// The session slots. A slot stays in use after the connection has ended, as long as a thread is in the middle
    /// of an event for its session.
    sessions: [Session; SERVICES],
    speed: Speed,
    anchored: u64,
    /// How many times `changed` still has to be called for the last change.
    notify_again: u8,
    /// Whether the next connection offers memory of this process to the service.
    offers: bool,
    /// The number of pages of the memory that the next connection offers, if this process can't use the service's
    /// memory and has to replace it by memory of the same size, if possible. The value is 0 otherwise, and if the size
    /// of the service's memory is not known.
    replaced: usize,
}

/// The methods of the service, and the progress of the greeting (the first requests on a connection).
#[derive(Default)]
struct Terms {
    /// The number of the request that was sent last.
    request: u64,
    /// The numbers of the methods, by their index in [`METHODS`]. A number is 0 if the service lacks the method.
    methods: [Method; METHODS_COUNT],
    /// The number of the request `InitializeConnection`, or 0 before the request.
    initialize: u64,
    /// The number of the request `GetAsyncCommand`, whose replies are the service's commands; or 0 before the request.
    commands: u64,
    /// The number of the request whose reply ends the greeting, or 0 before the request.
    last: u64,
    is_settled: bool,
    /// Whether this process has offered memory on this connection.
    has_offered: bool,
    /// Whether commits contain the bytes of the chunks, because the service can't read the memory.
    sends_bytes: bool,
}

impl Link {
    fn new(shared: &'static Shared, environment: &'static Environment, changed: fn()) -> Self {
        Self {
            shared,
            environment,
            rights: if thread::is_bare() { process::rights() } else { 0 },
            changed,
            socket: None,
            terms: Terms::default(),
            outbox: [0; REQUEST_MAX],
            unsent: 0,
            rest: None,
            looks: 0,
            arena: None,
            received: None,
            sessions: const { [Session { instance: 0, buffer: 0, known: 0, phase: Phase::Free }; SERVICES] },
            speed: Speed::default(),
            anchored: 0,
            notify_again: 0,
            offers: environment.memory.is_some(),
            replaced: 0,
        }
    }

    fn is_measuring(&self) -> bool {
        !self.speed.is_settled() && clock::asked().wrapping_sub(self.anchored) < 1_000_000_000
    }

    #[inline(never)]
    fn anchor(&mut self) {
        clock::anchor(&mut self.speed);
        self.anchored = clock::asked();
    }
}

/// Runs the socket thread. This returns only if the process has given up rights that this thread still has.
///
/// The thread may be a [bare](atrace_sys::thread::spawn_bare) thread, so no code here allocates, panics or uses a
/// thread-local.
pub(crate) fn run(
    shared: &'static Shared,
    environment: &'static Environment,
    say: fn(ConnectionState),
    changed: fn(),
) {
    let has_own = thread::have_descriptors_of_its_own();
    let mut link = Link::new(shared, environment, changed);
    let mut attempts = Attempts::new(has_own);
    let mut is_again = false;
    loop {
        let mut was_connected = false;
        attempts.begin();
        let (name, trust) = socket::producers(environment.socket.as_deref());
        let connected = Socket::connect(name, trust);
        let connected = if has_own { connected } else { connected.and_then(Socket::guarded) };
        match (connected, Buffer::new(PREFIX + FRAME_MAX)) {
            (Ok(socket), Ok(mut inbox)) => {
                was_connected = true;
                attempts.is_connected();
                link.socket = Some(socket);
                let gone = link.serve(inbox.bytes(), say);
                if link.is_greeted() {
                    attempts.had_success();
                }
                // The thread does not connect again at once twice in a row, because a service could otherwise keep it
                // busy.
                is_again = link.changes_memory() && !is_again && !attempts.is_confined();
                link.close_all(is_again);
                if is_again {
                    continue;
                }
                say(gone);
            }
            (Err(refused), _) => {
                startup::end(shared);
                say(refused.into());
            }
            (_, Err(error)) => {
                startup::end(shared);
                say(ConnectionState::memory(error));
            }
        }
        is_again = false;
        let give_up = || startup::end(shared);
        if !attempts.pause(was_connected, link.rights != 0, || link.has_stale_rights(), give_up) {
            return;
        }
    }
}

impl Link {
    /// Returns whether this thread still has rights that the process has given up. The C library's `setuid()` changes
    /// only the threads that the C library has created.
    fn has_stale_rights(&self) -> bool {
        self.rights != 0 && process::rights() != self.rights
    }

    /// Handles one connection. Returns the reason why the connection ended.
    fn serve(&mut self, inbox: &mut [u8], say: fn(ConnectionState)) -> ConnectionState {
        // Begins to measure the speed of the processor's counter, so that the speed is known when a session starts.
        self.anchor();
        match self.introduce().and_then(|()| self.poll(inbox, say)) {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    fn poll(
        &mut self,
        inbox: &mut [u8],
        say: fn(ConnectionState),
    ) -> Result<std::convert::Infallible, ConnectionState> {
        let mut period = SHORTEST;
        // How many bytes of the inbox hold the start of an incomplete message.
        let mut len = 0;
        let mut until = clock::asked() + GREETING_NS;
        loop {
            let is_idle = self.sessions.iter().all(|session| session.phase == Phase::Free);
            let is_new = self.anchored == 0 || self.is_measuring() || self.notify_again > 0;
            let mut timeout = if is_idle && !is_new { None } else { Some(Duration::from_millis(period)) };
            if self.rights != 0 {
                timeout = timeout.or(Some(Duration::from_millis(RIGHTS)));
                if self.has_stale_rights() {
                    return Err(ConnectionState::CONNECTING);
                }
            }
            let left = Duration::from_nanos(until.saturating_sub(clock::asked()));
            if !self.terms.is_settled {
                timeout = Some(timeout.map_or(left, |time| time.min(left)));
            }
            self.send(None)?;
            // If completed chunks wait for room in the socket, the thread sleeps on the socket. Otherwise, during a
            // session, it sleeps on a futex of the arena ([`Arena::sleep`]), where events wake it when there is more to
            // commit.
            let on_memory = self.arena.zip(timeout).filter(|_| !is_idle);
            let is_told = match (&self.socket, &self.rest) {
                (Some(socket), Some(_)) => {
                    socket.wait_for_room(timeout);
                    true
                }
                _ if on_memory.is_some_and(|(arena, time)| arena.sleep(time)) => true,
                (socket, _) => socket.as_ref().is_some_and(|socket| socket.wait(timeout)),
            } && self.receive(inbox, &mut len, say)?;
            if is_told {
                until = clock::asked() + GREETING_NS;
            } else if !self.terms.is_settled && left.is_zero() {
                // The service may have sessions, so the counts of lost events stay.
                startup::give_up(self.shared);
                return Err(ConnectionState::ended(libc::ETIMEDOUT));
            }
            // After any activity, the next check comes soon: after the start of a session, events may fill the memory
            // within milliseconds.
            period = if self.tick()? || is_told { SHORTEST } else { LONGEST.min(2 * period) };
        }
    }

    /// Reports the completed chunks, and does the other work that is due at intervals. Returns whether there
    /// were completed chunks.
    fn tick(&mut self) -> Result<bool, ConnectionState> {
        // A thread that waits for changes may have been about to sleep when it was notified, so it is notified again.
        if self.notify_again > 0 {
            self.notify_again -= 1;
            (self.changed)();
        }
        let now = clock::asked();
        if self.speed.is_due(now.wrapping_sub(self.anchored)) {
            self.anchor();
            POOL.look_for_ended(writer::finish);
        }
        self.drain();
        self.register_writers()?;
        // The flag is read once, before the commit: an exit that begins during this tick waits for the next tick, which
        // commits all chunks.
        let is_exiting = startup::is_exiting();
        let is_any = self.commit_chunks(is_exiting)?;
        if self.rest.is_none() {
            self.unregister_writers()?;
        }
        if is_exiting {
            self.send_open()?;
            self.send(None)?;
            startup::sent();
        }
        Ok(is_any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::producer;
    use crate::tests::is_alone;

    /// Tests a service that reads nothing: completed chunks wait until the socket has room, and the connection ends if
    /// the socket has no room for a long time.
    #[test]
    #[cfg_attr(miri, ignore = "no sockets")]
    fn completed_chunks_wait_for_room_in_the_socket() {
        static ENVIRONMENT: Environment = Environment { socket: None, memory: None };
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let same = ours.try_clone().unwrap();
        // SAFETY: zeroes are valid: numbers and empty `OnceRef`s.
        #[expect(unsafe_code, reason = "the state is zero at first")]
        let shared: &'static Shared = Box::leak(unsafe { Box::new(std::mem::zeroed()) });
        let mut link = Link::new(shared, &ENVIRONMENT, || ());
        link.socket = Some(Socket::new(ours.into()));
        link.terms.methods = [Method { service: 1, method: 1 }; METHODS_COUNT];
        let (arena, _) = Arena::make(4).unwrap();
        link.arena = Some(arena);
        let wait = |link: &mut Link| {
            while std::io::Write::write(&mut &same, &[0; 1000]).is_ok() {}
            arena.open(crate::abi::Layout::Whole, 1, 0, 0).unwrap().complete();
            for _ in 0..LOOKS_MAX {
                assert_eq!((link.commit_chunks(false), link.rest.is_some()), (Ok(false), true));
            }
        };
        wait(&mut link);
        let mut read = vec![0; 1 << 20];
        assert!(std::io::Read::read(&mut theirs, &mut read).unwrap() > 0);
        assert_eq!((link.commit_chunks(false), link.rest.is_some(), link.looks), (Ok(true), false, 0));
        wait(&mut link);
        assert_eq!(link.commit_chunks(false), Err(ConnectionState::ended(libc::ETIMEDOUT)));
        link.arena = None;
        arena.retire();
    }

    /// Tests a service that accepts the connection and never answers. After a while, the producer no longer presumes
    /// that the service has sessions.
    #[test]
    #[cfg_attr(miri, ignore = "no sockets")]
    fn a_silent_service_does_not_keep_all_tags_on() {
        if !is_alone("link::tests::a_silent_service_does_not_keep_all_tags_on") {
            return;
        }
        let path = std::env::temp_dir().join(format!("atrace-silent-{}", std::process::id()));
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        // SAFETY: no other thread reads the environment.
        unsafe { std::env::set_var("PERFETTO_PRODUCER_SOCK_NAME", &path) };
        producer::connect();
        std::fs::remove_file(&path).unwrap();
        assert_ne!(producer::tags(), 0);
        let start = std::time::Instant::now();
        while producer::tags() != 0 {
            assert!(start.elapsed().as_secs() < 60, "{}", producer::connection_state().0);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Tests that there is a method name for every index. A method without a name would never be found among the
    /// service's methods.
    #[test]
    fn every_place_of_a_method_has_a_name() {
        for place in 0..METHODS_COUNT {
            assert_eq!(METHODS.place(METHODS.at(place).as_bytes()), Some(place));
        }
        assert_eq!(METHODS.place(b"Syn"), None);
        assert_eq!(METHODS.at(SYNC), "Sync");
        assert_eq!(METHODS.at(STOPPED), "NotifyDataSourceStopped");
        assert_eq!(METHODS.at(COMMIT), "CommitData");
        assert_eq!(METHODS.at(METHODS_COUNT), "");
    }
}

//! The state of a connection: the socket, the buffers, the shared memory, and the sessions.

use std::ffi::OsString;

use crate::clock::{self, Speed};
use crate::memory::Arena;
use crate::pool::{SERVICES, Shared};
use crate::socket::Socket;
use crate::wire::Method;
use atrace_sys::Descriptor;
use atrace_sys::{process, thread};

use crate::names::Names;

/// The methods of the service that are used. The constants below are indices of this list.
pub(super) const METHODS: Names = Names::new(
    "InitializeConnection RegisterDataSource CommitData GetAsyncCommand RegisterTraceWriter UnregisterTraceWriter \
    NotifyDataSourceStarted NotifyDataSourceStopped Sync",
);
pub(super) const INITIALIZE: usize = 0;
pub(super) const REGISTER: usize = 1;
pub(super) const COMMIT: usize = 2;
pub(super) const COMMANDS: usize = 3;
/// How many of the methods, from the first on, every service must have.
pub(super) const NEEDED: usize = 4;
pub(super) const REGISTER_WRITER: usize = 4;
pub(super) const UNREGISTER_WRITER: usize = 5;
pub(super) const STARTED: usize = 6;
pub(super) const STOPPED: usize = 7;
pub(super) const SYNC: usize = 8;
const METHODS_COUNT: usize = 9;

/// The size of the buffer for requests. It is small, so that a connection without a session costs little memory.
pub(super) const REQUEST_MAX: usize = 4 << 10;

/// Settings from environment variables.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The address of the service's socket.
    pub(crate) socket: Option<OsString>,
    /// The size of the shared memory in KiB.
    pub(crate) memory: Option<OsString>,
}

/// A session slot, as the socket thread sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The service's number of the session.
    pub(super) instance: u64,
    pub(super) buffer: u32,
    /// How many threads have a writer that the service knows.
    pub(super) known: usize,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The slot is free.
    Free,
    Open,
    /// The session has ended, but a thread may still be in the middle of an event.
    Draining,
    /// The session has ended, and no thread has a chunk of it.
    Drained,
}

/// The connection. It is reused: after the end of one connection, the next is made with the same value.
pub(super) struct Link {
    pub(super) shared: &'static Shared,
    pub(super) environment: &'static Environment,
    /// The process's rights when this thread started, if it is a bare thread, which would keep them; otherwise 0.
    pub(super) rights: u64,
    /// Called when sessions want other tags.
    pub(super) changed: fn(),
    pub(super) socket: Option<Socket>,
    pub(super) terms: Terms,
    /// Requests that were not sent yet; `unsent` is how many bytes they have.
    pub(super) outbox: [u8; REQUEST_MAX],
    pub(super) unsent: usize,
    pub(super) arena: Option<&'static Arena>,
    /// The descriptor that was received last and not used yet.
    pub(super) received: Option<Descriptor>,
    /// The session slots. A slot stays in use after its connection ended, as long as a thread is in the middle of an
    /// event.
    pub(super) sessions: [Session; SERVICES],
    pub(super) speed: Speed,
    pub(super) anchored: u64,
    /// How many times `changed` still has to be called.
    pub(super) notify_again: u8,
}

/// The service's methods and the state of the greeting.
#[derive(Default)]
pub(super) struct Terms {
    /// The number of the last request.
    pub(super) request: u64,
    /// The methods by their index; 0 is the number of a method that the service lacks.
    pub(super) methods: [Method; METHODS_COUNT],
    /// The numbers of requests whose replies matter. The reply to `last` ends the greeting.
    pub(super) initialize: u64,
    pub(super) commands: u64,
    pub(super) last: u64,
    pub(super) is_settled: bool,
}

impl Link {
    pub(super) fn new(shared: &'static Shared, environment: &'static Environment, changed: fn()) -> Self {
        Self {
            shared,
            environment,
            rights: if thread::is_bare() { process::rights() } else { 0 },
            changed,
            socket: None,
            terms: Terms::default(),
            outbox: [0; REQUEST_MAX],
            unsent: 0,
            arena: None,
            received: None,
            sessions: const { [Session { instance: 0, buffer: 0, known: 0, phase: Phase::Free }; SERVICES] },
            speed: Speed::default(),
            anchored: 0,
            notify_again: 0,
        }
    }

    pub(super) fn is_speed_unknown(&self) -> bool {
        !self.speed.is_known() && clock::asked().wrapping_sub(self.anchored) < 1_000_000_000
    }

    #[inline(never)]
    pub(super) fn anchor(&mut self) {
        clock::anchor(&mut self.speed);
        self.anchored = clock::asked();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// An index without a name would match a service's method that has no name.
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

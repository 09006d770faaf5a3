//! What a connection consists of: the socket, what was received and is to be sent, the memory, and the sessions.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use atrace_sys::perfetto::clock::{self, Speed};
use atrace_sys::perfetto::memory::Arena;
use atrace_sys::perfetto::pool::Shared;
use atrace_sys::perfetto::socket::{self, Refused, Socket};
use atrace_sys::perfetto::wire::Method;

use crate::perfetto::words::Words;

/// The methods of the service that are used; each of them is known by its place here.
pub(super) static METHODS: Words<METHODS_COUNT> = Words::new(
    "InitializeConnection RegisterDataSource CommitData GetAsyncCommand RegisterTraceWriter UnregisterTraceWriter \
    NotifyDataSourceStarted NotifyDataSourceStopped Sync",
);
pub(super) const INITIALIZE: usize = 0;
pub(super) const REGISTER: usize = 1;
pub(super) const COMMIT: usize = 2;
pub(super) const COMMANDS: usize = 3;
pub(super) const REGISTER_WRITER: usize = 4;
pub(super) const UNREGISTER_WRITER: usize = 5;
pub(super) const STARTED: usize = 6;
pub(super) const STOPPED: usize = 7;
pub(super) const SYNC: usize = 8;
const METHODS_COUNT: usize = 9;

/// The longest frame that is sent. Without a session, a connection costs little memory.
pub(super) const REQUEST_MAX: usize = 4 << 10;

/// The last arena, for a child of fork: see [`leave_memory`].
pub(super) static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

/// In a child of fork: what threads of the parent write is not written by it. Async-signal-safe.
pub(in crate::perfetto) fn leave_memory() {
    // SAFETY: null, or a leaked arena.
    #[expect(unsafe_code, reason = "a handler of fork finds the arena by a pointer")]
    if let Some(arena) = unsafe { ARENA.load(Ordering::Relaxed).as_ref() } {
        arena.retire();
    }
}

/// A session that the service has started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// Its place among those of this process.
    pub(super) number: usize,
    /// The service's number.
    pub(super) instance: u64,
    pub(super) buffer: u32,
    /// Of the writers of how many threads the service knows.
    pub(super) known: usize,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// It has ended, perhaps with a thread in the middle of an event.
    Draining,
    /// It has ended, and no thread has a chunk of it.
    Drained,
}

/// A connection.
pub(super) struct Link {
    pub(super) shared: &'static Shared,
    /// Called when sessions want other tags than before.
    pub(super) changed: fn(),
    pub(super) socket: Socket,
    /// What was received and is not whole yet.
    pub(super) inbox: Vec<u8>,
    /// What is to be sent.
    pub(super) outbox: Vec<u8>,
    pub(super) scratch: Box<[u8]>,
    pub(super) request: u64,
    pub(super) methods: [Option<Method>; METHODS_COUNT],
    /// The requests whose replies are waited for.
    pub(super) initialize: u64,
    pub(super) commands: u64,
    pub(super) sync: u64,
    pub(super) arena: Option<&'static Arena>,
    /// A descriptor that came along with something, until it is asked for.
    pub(super) received: Option<OwnedFd>,
    pub(super) sessions: Vec<Session>,
    pub(super) speed: Speed,
    pub(super) anchored: u64,
    pub(super) is_settled: bool,
    /// As often are those told again that sessions want other tags.
    pub(super) tell_again: u8,
}

impl Link {
    pub(super) fn connect(shared: &'static Shared, changed: fn()) -> Result<Self, Refused> {
        let (name, trust) = socket::producers();
        let socket = Socket::connect(&name, trust)?;
        Ok(Self {
            shared,
            changed,
            socket,
            inbox: Vec::new(),
            outbox: Vec::new(),
            scratch: vec![0; REQUEST_MAX].into_boxed_slice(),
            request: 0,
            methods: [None; METHODS_COUNT],
            initialize: 0,
            commands: 0,
            sync: 0,
            arena: None,
            received: None,
            sessions: Vec::new(),
            speed: Speed::default(),
            anchored: 0,
            is_settled: false,
            tell_again: 0,
        })
    }

    pub(super) fn is_speed_unknown(&self) -> bool {
        !self.speed.is_known() && clock::asked().wrapping_sub(self.anchored) < 1_000_000_000
    }

    pub(super) fn anchor(&mut self) {
        clock::anchor(&mut self.speed);
        self.anchored = clock::asked();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// A place without a name would be that of a service's method without one.
    #[test]
    fn every_place_of_a_method_has_a_name() {
        assert_eq!(METHODS.at(SYNC), "Sync");
        assert_eq!(METHODS.at(STOPPED), "NotifyDataSourceStopped");
        assert_eq!(METHODS.at(COMMIT), "CommitData");
        assert_eq!(METHODS.at(METHODS_COUNT), "");
    }
}

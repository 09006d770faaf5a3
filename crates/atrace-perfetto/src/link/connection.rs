//! What a connection consists of: the socket, what was received and is to be sent, the memory, and the sessions.

use std::ffi::OsString;

use crate::clock::{self, Speed};
use crate::memory::Arena;
use crate::pool::{SERVICES, Shared};
use crate::socket::Socket;
use crate::wire::Method;
use atrace_sys::Descriptor;
use atrace_sys::{process, thread};

use crate::words::Words;

/// The methods of the service that are used; each of them is known by its place here.
pub(super) const METHODS: Words = Words::new(
    "InitializeConnection RegisterDataSource CommitData GetAsyncCommand RegisterTraceWriter UnregisterTraceWriter \
    NotifyDataSourceStarted NotifyDataSourceStopped Sync",
);
pub(super) const INITIALIZE: usize = 0;
pub(super) const REGISTER: usize = 1;
pub(super) const COMMIT: usize = 2;
pub(super) const COMMANDS: usize = 3;
/// So many, from the first on, every service must have.
pub(super) const NEEDED: usize = 4;
pub(super) const REGISTER_WRITER: usize = 4;
pub(super) const UNREGISTER_WRITER: usize = 5;
pub(super) const STARTED: usize = 6;
pub(super) const STOPPED: usize = 7;
pub(super) const SYNC: usize = 8;
const METHODS_COUNT: usize = 9;

/// The longest frame that is sent. Without a session, a connection costs little memory.
pub(super) const REQUEST_MAX: usize = 4 << 10;

/// What the environment says of the connection.
#[derive(Debug)]
pub(crate) struct Environment {
    /// The socket's name.
    pub(crate) socket: Option<OsString>,
    /// How many KiB are shared.
    pub(crate) memory: Option<OsString>,
}

/// A place for a session that the service has started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    /// The service's number.
    pub(super) instance: u64,
    pub(super) buffer: u32,
    /// Of the writers of how many threads the service knows.
    pub(super) known: usize,
    pub(super) phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// There is no session.
    Free,
    Open,
    /// It has ended, perhaps with a thread in the middle of an event.
    Draining,
    /// It has ended, and no thread has a chunk of it.
    Drained,
}

/// A connection, one after the other.
pub(super) struct Link {
    pub(super) shared: &'static Shared,
    pub(super) environment: &'static Environment,
    /// The rights that this thread would keep if the process gave them up; 0: none, or it would not.
    pub(super) rights: u64,
    /// Called when sessions want other tags than before.
    pub(super) changed: fn(),
    pub(super) socket: Option<Socket>,
    pub(super) terms: Terms,
    /// What is to be sent, and how much of it there is.
    pub(super) outbox: [u8; REQUEST_MAX],
    pub(super) unsent: usize,
    pub(super) arena: Option<&'static Arena>,
    /// A descriptor that came along with something, until it is asked for.
    pub(super) received: Option<Descriptor>,
    /// By their places in this process. Of connections before there are those with a thread that is in the middle of an event
    /// still.
    pub(super) sessions: [Session; SERVICES],
    pub(super) speed: Speed,
    pub(super) anchored: u64,
    /// As often are those told again that sessions want other tags.
    pub(super) tell_again: u8,
}

/// What is known of the service.
#[derive(Default)]
pub(super) struct Terms {
    /// The last request's number.
    pub(super) request: u64,
    /// By their places; the number of one that it does not have is 0.
    pub(super) methods: [Method; METHODS_COUNT],
    /// The requests whose replies are waited for; the last one's ends the greeting.
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
            tell_again: 0,
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
    /// A place without a name would be that of a service's method without one.
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

//! The socket's thread: the connection to the service, and what it has this process do.
//!
//! One thread a process, in which no code of the program runs. It connects, tries again with a growing back-off where
//! nobody listens, opens and closes sessions as it is told, and names completed chunks to the service: every few
//! milliseconds while there are such, ever more seldom while there are none, at last once a second, and without a session
//! never. Events never wake it.

mod commits;
mod connection;
mod greeting;
mod requests;
mod sessions;

use std::time::Duration;

use crate::clock;
use crate::memory::Buffer;
use crate::pool::Shared;
use crate::socket::{self, Socket};
use crate::wire::{FRAME_MAX, PREFIX};
use atrace_sys::process;

pub(crate) use self::connection::Environment;
use self::connection::{Link, Phase};
use crate::standing::Standing;
use crate::startup;
use crate::writer::{self, POOL};

/// The shortest and the longest time between two looks at what threads have completed, in milliseconds.
const SHORTEST: u64 = 4;
const LONGEST: u64 = 1000;
/// The first and the last time between two attempts to connect, in milliseconds.
const FIRST_BACK_OFF: u64 = 100;
const LAST_BACK_OFF: u64 = 30_000;

/// The thread's body. It returns where the thread has kept rights that the process gave up.
///
/// It may be a [bare](atrace_sys::thread::spawn_bare) thread: nothing here allocates, panics or needs a thread-local.
pub(crate) fn run(
    shared: &'static Shared,
    environment: &'static Environment,
    say: fn(Standing),
    changed: fn(),
) {
    atrace_sys::thread::have_descriptors_of_its_own();
    let mut back_off = FIRST_BACK_OFF;
    let mut link = Link::new(shared, environment, changed);
    loop {
        let (name, trust) = socket::producers(environment.socket.as_deref());
        match (Socket::connect(name, trust), Buffer::new(PREFIX + FRAME_MAX)) {
            (Ok(socket), Ok(mut inbox)) => {
                link.socket = Some(socket);
                let gone = link.serve(inbox.bytes(), say);
                if link.is_greeted() {
                    back_off = FIRST_BACK_OFF;
                }
                link.close_all();
                say(gone);
            }
            (Err(refused), _) => {
                startup::end(shared);
                say(refused.into());
            }
            (_, Err(error)) => {
                startup::end(shared);
                say(Standing::memory(error));
            }
        }
        if link.has_stale_rights() {
            return;
        }
        atrace_sys::thread::pause(Duration::from_millis(back_off));
        back_off = LAST_BACK_OFF.min(2 * back_off);
    }
}

impl Link {
    /// Whether this thread has kept rights that the process has not any more: `setuid()` of a C library changes only those threads
    /// that it knows.
    fn has_stale_rights(&self) -> bool {
        self.rights != 0 && process::rights() != self.rights
    }

    /// Does what the service says until it is gone.
    fn serve(&mut self, inbox: &mut [u8], say: fn(Standing)) -> Standing {
        // The counter's speed is known by the time that a session comes.
        self.anchor();
        match self.introduce().and_then(|()| self.attend(inbox, say)) {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    fn attend(&mut self, inbox: &mut [u8], say: fn(Standing)) -> Result<std::convert::Infallible, Standing> {
        let mut period = SHORTEST;
        // So many bytes of the inbox were received, and are not whole yet.
        let mut len = 0;
        loop {
            let is_idle = self.sessions.iter().all(|session| session.phase == Phase::Free);
            let is_new = self.anchored == 0 || self.is_speed_unknown() || self.tell_again > 0;
            let mut timeout = if is_idle && !is_new { None } else { Some(Duration::from_millis(period)) };
            if self.rights != 0 {
                timeout = timeout.or(Some(Duration::from_millis(LONGEST)));
                if self.has_stale_rights() {
                    return Err(Standing::CONNECTING);
                }
            }
            self.send(None)?;
            let is_told = self.socket.as_ref().is_some_and(|socket| socket.wait(timeout));
            if is_told {
                self.receive(inbox, &mut len, say)?;
            }
            // Soon again where something happens: a session that starts is followed by events, which may fill the memory
            // in some milliseconds.
            period = if self.tick()? || is_told { SHORTEST } else { LONGEST.min(2 * period) };
        }
    }

    /// What is to be done now and then; tells whether there was something.
    fn tick(&mut self) -> Result<bool, Standing> {
        // Who was told may have been about to sleep, and missed it.
        if self.tell_again > 0 {
            self.tell_again -= 1;
            (self.changed)();
        }
        let now = clock::asked();
        if now.wrapping_sub(self.anchored) > 900_000_000 || self.is_speed_unknown() {
            self.anchor();
            POOL.look_for_ended(writer::finish);
        }
        self.drain();
        self.make_known()?;
        let is_any = self.commit(None)?;
        self.unregister()?;
        Ok(is_any)
    }
}

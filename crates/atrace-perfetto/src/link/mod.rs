//! The socket thread: the client of the tracing service.
//!
//! # Tasks
//!
//! Each process has at most one such thread. It connects to the service; if that fails it tries again after 100 ms,
//! and then after pauses that double up to 30 s. It opens and closes sessions as the service says (`sessions.rs`),
//! and tells the service which chunks are complete (`commits.rs`): every 4 ms while there are any, then at intervals
//! that double up to one second. Without a session it sleeps until the service sends something. Events never wake it.
//!
//! # Rules
//!
//! Nothing of the program runs on this thread. It may be a *bare* thread, started by an event without the C library
//! ([`spawn_bare`](atrace_sys::thread::spawn_bare)). So nothing here allocates, panics or uses a thread-local:
//! buffers are mapped, and messages are encoded in place.
//!
//! The C library's `setuid()` does not change the rights of a bare thread. A bare thread that has rights therefore
//! wakes once a second, also without a session, and ends when the process has given them up. The next event starts
//! another thread.
//!
//! # Failure
//!
//! A message that makes no sense, or a broken socket, ends the connection. Then all sessions are closed, their memory
//! is retired, and the thread connects again.

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

/// The shortest and the longest time between two looks for completed chunks, in milliseconds.
const SHORTEST: u64 = 4;
const LONGEST: u64 = 1000;
/// The first and the longest pause between two attempts to connect, in milliseconds.
const FIRST_BACK_OFF: u64 = 100;
const LAST_BACK_OFF: u64 = 30_000;

/// The body of the thread. It returns only if the process has given up rights that this thread has kept.
///
/// It may run on a [bare](atrace_sys::thread::spawn_bare) thread: nothing here allocates, panics or uses a
/// thread-local.
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
    /// Returns whether this thread still has rights that the process has given up. `setuid()` of a C library changes
    /// only the threads that it knows.
    fn has_stale_rights(&self) -> bool {
        self.rights != 0 && process::rights() != self.rights
    }

    /// Handles one connection. Returns why it ended.
    fn serve(&mut self, inbox: &mut [u8], say: fn(Standing)) -> Standing {
        // Begins to measure the counter's speed, so that it is known when a session starts.
        self.anchor();
        match self.introduce().and_then(|()| self.poll(inbox, say)) {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    fn poll(&mut self, inbox: &mut [u8], say: fn(Standing)) -> Result<std::convert::Infallible, Standing> {
        let mut period = SHORTEST;
        // How many bytes of the inbox hold the start of an incomplete message.
        let mut len = 0;
        loop {
            let is_idle = self.sessions.iter().all(|session| session.phase == Phase::Free);
            let is_new = self.anchored == 0 || self.is_speed_unknown() || self.notify_again > 0;
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
            // After any activity the next look comes soon: a session that starts is followed by events, which may
            // fill the memory within milliseconds.
            period = if self.tick()? || is_told { SHORTEST } else { LONGEST.min(2 * period) };
        }
    }

    /// Does the periodic work. Returns whether there were completed chunks.
    fn tick(&mut self) -> Result<bool, Standing> {
        // A thread that waits for changes may have been about to sleep when it was notified, so it is notified again.
        if self.notify_again > 0 {
            self.notify_again -= 1;
            (self.changed)();
        }
        let now = clock::asked();
        if now.wrapping_sub(self.anchored) > 900_000_000 || self.is_speed_unknown() {
            self.anchor();
            POOL.look_for_ended(writer::finish);
        }
        self.drain();
        self.register_writers()?;
        let is_any = self.commit(None)?;
        self.unregister_writers()?;
        Ok(is_any)
    }
}

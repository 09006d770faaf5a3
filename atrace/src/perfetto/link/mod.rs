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

use atrace_sys::perfetto::clock;
use atrace_sys::perfetto::pool::Shared;
use atrace_sys::perfetto::socket::{self, Socket};
use atrace_sys::perfetto::wire::{FRAME_MAX, PREFIX};

pub(super) use self::connection::leave_memory;
use self::connection::{Link, Phase};
use super::standing::Standing;
use super::writer::{self, POOL};

/// The shortest and the longest time between two looks at what threads have completed, in milliseconds.
const SHORTEST: u64 = 4;
const LONGEST: u64 = 1000;
/// The first and the last time between two attempts to connect, in milliseconds.
const FIRST_BACK_OFF: u64 = 100;
const LAST_BACK_OFF: u64 = 30_000;

/// The thread's body.
pub(super) fn run(shared: &'static Shared, say: fn(Standing), changed: fn()) {
    atrace_sys::thread::have_descriptors_of_its_own();
    let mut back_off = FIRST_BACK_OFF;
    let mut link = Link::new(shared, changed);
    // What is never written of it costs nothing.
    let mut inbox = vec![0; PREFIX + FRAME_MAX];
    loop {
        let (name, trust) = socket::producers();
        match Socket::connect(&name, trust) {
            Ok(socket) => {
                back_off = FIRST_BACK_OFF;
                link.socket = Some(socket);
                let gone = link.serve(&mut inbox, say);
                link.close_all();
                say(gone);
            }
            Err(refused) => say(refused.into()),
        }
        atrace_sys::thread::pause(Duration::from_millis(back_off));
        back_off = LAST_BACK_OFF.min(2 * back_off);
    }
}

impl Link {
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
            let timeout = if is_idle && !is_new { None } else { Some(Duration::from_millis(period)) };
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

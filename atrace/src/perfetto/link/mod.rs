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

use self::connection::Link;
pub(super) use self::connection::leave_memory;
use super::standing::{Gone, Standing};
use super::writer::{self, POOL};

const SHORTEST: Duration = Duration::from_millis(4);
const LONGEST: Duration = Duration::from_secs(1);
const FIRST_BACK_OFF: Duration = Duration::from_millis(100);
const LAST_BACK_OFF: Duration = Duration::from_secs(30);

/// The thread's body.
pub(super) fn run(shared: &'static Shared, say: fn(Standing), changed: fn()) {
    atrace_sys::thread::have_descriptors_of_its_own();
    let mut back_off = FIRST_BACK_OFF;
    // Of connections before: those with a thread that is in the middle of an event still.
    let mut ended = Vec::new();
    loop {
        match Link::connect(shared, changed) {
            Ok(mut link) => {
                back_off = FIRST_BACK_OFF;
                link.sessions = ended;
                let gone = link.serve(say);
                ended = link.close_all();
                say(Standing::Gone(gone));
            }
            Err(refused) => say(Standing::Refused(refused)),
        }
        std::thread::sleep(back_off);
        back_off = LAST_BACK_OFF.min(back_off * 2);
    }
}

impl Link {
    /// Does what the service says until it is gone.
    fn serve(&mut self, say: fn(Standing)) -> Gone {
        // The counter's speed is known by the time that a session comes.
        self.anchor();
        match self.introduce().and_then(|()| self.attend(say)) {
            Ok(never) => match never {},
            Err(gone) => gone,
        }
    }

    fn attend(&mut self, say: fn(Standing)) -> Result<std::convert::Infallible, Gone> {
        let mut period = SHORTEST;
        loop {
            let is_idle = self.sessions.is_empty();
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
            POOL.look_for_ended(writer::finish);
        }
        self.drain();
        self.make_known()?;
        let is_any = self.commit(None)?;
        self.unregister()?;
        Ok(is_any)
    }
}

//! Opens and closes sessions, and registers the threads' writers with the service.
//!
//! A session slot goes through four phases:
//!
//! 1. `Free`: no session is in the slot, until the service starts one.
//! 2. `Open`: threads write for the session. Their writers are registered in advance.
//! 3. `Draining`, after the service has stopped the session or the connection has ended: no thread begins to write an
//!    event for the session. The socket thread reclaims (completes) the chunks of threads that are not pinned, that is,
//!    not in the middle of an event. A pinned thread's chunk is reclaimed later.
//! 4. `Drained`: all chunks were reclaimed. The socket thread commits the chunks and unregisters the writers. Then the
//!    slot is free again.
//!
//! The socket thread reports the end of a session at most about 50 ms after it has received the request to stop the
//! session, even if a thread is still in the middle of an event. The slot then stays in the phase `Draining` until that
//! thread continues.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::pool::{SERVICES, THREADS, writer_number};
use crate::proto::Reader;
use crate::wire::Command;

use super::{Link, Phase, REGISTER_WRITER, STARTED, STOPPED, Session, Terms, UNREGISTER_WRITER};
use crate::category;
use crate::connection_state::ConnectionState;
use crate::early;
use crate::options::options;
use crate::startup;
use crate::writer::{POOL, Writer};

/// The number of writers that are registered with the service in advance, for threads that do not exist yet. When half
/// of these writers are in use, more are registered.
const AHEAD: usize = 64;
/// How long the socket thread waits at the end of a session for threads that are in the middle of an event, in
/// milliseconds.
const DRAIN_MS: u32 = 50;

impl Link {
    pub(super) fn handle_command(&mut self, command: Command<'_>) -> Result<(), ConnectionState> {
        match command {
            Command::SetupTracing { page_size } if self.arena.is_none() => self.take_memory(page_size),
            Command::Start { instance, config } => self.start(instance, config),
            Command::Stop { instance } => self.stop(instance),
            Command::Flush { request } => self.commit(Some(request)),
            Command::ClearState => {
                for (number, _) in places(&mut self.sessions, Phase::Open) {
                    let session = &self.shared.sessions[number];
                    session.clears.fetch_add(1, Ordering::Relaxed);
                    session.epoch.advance();
                }
                Ok(())
            }
            Command::SetupTracing { .. } | Command::Setup { .. } | Command::Other => Ok(()),
        }
    }

    fn start(&mut self, instance: u64, config: &[u8]) -> Result<(), ConnectionState> {
        self.drain();
        self.commit(None)?;
        self.unregister_writers()?;
        // If all slots are in use, this process writes no events for the session, but still reports to the service that
        // the session has started.
        if let Some(number) = self.first(Phase::Free, THREADS)
            && let Some(arena) = self.arena
        {
            self.anchor();
            let buffer = Reader::first(config, 2).map_or(0, |buffer| buffer.number() as u32);
            self.sessions[number] = Session { instance, buffer, known: 0, phase: Phase::Open };
            self.register_writers()?;
            self.send(None)?;
            self.shared.open(number, arena, buffer, category::wanted(config), options(config));
            self.notify_change();
        }
        self.notify(STARTED, &[(1, instance)])
    }

    fn stop(&mut self, instance: u64) -> Result<(), ConnectionState> {
        if self.close(Some(instance)) {
            let is_drained = self.drain_for_long();
            self.commit(None)?;
            if !is_drained {
                self.send_open()?;
            }
            self.unregister_writers()?;
        }
        self.notify(STOPPED, &[(1, instance)])
    }

    /// Closes the open session with the number `instance`, or all open sessions if it is `None`. After that, no thread
    /// begins to write an event for a closed session. Returns whether a session was closed.
    #[inline(never)]
    fn close(&mut self, instance: Option<u64>) -> bool {
        let mut is_any = false;
        for (number, session) in places(&mut self.sessions, Phase::Open) {
            if instance.is_none_or(|instance| session.instance == instance) {
                session.phase = Phase::Draining;
                self.shared.close(number);
                is_any = true;
            }
        }
        if is_any {
            self.notify_change();
        }
        is_any
    }

    /// Ends all sessions after the connection was lost. Events that are written from now on reach no service.
    ///
    /// The slot of a session stays in use while a thread is in the middle of an event for it. If `is_again` is true, an
    /// event that waits for the service's answer continues to wait, for the answer on the next connection.
    pub(super) fn close_all(&mut self, is_again: bool) {
        // From here on, lost events are counted for the service of the next connection. All tags are *presumed* (count
        // as wanted) before the sessions are closed, so that an event always finds an open session or is counted as
        // lost.
        early::set_arena(None);
        if places(&mut self.sessions, Phase::Open).next().is_some() {
            // The service may still have the sessions when this process connects again.
            startup::presume(self.shared);
        } else if !is_again && self.shared.presumed.load(Ordering::Relaxed) != 0 {
            // From here on, tags no longer count as wanted. If the service was silent, `give_up` has already done this;
            // then `end` is not called, and the counts of lost events stay.
            startup::end(self.shared);
        }
        self.close(None);
        let is_free = self.drain_for_long();
        match self.arena.take() {
            Some(arena) if is_free => arena.give_back(),
            Some(arena) => arena.retire(),
            None => {}
        }
        for session in &mut self.sessions {
            // On the next connection, no writers are registered yet.
            session.known = 0;
            if session.phase == Phase::Drained {
                session.phase = Phase::Free;
            }
        }
        (self.socket, self.received, self.unsent) = (None, None, 0);
        (self.rest, self.looks) = (None, 0);
        self.terms = Terms::default();
        startup::set_sends(false);
    }

    /// Reclaims the chunks of sessions that have ended: completes them in place of their threads. Returns true if no
    /// thread has such a chunk any more.
    #[inline(never)]
    pub(super) fn drain(&mut self) -> bool {
        let mut is_done = true;
        for (number, session) in places(&mut self.sessions, Phase::Draining) {
            if POOL.reclaim(number, Writer::finish) {
                session.phase = Phase::Drained;
            }
            is_done &= session.phase == Phase::Drained;
        }
        is_done
    }

    /// Repeats [`drain`](Self::drain) for up to [`DRAIN_MS`]. Unless a thread is descheduled, it is in the middle of an
    /// event only for nanoseconds.
    #[inline(never)]
    fn drain_for_long(&mut self) -> bool {
        for _ in 0..DRAIN_MS {
            if self.drain() {
                return true;
            }
            atrace_sys::thread::pause(Duration::from_millis(1));
        }
        false
    }

    fn notify_change(&mut self) {
        (self.changed)();
        self.notify_again = 3;
    }

    /// Registers writers with the service before threads use them. The reason: if the process is killed, the service
    /// can't read the last chunk of a writer that is not registered.
    #[inline(never)]
    pub(super) fn register_writers(&mut self) -> Result<(), ConnectionState> {
        let wanted = THREADS.min(self.shared.threads.load(Ordering::Relaxed) as usize + AHEAD);
        while let Some(number) = self.first(Phase::Open, wanted - AHEAD / 2) {
            let Session { buffer, known, .. } = self.sessions[number];
            self.sessions[number].known = wanted;
            for thread in known..wanted {
                let writer = writer_number(number, thread).into();
                self.notify(REGISTER_WRITER, &[(1, writer), (2, buffer.into())])?;
            }
        }
        Ok(())
    }

    /// Unregisters the writers of sessions that have ended and in which no thread has a chunk any more, and frees the
    /// slots of these sessions.
    #[inline(never)]
    pub(super) fn unregister_writers(&mut self) -> Result<(), ConnectionState> {
        while let Some(number) = self.first(Phase::Drained, THREADS) {
            self.sessions[number].phase = Phase::Free;
            for thread in 0..self.sessions[number].known {
                self.notify(UNREGISTER_WRITER, &[(1, writer_number(number, thread).into())])?;
            }
        }
        Ok(())
    }

    /// Returns the slot of the first session that is in this phase and has at most `known` registered writers, or
    /// `None` if there is no such session.
    #[inline(never)]
    fn first(&self, phase: Phase, known: usize) -> Option<usize> {
        self.sessions.iter().position(|session| session.phase == phase && session.known <= known)
    }
}

/// Returns the sessions in this phase, with their slots.
fn places(sessions: &mut [Session; SERVICES], phase: Phase) -> impl Iterator<Item = (usize, &mut Session)> {
    sessions.iter_mut().enumerate().filter(move |(_, session)| session.phase == phase)
}

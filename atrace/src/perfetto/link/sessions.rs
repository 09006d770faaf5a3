//! Sessions: opened and closed as the service says, and the writers of threads that it knows for each.

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atrace_sys::perfetto::abi;
use atrace_sys::perfetto::memory::Arena;
use atrace_sys::perfetto::pool::{SERVICES, THREADS, writer_number};
use atrace_sys::perfetto::proto::Reader;
use atrace_sys::perfetto::wire::Command;

use super::connection::{ARENA, Link, Phase, REGISTER_WRITER, STARTED, STOPPED, Session, UNREGISTER_WRITER};
use crate::perfetto::category;
use crate::perfetto::standing::Gone;
use crate::perfetto::writer::{POOL, Writer};

/// As many writers more than there are threads are made known to the service.
const AHEAD: usize = 64;
/// How long an ended session waits for threads in the middle of an event.
const DRAIN_MS: u32 = 50;

impl Link {
    pub(super) fn obey(&mut self, command: Command<'_>) -> Result<(), Gone> {
        match command {
            Command::SetupTracing { page_size } if self.arena.is_none() => {
                let file = self.received.take().ok_or(Gone::Unable)?;
                if page_size != abi::PAGE as u64 {
                    return Err(Gone::Memory(0));
                }
                let arena = Arena::of_service(file.as_fd()).map_err(Gone::memory)?;
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
        let is_free = |number: &usize| self.sessions.iter().all(|session| session.number != *number);
        // More sessions than there are places: the service is told that it began, and gets nothing.
        if let Some(number) = (0..SERVICES).find(is_free)
            && let Some(arena) = self.arena
        {
            self.anchor();
            let buffer = Reader::first(config, 2).map_or(0, |buffer| buffer.number() as u32);
            self.sessions.push(Session { number, instance, buffer, known: 0, phase: Phase::Open });
            self.make_known()?;
            self.send(None)?;
            self.shared.open(number, arena, buffer, category::wanted(config));
            self.tell();
        }
        self.notify(STARTED, &[(1, instance)])
    }

    fn stop(&mut self, instance: u64) -> Result<(), Gone> {
        if self.close(|session| session.instance == instance) {
            self.drain_for_long();
            self.commit(None)?;
            self.unregister()?;
        }
        self.notify(STOPPED, &[(1, instance)])
    }

    /// Closes the open sessions that are meant: no event begins to be written for them any more. Tells whether there were
    /// any.
    fn close(&mut self, is_meant: impl Fn(&Session) -> bool) -> bool {
        let mut is_any = false;
        for session in &mut self.sessions {
            if session.phase == Phase::Open && is_meant(session) {
                session.phase = Phase::Draining;
                self.shared.close(session.number);
                is_any = true;
            }
        }
        if is_any {
            self.tell();
        }
        is_any
    }

    /// The connection is gone: all sessions end, and what is written is nobody's. Returns those of them with a thread that
    /// stands in the middle of an event: their places are not free.
    pub(super) fn close_all(mut self) -> Vec<Session> {
        self.close(|_| true);
        let is_free = self.drain_for_long();
        ARENA.store(std::ptr::null_mut(), Ordering::Release);
        match self.arena.take() {
            Some(arena) if is_free => arena.give_back(),
            Some(arena) => arena.retire(),
            None => {}
        }
        self.forget_drained();
        // The next service has never heard of their writers.
        self.sessions.iter_mut().for_each(|session| session.known = 0);
        self.sessions
    }

    /// Takes the chunks of sessions that have ended; tells whether no thread has one any more.
    #[inline(never)]
    pub(super) fn drain(&mut self) -> bool {
        let mut is_done = true;
        for session in self.sessions.iter_mut().filter(|session| session.phase == Phase::Draining) {
            if POOL.reclaim(session.number, &mut Writer::take_away) {
                session.phase = Phase::Drained;
            }
            is_done &= session.phase == Phase::Drained;
        }
        is_done
    }

    /// [`drain`](Self::drain), for a while: who is inside is so for nanoseconds, unless it was put to sleep there.
    fn drain_for_long(&mut self) -> bool {
        for _ in 0..DRAIN_MS {
            if self.drain() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }

    fn tell(&mut self) {
        (self.changed)();
        self.tell_again = 3;
    }

    /// Makes writers known to the service before threads use them: what unknown ones wrote is lost when the process
    /// is killed.
    pub(super) fn make_known(&mut self) -> Result<(), Gone> {
        let wanted = THREADS.min(self.shared.threads.load(Ordering::Relaxed) as usize + AHEAD);
        let lacks =
            |session: &&mut Session| session.phase == Phase::Open && session.known + AHEAD / 2 <= wanted;
        while let Some(session) = self.sessions.iter_mut().find(lacks) {
            let Session { number, buffer, known, .. } = *session;
            session.known = wanted;
            for thread in known..wanted {
                let writer = writer_number(number, thread).into();
                self.notify(REGISTER_WRITER, &[(1, writer), (2, buffer.into())])?;
            }
        }
        Ok(())
    }

    /// Has the service forget the writers of sessions that have ended. Of one with a thread in the middle of an event it
    /// then takes what that thread had written before.
    pub(super) fn unregister(&mut self) -> Result<(), Gone> {
        let is_known = |session: &&mut Session| session.phase == Phase::Drained && session.known > 0;
        while let Some(session) = self.sessions.iter_mut().find(is_known) {
            let number = session.number;
            for thread in 0..std::mem::take(&mut session.known) {
                self.notify(UNREGISTER_WRITER, &[(1, writer_number(number, thread).into())])?;
            }
        }
        self.forget_drained();
        Ok(())
    }

    #[inline(never)]
    fn forget_drained(&mut self) {
        self.sessions.retain(|session| session.phase != Phase::Drained);
    }
}

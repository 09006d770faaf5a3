//! Sessions: opened and closed as the service says, and the writers of threads that it knows for each.

use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;
use std::time::Duration;

use atrace_sys::perfetto::abi;
use atrace_sys::perfetto::memory::Arena;
use atrace_sys::perfetto::pool::{SERVICES, THREADS, writer_number};
use atrace_sys::perfetto::proto::Reader;
use atrace_sys::perfetto::wire::Command;

use super::requests::{REGISTER_WRITER, STARTED, STOPPED, UNREGISTER_WRITER};
use super::{ARENA, Link};
use crate::perfetto::category;
use crate::perfetto::standing::Gone;
use crate::perfetto::writer::POOL;

/// As many writers more than there are threads are made known to the service.
const AHEAD: usize = 64;
/// How long an ended session waits for threads in the middle of an event.
const DRAIN_MS: u32 = 50;

/// A session that the service has started.
#[derive(Clone, Copy, Debug)]
pub(super) struct Running {
    instance: u64,
    buffer: u32,
    /// Of the writers of how many threads the service knows.
    known: usize,
}

impl Link {
    pub(super) fn obey(&mut self, command: Command<'_>) -> Result<(), Gone> {
        match command {
            Command::SetupTracing { page_size } if self.arena.is_none() => {
                let file = self.received.take().ok_or(Gone::Unable)?;
                if page_size != abi::PAGE as u64 {
                    return Err(Gone::Memory(0));
                }
                let arena = Arena::of_service(file.as_fd()).map_err(Gone::Memory)?;
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
        let is_free = |number: &usize| self.running[*number].is_none() && self.draining & 1 << number == 0;
        // More sessions than there are places: the service is told that it began, and gets nothing.
        if let Some(number) = (0..SERVICES).find(is_free)
            && let Some(arena) = self.arena
        {
            self.anchor();
            let buffer = Reader::first(config, 2).map_or(0, |buffer| buffer.number() as u32);
            self.running[number] = Some(Running { instance, buffer, known: 0 });
            self.make_known()?;
            self.send(None)?;
            self.shared.open(number, arena, buffer, category::wanted(config));
            self.tell();
        }
        self.invoke(STARTED, false, |arguments| {
            arguments.number(1, instance);
        })?;
        Ok(())
    }

    fn stop(&mut self, instance: u64) -> Result<(), Gone> {
        let found = self.running.iter().position(|one| one.is_some_and(|one| one.instance == instance));
        if let Some(number) = found {
            self.close(number);
            // Who is inside is so for nanoseconds, unless it was put to sleep there.
            for _ in 0..DRAIN_MS {
                self.drain();
                if self.draining & 1 << number == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            self.commit(None)?;
            self.leaving[number] = self.running[number].take().map_or(0, |one| one.known);
            self.unregister()?;
        }
        self.invoke(STOPPED, false, |arguments| {
            arguments.number(1, instance);
        })?;
        Ok(())
    }

    /// Closes a session: no event begins to be written for it any more.
    fn close(&mut self, number: usize) {
        self.shared.close(number);
        self.tell();
        self.draining |= 1 << number;
    }

    /// The connection is gone: all sessions end, and what is written is nobody's.
    pub(super) fn close_all(&mut self) {
        for number in 0..SERVICES {
            if self.running[number].take().is_some() {
                self.close(number);
            }
        }
        // Before another connection has sessions at the same places.
        while self.draining != 0 {
            self.drain();
            std::thread::sleep(Duration::from_millis(1));
        }
        ARENA.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(arena) = self.arena.take() {
            arena.retire();
        }
    }

    /// Takes the chunks of sessions that have ended.
    pub(super) fn drain(&mut self) {
        for number in (0..SERVICES).filter(|number| self.draining & 1 << number != 0).collect::<Vec<_>>() {
            if POOL.reclaim(number, |writer| writer.take_away()) {
                self.draining &= !(1 << number);
            }
        }
    }

    fn tell(&mut self) {
        (self.changed)();
        self.tell_again = 3;
    }

    /// Makes writers known to the service before threads use them: what unknown ones wrote is lost when the process
    /// is killed.
    pub(super) fn make_known(&mut self) -> Result<(), Gone> {
        let wanted = THREADS.min(self.shared.threads.load(Ordering::Relaxed) as usize + AHEAD);
        for number in 0..SERVICES {
            let Some(mut running) = self.running[number] else { continue };
            if running.known + AHEAD / 2 > wanted {
                continue;
            }
            for thread in running.known..wanted {
                self.invoke(REGISTER_WRITER, false, |arguments| {
                    arguments
                        .number(1, writer_number(number, thread).into())
                        .number(2, running.buffer.into());
                })?;
            }
            running.known = wanted;
            self.running[number] = Some(running);
        }
        Ok(())
    }

    /// Has the service forget the writers of sessions that have ended. Of one with a thread in the middle of an event it
    /// then takes what that thread had written before.
    pub(super) fn unregister(&mut self) -> Result<(), Gone> {
        for number in 0..SERVICES {
            if self.draining & 1 << number != 0 {
                continue;
            }
            for thread in 0..std::mem::take(&mut self.leaving[number]) {
                self.invoke(UNREGISTER_WRITER, false, |arguments| {
                    arguments.number(1, writer_number(number, thread).into());
                })?;
            }
        }
        Ok(())
    }
}

//! The process of one mode: does what it is asked, and checks it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use cc_bench::InlineWrites;
use fastrand::Rng;
use serde::Serialize;

use super::Workload;
use super::case::{Case, Done};
use super::exchange::{Counted, KEPT, REPLY, Reply, Request, Slice};
use super::instrument::{Bare, Traced};
use super::mode::Mode;
use crate::harness::Session;
use crate::harness::reader::Reading;
use crate::instruments::alloc;
use crate::instruments::chain;
use crate::instruments::cpu::{self, Pin};
use crate::measure::paired::nanos;
use crate::stats::sample::Sample;

/// Does what it is asked until nobody asks any more.
pub(super) fn work<W: Workload>(session: &Session, mode: Mode) -> io::Result<()> {
    if !W::BEGINS_ALONE {
        let idle = std::thread::Builder::new().name("idle".to_owned());
        idle.spawn(|| {
            loop {
                std::thread::park();
            }
        })?;
    }
    let (_switched, reading) = mode.set_up()?;
    let taken = reading.map(Taken::by);
    let cases = if mode.compiled_in { W::cases::<Traced>() } else { W::cases::<Bare>() };
    let messages = vec![Vec::new(); cases.len()];
    let mut worker = Worker { session, mode, cases, messages, marker: None, held: Held::new(), taken };
    reply::<()>(&Ok(()))?;
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Request::Slice { case, place, warm_up, n } => reply(&worker.slice(case, place, warm_up, n))?,
            Request::Count { case, n, times } => reply(&worker.count(case, n, times))?,
            Request::Capture { case } => reply(&worker.capture(case))?,
            Request::Settle => reply(&worker.taken.as_ref().map_or(Ok(0), |taken| taken.wait(0)).map(drop))?,
            Request::Raw { case, messages, slice, inlined } => {
                reply(&worker.raw(case, messages, slice, inlined))?;
            }
        }
    }
    Ok(())
}

fn miscounted(expected: u64, got: u64) -> String {
    format!("{expected} messages should have been written, the sink got {got}")
}

fn reply<T: Serialize>(reply: &Reply<T>) -> io::Result<()> {
    let mut line = String::from(REPLY);
    line.push_str(&serde_json::to_string(reply)?);
    line.push('\n');
    // One write: nobody else's line comes between.
    io::stdout().lock().write_all(line.as_bytes())?;
    io::stdout().flush()
}

struct Worker<'a> {
    session: &'a Session,
    mode: Mode,
    cases: Vec<Case>,
    /// Of every case, what is written again.
    messages: Vec<Vec<Vec<u8>>>,
    marker: Option<File>,
    held: Held,
    taken: Option<Taken>,
}

/// What a reader of Perfetto's way has taken of what was written for it.
struct Taken {
    reading: Reading,
    /// How many events were written since it began.
    written: u64,
    /// Others wrote, nobody knows how much.
    others_wrote: bool,
}

impl Taken {
    fn by(reading: Reading) -> Self {
        Self { reading, written: 0, others_wrote: false }
    }

    fn add(&mut self, done: &Done) {
        self.written += done.messages;
        self.others_wrote |= done.others_wrote;
    }

    /// Waits until all have come but so many, and fails where more have; returns how many have been lost so far.
    fn wait(&self, open: u64) -> Reply<u64> {
        if !self.others_wrote {
            self.reading.wait_for(self.written, open).map_err(|e| e.to_string())?;
        }
        self.reading.come_and_lost().map(|(_, lost)| lost).map_err(|e| e.to_string())
    }
}

/// How many events are in chunks that are being filled, at most: a page of the smallest for each of some threads.
const OPEN: u64 = 16 * 4096 / 12;

/// Memory that is held while a case runs, other blocks each time.
///
/// What an allocation costs depends on the hole that it is put in, such as whether a task that is to be aligned to
/// 128 bytes happens to be: 250 or 290 ns for one that is spawned and awaited, and a process that frees and
/// allocates in turn uses the same hole for good. With other holes for each slice a process is not one sample of
/// that but hundreds, as in Stabilizer (Curtsinger and Berger, ASPLOS 2013).
struct Held {
    random: Rng,
    blocks: Vec<Vec<u8>>,
}

impl Held {
    fn new() -> Self {
        Self { random: Rng::with_seed(std::process::id().into()), blocks: Vec::new() }
    }

    fn shake(&mut self) {
        self.blocks.clear();
        for _ in 0..self.random.usize(..256) {
            self.blocks.push(Vec::with_capacity(self.random.usize(16..1040)));
        }
        // Leaves holes.
        self.random.shuffle(&mut self.blocks);
        self.blocks.truncate(self.blocks.len() / 2);
    }
}

impl Worker<'_> {
    /// Runs `warm_up` operations, then `n` that are timed and whose messages are counted by the sink.
    fn slice(&mut self, case: usize, place: usize, warm_up: u64, n: u64) -> Reply<Slice> {
        let _pin = self.begin_at(case, place)?;
        self.cases[case].forget();
        self.held.shake();
        self.cases[case].renew();
        let run = &mut self.cases[case].run;
        if warm_up > 0 {
            let done = run(warm_up)?;
            self.taken.iter_mut().for_each(|taken| taken.add(&done));
        }
        let lost_before = self.taken.as_ref().map_or(Ok(0), |taken| taken.wait(OPEN))?;
        let before = self.session.arrived().map_err(|e| e.to_string())?;
        let chain_before = chain::time();
        let start = Instant::now();
        let done = run(n);
        let elapsed = start.elapsed();
        let chain = [chain_before, chain::time()];
        let after = self.session.arrived().map_err(|e| e.to_string())?;
        let mut done = done?;
        self.cases[case].check(&done, n, elapsed)?;
        if let Some(taken) = &mut self.taken {
            taken.add(&done);
            done.lost = Some(taken.wait(OPEN)?.saturating_sub(lost_before));
        }
        if let (Some(before), Some(after)) = (before, after) {
            self.compare(after.saturating_sub(before), &done)?;
        }
        Ok(Slice { took: done.took.unwrap_or(elapsed), elapsed, chain, done })
    }

    /// Whether the sink got what it should have.
    fn compare(&self, got: u64, done: &Done) -> Reply<()> {
        if self.mode.writes && done.others_wrote {
            return Ok(());
        }
        let expected = if self.mode.writes { done.messages } else { 0 };
        let right = match self.session.instance() {
            // Others' events are among them.
            Some(_) if self.session.is_shared() => match expected {
                0 => {
                    got == 0 || self.session.messages().is_ok_and(|own| own.is_none_or(|own| own.is_empty()))
                }
                _ => got >= expected,
            },
            Some(_) => got == expected,
            // Of a file only its length is known.
            None => (got == 0) == (expected == 0),
        };
        if right { Ok(()) } else { Err(miscounted(expected, got)) }
    }

    fn count(&mut self, case: usize, n: u64, times: usize) -> Reply<Counted> {
        let _pin = self.pin(case)?;
        let case = &mut self.cases[case];
        let mut add = |done: &Done| self.taken.iter_mut().for_each(|taken| taken.add(done));
        add(&(case.run)(case.info.batch)?);
        let mut counted = Vec::with_capacity(times);
        for _ in 0..times {
            let start = Instant::now();
            let (counts, result) = alloc::count(|| (case.run)(n));
            let (done, elapsed) = (result?, start.elapsed());
            add(&done);
            case.check(&done, n, elapsed)?;
            counted.push(counts);
        }
        Ok(counted.into_iter().collect())
    }

    fn capture(&mut self, case: usize) -> Reply<Vec<Vec<u8>>> {
        if self.session.instance().is_none() {
            return Ok(Vec::new());
        }
        self.session.clear().map_err(|e| e.to_string())?;
        let Case { run, info, .. } = &mut self.cases[case];
        let done = run(info.batch)?;
        if done.messages == 0 || done.others_wrote {
            return Ok(Vec::new());
        }
        let mut messages = self.session.messages().map_err(|e| e.to_string())?.unwrap_or_default();
        // Of a shared buffer the slices don't tell that there were too many.
        if messages.len() as u64 > done.messages {
            return Err(miscounted(done.messages, messages.len() as u64));
        }
        messages.truncate(KEPT);
        Ok(messages)
    }

    /// Writes the messages for as long as `slice`, after a warm-up, and returns what one takes.
    fn raw(
        &mut self,
        case: usize,
        messages: Option<Vec<Vec<u8>>>,
        slice: Duration,
        inlined: bool,
    ) -> Reply<Sample> {
        let _pin = self.pin(case)?;
        if let Some(messages) = messages {
            self.messages[case] = messages;
        }
        let marker = match (&mut self.marker, self.session.marker()) {
            (Some(marker), _) => marker,
            (none, Some(path)) => {
                none.insert(OpenOptions::new().append(true).open(path).map_err(|e| e.to_string())?)
            }
            (None, None) => return Err("there is no marker to write to".to_owned()),
        };
        let messages = &self.messages[case];
        let once = || {
            for message in messages {
                cc_bench::raw_write(marker.as_fd(), message, 1);
            }
        };
        let writes = InlineWrites::of(messages);
        // Whole sets: a reading of the clock is nothing beside one.
        let rounds = 1 + 256 / messages.len().max(1);
        let timed = || {
            let start = Instant::now();
            match inlined {
                true => _ = writes.run(marker.as_fd(), rounds as u64),
                false => (0..rounds).for_each(|_| once()),
            }
            start.elapsed()
        };
        timed();
        let arrived = || self.session.arrived().map_err(|e| e.to_string());
        let had = arrived()?;
        let before = chain::time();
        let (mut took, mut sets) = (Duration::ZERO, 0);
        while took < slice {
            took += timed();
            sets += rounds;
        }
        let (n, chain) = ((sets * messages.len()) as u64, [before, chain::time()]);
        // Of a file only its length is known, and in a shared buffer there are others' events.
        if self.session.instance().is_some() && !self.session.is_shared() {
            let got = arrived()?.zip(had).map(|(after, before)| after - before);
            got.filter(|&got| got != n).map_or(Ok(()), |got| Err(miscounted(n, got)))?;
        }
        Ok(Sample { ns: nanos(took, n), chain })
    }

    /// Pins it where it belongs on one core. Elsewhere it may move as ever, but begins where this turn does: the cores
    /// of a virtual machine are not equally fast at any moment.
    fn begin_at(&self, case: usize, place: usize) -> Reply<Option<Pin>> {
        let pin = self.pin(case)?;
        if pin.is_none() {
            cpu::of_place(place).and_then(Pin::to).map_err(|e| format!("it can't be pinned: {e}"))?;
        }
        Ok(pin)
    }

    fn pin(&self, case: usize) -> Reply<Option<Pin>> {
        let pin = || Pin::to(cpu::last()?);
        self.cases[case].info.one_core.then(pin).transpose().map_err(|e| format!("it can't be pinned: {e}"))
    }
}

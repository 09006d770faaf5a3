//! The process of a mode: handles the requests of the bench, and checks the results.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use cc_bench::InlineWrites;
use fastrand::Rng;
use serde::Serialize;

use super::Workload;
use super::case::{Case, Counted, Done, KEPT, REPLY, Reply, Request, Slice};
use super::mode::{Bare, Mode, Traced};
use crate::harness::Session;
use crate::harness::reader::Reading;
use crate::instruments::cpu::{self, Pin};
use crate::instruments::{alloc, chain};
use crate::measure::paired::nanos;
use crate::stats::sample::Sample;

/// Handles requests of the bench, which arrive on stdin, until stdin is closed.
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
    let taken = reading.map(|reading| Taken { reading, written: [0; 2], others_wrote: false });
    let cases = if mode.compiled_in { W::cases::<Traced>() } else { W::cases::<Bare>() };
    let messages = vec![Vec::new(); cases.len()];
    let held = Held { random: Rng::with_seed(std::process::id().into()), blocks: Vec::new() };
    let mut worker = Worker { session, mode, cases, messages, marker: None, held, taken };
    reply::<()>(Ok(()))?;
    for line in io::stdin().lock().lines() {
        match serde_json::from_str(&line?)? {
            Request::Slice { case, place, warm_up, n } => reply(worker.slice(case, place, warm_up, n))?,
            Request::Count { case, n, times } => reply(worker.count(case, n, times))?,
            Request::Capture { case } => reply(worker.capture(case))?,
            Request::Settle => reply(worker.taken.as_ref().map_or(Ok(0), |taken| taken.wait(0)).map(drop))?,
            Request::Raw { case, messages, slice, inlined } => {
                reply(worker.raw(case, messages, slice, inlined))?;
            }
        }
    }
    Ok(())
}

fn miscounted(expected: u64, got: u64) -> String {
    format!("{expected} messages should have been written, the sink got {got}")
}

/// The result of handling a request, or an error of any type.
type Answer<T> = Result<T, Box<dyn Error>>;

fn reply<T: Serialize>(answer: Answer<T>) -> io::Result<()> {
    let reply: Reply<T> = answer.map_err(|e| e.to_string());
    let line = format!("{REPLY}{}\n", serde_json::to_string(&reply)?);
    // The line is written at once, so that output of other threads is not mixed into it.
    io::stdout().lock().write_all(line.as_bytes())?;
    io::stdout().flush()
}

struct Worker<'a> {
    session: &'a Session,
    mode: Mode,
    cases: Vec<Case>,
    /// For every case, the messages that the raw writes (writes without this library) write.
    messages: Vec<Vec<Vec<u8>>>,
    marker: Option<File>,
    held: Held,
    taken: Option<Taken>,
}

/// The numbers of events that this process has written. They are compared with the number of events that the Perfetto
/// consumer has received.
struct Taken {
    reading: Reading,
    /// The minimum and the maximum number of events that this process has written since the session began.
    written: [u64; 2],
    /// Whether other threads of this process wrote an unknown number of events.
    others_wrote: bool,
}

impl Taken {
    fn add(&mut self, done: &Done) {
        self.written = std::array::from_fn(|end| self.written[end] + done.by_perfetto()[end]);
        self.others_wrote |= done.others_wrote;
    }

    /// Waits until the consumer has received all written events except at most `open` events. Returns an error if the
    /// consumer has received too many. Otherwise returns how many events have been lost so far.
    fn wait(&self, open: u64) -> Answer<u64> {
        if !self.others_wrote {
            let [least, most] = self.written;
            self.reading.wait_for([least, most + INTERRUPTED], open)?;
        }
        Ok(self.reading.come_and_lost()?.1)
    }
}

/// The number of unexpected events that are allowed. A synchronous span writes unexpected events if the operating
/// system interrupts its thread for so long that the span counts as asynchronous. This happens if the span is not
/// entered, or is left but not closed, for 50 to 100 ms (for half a second if the last spans of its callsite were
/// synchronous). The span then gets a life, a slice from its creation until it closes.
const INTERRUPTED: u64 = 32;

/// The maximum number of events in chunks that are not full: those of 16 threads, each with a chunk of a page (8 KiB),
/// with events of at least 12 bytes.
const OPEN: u64 = 16 * 8192 / 12;

/// Heap blocks that are allocated while a case runs. There are other blocks for each measurement, so that the layout of
/// the heap differs.
///
/// The cost of an allocation depends on the free block that the allocation gets. For example, a task that is spawned
/// and awaited takes 250 or 290 ns, depending on whether the block suits the task's alignment of 128 bytes. A process
/// that alternately frees and allocates always gets the same block. With another heap layout for each measurement, a
/// process yields hundreds of samples of this effect instead of a single sample, as in Stabilizer (Curtsinger and
/// Berger, ASPLOS 2013).
struct Held {
    random: Rng,
    blocks: Vec<Vec<u8>>,
}

impl Held {
    fn shake(&mut self) {
        self.blocks.clear();
        for _ in 0..self.random.usize(..256) {
            self.blocks.push(Vec::with_capacity(self.random.usize(16..1040)));
        }
        // Dropping random blocks leaves holes between the remaining blocks.
        self.random.shuffle(&mut self.blocks);
        self.blocks.truncate(self.blocks.len() / 2);
    }
}

impl Worker<'_> {
    /// Runs `warm_up` operations, and then `n` operations that are timed. Checks the result of the operations, and the
    /// number of messages that the sink has received.
    fn slice(&mut self, case: usize, place: usize, warm_up: u64, n: u64) -> Answer<Slice> {
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
        let before = self.session.arrived()?;
        let chain_before = chain::time();
        let start = Instant::now();
        let done = run(n);
        let elapsed = start.elapsed();
        let chain = [chain_before, chain::time()];
        let after = self.session.arrived()?;
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

    /// Checks whether the sink has received the number of messages that the case has reported.
    fn compare(&self, got: u64, done: &Done) -> Answer<()> {
        if self.mode.writes && done.others_wrote {
            return Ok(());
        }
        let expected = if self.mode.writes { done.messages } else { 0 };
        let right = match self.session.instance {
            // Other programs write to the shared buffer, too.
            Some(_) if self.session.is_shared() && expected > 0 => got >= expected,
            Some(_) if self.session.is_shared() && got > 0 => {
                self.session.messages().is_ok_and(|own| own.is_none_or(|own| own.is_empty()))
            }
            Some(_) => got == expected,
            // If the sink is a file, only its length is known, not the number of messages.
            None => (got == 0) == (expected == 0),
        };
        if right { Ok(()) } else { Err(miscounted(expected, got).into()) }
    }

    fn count(&mut self, case: usize, n: u64, times: usize) -> Answer<Counted> {
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

    fn capture(&mut self, case: usize) -> Answer<Vec<Vec<u8>>> {
        if self.session.instance.is_none() {
            return Ok(Vec::new());
        }
        self.session.clear()?;
        let Case { run, info, .. } = &mut self.cases[case];
        let done = run(info.batch)?;
        if done.messages == 0 || done.others_wrote {
            return Ok(Vec::new());
        }
        let mut messages = self.session.messages()?.unwrap_or_default();
        // If other programs share the buffer, the check of measurements cannot detect too many messages, so they are
        // detected here.
        if messages.len() as u64 > done.messages {
            return Err(miscounted(done.messages, messages.len() as u64).into());
        }
        messages.truncate(KEPT);
        Ok(messages)
    }

    /// Writes messages without this library (raw writes) for the duration `slice`, after a warm-up. Returns the time of
    /// one message.
    fn raw(
        &mut self,
        case: usize,
        messages: Option<Vec<Vec<u8>>>,
        slice: Duration,
        inlined: bool,
    ) -> Answer<Sample> {
        let _pin = self.pin(case)?;
        if let Some(messages) = messages {
            self.messages[case] = messages;
        }
        let marker = match (&mut self.marker, &self.session.marker) {
            (Some(marker), _) => marker,
            (none, Some(path)) => none.insert(OpenOptions::new().append(true).open(path)?),
            (None, None) => return Err("there is no marker to write to".into()),
        };
        let messages = &self.messages[case];
        let once = || messages.iter().for_each(|message| _ = cc_bench::raw_write(marker.as_fd(), message, 1));
        let writes = InlineWrites::of(messages);
        // The clock is read once for a set of at least 256 messages, so that the cost of the reading does not matter.
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
        let had = self.session.arrived()?;
        let before = chain::time();
        let (mut took, mut sets) = (Duration::ZERO, 0);
        while took < slice {
            took += timed();
            sets += rounds;
        }
        let (n, chain) = ((sets * messages.len()) as u64, [before, chain::time()]);
        // Messages in a file can't be counted, and a shared buffer also has messages of other programs.
        if self.session.instance.is_some() && !self.session.is_shared() {
            let got = self.session.arrived()?.zip(had).map(|(after, before)| after - before);
            got.filter(|&got| got != n).map_or(Ok(()), |got| Err(miscounted(n, got)))?;
        }
        Ok(Sample { ns: nanos(took, n), chain })
    }

    /// If the case runs on one core, pins the thread for the whole measurement. Otherwise only moves the thread to the
    /// CPU with index `place`, and lets it run on any CPU from there. So measurements that are compared begin on the
    /// same CPU: at a given moment, the cores of a virtual machine are not equally fast.
    fn begin_at(&self, case: usize, place: usize) -> Answer<Option<Pin>> {
        let pin = self.pin(case)?;
        if pin.is_none() {
            cpu::of_place(place).and_then(Pin::to).map_err(|e| format!("it can't be pinned: {e}"))?;
        }
        Ok(pin)
    }

    fn pin(&self, case: usize) -> Answer<Option<Pin>> {
        let pin = || Pin::to(cpu::last()?);
        let pinned = self.cases[case].info.one_core.then(pin).transpose();
        Ok(pinned.map_err(|e| format!("it can't be pinned: {e}"))?)
    }
}

//! Runs the measurement of a workload. Each mode has a process, and only one process measures at a time: the bench
//! sends a request to a process and waits for the reply.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::time::{Duration, Instant};

use fastrand::Rng;
use serde::de::DeserializeOwned;

use super::case::{Counted, Info, REPLY, Reply, Request, Slice};
use super::mode::Mode;
use super::plan::{self, Pace, Plan, Turn, Twins};
use super::results::{RawWrites, Results};
use super::{Fixture, Workload};
use crate::harness::child::{self, Helper};
use crate::harness::output;
use crate::harness::reader::Reader;
use crate::instruments::alloc::Counts;
use crate::stats::sample::Sample;

/// How much was measured: the numbers of generations (sets of processes), of rounds, and of turns of twins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    pub(super) generations: usize,
    pub(super) rounds: usize,
    /// The number of turns in which only twins (modes that are promised to take the same time) were measured.
    pub(super) turns: usize,
}

/// The fraction of the time of a generation (set of processes) that is used for rounds. The rest is
/// for twins (modes that are promised to take the same time), if there are any.
const ROUNDS: f64 = 0.2;

/// Measures a workload in all generations (sets of processes).
pub(super) fn measure<W: Workload>(
    plan: &Plan,
    fixture: &Fixture,
    results: &mut Results,
) -> io::Result<Extent> {
    let started = Instant::now();
    let mut random = Rng::with_seed(0xA7ACE);
    let mut extent = Extent::default();
    // The data that is measured once, with the first generation of processes, and that all generations use.
    let mut found = Found::default();
    let mut turn = 0;
    let mut generations = plan.generations[1];
    while extent.generations < generations {
        let mut processes = start::<W>(&results.modes, extent.generations, fixture, &mut random)?;
        if extent.generations == 0 {
            found = first(plan, results, &mut processes)?;
        }
        let mut twins = Twins::all(results);
        results.generations += 1;
        // With the first generation of processes, more than rounds is measured, so less time is left for the others.
        let left = plan.budget.saturating_sub(started.elapsed());
        let left_to_each = left / u32::try_from(generations - extent.generations).unwrap_or(1);
        let began = Instant::now();
        let over = || plan.once || began.elapsed() >= left_to_each;
        let mut in_rounds = Duration::ZERO;
        for round in 0.. {
            let round_began = Instant::now();
            for slices in plan::round(results, &found.paces, round, &mut random) {
                turn += 1;
                take_turns(plan, results, &mut processes, &found, turn, &slices)?;
            }
            in_rounds += round_began.elapsed();
            extent.rounds += 1;
            if extent.rounds == 1 {
                // The first round of a generation runs every case in every mode, so its duration is known now.
                generations = plan.generations(in_rounds, left, generations);
            }
            while !over() && in_rounds > began.elapsed().mul_f64(ROUNDS) {
                let Some(slices) = Twins::next(&mut twins, &mut random) else { break };
                turn += 1;
                take_turns(plan, results, &mut processes, &found, turn, &slices)?;
                extent.turns += 1;
            }
            if over() {
                break;
            }
        }
        for process in processes {
            process.end()?;
        }
        extent.generations += 1;
    }
    Ok(extent)
}

/// Starts the processes of all modes. The order is random, because the resources that a process gets from the kernel
/// depend on the processes that were started before it.
fn start<W: Workload>(
    modes: &[Mode],
    generation: usize,
    fixture: &Fixture,
    random: &mut Rng,
) -> io::Result<Vec<Process>> {
    let mut order: Vec<usize> = (0..modes.len()).collect();
    random.shuffle(&mut order);
    let start = |mode| Ok((mode, Process::start(W::NAME, &modes[mode], generation, fixture)?));
    let mut processes = order.into_iter().map(start).collect::<io::Result<Vec<_>>>()?;
    processes.sort_unstable_by_key(|(mode, _)| *mode);
    Ok(processes.into_iter().map(|(_, process)| process).collect())
}

/// Runs the slices (short measurements) of a turn one after the other. After a slice that has written messages, runs
/// raw writes: writes of the same messages without this library.
fn take_turns(
    plan: &Plan,
    results: &mut Results,
    processes: &mut [Process],
    found: &Found,
    turn: usize,
    slices: &Turn,
) -> io::Result<()> {
    for &(case, mode) in slices {
        output::step(results.case_id(case));
        let n = found.paces[case].slice[mode];
        let reply = processes[mode].slice(&results.cases[case], (case, turn), n, !plan.once)?;
        results.add((case, mode), turn, n, &reply);
        let messages = &found.messages[case];
        if results.modes[mode].writes && !messages.is_empty() {
            let both = results.names.raw_writes == RawWrites::OfTheWhole;
            for &inlined in if both { &[false, true][..] } else { &[false] } {
                let raw = processes[mode].raw(case, messages, plan.writes(reply.elapsed), inlined)?;
                results.add_raw((case, mode), turn, n, &reply, (raw, inlined));
            }
        }
    }
    Ok(())
}

/// The data about every case that is measured once, in the first generation (set of processes).
#[derive(Default)]
struct Found {
    paces: Vec<Pace>,
    /// For every case, the messages of an operation, if the sink can return messages.
    messages: Vec<Vec<Vec<u8>>>,
}

/// For every case, counts allocations, computes the length of measurements, and captures messages for the raw writes
/// (writes without this library).
fn first(plan: &Plan, results: &mut Results, processes: &mut [Process]) -> io::Result<Found> {
    let mut found = Found::default();
    for case in 0..results.cases.len() {
        let modes: Vec<usize> = results.modes_of(case).collect();
        let mut operation = vec![Duration::ZERO; processes.len()];
        let info = results.cases[case].clone();
        let long = info.slice.unwrap_or(plan.slice);
        let over = plan.counted_over(info.counted_over, info.batch);
        let mut messages = Vec::new();
        for &mode in &modes {
            let process = &mut processes[mode];
            if results.modes[mode].writes && results.names.raw_writes != RawWrites::Untimed {
                messages = process.ask(&Request::Capture { case }, &info.id)?;
            }
            if info.counted {
                let counted = process.count(&info, case, over)?;
                results.allocated.extend(counted.map(|counts| ((case, mode), (counts, over))));
            }
            if !plan.once {
                operation[mode] = process.calibrate(&info, case, long)?;
            }
        }
        let (loud, silent): (Vec<usize>, Vec<_>) =
            modes.into_iter().partition(|&mode| results.modes[mode].writes);
        found.paces.push(plan::pace(plan, (long, info.batch), &results.modes, &operation, &silent, &loud));
        found.messages.push(messages);
    }
    // Check that the consumer has received exactly the written events. This is only checked once, because the last
    // chunk takes a second to arrive.
    for process in processes.iter_mut().filter(|process| process.mode.is_by_perfetto()) {
        process.ask::<()>(&Request::Settle, "all that it wrote for its reader")?;
    }
    Ok(found)
}

/// Makes glibc's allocator keep freed memory, as in a program that has run for a long time. By default, the allocator
/// returns memory to the kernel and requests it again, until the process has freed a large block. So some processes
/// would return memory while they measure, and others would not. Returning memory makes up a quarter of the cost of a
/// task.
const ALLOCATOR: [(&str, &str); 2] =
    [("MALLOC_TRIM_THRESHOLD_", "268435456"), ("MALLOC_MMAP_THRESHOLD_", "33554432")];

/// The number of times that allocations are counted if the counts differ from run to run.
const INEXACT: usize = 7;

/// The process of a mode.
struct Process {
    mode: Mode,
    helper: Helper,
    /// The cases whose messages were already sent to the process, for raw writes (writes without this library).
    has: BTreeSet<usize>,
    /// The cases that the process has run.
    ran: BTreeSet<usize>,
    /// The Perfetto consumer to which the process is connected, if there is one.
    _reader: Option<Reader>,
}

impl Process {
    /// Starts the process and waits until it is ready to measure. The process gets a name of its own, so that tracing
    /// can be switched on for this process alone.
    fn start(bench: &str, mode: &Mode, generation: usize, fixture: &Fixture) -> io::Result<Self> {
        let reader = mode.sessions.map(Reader::with_sessions).transpose()?;
        let mut command = child::in_mode(mode.name)?;
        command.arg0(format!("{bench}-{}-{}-{generation}", mode.name, std::process::id()));
        command.args(std::env::args_os().skip(1)).envs(ALLOCATOR).envs(fixture.env());
        command.envs(reader.iter().flat_map(Reader::env));
        let helper = Helper::start(&mut command)?;
        let mut process =
            Self { mode: *mode, helper, has: BTreeSet::new(), ran: BTreeSet::new(), _reader: reader };
        // Wait before the next process starts, because each process reads the properties, changes them and writes them
        // back.
        process.reply::<()>("its start")?;
        Ok(process)
    }

    /// Runs a slice of a case: a measurement of `n` operations. If `warm` is true, an untimed warm-up precedes the
    /// slice.
    fn slice(&mut self, info: &Info, (case, place): (usize, usize), n: u64, warm: bool) -> io::Result<Slice> {
        let &Info { batch, afresh, .. } = info;
        // If `run` is made anew, the first batch starts the threads of a runtime. The first operation of a case in a
        // process loads data for later operations, such as symbols. In both cases, at least one batch is the warm-up,
        // because a case with batches has short measurements.
        let is_first = self.ran.insert(case);
        let least = if is_first || afresh && batch > 1 { batch } else { 0 };
        let warm_up = if warm { least.max(n / 8 / batch * batch) } else { 0 };
        self.ask(&Request::Slice { case, place, warm_up, n }, &info.id)
    }

    /// Measures the duration of one operation of a case.
    fn calibrate(&mut self, info: &Info, case: usize, slice: Duration) -> io::Result<Duration> {
        let mut n = info.batch;
        self.slice(info, (case, 0), n, false)?;
        loop {
            let Slice { took, elapsed, .. } = self.slice(info, (case, 0), n, false)?;
            // If `run` is made anew, `elapsed` includes a constant cost, so only `took` counts.
            let took = if info.afresh { took } else { elapsed };
            if took >= slice || n >= 1 << 30 {
                return Ok(took.div_f64(n as f64));
            }
            n *= 2;
        }
    }

    /// Counts the allocations of `n` operations of a case.
    fn count(&mut self, info: &Info, case: usize, n: u64) -> io::Result<Option<Counts>> {
        let exact = info.exact && self.mode.exact;
        let times = if exact { 2 } else { INEXACT };
        let counted: Counted = self.ask(&Request::Count { case, n, times }, &info.id)?;
        let Some(mut counts) = counted else { return Ok(None) };
        if exact
            && let [once, again] = counts[..]
            && (once.allocs, once.bytes) != (again.allocs, again.bytes)
        {
            return Err(self.error(&info.id, &format!("allocates {once:?}, and the second time {again:?}")));
        }
        counts.sort_unstable_by_key(|counts| (counts.allocs, counts.bytes));
        Ok(counts.get(counts.len() / 2).copied())
    }

    /// Makes the process write messages without this library (raw writes), and returns the time of one message.
    fn raw(&mut self, case: usize, all: &[Vec<u8>], slice: Duration, inlined: bool) -> io::Result<Sample> {
        let messages = self.has.insert(case).then(|| all.to_vec());
        self.ask(&Request::Raw { case, messages, slice, inlined }, "its raw writes")
    }

    /// Ends the process, and checks its exit status.
    fn end(mut self) -> io::Result<()> {
        let status = self.helper.end()?;
        if status.success() { Ok(()) } else { Err(self.error("its end", &format!("ended with {status}"))) }
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request, about: &str) -> io::Result<T> {
        self.helper.tell((serde_json::to_string(request)? + "\n").as_bytes());
        self.reply(about)
    }

    fn reply<T: DeserializeOwned>(&mut self, about: &str) -> io::Result<T> {
        let Some(json) = self.helper.hear(REPLY)? else {
            let status = self.helper.end()?;
            return Err(self.error(about, &format!("the process ended with {status}")));
        };
        let reply: Reply<T> = serde_json::from_str(&json)?;
        reply.map_err(|wrong| self.error(about, &wrong))
    }

    fn error(&self, about: &str, what: &str) -> io::Error {
        io::Error::other(format!("mode {}, {about}: {what}", self.mode.name))
    }
}

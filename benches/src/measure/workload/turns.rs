//! Has the processes of the modes take their turns.

use std::io;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::case::Info;
use super::mode::Mode;
use super::plan::{self, Pace, Plan, Turn, Twins};
use super::process::Process;
use super::results::Results;
use super::{Fixture, Workload};
use crate::harness::progress;

/// How much was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    pub(super) generations: usize,
    pub(super) rounds: usize,
    /// Of twins, between the rounds.
    pub(super) turns: usize,
}

/// How much of a generation its rounds are, if there are twins to have the rest.
const ROUNDS: f64 = 0.2;

/// Runs all generations.
pub(super) fn measure<W: Workload>(
    plan: &Plan,
    fixture: &Fixture,
    results: &mut Results,
) -> io::Result<Extent> {
    let started = Instant::now();
    let mut random = Rng::with_seed(0xA7ACE);
    let mut extent = Extent::default();
    // What the first generation finds out.
    let mut found = Found::default();
    let mut turn = 0;
    let mut generations = plan.generations[1];
    while extent.generations < generations {
        let mut processes = start::<W>(results.modes(), extent.generations, fixture, &mut random)?;
        if extent.generations == 0 {
            found = first(plan, results, &mut processes)?;
        }
        let mut twins = Twins::all(results);
        results.begin_generation();
        // The first one does more than rounds, at the cost of the others'.
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
                // The first round of a generation runs everything.
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

/// Starts the processes of all modes, in an order that changes: what a process gets of the kernel depends on who was
/// there before.
fn start<W: Workload>(
    modes: &[Mode],
    generation: usize,
    fixture: &Fixture,
    random: &mut Rng,
) -> io::Result<Vec<Process>> {
    let mut order: Vec<usize> = (0..modes.len()).collect();
    random.shuffle(&mut order);
    let mut processes: Vec<Option<Process>> = modes.iter().map(|_| None).collect();
    for mode in order {
        processes[mode] = Some(Process::start(W::NAME, &modes[mode], generation, fixture)?);
    }
    Ok(processes.into_iter().flatten().collect())
}

/// Has each run its slice, one after the other.
fn take_turns(
    plan: &Plan,
    results: &mut Results,
    processes: &mut [Process],
    found: &Found,
    turn: usize,
    slices: &Turn,
) -> io::Result<()> {
    for &(case, mode) in slices {
        progress::step(results.case_id(case));
        let n = found.paces[case].slice[mode];
        let reply = processes[mode].slice(results, case, turn, n, !plan.once)?;
        results.add(case, mode, turn, n, &reply);
        let messages = &found.messages[case];
        if results.modes()[mode].writes && !messages.is_empty() {
            let ways: &[bool] = if results.compares_the_whole() { &[false, true] } else { &[false] };
            for &inlined in ways {
                let raw = processes[mode].raw(case, messages, plan.writes(reply.elapsed), inlined)?;
                results.add_raw((case, mode), turn, raw, inlined, n, &reply);
            }
        }
    }
    Ok(())
}

/// What the first generation finds out of every case.
#[derive(Default)]
struct Found {
    paces: Vec<Pace>,
    /// What it wrote, if anybody can tell.
    messages: Vec<Vec<Vec<u8>>>,
}

/// Counts the allocations of every case, finds how long its slices are, and keeps messages for the raw writes.
fn first(plan: &Plan, results: &mut Results, processes: &mut [Process]) -> io::Result<Found> {
    let mut found = Found::default();
    for case in 0..results.cases().len() {
        let modes: Vec<usize> = results.modes_of(case).collect();
        let mut operation = vec![Duration::ZERO; processes.len()];
        let Info { batch, slice, counted_over, .. } = results.cases()[case];
        let long = slice.unwrap_or(plan.slice);
        let over = plan.counted_over(counted_over, batch);
        let mut messages = Vec::new();
        for &mode in &modes {
            let process = &mut processes[mode];
            if results.modes()[mode].writes && results.writes_are_timed() {
                messages = process.capture(results, case)?;
            }
            if results.is_counted(case) {
                let counted = process.count(results, case, over)?;
                results.set_counts(case, mode, counted, over);
            }
            if !plan.once {
                operation[mode] = process.calibrate(results, case, long)?;
            }
        }
        let (loud, silent): (Vec<usize>, Vec<_>) =
            modes.into_iter().partition(|&mode| results.modes()[mode].writes);
        found.paces.push(plan::pace(plan, (long, batch), results.modes(), &operation, &silent, &loud));
        found.messages.push(messages);
    }
    // Once, as the last of it takes a second.
    processes.iter_mut().filter(|process| process.is_by_perfetto()).try_for_each(Process::settle)?;
    Ok(found)
}

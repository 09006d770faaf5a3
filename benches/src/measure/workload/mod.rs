//! What tracing costs a program: a workload, run without instrumentation, with it, and traced.
//!
//! A [`Workload`] names its [`Case`]s, and each of them runs in every [`Mode`]: `none` (no instrumentation
//! compiled in), `nosub` (instrumented, no subscriber), `filtered`, `off` and `on` (this workspace's
//! subscriber). A process has one subscriber, so each mode is a process. They are all there at the same time,
//! and take turns: the bench asks one of them at a time for a slice of a case of about a millisecond, in an
//! order that changes, while the others wait for a byte from a pipe. So what is compared ran within
//! milliseconds of each other, and drifts of the machine cancel.
//!
//! Where the loader puts a program, and the allocator what it needs, is drawn anew for each process, and can make it
//! slower than its twin by more than what is to be measured. So that one process is many samples of that and not
//! one, other blocks of memory are held at each slice, and runtimes are [made anew](Case::afresh) for it; glibc's
//! allocator is kept from giving memory back, as in one process it would do so at every batch and in the next one never.
//! And the processes are replaced, *generation* by generation: what is left of such differences is in the interval of a
//! difference, as that is found by leaving out and repeating [whole generations](crate::stats::Interval::of_clusters).
//!
//! Modes that are promised to take equally long are [twins](Mode::same_as). They run one right after the other, and
//! beginning on the same CPU. More than half of the time is theirs: between the rounds, those have turns whose interval is
//! going to be the widest beside what is allowed. How noisy they were in earlier generations decides that, not
//! what came out.
//!
//! Every timed slice of every process is checked: what it computed by the case itself, and what it wrote by
//! the sink, which has to have got exactly the messages that the case says, or none if the mode does not
//! write.
//!
//! No process has only one thread: a program that is worth tracing has several, and the first that it starts
//! makes its allocator and its system calls on files dearer. So one sleeps in each, or it would look as if
//! `filtered`, whose subscriber starts a thread, did that.
//!
//! # How to write one
//!
//! A bench target with `harness = false`, and in it:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use atrace_benches::instruments::alloc::Counting;
//! use atrace_benches::measure::workload::{self, Case, Done, Results, Tracing, Workload};
//!
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting;
//!
//! struct Sums;
//!
//! impl Workload for Sums {
//!     const NAME: &'static str = "sums";
//!
//!     fn cases<T: Tracing>() -> Vec<Case> {
//!         let sum = Case::new("rust/sum", |n| {
//!             let mut total = 0;
//!             for i in 0..n {
//!                 let span = T::span(|| tracing::info_span!("add"));
//!                 T::within(&span, || total += std::hint::black_box(i));
//!             }
//!             if total != n * n.saturating_sub(1) / 2 {
//!                 return Err(format!("the sum up to {n} is {total}"));
//!             }
//!             Ok(Done::new().messages(2 * n).count("additions", n))
//!         });
//!         vec![sum.counted_over(1000)]
//!     }
//!
//!     fn report(results: &Results) -> String {
//!         let row = results.row("rust/sum", "none").expect("it was measured");
//!         format!("an addition takes {:.2} ns", row.median)
//!     }
//! }
//!
//! fn main() -> ExitCode {
//!     workload::run::<Sums>()
//! }
//! ```
//!
//! The rules: `run(n)` runs the operation `n` times, consumes (`black_box`) what it computes and returns
//! `Err` if that is wrong; when it returns, every span it made is closed, in whatever thread. What it needs
//! only once (a runtime, a server) is made when it first runs and kept in the closure, or its time is left
//! out with [`Done::took`]. All instrumentation goes through [`Tracing`], so that `none` has none.
//!
//! # What comes out
//!
//! `target/overhead/<NAME>.json`: for each case and mode a row `<case>/<mode>`, for each [part](Done::part)
//! `<case>/<part>/<mode>`; of a case [without modes](Case::untraced) just `<case>` and `<case>/<part>`. A row
//! has under `above` what its mode costs more than others: nanoseconds with an interval, and exactly counted
//! allocations and bytes; and in `counts` what the case counted. `limit/raw_writes_of/<case>` is what the
//! messages of one operation cost when they are only written, by the same process between the same slices.
//!
//! On stdout: the workload's own [report](Workload::report), the table of what each mode adds, and the
//! promises of all workloads (and [its own](Workload::bars)) beside what was measured. Promises that are
//! exact counts fail the bench when they are broken, those about time don't.
//!
//! With filters nothing is written: a file without the other cases would take their rows away.
//!
//! # Time
//!
//! [`Workload::seconds`] of a full run, a sixth of that with `--quick`: the rounds and turns of every generation go on
//! until its share is used up. As a test every case runs once in every mode.

mod bars;
mod case;
mod exchange;
mod instrument;
mod mode;
mod results;
mod tables;
mod worker;

use std::any::Any;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fastrand::Rng;

pub use self::bars::zero_above;
pub use self::case::{Case, Done, Wrong};
pub use self::instrument::{Bare, Traced, Tracing};
pub use self::mode::Mode;
pub use self::results::Results;

use self::exchange::Process;
use crate::harness::args::Args;
use crate::harness::output::Output;
use crate::harness::progress;
use crate::harness::terminal::{complain, fail, say};
use crate::harness::{
    self,
    supervise::{self, Session},
};
use crate::instruments::clock::timer_floor;
use crate::promise::Judged;

/// A program whose tracing is measured.
pub trait Workload {
    /// The name of the bench, of its file of rows, and of its processes.
    const NAME: &'static str;

    /// Makes the cases, in the order of the tables. They are the same for every `T`, but for what they are
    /// made of.
    fn cases<T: Tracing>() -> Vec<Case>;

    /// The modes: by default the five of [`Mode::all`].
    fn modes() -> Vec<Mode> {
        Mode::all()
    }

    /// Starts what all modes talk to, such as a server in a process of its own. It is there before their processes, and
    /// dropped after them.
    ///
    /// # Errors
    ///
    /// Whatever it takes: the bench ends with that.
    fn company() -> io::Result<Company> {
        Ok(Company::default())
    }

    /// Looks at the workload otherwise than by its time, such as at its threads: in the bench's own process, when all rounds
    /// are over and while the [company](Self::company) is there. What it finds goes [into the rows](Results::gauge).
    ///
    /// # Errors
    ///
    /// Whatever it takes: the bench ends with that.
    fn profile(results: &mut Results, args: &Args) -> io::Result<()> {
        let _ = (results, args);
        Ok(())
    }

    /// How many seconds a full run measures.
    fn seconds() -> u64 {
        75
    }

    /// Makes the workload's own table, with labels from its configuration. Rows may be missing: filters, or
    /// noise.
    fn report(results: &Results) -> String;

    /// What was promised of this workload beyond what [all promise](bars).
    fn bars(results: &Results) -> Vec<Judged> {
        let _ = results;
        Vec::new()
    }
}

/// What is there beside the modes while they are measured, and the environment variables that tell them of it.
#[derive(Default)]
pub struct Company {
    env: Vec<(OsString, OsString)>,
    _kept: Option<Box<dyn Any>>,
}

impl fmt::Debug for Company {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Company").field("env", &self.env).finish_non_exhaustive()
    }
}

impl Company {
    /// Keeps something until the modes have ended.
    #[must_use]
    pub fn of(kept: impl Any) -> Self {
        Self { env: Vec::new(), _kept: Some(Box::new(kept)) }
    }

    /// Sets an environment variable of the modes' processes.
    #[must_use]
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn env(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.env.iter().map(|(name, value)| (name, value))
    }
}

/// How long, and how often.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// How many generations there are at least and at most.
    generations: [usize; 2],
    /// How long it all takes.
    budget: Duration,
    slice: Duration,
    /// Whether allocations are counted over fewer operations.
    counts_less: bool,
    once: bool,
}

impl Plan {
    fn of<W: Workload>(session: &Session) -> Self {
        let slice = Duration::from_millis(1);
        let seconds = Duration::from_secs(W::seconds());
        let full = Self { generations: [9, 40], budget: seconds, slice, counts_less: false, once: false };
        match session.args() {
            args if args.test => Self { generations: [1, 1], budget: Duration::ZERO, once: true, ..full },
            args if args.quick => {
                Self { generations: [6, 9], budget: seconds / 6, counts_less: true, ..full }
            }
            _ => full,
        }
    }
}

/// Runs a workload as a bench: reads the command line, measures, prints, and writes the rows.
#[must_use]
pub fn run<W: Workload>() -> ExitCode {
    supervise::run(|session| match bench::<W>(&session) {
        Ok(code) => code,
        Err(reason) => fail(1, reason),
    })
}

fn bench<W: Workload>(session: &Session) -> io::Result<ExitCode> {
    let modes = W::modes();
    if let Some(name) = &session.args().mode {
        let mode = modes.iter().find(|mode| mode.name() == name);
        let mode = mode.ok_or_else(|| io::Error::other(format!("there is no mode {name}")))?;
        worker::work::<W>(session, *mode)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut results = Results::new(modes, W::cases::<Bare>(), session.sink());
    if session.args().list {
        for id in results.ids() {
            say(format_args!("{id}: benchmark"));
        }
        return Ok(ExitCode::SUCCESS);
    }
    results.select(|id| session.args().selects(id));
    if results.is_empty() {
        say("no case has an id with that in it; --list shows them");
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let plan = Plan::of::<W>(session);
    let output = Output::begin(W::NAME, session.args())?;
    let company = W::company()?;
    let Extent { generations, rounds, turns } = measure::<W>(&plan, &company, &mut results)?;
    W::profile(&mut results, session.args())?;
    drop(company);
    results.finish();

    let mut text = format!("\n{}: ", W::NAME);
    let (processes, seconds) = (results.modes().len(), started.elapsed().as_secs_f64());
    // Also of a test, which it is a part of.
    let tables = format!("{}\n\n{}", W::report(&results).trim_end(), tables::overhead(&results));
    if plan.once {
        let _ =
            write!(text, "each ran once in each of {processes} modes, nothing was measured, {seconds:.1} s");
    } else {
        let _ = write!(
            text,
            "{rounds} rounds and {turns} turns of twins in {generations} generations of {processes} processes, \
             {seconds:.1} s; a reading of the timer takes {} ns\nsink: {}; switched by the properties, verified by {}\
             \n\n{tables}",
            timer_floor().as_nanos(),
            atrace::sink(),
            session.verified_by()
        );
    }
    say(text.trim_end_matches('\n'));
    let mut judged = bars::common(&results);
    judged.extend(W::bars(&results));
    // In a test, only what is counted can be judged.
    judged.retain(|judged| judged.exact || !plan.once);
    output.end(results.rows(), &judged)?;
    let broken = judged.iter().any(Judged::fails);
    if broken {
        complain("a promise that is an exact count is broken");
    }
    Ok(match (broken, plan.once) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => ExitCode::SUCCESS,
        (false, false) => harness::exit_code(results.rows()),
    })
}

/// How often a case runs in each mode.
#[derive(Clone, Debug)]
struct Pace {
    /// Of every mode, how many operations a slice has.
    slice: Vec<u64>,
    /// Of every mode, a slice in one round of so many: what takes longer than a slice should, takes its turn
    /// less often.
    every: Vec<usize>,
    /// What it wrote, if anybody can tell.
    messages: Vec<Vec<u8>>,
}

/// How much was measured.
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    generations: usize,
    rounds: usize,
    /// Of twins, between the rounds.
    turns: usize,
}

/// How much of a generation its rounds are, the rest being turns of twins.
const ROUNDS: f64 = 0.2;

/// Runs all generations.
fn measure<W: Workload>(plan: &Plan, company: &Company, results: &mut Results) -> io::Result<Extent> {
    let started = Instant::now();
    let mut random = Rng::with_seed(0xA7ACE);
    let mut extent = Extent::default();
    // Of every case, what the first generation found out.
    let mut paces = Vec::new();
    let [least, mut generations] = plan.generations;
    while extent.generations < generations {
        let mut processes = start::<W>(results.modes(), extent.generations, company, &mut random)?;
        if extent.generations == 0 {
            paces = first(plan, results, &mut processes)?;
        }
        let mut twins = Twins::all(results);
        results.begin_generation();
        // The first one does more than rounds, at the cost of the others'.
        let left = plan.budget.saturating_sub(started.elapsed());
        let left_to_each = left / u32::try_from(generations - extent.generations).unwrap_or(1);
        let began = Instant::now();
        let over = || plan.once || began.elapsed() >= left_to_each;
        let mut in_rounds = Duration::ZERO;
        let mut order: Vec<usize> = (0..results.cases().len()).collect();
        let mut turn = 0;
        for round in 0.. {
            let round_began = Instant::now();
            random.shuffle(&mut order);
            for &case in &order {
                let due = |&mode: &usize| round % paces[case].every[mode] == 0;
                let mut modes: Vec<usize> = results.modes_of(case).filter(due).collect();
                random.shuffle(&mut modes);
                gather_twins(results, &mut modes);
                take_turns(plan, results, &mut processes, (case, &paces[case]), turn, &modes)?;
                turn += 1;
            }
            in_rounds += round_began.elapsed();
            extent.rounds += 1;
            if extent.rounds == 1 {
                // The first round of a generation runs everything: as many as leave three quarters to others.
                let fit = left.as_nanos() / (4 * in_rounds.as_nanos()).max(1);
                generations = usize::try_from(fit).unwrap_or(usize::MAX).clamp(least, generations);
            }
            while !over() && in_rounds > began.elapsed().mul_f64(ROUNDS) {
                let Some(next) = Twins::neediest(&mut twins) else { break };
                random.shuffle(&mut next.modes);
                take_turns(plan, results, &mut processes, (next.case, &paces[next.case]), turn, &next.modes)?;
                turn += 1;
                next.turns += 1;
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

/// Puts twins one after the other, where the first of them is.
fn gather_twins(results: &Results, modes: &mut [usize]) {
    let order = modes.to_vec();
    let first = |mode: usize| order.iter().position(|&other| results.twin(other) == results.twin(mode));
    modes.sort_by_key(|&mode| first(mode));
}

/// Starts the processes of all modes, in an order that changes: what a process gets of the kernel depends on who was
/// there before.
fn start<W: Workload>(
    modes: &[Mode],
    generation: usize,
    company: &Company,
    random: &mut Rng,
) -> io::Result<Vec<Process>> {
    let mut order: Vec<usize> = (0..modes.len()).collect();
    random.shuffle(&mut order);
    let mut processes: Vec<Option<Process>> = modes.iter().map(|_| None).collect();
    for mode in order {
        processes[mode] = Some(Process::start(W::NAME, &modes[mode], generation, company)?);
    }
    Ok(processes.into_iter().flatten().collect())
}

/// Has these modes run a slice of a case, one after the other.
fn take_turns(
    plan: &Plan,
    results: &mut Results,
    processes: &mut [Process],
    (case, pace): (usize, &Pace),
    turn: usize,
    modes: &[usize],
) -> io::Result<()> {
    progress::step(results.case_id(case));
    for &mode in modes {
        let n = pace.slice[mode];
        let reply = processes[mode].slice(results, case, turn, n, !plan.once)?;
        results.add(case, mode, turn, n, &reply);
        if results.modes()[mode].writes() && !pace.messages.is_empty() {
            let raw = processes[mode].raw(case, &pace.messages, plan.slice)?;
            results.add_raw(case, mode, turn, raw, n, &reply);
        }
    }
    Ok(())
}

/// Modes of a case that are promised to take equally long.
#[derive(Clone, Debug)]
struct Twins {
    case: usize,
    modes: Vec<usize>,
    /// How far apart they are in a turn, as a multiple of how far apart they may be.
    spread: f64,
    /// How many turns they have had in this generation, and the round. Those of earlier ones don't count: what is lacking
    /// would be made up for in one generation, and be a sample of that one only.
    turns: usize,
}

impl Twins {
    /// Finds those that have had turns in earlier generations.
    fn all(results: &Results) -> Vec<Self> {
        let mut all = Vec::new();
        for case in 0..results.cases().len() {
            let modes: Vec<usize> = results.modes_of(case).collect();
            for &base in &modes {
                let modes: Vec<_> =
                    modes.iter().copied().filter(|&mode| results.twin(mode) == base).collect();
                let spreads = modes.iter().filter_map(|&mode| results.spread(case, mode, base));
                if let Some(spread) = spreads.reduce(f64::max) {
                    all.push(Self { case, modes, spread, turns: 1 });
                }
            }
        }
        all
    }

    /// Those whose interval would be the widest beside what is allowed.
    fn neediest(all: &mut [Self]) -> Option<&mut Self> {
        let width = |twins: &Self| twins.spread / (twins.turns as f64).sqrt();
        all.iter_mut().max_by(|a, b| width(a).total_cmp(&width(b)))
    }
}

/// What only the first generation does, for every case: counts allocations, finds how long slices are, and
/// keeps messages for the raw writes.
fn first(plan: &Plan, results: &mut Results, processes: &mut [Process]) -> io::Result<Vec<Pace>> {
    let mut paces = Vec::new();
    for case in 0..results.cases().len() {
        let modes: Vec<usize> = results.modes_of(case).collect();
        let mut operation = vec![Duration::ZERO; processes.len()];
        let results::Info { batch, slice, .. } = results.cases()[case];
        let long = slice.unwrap_or(plan.slice);
        let mut messages = Vec::new();
        for &mode in &modes {
            let process = &mut processes[mode];
            if results.modes()[mode].writes() {
                messages = process.capture(results, case)?;
            }
            let over = results.cases()[case].counted_over;
            let over = if plan.counts_less { over.min(100.max(over / 10)) } else { over };
            let over = if plan.once { over.min(100) } else { over }.next_multiple_of(batch);
            let counted = process.count(results, case, over)?;
            results.set_counts(case, mode, counted, over);
            if !plan.once {
                operation[mode] = process.calibrate(results, case, long)?;
            }
        }
        let (loud, silent): (Vec<usize>, Vec<_>) =
            modes.into_iter().partition(|&mode| results.modes()[mode].writes());
        let pace = pace(plan, (long, batch), results.modes(), &operation, &silent, &loud);
        paces.push(Pace { messages, ..pace });
    }
    Ok(paces)
}

/// How often a case runs whose slices should be so `long`, of whole batches, and whose operation takes so long
/// in each of its modes.
fn pace(
    plan: &Plan,
    (long, batch): (Duration, u64),
    modes: &[Mode],
    operation: &[Duration],
    silent: &[usize],
    loud: &[usize],
) -> Pace {
    let fit = |slice: Duration, mode: usize| {
        let fit = slice.as_nanos() / operation[mode].as_nanos().max(1);
        let fit = if plan.once { 1 } else { u64::try_from(fit).unwrap_or(u64::MAX).min(1 << 30) };
        (fit / batch).max(1) * batch
    };
    let with = |mode: usize| -> Vec<usize> {
        silent.iter().copied().filter(|&other| modes[other].keeps_pace_with(&modes[mode])).collect()
    };
    // What is compared runs equally often, as far as that takes not too long.
    let shared = |mode: usize| with(mode).iter().map(|&other| fit(long, other)).min().unwrap_or(batch);
    let mut slice: Vec<u64> = (0..operation.len()).map(shared).collect();
    for &mode in loud {
        slice[mode] = slice[mode].min(fit(long * 5, mode));
    }
    let together = |modes: &[usize], slices: u32| {
        let took = modes.iter().map(|&mode| operation[mode].mul_f64(slice[mode] as f64)).sum::<Duration>();
        let should = long * slices * u32::try_from(modes.len()).unwrap_or(1);
        let every = took.as_nanos().div_ceil(should.as_nanos().max(1));
        usize::try_from(every).unwrap_or(1).max(1)
    };
    let mut every: Vec<usize> = (0..operation.len()).map(|mode| together(&with(mode), 3)).collect();
    // What is written need not be known as well.
    let of_loud = together(loud, 1);
    for &mode in loud {
        // In rounds in which it has something to be compared to.
        every[mode] = of_loud.next_multiple_of(every[mode]);
    }
    Pace { slice, every, messages: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sink;

    /// Two cases in all modes; in each turn `filtered` takes as much longer or shorter than `nosub` as told.
    fn results(apart: [u64; 2]) -> Results {
        let cases = ["rust/a", "rust/b"].map(|id| Case::new(id, |_| Ok(Done::new())));
        let mut results = Results::new(Mode::all(), cases.into(), Sink::Null);
        for _ in 0..2 {
            results.begin_generation();
            for turn in 0..10 {
                for (case, apart) in apart.into_iter().enumerate() {
                    for (mode, nanos) in [(1, 1000), (2, 1000 + turn % 2 * 2 * apart - apart)] {
                        let took = Duration::from_nanos(nanos);
                        let slice = exchange::Slice { took, elapsed: took, done: Done::new() };
                        results.add(case, mode, usize::try_from(turn).unwrap(), 1, &slice);
                    }
                }
            }
        }
        results
    }

    #[test]
    fn the_first_generation_has_no_twins_to_prefer() {
        let cases = vec![Case::new("rust/a", |_| Ok(Done::new()))];
        let results = Results::new(Mode::all(), cases, Sink::Null);
        assert!(Twins::all(&results).is_empty());
        assert!(Twins::neediest(&mut []).is_none());
    }

    #[test]
    fn those_have_turns_that_are_the_widest_beside_what_is_allowed() {
        // 2 ns and 1 % of 1000 ns allow 10 ns.
        let mut twins = Twins::all(&results([20, 40]));
        assert_eq!(twins.len(), 2);
        for (twins, spread) in twins.iter().zip([20.0, 40.0]) {
            assert_eq!((&twins.modes[..], twins.turns), (&[1, 2][..], 1));
            assert!((twins.spread - spread / 10.0 / 0.6745).abs() < 1e-6, "{twins:?}");
        }
        let mut had = [0, 0];
        for _ in 0..80 {
            let next = Twins::neediest(&mut twins).unwrap();
            next.turns += 1;
            had[next.case] += 1;
        }
        // Twice as wide: four times as many turns in all.
        assert!((had[1] + 1 - 4 * (had[0] + 1_i32)).abs() <= 4, "{had:?}");
    }

    #[test]
    fn twins_are_one_after_the_other() {
        let results = results([1, 1]);
        let mut modes = [2, 4, 0, 1, 3];
        gather_twins(&results, &mut modes);
        assert_eq!(modes, [2, 1, 4, 0, 3]);
    }
}

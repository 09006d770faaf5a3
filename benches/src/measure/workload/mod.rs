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
mod plan;
mod results;
mod tables;
mod turns;
mod worker;

use std::any::Any;
use std::ffi::OsString;
use std::fmt::{self, Write as _};
use std::io;
use std::process::ExitCode;
use std::time::Instant;

pub use self::bars::zero_above;
pub use self::case::{Case, Done, Wrong};
pub use self::instrument::{Bare, Traced, Tracing};
pub use self::mode::Mode;
pub use self::results::{Names, RawWrites, Results};

use self::plan::Plan;
use crate::harness::args::Args;
use crate::harness::output::Output;
use crate::harness::terminal::{complain, fail, say};
use crate::harness::{self, Session, supervise};
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

    /// What its rows are called, and whether what its cases write is timed by itself, too.
    fn names() -> Names {
        Names::default()
    }

    /// Whether the process of a mode begins with one thread. Else there is a second, which sleeps.
    const BEGINS_ALONE: bool = false;

    /// How many seconds a full run measures.
    fn seconds() -> u64 {
        45
    }

    /// Makes the workload's own table, with labels from its configuration. Rows may be missing: filters, or
    /// noise.
    fn report(results: &Results) -> String {
        let _ = results;
        String::new()
    }

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

/// Runs a workload as a bench: reads the command line, measures, prints, and writes the rows.
#[must_use]
pub fn run<W: Workload>() -> ExitCode {
    supervise::run(|session| match bench::<W>(&session) {
        Ok(code) => code,
        Err(reason) => fail(1, reason),
    })
}

/// Is the process of a mode, if it was started as one; tells whether it was.
///
/// # Errors
///
/// What the system answered.
pub fn take_part<W: Workload>(session: &Session) -> io::Result<bool> {
    let name = session.args().mode.as_deref();
    let Some(mode) = W::modes().into_iter().find(|mode| name == Some(mode.name())) else { return Ok(false) };
    worker::work::<W>(session, mode)?;
    Ok(true)
}

/// Measures the cases that the command line selects, as a part of another bench: prints nothing, writes nothing.
///
/// # Errors
///
/// What the system answered, or what is wrong with a case.
pub fn measure<W: Workload>(session: &Session) -> io::Result<Results> {
    let mut results = Results::new(W::modes(), W::cases::<Bare>(), session.sink(), W::names());
    results.select(|id| session.args().selects(id));
    if results.is_empty() {
        return Ok(results);
    }
    let company = W::company()?;
    turns::measure::<W>(&Plan::of(session.args(), W::seconds()), &company, &mut results)?;
    results.finish();
    Ok(results)
}

fn bench<W: Workload>(session: &Session) -> io::Result<ExitCode> {
    if take_part::<W>(session)? {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &session.args().mode {
        return Err(io::Error::other(format!("there is no mode {name}")));
    }
    let mut results = Results::new(W::modes(), W::cases::<Bare>(), session.sink(), W::names());
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
    let plan = Plan::of(session.args(), W::seconds());
    let output = Output::begin(W::NAME, session.args())?;
    let company = W::company()?;
    let turns::Extent { generations, rounds, turns } = turns::measure::<W>(&plan, &company, &mut results)?;
    output.aside(|| W::profile(&mut results, session.args()))?;
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

//! What tracing costs a program: a workload, run without instrumentation, with it, and traced.
//!
//! A [`Workload`] names its [`Case`]s, and each of them runs in every [`Mode`]. A process has one subscriber, so each mode is
//! a process. They are all there at the same time, and take turns (`turns.rs`): the bench asks one of them at a time for a slice
//! of a case of about a millisecond, in an order that is planned anew each time (`plan.rs`), while the others wait.
//!
//! - Every timed slice is checked: what it computed by the case itself, and what it wrote by the sink, which has to have got
//!   exactly the messages that the case says, or none if the mode does not write.
//! - The processes are replaced, generation by generation, and a slice holds other blocks of memory each time: where the
//!   loader and the allocator put things makes a process slower or faster than its twin (`docs/design.md`).
//! - Modes that are promised to take equally long are [twins](Mode::same_as): more than half of the time is theirs.
//! - A process has a second thread that sleeps, as programs worth tracing have several, and the first that is started makes
//!   system calls dearer; unless it [begins alone](Workload::BEGINS_ALONE).
//!
//! `target/overhead/<NAME>.json` then has for each case and mode a row `<case>/<mode>`, for each [part](Done::part)
//! `<case>/<part>/<mode>`, and of a case [without modes](Case::untraced) just `<case>`. A row has under `above` what its mode
//! costs more than others, and in `counts` what the case counted. `limit/raw_writes_of/<case>` is what the messages of one
//! operation cost when they are only written. Promises that are exact counts fail the bench when they are broken.

mod bars;
mod case;
mod exchange;
mod form;
mod instrument;
mod mode;
mod plan;
mod process;
mod results;
mod tables;
mod turns;
mod worker;

use std::any::Any;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;
use std::time::Instant;

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
use crate::table::Table;

/// A program whose tracing is measured.
///
/// `run(n)` of a case runs the operation `n` times, consumes (`black_box`) what it computes and returns `Err` if that is wrong.
/// When it returns, every span it made is closed, in whatever thread. What it needs only once (a runtime, a server) is made
/// when it first runs and kept in the closure, or its time is left out with [`Done::took`]. All instrumentation goes through
/// [`Tracing`], so that `none` has none.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use atrace_benches::instruments::alloc::Counting;
/// use atrace_benches::measure::workload::{self, Case, Done, Results, Tracing, Workload};
/// use atrace_benches::table::{Cell, Table};
///
/// #[global_allocator]
/// static ALLOCATOR: Counting = Counting;
///
/// struct Sums;
///
/// impl Workload for Sums {
///     const NAME: &'static str = "sums";
///
///     fn cases<T: Tracing>() -> Vec<Case> {
///         let sum = Case::new("rust/sum", |n| {
///             let mut total = 0;
///             for i in 0..n {
///                 let span = T::span(|| tracing::info_span!("add"));
///                 T::within(&span, || total += std::hint::black_box(i));
///             }
///             if total != n * n.saturating_sub(1) / 2 {
///                 return Err(format!("the sum up to {n} is {total}"));
///             }
///             Ok(Done::new().messages(2 * n).count("additions", n))
///         });
///         vec![sum.counted_over(1000)]
///     }
///
///     fn tables(results: &Results) -> Vec<Table> {
///         let mut table = Table::new("additions", ["case", "ns"]);
///         table.push([Cell::name("sum"), Cell::value(results.row("rust/sum", "none"))]);
///         vec![table]
///     }
/// }
///
/// fn main() -> ExitCode {
///     workload::run::<Sums>()
/// }
/// ```
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
    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default())
    }

    /// Looks at the workload otherwise than by its time, such as at its threads: in the bench's own process, when all rounds
    /// are over and while the [fixture](Self::fixture) is there. What it finds goes [into the rows](Results::gauge).
    ///
    /// # Errors
    ///
    /// Whatever it takes: the bench ends with that.
    fn profile(_: &mut Results, _: &Args) -> io::Result<()> {
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

    /// Makes the tables that are printed before what each mode adds: by default one of all cases. Rows may be missing, where a
    /// filter leaves them out. A cell without a number that doesn't say why fails the bench.
    fn tables(results: &Results) -> Vec<Table> {
        vec![tables::measured(results)]
    }

    /// Makes rows of what is known once all of it was measured, such as of [how two cases
    /// differ](Results::add_difference).
    fn derive(_: &mut Results) {}

    /// What was promised of this workload beyond what all promise.
    fn bars(_: &Results) -> Vec<Judged> {
        Vec::new()
    }
}

/// What is there beside the modes while they are measured, and the environment variables that tell them of it.
#[derive(Default)]
pub struct Fixture {
    env: Vec<(OsString, OsString)>,
    _kept: Option<Box<dyn Any>>,
}

impl Fixture {
    /// Keeps something until the modes have ended.
    pub fn of(kept: impl Any) -> Self {
        Self { env: Vec::new(), _kept: Some(Box::new(kept)) }
    }

    /// Has so much room for what a slice writes, in the memory that is shared with a reader of Perfetto's way: that reads
    /// every 4 ms.
    pub fn with_room(self, mib: u32) -> Self {
        self.with_env("ATRACE_SHMEM_KB", (mib << 10).to_string())
    }

    /// Sets an environment variable of the modes' processes.
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn env(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.env.iter().map(|(name, value)| (name, value))
    }
}

/// Runs a workload as a bench: reads the command line, measures, prints, and writes the rows.
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
    let Some(mode) = W::modes().into_iter().find(|mode| name == Some(mode.name)) else { return Ok(false) };
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
    let fixture = W::fixture()?;
    turns::measure::<W>(&Plan::of(session.args(), W::seconds()), &fixture, &mut results)?;
    results.finish();
    W::derive(&mut results);
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
    let fixture = W::fixture()?;
    let turns::Extent { generations, rounds, turns } = turns::measure::<W>(&plan, &fixture, &mut results)?;
    let is_whole = plan.once && results.is_whole();
    output.aside(|| W::profile(&mut results, session.args()))?;
    drop(fixture);
    results.finish();
    W::derive(&mut results);
    if let Some(missing) = is_whole.then(|| form::unanswered::<W>(&results)).flatten() {
        return Err(io::Error::other(missing));
    }

    let mut text = format!("\n{}: ", W::NAME);
    let (processes, seconds) = (results.modes().len(), started.elapsed().as_secs_f64());
    // Also of a test, which it is a part of.
    let tables: Vec<Table> = W::tables(&results).into_iter().chain([tables::overhead(&results)]).collect();
    if let Some(hole) = tables.iter().find_map(Table::hole) {
        return Err(io::Error::other(hole));
    }
    let tables: Vec<String> = tables.iter().map(Table::to_string).collect();
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
            session.verified_by(),
            tables = tables.join("\n")
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

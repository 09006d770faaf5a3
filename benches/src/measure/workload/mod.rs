//! Measures what tracing costs a whole program: a workload runs without instrumentation, with instrumentation, and
//! traced.
//!
//! A [`Workload`] lists its [`Case`]s. A [`Mode`] is a configuration of instrumentation, subscriber and tracing. A case
//! runs in every mode that it does not exclude. A case without instrumentation runs only in the modes without
//! instrumentation. A process has one global subscriber, so each mode has its own process. The processes exist at the
//! same time, but measure alternately (`turns.rs`): the bench asks one process for a *slice*, a measurement of one case
//! of about a millisecond, while the other processes wait. The order of the slices is random in each round (`plan.rs`).
//!
//! - Every measurement is checked. The case checks its own result. A sink that counts messages must have received the
//!   number that the case reports, or none if the mode does not write. A buffer that is shared with other programs may
//!   have received more; for Perfetto, the tolerances of `worker.rs` apply. In a mode that writes, the number is not
//!   checked if [other threads](Done::others_wrote) wrote, too.
//! - A *generation* is one process for each mode. These processes exist at the same time, and are then replaced by the
//!   next generation. The layout of the heap also changes before each measurement. Several generations and layouts are
//!   needed because the placement of code and data can make a process faster or slower than another process with the
//!   same code (`docs/design.md`).
//! - Twins are modes about which there is a [promise](Mode::twin) that they take the same time. Twins get more than
//!   half of the measuring time.
//! - Each process has a second thread, which sleeps, because real programs have several threads, and a second thread
//!   makes system calls more expensive. For a workload that [begins alone](Workload::BEGINS_ALONE), there is no such
//!   thread.
//!
//! The bench writes `target/overhead/<NAME>.json`. The file has a row `<case>/<mode>` for each case and mode, a row
//! `<case>/<part>/<mode>` for each [part](Done::part), and a row `<case>` for each case [without modes](Info::traced).
//! The field `above` of a row is the cost in addition to the cost of other modes, and the field `counts` has the counts
//! that the case has reported. The row `limit/raw_writes_of/<case>/<mode>` is the cost of writing the messages of one
//! operation without this library. If a promise about an exact count is missed, the bench fails.

mod bars;
mod case;
mod mode;
mod plan;
mod results;
mod turns;
mod worker;

use std::any::Any;
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Instant;

pub use self::case::{Case, Done, Info, Wrong};
pub use self::mode::{Bare, Mode, Pace, Traced, Tracing};
pub use self::results::{Names, RawWrites, Results};

use self::plan::Plan;
use crate::catalogue::Id;
use crate::harness::args::Args;
use crate::harness::output::{Output, fail, say};
use crate::harness::{self, Session, supervise};
use crate::instruments::clock::timer_floor;
use crate::promise::Judged;
use crate::table::Table;
use crate::table::workload::of_workload;

/// A program whose tracing is measured.
///
/// `run(n)` of a case runs the operation `n` times, consumes the results (`black_box`) and returns `Err` if a result is
/// wrong. When `run` returns, all its spans must be closed, in all threads. State that is needed only once (a runtime,
/// a server) is created in the first run and stored in the closure. Otherwise, [`Done::took`] must exclude the time of
/// its creation. All instrumentation uses [`Tracing`], so that the mode `none` has no instrumentation.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// use atrace_benches::instruments::alloc::Counting;
/// use atrace_benches::measure::workload::{self, Case, Done, Info, Results, Tracing, Workload};
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
///         let info = Info { counted_over: 1000, ..Info::of("rust/sum") };
///         let sum = Case::new(info, |n| {
///             let mut total = 0;
///             for i in 0..n {
///                 let span = T::span(|| tracing::info_span!("add"));
///                 T::within(&span, || total += std::hint::black_box(i));
///             }
///             if total != n * n.saturating_sub(1) / 2 {
///                 return Err(format!("the sum up to {n} is {total}"));
///             }
///             Ok(Done { messages: 2 * n, ..Done::new() }.count("additions", n))
///         });
///         vec![sum]
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

    /// Makes the cases, in the order of the tables. For every `T`, the cases must be the same, apart from their
    /// instrumentation.
    fn cases<T: Tracing>() -> Vec<Case>;

    /// Returns the modes: by default the six modes of [`Mode::all`].
    fn modes() -> Vec<Mode> {
        Mode::all()
    }

    /// Starts the resources that the processes of all modes share, such as a server in its own process. The returned
    /// fixture is made before these processes start, and is dropped after they have ended.
    ///
    /// # Errors
    ///
    /// Returns an error, which ends the bench, if a resource, such as the server, can't be started.
    fn fixture() -> io::Result<Fixture> {
        Ok(Fixture::default())
    }

    /// Checks the code of the bench itself. This function is called only if the bench runs as a test, directly before
    /// [`profile`](Self::profile).
    ///
    /// # Errors
    ///
    /// Returns a description of the check that failed, which ends the bench.
    fn prove() -> Result<(), Wrong> {
        Ok(())
    }

    /// Measures properties other than time, such as the states of threads. The measurement runs in the bench's own
    /// process after all rounds, while the [fixture](Self::fixture) exists, and stores its results [in the
    /// rows](Results::gauge).
    ///
    /// # Errors
    ///
    /// Returns an error, which ends the bench, if the measurement fails.
    fn profile(_: &mut Results, _: &Args) -> io::Result<()> {
        Ok(())
    }

    /// Measures cases with Criterion. This function is called after [`profile`](Self::profile).
    ///
    /// # Errors
    ///
    /// Returns an error, which ends the bench, if the measurement fails.
    fn criterion(_: &Args) -> io::Result<()> {
        Ok(())
    }

    /// Returns the functions that name the rows, and whether raw writes (writes of the same messages without this
    /// library) are timed.
    fn names() -> Names {
        Names::default()
    }

    /// Whether the process of a mode has only one thread when it begins to measure. If false, the process starts a
    /// second thread, which sleeps.
    const BEGINS_ALONE: bool = false;

    /// Returns how many seconds a full run measures.
    fn seconds() -> u64 {
        45
    }

    /// Makes the tables that the bench prints. A row may be missing in the results because the filters on the command
    /// line exclude its case.
    fn tables(results: &Results) -> Vec<Table> {
        of_workload(Self::NAME, results.rows()).into()
    }

    /// Judges the promises about this workload. The promises about all workloads are judged in addition.
    fn bars(_: &Results) -> Vec<Judged> {
        Vec::new()
    }
}

/// State that exists while the modes are measured, and environment variables for the processes of the modes, for
/// example with the address of a server.
#[derive(Default)]
pub struct Fixture {
    env: Vec<(OsString, OsString)>,
    _kept: Option<Box<dyn Any>>,
}

impl Fixture {
    /// Makes a fixture that keeps a value alive until the processes of the modes have ended.
    pub fn of(kept: impl Any) -> Self {
        Self { env: Vec::new(), _kept: Some(Box::new(kept)) }
    }

    /// Sets the size of the memory that each process shares with Perfetto's service. The memory must have room for the
    /// events of a measurement, because the service learns of written chunks only every 4 ms.
    pub fn with_room(self, mib: u32) -> Self {
        self.with_env("ATRACE_SHMEM_KB", (mib << 10).to_string())
    }

    /// Sets an environment variable for the processes of the modes.
    pub fn with_env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    fn env(&self) -> impl Iterator<Item = (&OsString, &OsString)> {
        self.env.iter().map(|(name, value)| (name, value))
    }
}

/// Runs a workload as a bench: parses the command line, measures, prints the tables, and writes the rows (results) to a
/// file.
pub fn run<W: Workload>() -> ExitCode {
    supervise::run(|session| match bench::<W>(&session) {
        Ok(code) => code,
        Err(reason) => fail(1, reason),
    })
}

/// If this process was started to measure in a mode, measures until the bench closes its stdin, and then returns true.
/// Otherwise returns false.
///
/// # Errors
///
/// Returns the system's error.
pub fn take_part<W: Workload>(session: &Session) -> io::Result<bool> {
    let name = session.args.mode.as_deref();
    let Some(mode) = W::modes().into_iter().find(|mode| name == Some(mode.name)) else { return Ok(false) };
    worker::work::<W>(session, mode)?;
    Ok(true)
}

/// Measures the cases that the command line selects. This function is for a workload that is a part of another bench:
/// it prints no tables and writes no files.
///
/// # Errors
///
/// Returns the system's error, or the error of a case.
pub fn measure<W: Workload>(session: &Session) -> io::Result<Results> {
    let mut results = selected::<W>(session);
    if !results.groups().is_empty() {
        measure_selected::<W>(session, &mut results, |_| Ok(()))?;
    }
    Ok(results)
}

/// Returns results without measurements, in which the cases to run are selected: all cases for `--list`, otherwise the
/// cases that the command line selects.
fn selected<W: Workload>(session: &Session) -> Results {
    let mut results = Results::new(W::modes(), W::cases::<Bare>(), session.sink(), W::names());
    if !session.args.list {
        // A filter may also be the name of a case in Criterion's output.
        let selects = |id: &str| session.args.selects(id) || session.args.selects(&Id::of(id).in_criterion());
        results.select(selects, |case| session.args.selects_a_part_of(case));
    }
    results
}

/// Measures the selected cases. Then calls `look` with the results, while the [`Fixture`] still exists.
fn measure_selected<W: Workload>(
    session: &Session,
    results: &mut Results,
    look: impl FnOnce(&mut Results) -> io::Result<()>,
) -> io::Result<turns::Extent> {
    let fixture = W::fixture()?;
    let extent = turns::measure::<W>(&Plan::of(&session.args, W::seconds()), &fixture, results)?;
    look(results)?;
    drop(fixture);
    results.finish();
    Ok(extent)
}

fn bench<W: Workload>(session: &Session) -> io::Result<ExitCode> {
    let args = &session.args;
    if take_part::<W>(session)? {
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(name) = &args.mode {
        return Err(io::Error::other(format!("there is no mode {name}")));
    }
    let mut results = selected::<W>(session);
    if args.list {
        results.ids().iter().for_each(|id| say(format_args!("{id}: benchmark")));
        return Ok(ExitCode::SUCCESS);
    }
    if results.groups().is_empty() {
        say("no case has an id with that in it; --list shows them");
        return Ok(ExitCode::SUCCESS);
    }
    let started = Instant::now();
    let output = Output::begin(W::NAME, args)?;
    let turns::Extent { generations, rounds, turns } =
        measure_selected::<W>(session, &mut results, |results| {
            output.aside(|| {
                if args.test {
                    W::prove().map_err(io::Error::other)?;
                }
                W::profile(results, args)
            })?;
            output.criterion(|| W::criterion(args))
        })?;
    if args.test
        && results.cases.iter().all(|case| case.selected)
        && let Some(missing) = bars::unanswered::<W>(&results)
    {
        return Err(io::Error::other(missing));
    }

    let (processes, seconds) = (results.modes.len(), started.elapsed().as_secs_f64());
    // The tables are also made if the bench runs as a test, so that the test finds tables with missing cells.
    let tables = W::tables(&results);
    if let Some(hole) = tables.iter().find_map(Table::hole) {
        return Err(io::Error::other(hole));
    }
    let tables = tables.iter().filter(|table| !table.rows.is_empty());
    let tables: Vec<String> = tables.map(Table::to_string).collect();
    let text = match args.test {
        true => format!("each ran once in each of {processes} modes, nothing was measured, {seconds:.1} s"),
        false => format!(
            "{rounds} rounds and {turns} turns of twins in {generations} generations of {processes} processes, \
             {seconds:.1} s; a reading of the timer takes {} ns\nsink: {}; switched by the properties, verified by {}\
             \n\n{tables}",
            timer_floor().as_nanos(),
            atrace::sink(),
            session.verified_by(),
            tables = tables.join("\n")
        ),
    };
    say(format!("\n{}: {text}", W::NAME).trim_end_matches('\n'));
    let mut judged = bars::common(&results);
    judged.extend(W::bars(&results));
    // If the bench runs as a test, it measures no times, so only promises about exact counts are judged.
    judged.retain(|judged| judged.exact || !args.test);
    output.end(results.rows(), &judged)?;
    if judged.iter().any(Judged::fails) {
        return Ok(fail(1, "a promise that is an exact count is broken"));
    }
    Ok(if args.test { ExitCode::SUCCESS } else { harness::exit_code(results.rows()) })
}

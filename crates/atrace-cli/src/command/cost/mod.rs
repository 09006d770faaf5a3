//! `atrace cost`: measures what tracing costs a program.
//!
//! The program runs in pairs: once with tracing off and once with tracing on. The order of each pair is random. The
//! interval of the difference is computed from the ratio of the two times of each pair (`atrace_paired::looks`). A
//! service is not started again for each run; instead, tracing is switched while the service works (`service`).
//!
//! # Both runs are prepared alike
//!
//! For a run with tracing off, the command also starts a session, which the program does not find, so that the same
//! work precedes both kinds of runs. In both kinds of runs, the program has a property store in which tracing is off,
//! even if tracing is on in the user's own store. The first run of each kind is not counted.
//!
//! # Runs without a result
//!
//! If a program fails, ends with another status when it is traced, or writes no event, the command prints an error and
//! no result.
//!
//! # Modules
//!
//! - `program`: one run of the program, and the resources that the run used; `session`: a session whose file is
//!   discarded;
//! - `service`: measures programs that run until they are stopped; `speed`: measures the speed of the processors while
//!   such a program runs;
//! - `verdict`: the result in words; `report`: the output of the results.

mod program;
mod report;
mod service;
mod session;
mod speed;
mod verdict;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use atrace_bill::Bill;
use atrace_paired::looks::{PAIRS_MIN, Timed};
use fastrand::Rng;
use serde_json::Value;

use self::program::{Run, Variables};
use self::report::{Names, Shown, Sides};
use self::session::Sessions;
use self::verdict::Verdict;
use crate::command::caller::Caller;
use crate::command::file::chance;
use crate::command::program::{FAILED, Signals};
use crate::command::record::duration;
use crate::command::terminal::{Failure, Result, failed, print, say};
use crate::escape::shown;
use crate::service::Report;

#[derive(clap::Args, Debug)]
pub(crate) struct CostArgs {
    /// How long to measure, and the longest time of a run, such as 60s or 5m. The program runs at least four times, even if
    /// that takes longer
    #[arg(short, long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    time: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also print what each callsite costs, from one more run: for programs that use atrace-subscriber
    #[arg(long, conflicts_with_all = ["switch", "off"])]
    bill: bool,
    /// Only print the bill of a program that has ended, whose environment had ATRACE_BILL=PATH
    #[arg(long, value_name = "PATH", conflicts_with_all = ["switch", "off", "bill", "command"])]
    bill_of: Option<PathBuf>,
    /// For a service, which does not end: switch tracing while it works
    #[arg(long, requires = "unit", conflicts_with = "off")]
    switch: bool,
    /// The count of the service's work: a shell command that prints a growing number, or the word lines, which counts
    /// the lines that the service prints
    #[arg(long, value_name = "COMMAND", requires = "switch")]
    unit: Option<String>,
    /// The shortest time for which tracing stays on or off, with --switch
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = duration, hide = true)]
    slice: Duration,
    /// Compare two shell commands instead, without tracing them: the first command
    #[arg(long, value_name = "COMMAND", requires = "on", conflicts_with = "command")]
    off: Option<OsString>,
    /// The second of the two shell commands that are compared
    #[arg(long, value_name = "COMMAND", requires = "off")]
    on: Option<OsString>,
    /// The program and its arguments; after `--`, if its name begins with a hyphen
    #[arg(
        trailing_var_arg = true,
        value_name = "CMD",
        required_unless_present_any = ["off", "bill_of"]
    )]
    command: Vec<OsString>,
}

/// Measures the cost and prints the results. The exit status is [`FAILED`] if this command itself fails.
pub(crate) fn main(args: &CostArgs) -> Result<u8> {
    measure(args).map_err(|e| if e.status == 1 { e.with_status(FAILED) } else { e })
}

fn measure(args: &CostArgs) -> Result<u8> {
    if let Some(path) = &args.bill_of {
        print_bill(args, &read_bill(path)?);
        return Ok(0);
    }
    if Caller::behind_sudo()?.is_some() {
        return Err(Failure::new("this needs no special rights: run it without sudo, as the program's user"));
    }
    let signals = Signals::catch(None)?;
    let mut pairs = match (&args.off, &args.on) {
        (Some(off), Some(on)) => {
            let programs = [off, on].map(|line| vec!["sh".into(), "-c".into(), line.clone()]);
            Pairs::new(programs, None, ("the second command", ["first", "second"]))
        }
        _ if args.switch => {
            show(args, &service::measure(args, &signals)?, None);
            return Ok(0);
        }
        _ => {
            let programs = [args.command.clone(), args.command.clone()];
            Pairs::new(programs, Some(Sessions::make()?), ("tracing", ["off", "on"]))
        }
    };
    let shown = pairs.measure(args.time, &signals)?;
    let bill = if args.bill { Some(pairs.bill(args.time, &signals)?) } else { None };
    show(args, &shown, bill);
    Ok(0)
}

fn show(args: &CostArgs, shown: &Shown, bill: Option<Bill>) {
    if args.json {
        let mut all = shown.json();
        all.extend(bill.map(|bill| ("bill".to_owned(), bill_json(&bill))));
        print(&Value::Object(all).to_string());
        return;
    }
    shown.print();
    if let Some(bill) = bill {
        print("");
        print_bill(args, &bill);
        shown.explained(&bill_json(&bill)).inspect(|text| print(text));
    }
}

fn print_bill(args: &CostArgs, bill: &Bill) {
    match args.json {
        true => print(&bill_json(bill).to_string()),
        false => bill.to_string().lines().for_each(|line| print(&shown(line).to_string())),
    }
}

fn bill_json(bill: &Bill) -> Value {
    serde_json::from_str(&bill.to_json()).unwrap_or_default()
}

/// Reads the bill that a program has written to the file `path`. A bill lists what each callsite costs.
fn read_bill(path: &Path) -> Result<Bill> {
    let bytes = std::fs::read(path).map_err(failed(
        "the program wrote no bill: it installs neither AtraceSubscriber nor AtraceLayer of atrace-subscriber, or was killed before \
         it ended",
    ))?;
    let text =
        "this is no bill, or that of a program whose atrace-subscriber has another version than this command";
    Bill::read(&bytes).ok_or_else(|| Failure::new(text))
}

/// The begin and the end of the error's text if a run takes too long (see `program::run`).
const LATE: [&str; 2] =
    ["the program", ": give it more --time; for a service, which does not end, use --switch with --unit"];

/// A comparison of two kinds of runs (the two *sides*), with the results of the runs of each side.
struct Pairs {
    /// The command lines of the two sides. They differ if two commands are compared.
    programs: [Vec<OsString>; 2],
    /// The sessions, or `None` if two commands are compared.
    sessions: Option<Sessions>,
    runs: Sides<Run>,
    reports: Vec<Report>,
    names: Names,
}

impl Pairs {
    fn new(programs: [Vec<OsString>; 2], sessions: Option<Sessions>, names: Names) -> Self {
        Self { programs, sessions, runs: Sides::default(), reports: Vec::new(), names }
    }

    /// Makes one run of the program of the side `side`. `more` are additional environment variables.
    fn run(
        &self,
        side: usize,
        more: &Variables,
        limit: Duration,
        signals: &Signals,
    ) -> Result<(Run, Option<Report>)> {
        let Some(sessions) = &self.sessions else {
            return Ok((program::run(&self.programs[side], more, signals, limit, LATE)?, None));
        };
        let session = sessions.start()?;
        let mut variables = if side == 1 { session.on.clone() } else { sessions.off() };
        variables.extend(more.iter().cloned());
        let run = program::run(&self.programs[side], &variables, signals, limit, LATE);
        let report = session.service.finish();
        Ok((run?, (side == 1).then_some(report)))
    }

    /// Makes one run of each side (tracing off and on, or the two commands). The results of these runs are not counted.
    /// Returns an error if they show that the program can't be measured.
    fn try_out(&self, limit: Duration, signals: &Signals) -> Result {
        let (off, _) = self.run(0, &Vec::new(), limit, signals)?;
        tell_errors(&off);
        self.check(0, &off, None)?;
        let (on, report) = self.run(1, &Vec::new(), limit, signals)?;
        if off.errors != on.errors {
            tell_errors(&on);
        }
        self.check(1, &on, report.as_ref())
    }

    /// Returns an error if a run shows that the program can't be measured. `side` is the index of the run's side: 0 for
    /// tracing off or the first command, 1 for tracing on or the second. Call this for a run of the first side before a
    /// run of the second side.
    fn check(&self, side: usize, run: &Run, report: Option<&Report>) -> Result {
        let end = end(run.status);
        if !run.status.success() && side == 0 {
            let text = "a run that fails is not measured; if this exit status is intended, sh -c 'CMD || true' hides it";
            let (_, [name, _]) = self.names;
            return Err(Failure::new(format!("the program fails ({name}): {end}: {text}")));
        }
        if !run.status.success() {
            return Err(Failure::new(match self.sessions {
                Some(_) => format!(
                    "the program ends differently when it is traced: {end}; with tracing off, exit status 0: what it costs \
                     can't be compared"
                ),
                None => format!("the second command fails: {end}: a run that fails is not measured"),
            }));
        }
        let is_silent = |report: &Report| report.counts.events == 0 && report.counts.lost == 0;
        if report.is_some_and(is_silent) {
            let text = "the program wrote no event while it was traced, so there is nothing to measure: it uses neither this library \
                 nor Perfetto's SDK, reaches no call of them in this run, or starts its work with another environment. Add atrace or \
                 atrace-subscriber to it, and see `atrace run -- CMD`; two programs of any kind are compared by --off and --on";
            return Err(Failure::new(text));
        }
        Ok(())
    }

    /// Runs pairs until the results for wall time and processor time are precise enough, or the time is over.
    fn measure(&mut self, time: Duration, signals: &Signals) -> Result<Shown> {
        let start = Instant::now();
        self.try_out(time, signals)?;
        let (mut timed, mut random) = (Timed::new(start, time), Rng::with_seed(chance()));
        let (mut walls, mut processors) = (Vec::new(), Vec::new());
        let (found, seconds) = loop {
            let begun = Instant::now();
            let first = usize::from(random.bool());
            let mut pair = [None, None];
            for side in [first, 1 - first] {
                let (run, report) = self.run(side, &Vec::new(), time, signals)?;
                self.check(side, &run, report.as_ref()).inspect_err(|_| tell_errors(&run))?;
                self.reports.extend(report);
                pair[side] = Some(run);
            }
            let [Some(off), Some(on)] = pair else { continue };
            walls.push((on.wall_ns / off.wall_ns).ln());
            let [used_off, used_on] = [&off, &on].map(|run| run.usage.processor_ns.max(1) as f64);
            processors.push((used_on / used_off).ln());
            self.runs.0[0].push(off);
            self.runs.0[1].push(on);
            if let Some(ended) = timed.ended(begun, &[&walls, &processors], &[]) {
                break ended;
            }
        };
        let mut shown = Shown::new(self.names, walls.len(), PAIRS_MIN, seconds);
        let verdict = |at: usize| Verdict::of(found.get(at).copied().flatten());
        shown.runs(&self.runs, [verdict(0), verdict(1)]);
        if self.sessions.is_some() {
            shown.recorded(&self.reports, ["events", "bytes recorded", "events lost"]);
        }
        Ok(shown)
    }

    /// Runs the traced program once more, to measure what each callsite costs. Returns the bill.
    fn bill(&self, limit: Duration, signals: &Signals) -> Result<Bill> {
        let place = self.sessions.as_ref().map(|sessions| sessions.place("bill"));
        let path = place.ok_or_else(|| Failure::new("two commands have no bill"))?;
        let asks = vec![("ATRACE_BILL", Some(path.clone().into_os_string()))];
        let ran = self.run(1, &asks, limit, signals);
        let bill = read_bill(&path);
        let _ = std::fs::remove_file(&path);
        ran?;
        bill
    }
}

/// Describes how a program ended.
fn end(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    let killed = || format!("killed by signal {}", status.signal().unwrap_or_default());
    status.code().map_or_else(killed, |code| format!("exit status {code}"))
}

/// Prints the end of the text that a run has written to stderr.
fn tell_errors(run: &Run) {
    let text = String::from_utf8_lossy(&run.errors);
    text.lines().for_each(|line| say(format_args!("the program's stderr: {}", shown(line))));
}

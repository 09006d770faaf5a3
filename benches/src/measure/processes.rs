//! Compares what can't be in one process: a global dispatcher is set once, a thread that watches
//! changes what every system call costs.
//!
//! The bench runs itself as alternating processes. Each is told by its argument `--mode` what to
//! be, measures its cases, and [reports](report) its rows on stdout. A round runs every mode once,
//! in an order that changes, and its samples are the medians that they reported. So the ratios
//! between modes are paired like those between slices, only with far fewer rounds.
//!
//! In the bench, inside [`crate::harness::supervise::run`]:
//!
//! ```no_run
//! # use std::process::ExitCode;
//! # use atrace_benches::{harness::supervise::Session, measure::{paired::{Config, Paired}, processes::{self, Alternating}}, row};
//! fn main_child(session: Session) -> ExitCode {
//!     if let Some(mode) = &session.args().mode {
//!         let mut paired = Paired::new(Config::of(session.args()));
//!         paired.case(format!("rust/{mode}_event"), |n| { /* … */ });
//!         processes::report(&paired.run().rows(session.sink()));
//!         return ExitCode::SUCCESS;
//!     }
//!     let mut all = Alternating::new(12);
//!     all.mode("on").mode("off").compare("rust/on_event", "rust/off_event");
//!     let rows = all.run().expect("every process reports");
//!     atrace_benches::harness::exit_code(&rows)
//! }
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use crate::harness::progress;
use crate::harness::supervise::CHILD;
use crate::row::{Row, Versus};
use crate::stats::{self, Interval};

/// What a line of stdout begins with that carries rows.
const REPORT: &str = "atrace-benches rows: ";

/// Hands the rows of this process to the one that started it.
///
/// # Panics
///
/// When that is gone.
pub fn report(rows: &[Row]) {
    let json = serde_json::to_string(rows).expect("rows are always JSON");
    writeln!(io::stdout(), "{REPORT}{json}").expect("nobody takes the report");
}

/// Lets a process that is started here take part in this one's session: it uses the same sink and is not supervised anew.
pub fn adopt(command: &mut Command) -> &mut Command {
    command.env(CHILD, std::process::id().to_string())
}

/// Processes that take turns, and which of their rows to compare.
#[derive(Clone, Debug)]
pub struct Alternating {
    rounds: usize,
    modes: Vec<String>,
    comparisons: Vec<(String, String)>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
}

impl Alternating {
    /// Takes this many rounds. Fewer than six make no interval: every row will be noisy.
    #[must_use]
    pub fn new(rounds: usize) -> Self {
        let args = std::env::args_os().skip(1).collect();
        Self { rounds: rounds.max(1), modes: Vec::new(), comparisons: Vec::new(), args, env: Vec::new() }
    }

    /// Adds a process to each round.
    pub fn mode(&mut self, mode: impl Into<String>) -> &mut Self {
        self.modes.push(mode.into());
        self
    }

    /// Asks for the ratio of the row `id` to the row `base` of another mode, for `vs_process`.
    pub fn compare(&mut self, id: impl Into<String>, base: impl Into<String>) -> &mut Self {
        self.comparisons.push((id.into(), base.into()));
        self
    }

    /// Gives the processes these arguments instead of this process' own.
    pub fn args<S: Into<OsString>>(&mut self, args: impl IntoIterator<Item = S>) -> &mut Self {
        self.args = args.into_iter().map(Into::into).collect();
        self
    }

    /// Gives the processes this environment variable beside this process' own.
    pub fn env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> &mut Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Runs all rounds and returns one row for each that was reported.
    ///
    /// Its numbers are over the rounds; its allocations are the most that any round reported; a
    /// ratio within a process (`vs`) is the median of what each reported.
    ///
    /// # Errors
    ///
    /// When a process fails or reports what no round before it did, or the reverse, saying which.
    pub fn run(&self) -> io::Result<Vec<Row>> {
        let mut rounds: Vec<BTreeMap<String, Row>> = Vec::new();
        let mut order = self.modes.clone();
        let mut ids: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let mut random = fastrand::Rng::with_seed(0xA7ACE);
        for _ in 0..self.rounds {
            random.shuffle(&mut order);
            let mut round = BTreeMap::new();
            for mode in &order {
                progress::step(mode);
                let rows = self.once(mode)?;
                let reported: Vec<_> = rows.iter().map(|row| row.id.clone()).collect();
                let mode = self.modes.iter().find(|m| *m == mode).map_or("", |m| m);
                if *ids.entry(mode).or_insert_with(|| reported.clone()) != reported {
                    return Err(error(mode, &format!("now reports {reported:?}")));
                }
                for row in rows {
                    if let Some(twice) = round.insert(row.id.clone(), row) {
                        return Err(error(mode, &format!("is the second to report {}", twice.id)));
                    }
                }
            }
            rounds.push(round);
        }
        // In the order of the modes, and in a mode as it reported.
        let ids = self.modes.iter().filter_map(|mode| ids.get(&mode[..])).flatten();
        Ok(ids.filter_map(|id| self.combine(id, &rounds)).collect())
    }

    /// Runs the process of one mode and returns the rows that it reported, as they are.
    ///
    /// # Errors
    ///
    /// When it fails or reports nothing, saying so.
    pub fn once(&self, mode: &str) -> io::Result<Vec<Row>> {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["--mode", mode])
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(CHILD, std::process::id().to_string());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let mut rows = None;
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).split(b'\n') {
                let line = line?;
                if let Some(json) = line.strip_prefix(REPORT.as_bytes()) {
                    rows = Some(serde_json::from_slice(json).map_err(|e| error(mode, &e.to_string())));
                } else {
                    let mut out = io::stdout();
                    let _ = out.write_all(&line).and_then(|()| out.write_all(b"\n"));
                }
            }
        }
        let status = child.wait()?;
        if !status.success() {
            return Err(error(mode, &format!("ended with {status}")));
        }
        rows.unwrap_or_else(|| Err(error(mode, "reported nothing")))
    }

    /// Makes one row of what all rounds reported for `id`.
    fn combine(&self, id: &str, rounds: &[BTreeMap<String, Row>]) -> Option<Row> {
        let samples =
            |id: &str| rounds.iter().map(|round| Some(round.get(id)?.median)).collect::<Option<Vec<_>>>();
        let of = || rounds.iter().filter_map(|round| round.get(id));
        let ns = samples(id)?;
        let first = of().next()?;
        let mut row = Row::new(id, Interval::of(&ns)?, first.sink).with_rounds(&ns);
        row.unit.clone_from(&first.unit);
        row.allocs = of().filter_map(|row| row.allocs).reduce(f64::max);
        row.bytes = of().filter_map(|row| row.bytes).reduce(f64::max);
        for base in first.vs.keys() {
            let ratios: Vec<_> = of().filter_map(|row| Some(row.vs.get(base)?.ratio)).collect();
            if let Some(ratio) = Interval::of(&ratios) {
                row.vs.insert(base.clone(), Versus::from(ratio));
            }
        }
        for (_, base) in self.comparisons.iter().filter(|(i, _)| i == id) {
            if let Some(ratio) = samples(base).and_then(|base| stats::ratio(&ns, &base)) {
                row.vs_process.insert(base.clone(), Versus::from(ratio));
            }
        }
        Some(row)
    }
}

fn error(mode: &str, what: &str) -> io::Error {
    io::Error::other(format!("the process of mode {mode:?} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sink;

    #[test]
    fn rounds_are_combined() {
        let rounds: Vec<_> = (1..=9)
            .map(|i| {
                let drift = f64::from(i);
                let row = |id: &str, ns: f64| {
                    let ns = Interval { median: ns * drift, low: 0.0, high: 0.0, sure: true };
                    let mut row = Row::new(id, ns, Sink::Null);
                    row.allocs = Some(f64::from(i % 2));
                    row.vs.insert("limit/x".into(), Versus { ratio: 2.0, low: 0.0, high: 9.0 });
                    (id.to_owned(), row)
                };
                BTreeMap::from([row("a", 3.0), row("b", 4.0)])
            })
            .collect();
        let mut all = Alternating::new(9);
        all.mode("x").compare("a", "b");
        let a = all.combine("a", &rounds).unwrap();
        assert_eq!((a.median, a.allocs, a.vs["limit/x"].ratio), (15.0, Some(1.0), 2.0));
        let exactly = |r: f64| Versus { ratio: r, low: r, high: r };
        assert_eq!(a.vs_process["b"], exactly(0.75));
        assert!(a.noisy);
        assert!(all.combine("b", &rounds).unwrap().vs_process.is_empty());
        assert!(all.combine("c", &rounds).is_none());
    }
}

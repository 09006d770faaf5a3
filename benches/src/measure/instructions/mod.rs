//! Counts instructions, and holds them against bounds.
//!
//! A time says what an event costs on a machine; a count of instructions says whether the code has changed, on the
//! busiest machine, to the instruction. `instructions` runs the bench of that name under callgrind, a process a
//! case, and writes `target/overhead/instructions.json` for the report. With `--check` it counts what has bounds alone, and
//! fails where an operation takes over 3 % more than `benches/bounds.toml` says.
//!
//! What is counted is the program's own instructions, of an average operation out of [`OPERATIONS`], with the loop
//! around it; what the kernel does in a system call is not. Messages go to a file, so neither root nor tracefs is
//! needed.
//!
//! # Why two runs give the same
//!
//! - The bounds name the compiler they were made with, and are only held against its code.
//! - The C library chooses how it copies by the processor; `GLIBC_TUNABLES` has it choose alike. `atrace` itself
//!   has a way of copying for AVX2 and one without; the counts are of the former, so that a processor without
//!   (older than 2013) is refused.
//! - What goes Perfetto's way is recorded by the process itself, once the clock's anchor is there, on a processor whose counter
//!   may be used: where it may not, each event asks the system, and takes more. What is off by it is connected to a service without
//!   a session, which is a thread of the process.
//! - C++ prints the process' id with each message, and so costs by its digits. The processes are therefore
//!   started in a namespace of process ids where all have five, if the kernel allows that (root, or user
//!   namespaces); where not, the counts of C++ may be some instructions off. They have no bounds.
//! - Counts of C++ and of Rust through libcutils are also of the C++ compiler and library of the machine; those of
//!   C++ and of the limits are for the report, and have no bounds.

mod args;
mod bounds;
mod callgrind;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;

use self::args::Args;
use self::bounds::Bounds;
use crate::catalogue::{EVENTS, INSTRUCTIONS, Id, LITERALS, SUBSCRIBERS, State, TracingCase, Who};
use crate::harness::terminal::{fail, say};
use crate::row::environment;
use crate::row::{self, Row, Sink};
use crate::stats::Interval;

/// How many operations are counted at once.
pub const OPERATIONS: u64 = 1000;

/// Which functions of the bench a process of it is to count, by their names.
const ONLY: &str = "ATRACE_BENCHES_COUNTED";

/// By how much two counts of the same code may differ.
const SAME: f64 = 0.001;

/// Whose operations are counted; each is a function of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Events, by Rust.
    Rust,
    /// Events, by Rust through libcutils.
    Ffi,
    /// Events, by C++.
    Cc,
    /// Events, by Rust and Perfetto's way.
    Perfetto,
    /// The crate `tracing` with a subscriber.
    Tracing,
}

/// Returns the instructions of an operation by the ids of rows, if they were counted at this commit: of another they would
/// say nothing of what is timed now.
#[must_use]
pub fn of_this_commit() -> BTreeMap<String, f64> {
    let dir = row::dir();
    let counted_at = environment::read_from(&dir, INSTRUCTIONS).map(|environment| environment.commit);
    let rows = match counted_at {
        Some(commit) if !commit.is_empty() && commit == environment::commit() => {
            row::read(&dir.join(format!("{INSTRUCTIONS}.json"))).unwrap_or_default()
        }
        _ => Vec::new(),
    };
    rows.into_iter().map(|row| (row.id, row.median)).collect()
}

impl Counted {
    const ALL: [Self; 5] = [Self::Rust, Self::Ffi, Self::Cc, Self::Perfetto, Self::Tracing];
    /// Those that have bounds.
    const BOUNDED: [Self; 3] = [Self::Rust, Self::Perfetto, Self::Tracing];

    /// The name of the function of the bench.
    fn function(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Ffi => "ffi",
            Self::Cc => "cc",
            Self::Perfetto => "perfetto",
            Self::Tracing => "tracing_with",
        }
    }

    /// Returns what [`ids`](Self::ids) does in a process that is to count them, and nothing in another.
    #[must_use]
    pub fn ids_here(self) -> Vec<String> {
        let only = std::env::var(ONLY);
        let is_asked = only.is_ok_and(|only| only.split(',').any(|name| name == self.function()));
        if is_asked { self.ids() } else { Vec::new() }
    }

    /// Returns the ids of all that is counted, in the order of the bench.
    #[must_use]
    pub fn ids(self) -> Vec<String> {
        let who = match self {
            Self::Rust => Who::Rust,
            Self::Ffi => Who::Ffi,
            Self::Cc => Who::Cc,
            Self::Perfetto => {
                let all = EVENTS.iter().chain(&LITERALS);
                return all.map(|event| Id::event(Who::Perfetto, State::On, event).to_string()).collect();
            }
            Self::Tracing => {
                let counted = SUBSCRIBERS.iter().filter(|subscriber| subscriber.counted);
                let each = counted
                    .flat_map(|subscriber| TracingCase::ALL.map(|case| subscriber.id(case).to_string()));
                return each.collect();
            }
        };
        let events = || EVENTS.iter().filter(|event| event.cc.is_some() || who != Who::Cc);
        let of = |state| events().map(move |event| (state, event));
        State::ALL
            .into_iter()
            .flat_map(of)
            .map(|(state, event)| Id::event(who.clone(), state, event).to_string())
            .collect()
    }
}

/// Runs `instructions` with this process' command line.
#[must_use]
pub fn main() -> ExitCode {
    run(&Args::parse()).unwrap_or_else(|e| fail(2, e))
}

fn run(args: &Args) -> Result<ExitCode, String> {
    environment::start();
    let rustc = environment::Environment::here().rustc;
    let path = args.bounds.clone().unwrap_or_else(bounds_file);
    // What can't be checked is told before minutes are spent.
    let bounds = if args.check { Some(Bounds::read(&path)?.for_compiler(&rustc)?) } else { None };
    let counted = if args.check { &Counted::BOUNDED[..] } else { &Counted::ALL };
    let mut rows = match &args.from {
        Some(file) => row::read(file).map_err(|e| e.to_string())?,
        None => {
            let rows = count(counted)?;
            say(table(&rows));
            if !args.check {
                let written = row::write("instructions", &rows).map_err(|e| e.to_string())?;
                say(format_args!("rows: {}", written.display()));
            }
            rows
        }
    };
    let mut passes = true;
    if args.twice {
        let again = count(counted)?;
        // By Perfetto's way, how full the chunk is at the beginning says whether one more is taken: 2.5 % of the shortest event.
        let alike: Vec<_> = rows.iter().filter(|row| Id::of(&row.id).who != Who::Perfetto).cloned().collect();
        let (most, of) = difference(&alike, &again);
        say(format_args!("a second run differs by at most {:.3} % ({of})", most * 100.0));
        passes &= most <= SAME;
    }
    if args.update {
        let new = Bounds::of(&rustc, &rows);
        new.write(&path)?;
        say(format_args!("{} bounds: {}", new.instructions.len(), path.display()));
    }
    if let Some(bounds) = bounds {
        let mut verdict = bounds.check(&rows);
        // By Perfetto's way, how full the chunk is at the beginning depends on time.
        for _ in 0..2 {
            if verdict.passes() || args.from.is_some() {
                break;
            }
            say(format_args!("{verdict}\ncounted again, for the fewest"));
            rows = fewest(rows, &count(counted)?);
            verdict = bounds.check(&rows);
        }
        say(&verdict);
        passes &= verdict.passes();
    }
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn bounds_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("bounds.toml")
}

/// Counts every case of these once.
fn count(counted: &[Counted]) -> Result<Vec<Row>, String> {
    let counts = callgrind::count(counted)?;
    let mut rows = Vec::new();
    for who in counted {
        for (index, id) in who.ids().into_iter().enumerate() {
            let total = counts.get(&(who.function().to_owned(), index));
            let total = total.ok_or_else(|| format!("{id} was not counted"))?;
            #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 instructions")]
            let each = *total as f64 / OPERATIONS as f64;
            let mut row = Row::new(id, Interval::around(each, 0.0), Sink::File);
            row.unit = "instructions".to_owned();
            rows.push(row);
        }
    }
    Ok(rows)
}

/// The lower of each two counts.
fn fewest(mut rows: Vec<Row>, again: &[Row]) -> Vec<Row> {
    for row in &mut rows {
        let other = again.iter().find(|other| other.id == row.id);
        if let Some(other) = other.filter(|other| other.median < row.median) {
            *row = other.clone();
        }
    }
    rows
}

/// The largest difference of two counts, as a part, and whose it is.
fn difference(a: &[Row], b: &[Row]) -> (f64, String) {
    let each = a.iter().map(|a| {
        let b = b.iter().find(|b| b.id == a.id).map_or(f64::INFINITY, |b| b.median);
        ((a.median - b).abs() / a.median.max(1.0), a.id.clone())
    });
    each.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, String::new()))
}

/// What a person sees: the events with their three ways, then the subscribers with their four cases.
fn table(rows: &[Row]) -> String {
    use std::fmt::Write as _;
    let of = |id: &Id| {
        let id = id.to_string();
        rows.iter()
            .find(|row| row.id == id)
            .map_or_else(|| "-".to_owned(), |row| format!("{:.1}", row.median))
    };
    let mut text = format!(
        "{:36} {:>9} {:>9} {:>9} {:>9}\n",
        "instructions of one operation", "Rust", "ffi", "C++", "Perfetto"
    );
    for state in State::ALL {
        let literals = LITERALS.iter().filter(|_| state == State::On);
        for event in EVENTS.iter().chain(literals) {
            let each =
                [Who::Rust, Who::Ffi, Who::Cc, Who::Perfetto].map(|who| of(&Id::event(who, state, event)));
            let name = Id::event(Who::Rust, state, event).name();
            let _ = writeln!(text, "{name:36} {:>9} {:>9} {:>9} {:>9}", each[0], each[1], each[2], each[3]);
        }
    }
    let _ = writeln!(text, "\n{:36} {:>9} {:>9} {:>9} {:>9}", "", "event", "4 fields", "span", "4 fields");
    for subscriber in SUBSCRIBERS.iter().filter(|subscriber| subscriber.counted) {
        let each = TracingCase::ALL.map(|case| of(&subscriber.id(case)));
        let who = subscriber.id(TracingCase::Event).who;
        let kind = format!("{who}/{}", subscriber.kind);
        let _ = writeln!(text, "{kind:36} {:>9} {:>9} {:>9} {:>9}", each[0], each[1], each[2], each[3]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{BENCHES, INSTRUCTIONS};

    #[test]
    fn ids_are_those_of_the_other_benches() {
        assert_eq!(Counted::Rust.ids().len(), 28);
        assert_eq!(Counted::Cc.ids().len(), 24);
        assert_eq!(Counted::Tracing.ids().len(), 60);
        assert_eq!(Counted::Perfetto.ids().len(), 18);
        assert_eq!(Counted::Ffi.ids()[14], "ffi/tracing_on_begin/10");
        let all: Vec<String> = Counted::ALL.into_iter().flat_map(Counted::ids).collect();
        let bench = BENCHES.iter().find(|bench| bench.name == INSTRUCTIONS).unwrap();
        for id in bench.rows() {
            assert!(all.contains(&id.to_string()), "{id}");
        }
    }

    #[test]
    fn the_largest_difference_is_found() {
        let row = |id: &str, n: f64| Row::new(id, Interval::around(n, 0.0), Sink::File);
        let (a, b) = ([row("a", 100.0), row("b", 1000.0)], [row("a", 101.0), row("b", 1001.0)]);
        assert_eq!(difference(&a, &b), (0.01, "a".to_owned()));
        assert_eq!(difference(&a, &a).0, 0.0);
        assert_eq!(difference(&a, &a[..1]), (f64::INFINITY, "b".to_owned()));
        let c = [row("b", 999.0), row("a", 101.0)];
        let least: Vec<f64> = fewest(a.to_vec(), &c).iter().map(|row| row.median).collect();
        assert_eq!(least, [100.0, 999.0]);
    }
}

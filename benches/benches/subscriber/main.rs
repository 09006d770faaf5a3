//! What `tracing` costs with this workspace's subscriber, beside what it costs without one and beside the
//! writes themselves.
//!
//! The cases are those of AOSP's `libatrace_tracing_subscriber_benchmark`, under its names: an event and a
//! span, without and with four fields; tracing off, filtered and on. A process has one global subscriber, so
//! each kind of subscriber is a mode, and the modes are processes that take turns (`vs_process`); what is
//! compared with the raw writes is measured in their process. The rows are left in
//! `target/overhead/subscriber.json`.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use atrace::AtraceTag;
use atrace::control::{Control, Switched};
use atrace_benches::harness::output::Output;
use atrace_benches::harness::supervise::{self, Session};
use atrace_benches::instruments::alloc::{Counting, per_op};
use atrace_benches::measure::paired::{Config, Paired};
use atrace_benches::measure::processes::{self, Alternating};
use atrace_benches::promise::Judged;
use atrace_benches::row::Row;
use atrace_benches::table::of_rows;
use criterion::Criterion;

use atrace_benches::catalogue::{Case, Id, SUBSCRIBER, What, Who, promises};
use atrace_benches::subjects::cases::body;
use atrace_benches::subjects::modes::{self, Mode};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many operations allocations are counted over.
const COUNTED: u64 = 2_000;

fn main() -> ExitCode {
    supervise::run(|session| match bench(&session) {
        Ok(code) => code,
        Err(reason) => {
            let _ = writeln!(io::stderr(), "error: {reason}");
            ExitCode::FAILURE
        }
    })
}

fn bench(session: &Session) -> io::Result<ExitCode> {
    let modes = modes::all();
    if session.args().list {
        for mode in &modes {
            for case in Case::ALL {
                println!("{}: benchmark", mode.id(case));
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    match session.args().mode.as_deref() {
        Some(name) => {
            let name = name.to_owned();
            let mode = modes.into_iter().find(|mode| mode.name == name);
            let mode = mode.ok_or_else(|| io::Error::other(format!("there is no mode {name}")))?;
            one_mode(session, mode)
        }
        None => all_modes(session, &modes),
    }
}

/// Has the modes take turns, and compares what they report.
fn all_modes(session: &Session, modes: &[Mode]) -> io::Result<ExitCode> {
    let rounds = match session.args() {
        args if args.test => 1,
        args if args.quick => 6,
        _ => 36,
    };
    let mut alternating = Alternating::new(rounds);
    for mode in modes {
        alternating.mode(mode.name);
        for case in Case::ALL {
            for base in mode.compared_to {
                let base = modes.iter().find(|other| other.name == *base);
                let base = base.expect("modes are compared to modes");
                alternating.compare(mode.id(case).to_string(), base.id(case).to_string());
            }
        }
    }
    let output = Output::begin(SUBSCRIBER, session.args())?;
    println!("{} kinds of subscriber in {rounds} rounds of processes", modes.len());
    let rows = alternating.run()?;
    println!("\n{}", of_rows("subscriber", &rows));
    if !session.args().test {
        output.aside(|| criterion(session))?;
    }
    output.end(&rows, &Judged::of_rows(&promises::of_subscribers(), &rows))?;
    if session.args().test {
        return Ok(ExitCode::SUCCESS);
    }
    Ok(atrace_benches::harness::exit_code(&rows))
}

/// Measures one kind of subscriber in this process, and reports the rows or gives the cases to Criterion.
fn one_mode(session: &Session, mode: Mode) -> io::Result<ExitCode> {
    // On before the subscriber is made, so that what follows the switch is not still on its way.
    let control = Control::open().map_err(io::Error::other)?;
    let _on = match mode.on {
        true => Some(control.enable_this_process().map_err(io::Error::other)?),
        false => {
            control.enable_this_process().and_then(Switched::restore).map_err(io::Error::other)?;
            None
        }
    };
    if atrace::atrace_is_tag_enabled(AtraceTag::App) != mode.on {
        return Err(io::Error::other(format!("tracing should be on = {}; {}", mode.on, atrace::sink())));
    }
    (mode.install)();
    // What the subscriber sets up by itself, such as the callsites' interests, is set up now.
    for case in Case::ALL {
        mode.run(case, 1);
    }
    if std::env::var_os(CRITERION).is_some() {
        with_criterion(&mode);
        return Ok(ExitCode::SUCCESS);
    }
    let full = Config::of(session.args());
    let mut paired = Paired::new(Config {
        budget: full.budget.mul_f64(0.03),
        min_rounds: full.min_rounds.min(60),
        ..full
    });
    let mut counts = Vec::new();
    for case in Case::ALL {
        let id = mode.id(case).to_string();
        let expected = if mode.on { case.messages() } else { 0 };
        let messages = written(session, &id, || mode.run(case, 1), expected)?;
        counts.push((id.clone(), per_op(COUNTED, |n| mode.run(case, n))));
        paired.case(&id, move |n| mode.run(case, n));
        if let Some(messages) = messages
            && mode.on
            && let Some(marker) = session.marker()
        {
            let base = What::RawWriteOf(mode.name.to_owned(), case);
            let base = Id { who: Who::Limit, what: base }.to_string();
            let file = std::fs::OpenOptions::new().append(true).open(marker)?;
            paired.case(&base, move |n| {
                for _ in 0..n {
                    for message in &messages {
                        cc_bench::raw_write(std::os::fd::AsFd::as_fd(&file), message, 1);
                    }
                }
            });
            paired.compare(&id, &base);
        }
    }
    let rows = paired.run().rows(session.sink());
    let rows: Vec<Row> = rows
        .into_iter()
        .map(|row| {
            let count = counts.iter().find(|(id, _)| *id == row.id).and_then(|(_, count)| *count);
            row.with_allocs(count)
        })
        .collect();
    processes::report(&rows);
    Ok(ExitCode::SUCCESS)
}

/// Runs the case once and returns the messages that arrived; fails if they are not as many as expected.
fn written(
    session: &Session,
    id: &str,
    once: impl FnOnce(),
    expected: u64,
) -> io::Result<Option<Vec<Vec<u8>>>> {
    let got = session.wrote(once)?;
    if session.instance().is_none() {
        return Ok(None);
    }
    if got.is_some_and(|got| got != expected) {
        return Err(io::Error::other(format!("{id} was to write {expected} events, the kernel got {got:?}")));
    }
    session.messages()
}

/// Set for a process that is to run under Criterion.
const CRITERION: &str = "ATRACE_BENCH_CRITERION";

/// Runs the twelve cases of the original under Criterion, each kind of subscriber in its process.
fn criterion(session: &Session) -> io::Result<()> {
    for mode in ["off", "filtered", "on"] {
        let mut command = std::process::Command::new(std::env::current_exe()?);
        command.args(["--mode", mode, "--bench"]).env(CRITERION, "1");
        if session.args().quick {
            command.arg("--quick");
        }
        processes::adopt(&mut command);
        let status = command.status()?;
        if !status.success() {
            return Err(io::Error::other(format!("Criterion in mode {mode} ended with {status}")));
        }
    }
    Ok(())
}

fn with_criterion(mode: &Mode) {
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_millis(800))
        .sample_size(40)
        .without_plots();
    for case in Case::ALL {
        criterion.bench_function(&mode.id(case).in_criterion(), |bencher| {
            bencher.iter_custom(|n| {
                let start = Instant::now();
                body(case)(n);
                start.elapsed()
            });
        });
    }
}

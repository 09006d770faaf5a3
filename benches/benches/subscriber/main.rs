//! Measures what `tracing` costs with this workspace's subscriber. Compares the cost with that of a program without a
//! subscriber, and with that of raw writes (writes of the same messages without this library).
//!
//! The cases are those of AOSP's `libatrace_tracing_subscriber_benchmark`: an event and a span, without and with four
//! fields, with tracing off, off with a filter, and on. A process has one global subscriber, so each kind of subscriber
//! has a process of its own, and these processes measure alternately. The field `vs_process` of a row (result) has the
//! comparisons between processes. After each measurement with tracing on, the same messages are written as raw writes;
//! the field `vs` of a row has the comparisons with them. The rows are in `target/overhead/subscriber.json`.
//!
//! Then Criterion runs AOSP's twelve cases as AOSP does and under AOSP's names: with a layer over the registry, which
//! is the default of the measuring thread only. After these cases, Criterion runs them with the subscriber alone, as
//! the global default, under the names `alone_…`. So Criterion's `tracing_off_event` is the row `rust/layer_off_event`,
//! and the row `rust/tracing_off_event` is Criterion's `alone_tracing_off_event`.

use std::process::ExitCode;

use atrace_benches::catalogue::promises::{self, Promise};
use atrace_benches::catalogue::{self, Id, State, TracingCase};
use atrace_benches::harness::args::Args;
use atrace_benches::harness::{Session, child, supervise};
use atrace_benches::instruments::alloc::Counting;
use atrace_benches::instruments::clock::timed;
use atrace_benches::measure::instructions;
use atrace_benches::measure::workload::{
    self, Done, Fixture, Info, Mode, Names, Pace, RawWrites, Results, Tracing, Workload,
};
use atrace_benches::promise::Judged;
use atrace_benches::subjects::cases;
use atrace_benches::subjects::subscribers::{self, Subject};
use atrace_benches::table::{Table, of_rows};

use self::criterion_cases::{Cases, can_run};

#[path = "../common/criterion.rs"]
mod criterion_cases;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    match std::env::var(CRITERION) {
        Ok(mode) => supervise::run(|session| with_criterion(&session, &mode)),
        Err(_) => workload::run::<Subscribers>(),
    }
}

struct Subscribers;

impl Workload for Subscribers {
    const NAME: &'static str = catalogue::SUBSCRIBER;
    // A second thread makes system calls more expensive. So a process only has a second thread if its subscriber starts
    // one.
    const BEGINS_ALONE: bool = true;

    fn cases<T: Tracing>() -> Vec<workload::Case> {
        let case = |case: TracingCase| {
            let run = move |n| {
                cases::run(case, n);
                Ok(Done { messages: case.messages() * n, ..Done::new() })
            };
            workload::Case::new(Info { counted_over: 2000, ..Info::of(case.name()) }, run)
        };
        TracingCase::ALL.map(case).into()
    }

    fn fixture() -> std::io::Result<Fixture> {
        Ok(Fixture::default().with_room(4))
    }

    fn modes() -> Vec<Mode> {
        let mode = |subject: Subject| {
            let (on, exact) = (subject.of.state == State::On, subject.allocates_exactly());
            let of_perfetto = subject.of.mode.strip_prefix("perfetto_");
            Mode {
                bases: subject.of.compared_to,
                pace: Pace::Own,
                exact,
                writes: on && of_perfetto.is_none(),
                sessions: of_perfetto.map(|_| u32::from(on)),
                writes_of: of_perfetto.filter(|_| on),
                ..Mode::new(subject.of.mode, subject.install)
            }
        };
        subscribers::all().into_iter().map(mode).collect()
    }

    fn names() -> Names {
        let raw = |case: &str, mode: &str| Id::raw_write(format_args!("of_{mode}_{case}")).to_string();
        let inlined =
            |case: &str, mode: &str| Id::limit(&format!("inline_write_of_{mode}_{case}")).to_string();
        let row = |case: &str, mode: &str| row(case, mode).to_string();
        Names { row, raw, inlined, raw_writes: RawWrites::OfTheWhole }
    }

    fn seconds() -> u64 {
        60
    }

    fn tables(results: &Results) -> Vec<Table> {
        vec![of_rows(Self::NAME, results.rows())]
    }

    fn bars(results: &Results) -> Vec<Judged> {
        let mut all = Judged::of_rows(&promises::of("subscribers"), results.rows());
        all.extend(layers(results));
        all.extend(fields_by_perfetto(results));
        all
    }

    fn profile(results: &mut Results, _: &Args) -> std::io::Result<()> {
        let counted = instructions::of_this_commit();
        for (case, mode) in
            TracingCase::ALL.iter().flat_map(|case| subscribers::all().into_iter().map(move |m| (case, m)))
        {
            if let Some(n) = counted.get(&mode.of.id(*case).to_string()) {
                results.gauge(case.name(), mode.of.mode, "instructions", *n);
            }
        }
        Ok(())
    }

    fn criterion(args: &Args) -> std::io::Result<()> {
        let is_asked = |id: Id| args.selects(&id.to_string()) || args.selects(&id.in_criterion());
        let asked = |mode: &&str| TracingCase::ALL.iter().any(|case| is_asked(row(case.name(), mode)));
        if args.test || !can_run(args) {
            return Ok(());
        }
        for mode in BY_CRITERION.into_iter().filter(asked) {
            let mut command = child::again()?;
            let status = command.args(std::env::args_os().skip(1)).env(CRITERION, mode).status()?;
            if !status.success() {
                return Err(std::io::Error::other(format!("Criterion in mode {mode} ended with {status}")));
            }
        }
        Ok(())
    }
}

/// Judges the promises about the cost that a layer adds to the registry without a layer.
fn layers(results: &Results) -> Vec<Judged> {
    let judge = |Promise { name, id, base, at_most }: Promise| {
        let ((case, mode), (_, base)) = place(&id).zip(place(&base))?;
        let above = results.row(case, mode)?.above.get(base)?.interval();
        Some(Judged::at_most(name, case, above, at_most, (1, " ns")))
    };
    promises::of("layers").into_iter().filter_map(judge).collect()
}

/// Judges the promise about how much more a span with fields costs than an event with fields, with the Perfetto
/// backend. The two cases were not measured alternately, so the interval of the difference is computed from the two
/// intervals.
fn fields_by_perfetto(results: &Results) -> Option<Judged> {
    let row = |case: TracingCase| results.row(case.name(), "perfetto_on");
    let (span, event) = row(TracingCase::SpanArgs).zip(row(TracingCase::EventArgs))?;
    let (name, more) = (
        "in Perfetto's memory, minus an event with them, not side by side",
        span.interval().minus(&event.interval()),
    );
    Some(Judged::at_most(name, TracingCase::SpanArgs.name(), more, 60.0, (1, " ns")))
}

/// Returns the names of the case and of the mode (the kind of subscriber) of a row.
fn place(id: &Id) -> Option<(&'static str, &'static str)> {
    let all = subscribers::all();
    let of = |case: TracingCase| Some((case.name(), all.iter().find(|of| of.of.id(case) == *id)?.of.mode));
    TracingCase::ALL.into_iter().find_map(of)
}

fn case_of(name: &str) -> TracingCase {
    TracingCase::ALL.into_iter().find(|case| case.name() == name).expect("cases are those of the catalogue")
}

/// Returns the id of the row of a case in a mode (a kind of subscriber).
fn row(case: &str, mode: &str) -> Id {
    let subject = subscribers::all().into_iter().find(|subject| subject.of.mode == mode);
    subject.expect("modes are subjects").of.id(case_of(case))
}

/// The environment variable that makes a process measure with Criterion. Its value is the name of a mode.
const CRITERION: &str = "ATRACE_BENCH_CRITERION";

/// The modes (kinds of subscriber) that Criterion measures, each in a process of its own: first the three for AOSP's
/// twelve cases, and then three with the subscriber alone.
const BY_CRITERION: [&str; 6] = ["layer_off", "layer_filtered", "layer_on", "off", "filtered", "on"];

/// Measures the four cases of one kind of subscriber, the mode `name`, with Criterion.
fn with_criterion(session: &Session, name: &str) -> ExitCode {
    let mut mode = Subscribers::modes().into_iter().find(|mode| mode.name == name).expect("one of six");
    let is_layer = name.starts_with("layer_");
    if is_layer {
        mode.install = || ();
    }
    let _switched = mode.set_up().expect("tracing was switched before, so it can be switched again");
    let _default = is_layer.then(|| subscribers::layer_of_this_thread(name == "layer_filtered"));
    let mut criterion = Cases::new(&session.args);
    for case in TracingCase::ALL {
        let id = row(case.name(), name);
        criterion.case(&id.to_string(), &id.in_criterion(), timed(|n| cases::run(case, n)));
    }
    criterion.end();
    ExitCode::SUCCESS
}

//! The key numbers, the conditions of the measurement, and warnings for the reader of the report.

use std::collections::BTreeSet;

use crate::catalogue::{ATRACE, BENCHES, INSTRUCTIONS, Id, SUBSCRIBER, State, Who};
use crate::report::content::KNOWN;
use crate::report::input::{Bench, Machine};
use crate::report::model::Finding;
use crate::row::environment::{Environment, date};
use crate::row::{Above, Known, Row, Sink};
use crate::table::number::{count, percent, ratio, time};

/// A key number: its description, its bench, its row, and the other rows with which it is compared. Each of the
/// other rows has a name.
type Line = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The key numbers. The README has the same numbers.
pub(crate) const LINES: [Line; 6] = [
    ("an event, off", ATRACE, "rust/tracing_off_begin/10", &[("cc/tracing_off_begin/10", "C++")]),
    (
        "an event, on",
        ATRACE,
        "rust/tracing_on_begin/10",
        &[("cc/tracing_on_begin/10", "C++"), ("limit/raw_write_begin/10", "a `write(2)` of the same bytes")],
    ),
    (
        "an event, on by Perfetto's way",
        ATRACE,
        "perfetto/tracing_on_begin/10",
        &[("limit/raw_write_begin/10", "a `write(2)` to the marker")],
    ),
    (
        "an event of `tracing`, filtered, off",
        SUBSCRIBER,
        "rust/filtered_event",
        &[("limit/no_subscriber_event", "no subscriber")],
    ),
    (
        "an event of `tracing`, on",
        SUBSCRIBER,
        "rust/tracing_on_event",
        &[("limit/raw_write_of_on_event", "the write")],
    ),
    (
        "a span with four fields, on",
        SUBSCRIBER,
        "rust/tracing_on_span_args",
        &[("limit/raw_write_of_on_span_args", "its two writes")],
    ),
];

/// Describes in one line the machine of the first bench.
pub(super) fn about(here: &Machine) -> String {
    here.benches.values().find_map(|bench| bench.environment.as_ref()).map(machine).unwrap_or_default()
}

fn machine(e: &Environment) -> String {
    let cpus = format!("{} CPUs{}", e.cpus, if e.guest { " of a guest" } else { "" });
    let commit = if e.commit.is_empty() { String::new() } else { format!("commit {}", e.commit) };
    let kernel = format!("Linux {}", e.kernel);
    let parts = [e.cpu.clone(), cpus, kernel, e.rustc.clone(), e.cxx.clone(), date(e.time), commit];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Describes the conditions of a bench, like [`about_run`].
pub(super) fn about_bench(bench: &Bench) -> Option<String> {
    bench.environment.as_ref().map(|e| conditions(&machine(e), &[e]))
}

/// Describes the conditions of a run, and the differences that make the run less reliable than a full run on a quiet
/// machine.
pub(crate) fn about_run(here: &Machine) -> String {
    let environments: Vec<&Environment> =
        here.benches.values().filter_map(|bench| bench.environment.as_ref()).collect();
    conditions(&about(here), &environments)
}

fn conditions(about: &str, environments: &[&Environment]) -> String {
    let mut about = format!("{about}.");
    if environments.iter().any(|e| e.quick) {
        about.push_str(" A quick run (`--quick`), with less certain results than a full run.");
    }
    let others = environments.iter().filter_map(|e| e.load).map(|load| load.others).fold(0.0, f64::max);
    if others > 0.05 {
        let others = format!(" Other programs took up to {} of the CPUs", percent(others));
        about.push_str(&(others + ": the times are uncertain, the ratios less so."));
    }
    about
}

pub(super) fn findings(here: &Machine) -> Vec<Finding> {
    let lines = LINES.iter().map(|(what, bench, id, bases)| {
        let row = here.row(bench, id);
        let ratios = bases.iter().filter_map(|(base, name)| {
            let v = row?.versus(base)?;
            Some(format!("{} of {name} ({}–{})", ratio(v.ratio), ratio(v.low), ratio(v.high)))
        });
        let value = row.map(|row| match row.known().words() {
            Some(words) => format!("{} ({words})", time(row.median)),
            None => time(row.median),
        });
        Finding { what: (*what).to_owned(), value, beside: ratios.collect() }
    });
    lines.chain([allocations(here)]).chain(filtered(here)).collect()
}

fn allocations(here: &Machine) -> Finding {
    let rows = KNOWN.iter().filter_map(|bench| here.benches.get(*bench)).flat_map(|bench| &bench.rows);
    let counted = rows.filter(|row| matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto));
    let counted: Vec<(&Row, f64)> = counted.filter_map(|row| Some((row, row.allocs?))).collect();
    let some: Vec<_> = counted.iter().filter(|(_, allocs)| *allocs > 0.0).collect();
    let free = counted.len() - some.len();
    let mut beside = vec![format!("in {free} of {} cases they were counted in", counted.len())];
    beside.extend(some.iter().take(2).map(|(row, allocs)| format!("{}: {}", row.id, count(*allocs))));
    beside.extend((some.len() > 2).then(|| format!("and {} more allocate", some.len() - 2)));
    let value = (!counted.is_empty()).then(|| if free == 0 { "some" } else { "0" }.to_owned());
    Finding { what: "allocations an event".to_owned(), value, beside }
}

/// Summarizes, over all workloads, whether a filter has a cost while tracing is off.
fn filtered(here: &Machine) -> Option<Finding> {
    let rows = here.benches.values().flat_map(|bench| &bench.rows);
    let is_filtered = |row: &&Row| Id::case_and_mode(&row.id).is_some_and(|(_, mode)| mode == "filtered");
    let all: Vec<(&Row, Above)> =
        rows.filter(is_filtered).filter_map(|row| Some((row, *row.above.get("nosub")?))).collect();
    let (none, some): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, above)| above.low <= 0.0 && above.high >= 0.0);
    let mut beside =
        vec![format!("that can be measured, in {} of {} cases, above no subscriber", none.len(), all.len())];
    beside.extend(some.iter().take(2).map(|(row, above)| {
        let sign = if above.ns < 0.0 { "" } else { "+" };
        format!("{}: {sign}{}", row.id, time(above.ns))
    }));
    let value = if none.is_empty() { "some" } else { "nothing" }.to_owned();
    (!all.is_empty()).then(|| Finding {
        what: "programs, filtered, pay".to_owned(),
        value: Some(value),
        beside,
    })
}

/// Returns the warnings for the reader of the report.
pub(super) fn warnings(here: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    for bench in BENCHES {
        let name = bench.name;
        match here.benches.get(name) {
            None => all.push(format!("the bench {name} has left nothing: run `{}`", bench.command())),
            Some(found) => {
                let mut missing: Vec<String> = bench.rows().iter().map(Id::to_string).collect();
                missing.retain(|id| !found.rows.iter().any(|row| row.id == *id));
                if !missing.is_empty() {
                    all.push(format!("the bench {name} has left no row {}", listed(&missing)));
                }
            }
        }
    }
    all.extend(doubts(here));
    all
}

/// Returns the reasons to doubt the results of a machine.
pub(super) fn doubts(place: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    let unknown = Environment::default();
    for (name, Bench { rows, environment }) in &place.benches {
        let of = |known| rows.iter().filter(move |row| row.known() == known).map(|row| row.id.clone());
        let [varied, unknown_rows] = [Known::Varied, Known::Not].map(|known| of(known).collect::<Vec<_>>());
        let close: Vec<String> = rows.iter().filter_map(|on| too_close(on, rows)).collect();
        let is_marker = |row: &Row| !matches!(row.sink, Sink::Null | Sink::File | Sink::None);
        let e = environment.as_ref().unwrap_or(&unknown);
        let load = e.load.unwrap_or_default();
        let (rows_there, commit) = (rows.len(), &e.commit);
        let [varied, unknown_rows, close] =
            [varied, unknown_rows, close].map(|all| (all.len(), listed(&all)));
        let [others, stolen] = [load.others, load.stolen].map(percent);
        let doubts = [
            (
                varied.0 > 0,
                format!(
                    "the times of {} of {rows_there} rows of {name} are uncertain, because the machine's speed varied; their ratios are known: {}",
                    varied.0, varied.1
                ),
            ),
            (
                unknown_rows.0 > 0,
                format!(
                    "{} of {rows_there} rows of {name} are not known, neither their times nor a ratio: {}",
                    unknown_rows.0, unknown_rows.1
                ),
            ),
            (
                close.0 > 0,
                format!(
                    "the costs of on and off are about equal, so perhaps tracing was not switched on: {}",
                    close.1
                ),
            ),
            (
                name != INSTRUCTIONS && !rows.iter().all(is_marker),
                format!(
                    "{name} was not measured into the kernel's marker (run it as root, with tracefs): its rows \"on\" are of /dev/null or a file"
                ),
            ),
            (
                e.quick,
                format!(
                    "{name} was measured with --quick: its results are less certain than those of a full run"
                ),
            ),
            (
                e.changed,
                format!(
                    "{name} was measured with sources changed since commit {commit}: the measurement can't be repeated"
                ),
            ),
            (
                load.others > 0.05,
                format!("while {name} was measured, other programs took {others} of the CPUs"),
            ),
            (
                load.stolen > 0.02,
                format!("while {name} was measured, the host took {stolen} of the CPUs away"),
            ),
        ];
        all.extend(doubts.into_iter().filter_map(|(is_so, doubt)| is_so.then_some(doubt)));
    }
    let environments: Vec<(&String, &Environment)> =
        place.benches.iter().filter_map(|(name, bench)| Some((name, bench.environment.as_ref()?))).collect();
    let mut differ = |what: &str, field: fn(&Environment) -> &str| {
        let values: BTreeSet<&str> =
            environments.iter().map(|(_, e)| field(e)).filter(|v| !v.is_empty()).collect();
        if values.len() > 1 {
            let each: Vec<String> =
                environments.iter().map(|(name, e)| format!("{name}: {}", field(e))).collect();
            all.push(format!("the benches ran with different {what} ({})", each.join(", ")));
        }
    };
    differ("commits", |e| &e.commit);
    differ("kernels", |e| &e.kernel);
    differ("CPUs", |e| &e.cpu);
    differ("compilers", |e| &e.rustc);
    all
}

/// Returns a warning if a row with tracing on costs about as much as the row with tracing off, which suggests that
/// tracing was not on. The authors of the original benchmark warn of this.
fn too_close(on: &Row, rows: &[Row]) -> Option<String> {
    let id = Id::of(&on.id);
    let other = id.with_state(State::Off).filter(|_| id.state() == Some(State::On))?.to_string();
    let off = rows.iter().find(|row| row.id == other)?;
    (on.unit == "ns" && on.low < 3.0 * off.high)
        .then(|| format!("{} ({} and {})", on.id, time(on.median), time(off.median)))
}

/// Lists the first few of many items.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text.push_str(&format!(" and {} more", all.len() - SHOWN));
    }
    text
}

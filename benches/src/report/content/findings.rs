//! The numbers that matter most, and on what they were measured.

use super::super::input::Machine;
use super::super::model::Finding;
use super::KNOWN;
use crate::catalogue::{ATRACE, Id, SUBSCRIBER, Who};
use crate::row::environment::date;
use crate::row::{Above, Row};
use crate::table::number::{count, percent, ratio, time};

/// What a number is of: in words, the bench, the row, and the rows that it is held against, with their names.
type Line = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

/// The numbers that the README has, too.
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

/// Says in one line on what the first bench ran.
pub(super) fn about(here: &Machine) -> String {
    let Some(e) = here.benches.values().find_map(|bench| bench.environment.as_ref()) else {
        return String::new();
    };
    let cpus = format!("{} CPUs{}", e.cpus, if e.guest { " of a guest" } else { "" });
    let commit = if e.commit.is_empty() { String::new() } else { format!("commit {}", e.commit) };
    let kernel = format!("Linux {}", e.kernel);
    let parts = [e.cpu.clone(), cpus, kernel, e.rustc.clone(), e.cxx.clone(), date(e.time), commit];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Says on what a run was measured, and what makes it less sure than a full run on a quiet machine.
pub(crate) fn about_run(here: &Machine) -> String {
    let environments = || here.benches.values().filter_map(|bench| bench.environment.as_ref());
    let mut about = format!("{}.", about(here));
    if environments().any(|e| e.quick) {
        about.push_str(" A quick run (`--quick`), less sure than a full one.");
    }
    let others = environments().filter_map(|e| e.load).map(|load| load.others).fold(0.0, f64::max);
    if others > 0.05 {
        let others = percent(others);
        about.push_str(&format!(
            " Other programs took up to {others} of the CPUs: mind the times, the ratios less."
        ));
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
        // A ratio is known also where the machine was too unsteady for a time.
        let value = row.map(|row| format!("{}{}", if row.noisy { "about " } else { "" }, time(row.median)));
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

/// Whether filtered tracing costs programs anything, over all workloads.
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

//! The numbers that matter most, and on what they were measured.

use super::super::input::Machine;
use super::super::model::Finding;
use super::KNOWN;
use crate::catalogue::{ATRACE, Id, SUBSCRIBER, Who};
use crate::row::environment::date;
use crate::row::{Above, Row};
use crate::table::number::{count, percent, ratio, time};

pub(super) fn summary(here: &Machine) -> String {
    // A ratio is known also where the machine was too unsteady for a time.
    let of = |row: &Row, bases: &[(&str, &str)]| {
        let about = if row.noisy { "about " } else { "" };
        let ratios = bases
            .iter()
            .filter_map(|(base, what)| row.versus(base).map(|v| format!("{} {what}", percent(v.ratio))));
        let ratios: Vec<String> = ratios.collect();
        let ratios = if ratios.is_empty() { String::new() } else { format!(": {}", ratios.join(", ")) };
        format!("{about}{}{ratios}", time(row.median))
    };
    let said = [
        (
            "Off, an event costs",
            ATRACE,
            "rust/tracing_off_begin/10",
            &[("cc/tracing_off_begin/10", "of what C++ pays")][..],
        ),
        (
            "On, it costs",
            ATRACE,
            "rust/tracing_on_begin/10",
            &[
                ("cc/tracing_on_begin/10", "of what C++ pays"),
                ("limit/raw_write_begin/10", "of a bare write(2) of the same bytes"),
            ],
        ),
        (
            "An event of the crate tracing, on, costs",
            SUBSCRIBER,
            "rust/tracing_on_event",
            &[("limit/raw_write_of_on_event", "of the bare write")],
        ),
    ];
    let said = said
        .into_iter()
        .filter_map(|(what, bench, id, bases)| Some(format!("{what} {}.", of(here.row(bench, id)?, bases))));
    let said: Vec<String> = said.collect();
    if said.is_empty() {
        return "Nothing was measured yet that could be summed up: run `cargo bench`.".to_owned();
    }
    said.join(" ")
}

/// Says in one line on what the first bench ran.
pub(super) fn about(here: &Machine) -> String {
    let Some(e) = here.benches.values().find_map(|bench| bench.environment.as_ref()) else {
        return String::new();
    };
    let cpus = format!("{} CPUs{}", e.cpus, if e.guest { " of a guest" } else { "" });
    let parts =
        [e.cpu.clone(), cpus, format!("Linux {}", e.kernel), e.rustc.clone(), e.cxx.clone(), date(e.time)];
    let commit = if e.commit.is_empty() { String::new() } else { format!("commit {}", e.commit) };
    parts.into_iter().chain([commit]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
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
    let finding = |what: &str, bench: &str, id: &str, bases: &[(&str, &str)]| {
        let row = here.row(bench, id);
        let ratios = bases.iter().filter_map(|(base, name)| {
            let v = row?.versus(base)?;
            Some((format!("{} of {name}", ratio(v.ratio)), format!(" ({}–{})", ratio(v.low), ratio(v.high))))
        });
        let mut ratios = ratios.collect::<Vec<_>>().into_iter();
        // What is known stands first: the ratio, where the time is not.
        let unsteady = row.filter(|row| row.noisy);
        let (value, first) = match unsteady.and_then(|row| Some((row, ratios.next()?))) {
            Some((row, (short, range))) => {
                let range = format!(
                    "{short}{range}; {} to {} on this unsteady machine",
                    time(row.low),
                    time(row.high)
                );
                (Some(short), Some(range))
            }
            None => (
                row.map(|row| format!("{}{}", if row.noisy { "about " } else { "" }, time(row.median))),
                None,
            ),
        };
        let beside = first.into_iter().chain(ratios.map(|(short, range)| short + &range)).collect();
        Finding { what: what.to_owned(), value, beside }
    };
    let mut all = vec![
        finding(
            "an event, off",
            "atrace",
            "rust/tracing_off_begin/10",
            &[("cc/tracing_off_begin/10", "C++")],
        ),
        finding(
            "an event, on",
            "atrace",
            "rust/tracing_on_begin/10",
            &[("cc/tracing_on_begin/10", "C++"), ("limit/raw_write_begin/10", "the raw write")],
        ),
        finding(
            "an event, by Perfetto's way",
            "atrace",
            "perfetto/tracing_on_begin/10",
            &[("limit/raw_write_begin/10", "the raw write")],
        ),
        finding(
            "an event of tracing, filtered",
            "subscriber",
            "rust/filtered_event",
            &[("limit/no_subscriber_event", "no subscriber")],
        ),
        finding(
            "an event of tracing, on",
            "subscriber",
            "rust/tracing_on_event",
            &[("limit/raw_write_of_on_event", "the raw write")],
        ),
    ];
    let counted: Vec<&Row> = KNOWN
        .iter()
        .filter_map(|bench| here.benches.get(*bench))
        .flat_map(|bench| &bench.rows)
        .filter(|row| matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto) && row.allocs.is_some())
        .collect();
    let (allocating, free): (Vec<&Row>, Vec<&Row>) = counted.iter().partition(|row| row.allocs > Some(0.0));
    let mut beside = vec![format!("in {} of {} cases they were counted in", free.len(), counted.len())];
    beside.extend(
        allocating.iter().take(2).map(|row| format!("{}: {}", row.id, count(row.allocs.unwrap_or(0.0)))),
    );
    beside.extend((allocating.len() > 2).then(|| format!("and {} more allocate", allocating.len() - 2)));
    all.push(Finding {
        what: "allocations an event".to_owned(),
        value: (!counted.is_empty())
            .then(|| if free.is_empty() { "some".to_owned() } else { "0".to_owned() }),
        beside,
    });
    all.extend(filtered(here));
    all
}

/// Whether filtered tracing costs programs anything, over all workloads.
pub(super) fn filtered(here: &Machine) -> Option<Finding> {
    let all: Vec<(&Row, Above)> = here
        .benches
        .values()
        .flat_map(|bench| &bench.rows)
        .filter(|row| Id::case_and_mode(&row.id).is_some_and(|(_, mode)| mode == "filtered"))
        .filter_map(|row| Some((row, *row.above.get("nosub")?)))
        .collect();
    let (none, some): (Vec<_>, Vec<_>) =
        all.iter().partition(|(_, above)| above.low <= 0.0 && above.high >= 0.0);
    let mut beside =
        vec![format!("that can be measured, in {} of {} cases, above no subscriber", none.len(), all.len())];
    beside.extend(some.iter().take(2).map(|(row, above)| {
        let sign = if above.ns < 0.0 { "" } else { "+" };
        format!("{}: {sign}{}", row.id, time(above.ns))
    }));
    let value = if none.is_empty() { "some".to_owned() } else { "nothing".to_owned() };
    (!all.is_empty()).then(|| Finding {
        what: "programs, filtered, pay".to_owned(),
        value: Some(value),
        beside,
    })
}

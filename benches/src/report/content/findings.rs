//! The report's key numbers, the conditions of the measurements, and the warnings for the reader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use serde::Deserialize;

use crate::catalogue::{BENCHES, INSTRUCTIONS, Id, Who};
use crate::report::content::KNOWN;
use crate::report::input::{Bench, Machine};
use crate::report::model::Finding;
use crate::row::environment::{Environment, date};
use crate::row::{Above, Known, Row, Sink};
use crate::table::number::{count, percent, ratio, time};

/// The definition of a key number: one of the most important results, which the report and the README show.
#[derive(Deserialize)]
pub(crate) struct Line {
    pub(crate) what: String,
    pub(crate) bench: String,
    /// The id of the row (result) that has the number.
    pub(crate) id: String,
    /// The ids of the rows with which this row is compared, each with a name for the reader.
    pub(crate) beside: Vec<(String, String)>,
}

/// The definitions of the key numbers, in the order in which they are shown.
pub(crate) static LINES: LazyLock<Vec<Line>> = LazyLock::new(|| {
    let mut file: BTreeMap<String, Vec<Line>> =
        toml::from_str(include_str!("lines.toml")).expect("the file has this form");
    file.remove("lines").unwrap_or_default()
});

/// Returns the words that describe C++ beside a ratio that this bench has measured. On a host (Linux without Android),
/// C++ calls this workspace's libcutils. On Android, C++ calls the device's libcutils. Android is recognized by an
/// environment without the name of the operating system.
pub(crate) fn cc(here: &Machine, bench: &str) -> &'static str {
    let environment = here.benches.get(bench).and_then(|bench| bench.environment.as_ref());
    let is_host = environment.is_some_and(|e| !e.system.is_empty());
    if is_host { "C++ with this workspace's libcutils" } else { "C++" }
}

/// Describes in one line the machine and the versions of the software, from the environment of the first bench that has
/// one.
pub(super) fn about(here: &Machine) -> String {
    here.benches.values().find_map(|bench| bench.environment.as_ref()).map(machine).unwrap_or_default()
}

fn machine(e: &Environment) -> String {
    let cpus = format!("{} CPUs{}", e.cpus, if e.guest { " of a guest" } else { "" });
    let changes = if e.changed { ", with changes" } else { "" };
    let commit = if e.commit.is_empty() { String::new() } else { format!("commit {}{changes}", e.commit) };
    let kernel = format!("Linux {}", e.kernel);
    let parts = [e.cpu.clone(), cpus, kernel, e.rustc.clone(), e.cxx.clone(), date(e.time), commit];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" · ")
}

/// Describes the conditions under which a bench ran, in the same form as [`about_run`].
pub(super) fn about_bench(bench: &Bench) -> Option<String> {
    bench.environment.as_ref().map(|e| conditions(&machine(e), &[e]))
}

/// Describes the conditions under which the benches ran. Says so if the results are less reliable than those of a full
/// run on a quiet machine.
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
    let lines = LINES.iter().map(|Line { what, bench, id, beside }| {
        let row = here.row(bench, id);
        let ratios = beside.iter().filter_map(|(base, name)| {
            let v = row?.versus(base)?;
            let name = if name == "C++" { cc(here, bench) } else { name };
            let range = format!("{}–{}", ratio(v.low), ratio(v.high));
            Some(format!("{} of {name} ({range}){}", ratio(v.ratio), v.known().remark()))
        });
        let value = row.map(|row| match row.known().words() {
            Some(words) => format!("{} ({words})", time(row.median)),
            None => time(row.median),
        });
        Finding { what: what.clone(), value, beside: ratios.collect() }
    });
    lines.chain([allocations(here)]).chain(filtered(here)).collect()
}

fn allocations(here: &Machine) -> Finding {
    let rows = KNOWN.iter().filter_map(|bench| here.benches.get(*bench)).flat_map(|bench| &bench.rows);
    let counted = rows.filter(|row| matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto));
    let counted: Vec<(&Row, f64)> = counted.filter_map(|row| Some((row, row.allocs?))).collect();
    let some: Vec<_> = counted.iter().filter(|(_, allocs)| *allocs > 0.0).collect();
    let free = counted.len() - some.len();
    let mut beside = vec![format!("none in {free} of {} cases where they were counted", counted.len())];
    beside.extend(some.iter().take(2).map(|(row, allocs)| format!("{}: {}", row.id, count(*allocs))));
    beside.extend((some.len() > 2).then(|| format!("and {} more allocate", some.len() - 2)));
    let most = counted.iter().map(|(_, allocs)| *allocs).fold(0.0, f64::max);
    let value = if some.is_empty() { "0".to_owned() } else { format!("up to {}", count(most)) };
    let value = (!counted.is_empty()).then_some(value);
    Finding { what: "allocations an event".to_owned(), value, beside }
}

/// Makes the key number about filters: whether, in any workload, a subscriber with a filter has a measurable cost while
/// tracing is off.
fn filtered(here: &Machine) -> Option<Finding> {
    let rows = here.benches.values().flat_map(|bench| &bench.rows);
    let is_filtered = |row: &&Row| Id::case_and_mode(&row.id).is_some_and(|(_, mode)| mode == "filtered");
    let all: Vec<(&Row, Above)> =
        rows.filter(is_filtered).filter_map(|row| Some((row, *row.above.get("nosub")?))).collect();
    if all.is_empty() {
        return None;
    }
    let (judged, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, above)| above.sure);
    let (none, some): (Vec<_>, Vec<_>) =
        judged.iter().partition(|(_, above)| above.low <= 0.0 && above.high >= 0.0);
    let mut beside = vec!["that can be measured, above no subscriber".to_owned()];
    beside.extend(some.iter().take(2).map(|(row, above)| {
        let sign = if above.ns < 0.0 { "" } else { "+" };
        format!("{}: {sign}{}", row.id, time(above.ns))
    }));
    beside.extend((!few.is_empty()).then(|| format!("not known in {}, from too few pairs", few.len())));
    let value = match (none.len(), some.len()) {
        (free, _) if free == all.len() => "nothing".to_owned(),
        (0, 0) => "not known".to_owned(),
        (0, _) => "some".to_owned(),
        (free, _) => format!("nothing in {free} of {} cases", all.len()),
    };
    Some(Finding { what: "programs, filtered, pay".to_owned(), value: Some(value), beside })
}

/// Returns the warnings for the reader of the report: missing results, and the reasons to doubt the results of this
/// machine.
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

/// Returns the reasons to doubt the results of a machine, as warnings for the reader of the report.
pub(super) fn doubts(place: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    let unknown = Environment::default();
    for (name, Bench { rows, environment }) in &place.benches {
        let of = |known| rows.iter().filter(move |row| row.known() == known).map(|row| row.id.clone());
        let close = rows.iter().filter_map(|on| too_close(on, rows)).collect();
        let lists: [(Vec<String>, &str); 3] = [
            (
                of(Known::Varied).collect(),
                "are uncertain, because the machine's speed varied; their ratios are known",
            ),
            (of(Known::Not).collect(), "are not known, neither their times nor a ratio"),
            (close, "cost about as much on as off, so perhaps tracing was not switched on"),
        ];
        for (ids, what) in lists.iter().filter(|(ids, _)| !ids.is_empty()) {
            all.push(format!("{} of {} rows of {name} {what}: {}", ids.len(), rows.len(), listed(ids)));
        }
        let is_marker = |row: &Row| !matches!(row.sink, Sink::Null | Sink::File | Sink::None);
        let e = environment.as_ref().unwrap_or(&unknown);
        let load = e.load.unwrap_or_default();
        let [others, stolen] = [load.others, load.stolen].map(percent);
        let no_marker = name != INSTRUCTIONS && !rows.iter().all(is_marker);
        let doubts = [
            (no_marker, "not measured into the kernel's marker: run it as root, with tracefs".to_owned()),
            (e.quick, "measured with --quick, so its results are less certain".to_owned()),
            (e.changed, format!("measured with sources changed since commit {}", e.commit)),
            (load.others > 0.05, format!("measured while other programs took {others} of the CPUs")),
            (load.stolen > 0.02, format!("measured while the host took {stolen} of the CPUs away")),
        ];
        let doubts = doubts.into_iter().filter_map(|(is_so, doubt)| is_so.then_some(doubt));
        all.extend(doubts.map(|doubt| format!("{name} was {doubt}")));
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

/// Compares the row `on`, for tracing on, with the row for tracing off. Returns the id and both times if the lower
/// bound of the first is less than three times the upper bound of the second: tracing was then probably not on. The
/// authors of the original benchmark warn of this.
fn too_close(on: &Row, rows: &[Row]) -> Option<String> {
    let other = Id::of(&on.id).off()?.to_string();
    let off = rows.iter().find(|row| row.id == other)?;
    (on.unit == "ns" && on.low < 3.0 * off.high)
        .then(|| format!("{} ({} and {})", on.id, time(on.median), time(off.median)))
}

/// Returns a text with the first few items of a list, and the number of the others.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text.push_str(&format!(" and {} more", all.len() - SHOWN));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Interval;

    #[test]
    fn programs_pay_nothing_only_if_no_case_pays_for_sure() {
        let (same, more) = (Interval::around(0.0, 1.0), Interval::around(5.0, 1.0));
        let few = Interval { sure: false, ..same };
        let said = |differences: &[Interval]| {
            let row = |(at, difference): (usize, &Interval)| Row {
                above: [("nosub".to_owned(), Above::from(*difference))].into(),
                ..Row::around(&format!("rust/{at}/filtered"), 100.0, 1.0)
            };
            let rows = differences.iter().enumerate().map(row).collect();
            let benches = [("sums".to_owned(), Bench { rows, environment: None })].into();
            filtered(&Machine { benches, ..Machine::default() }).unwrap()
        };
        assert_eq!(said(&[same, same]).value.unwrap(), "nothing");
        assert_eq!(said(&[same, few]).value.unwrap(), "nothing in 1 of 2 cases");
        assert_eq!(said(&[more, more, more]).value.unwrap(), "some");
        assert_eq!(said(&[more, few]).value.unwrap(), "some");
        assert_eq!(said(&[few, few]).value.unwrap(), "not known");
        let all = said(&[same, more, few]);
        assert_eq!(all.value.unwrap(), "nothing in 1 of 3 cases");
        let beside = [
            "that can be measured, above no subscriber",
            "rust/1/filtered: +5.00 ns",
            "not known in 1, from too few pairs",
        ];
        assert_eq!(all.beside, beside);
    }
}

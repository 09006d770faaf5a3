//! What a reader should know before believing anything.

use std::collections::BTreeSet;

use super::super::input::{Bench, Machine};
use crate::catalogue::{BENCHES, INSTRUCTIONS, Id, State};
use crate::row::environment::Environment;
use crate::row::{Row, Sink};
use crate::table::number::{percent, time};

/// What a reader should know before believing anything.
pub(super) fn warnings(here: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    for bench in BENCHES {
        let name = bench.name;
        match here.benches.get(name) {
            None => all.push(format!("the bench {name} has left nothing: run `{}`", bench.command())),
            Some(found) => {
                let missing: Vec<String> = bench
                    .rows()
                    .iter()
                    .map(Id::to_string)
                    .filter(|id| !found.rows.iter().any(|row| row.id == *id))
                    .collect();
                if !missing.is_empty() {
                    all.push(format!("the bench {name} has left no row {}", listed(&missing)));
                }
            }
        }
    }
    all.extend(doubts(here));
    all
}

/// What is doubtful in what was measured in a place.
pub(super) fn doubts(place: &Machine) -> Vec<String> {
    let mut all = Vec::new();
    let unknown = Environment::default();
    for (name, Bench { rows, environment }) in &place.benches {
        let noisy: Vec<String> = rows.iter().filter(|row| row.noisy).map(|row| row.id.clone()).collect();
        let close: Vec<String> = rows.iter().filter_map(|on| too_close(on, rows)).collect();
        let is_marker = |row: &Row| !matches!(row.sink, Sink::Null | Sink::File | Sink::None);
        let e = environment.as_ref().unwrap_or(&unknown);
        let load = e.load.unwrap_or_default();
        let doubts = [
            (
                !noisy.is_empty(),
                format!(
                    "the times of {} of {} rows of {name} are uncertain, as the machine was unsteady; their ratios stand: {}",
                    noisy.len(),
                    rows.len(),
                    listed(&noisy)
                ),
            ),
            (
                !close.is_empty(),
                format!(
                    "on costs about what off costs, so perhaps nothing was switched on: {}",
                    listed(&close)
                ),
            ),
            (
                name != INSTRUCTIONS && !rows.iter().all(is_marker),
                format!(
                    "{name} was not measured into the kernel's marker (run it as root, with tracefs): its rows \"on\" are of /dev/null or a file"
                ),
            ),
            (e.quick, format!("{name} was measured with --quick: less sure than a full run")),
            (
                e.changed,
                format!(
                    "{name} was measured with sources changed since commit {}: nobody can repeat that",
                    e.commit
                ),
            ),
            (
                load.others > 0.05,
                format!(
                    "while {name} was measured, other programs took {} of the CPUs",
                    percent(load.others)
                ),
            ),
            (
                load.stolen > 0.02,
                format!("while {name} was measured, the host took {} of the CPUs away", percent(load.stolen)),
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

/// Whether the row is one with tracing on that costs about what it costs off: the original's authors warn of this.
fn too_close(on: &Row, rows: &[Row]) -> Option<String> {
    let id = Id::of(&on.id);
    let other = id.with_state(State::Off).filter(|_| id.state() == Some(State::On))?.to_string();
    let off = rows.iter().find(|row| row.id == other)?;
    (on.unit == "ns" && on.low < 3.0 * off.high)
        .then(|| format!("{} ({} and {})", on.id, time(on.median), time(off.median)))
}

/// The first few of many.
fn listed(all: &[String]) -> String {
    const SHOWN: usize = 6;
    let mut text = all.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if all.len() > SHOWN {
        text.push_str(&format!(" and {} more", all.len() - SHOWN));
    }
    text
}

//! What a reader should know before believing anything.

use std::collections::BTreeSet;

use super::super::input::Machine;
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
    for (name, bench) in &place.benches {
        let noisy: Vec<String> =
            bench.rows.iter().filter(|row| row.noisy).map(|row| row.id.clone()).collect();
        if !noisy.is_empty() {
            all.push(format!(
                "the times of {} of {} rows of {name} are uncertain, as the machine was unsteady; their ratios stand: {}",
                noisy.len(),
                bench.rows.len(),
                listed(&noisy)
            ));
        }
        let close: Vec<String> = bench.rows.iter().filter_map(|on| too_close(on, &bench.rows)).collect();
        if !close.is_empty() {
            all.push(format!(
                "on costs about what off costs, so perhaps nothing was switched on: {}",
                listed(&close)
            ));
        }
        if name != INSTRUCTIONS
            && bench.rows.iter().any(|row| matches!(row.sink, Sink::Null | Sink::File | Sink::None))
        {
            all.push(format!(
                "{name} was not measured into the kernel's marker (run it as root, with tracefs): its rows \"on\" are of /dev/null or a file"
            ));
        }
        let Some(environment) = &bench.environment else { continue };
        if environment.quick {
            all.push(format!("{name} was measured with --quick: less sure than a full run"));
        }
        if environment.changed {
            all.push(format!(
                "{name} was measured with sources changed since commit {}: nobody can repeat that",
                environment.commit
            ));
        }
        if let Some(load) = environment.load {
            if load.others > 0.05 {
                all.push(format!(
                    "while {name} was measured, other programs took {} of the CPUs",
                    percent(load.others)
                ));
            }
            if load.stolen > 0.02 {
                all.push(format!(
                    "while {name} was measured, the host took {} of the CPUs away",
                    percent(load.stolen)
                ));
            }
        }
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

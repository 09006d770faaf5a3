//! What it was measured on, and how to read it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::row::environment::{Environment, date};
use crate::table::{Cell, Table};

pub(super) fn environments(here: &Machine) -> Section {
    let all =
        here.benches.iter().filter_map(|(name, bench)| Some((name, fields(bench.environment.as_ref()?))));
    let benches: Vec<(&String, BTreeMap<String, String>)> = all.collect();
    let mut table =
        Table::new("Environment", [""].into_iter().chain(benches.iter().map(|(name, _)| &name[..])));
    for name in benches.first().into_iter().flat_map(|(_, fields)| fields.keys()) {
        let values: Vec<&String> = benches.iter().filter_map(|(_, fields)| fields.get(name)).collect();
        // What is the same everywhere is said once.
        let same = values.len() > 1 && values.iter().all(|value| *value == values[0]);
        let cells = values.iter().enumerate().map(|(index, value)| match value {
            _ if same && index > 0 => Cell::text("same"),
            value if value.is_empty() => Cell::none("it could not be learnt"),
            value => Cell::text(*value),
        });
        table.push([Cell::text(name)].into_iter().chain(cells));
    }
    let section = |parts| Section::new("environment", "What it was measured on", parts);
    if benches.is_empty() {
        return section(Vec::new()).with_text([
            "The benches left no description of the machine (an older version's results): measure again.",
        ]);
    }
    section(vec![Part::Table(table)])
}

/// What is known of an environment, by its names in the file.
fn fields(of: &Environment) -> BTreeMap<String, String> {
    let all = match serde_json::to_value(of) {
        Ok(Value::Object(all)) => all,
        _ => serde_json::Map::new(),
    };
    let text = |(name, value): (String, Value)| match value {
        _ if name == "time" => (name, date(of.time)),
        Value::String(text) => (name, text),
        Value::Null => (name, String::new()),
        other => (name, other.to_string()),
    };
    all.into_iter().map(text).collect()
}

pub(super) fn reading() -> Section {
    Section::new("reading", "How to read this", Vec::new()).with_text([
            "Every number is the median over rounds, with the bounds of its 95 % interval in small print. The cases of one comparison run in turn within each round, so what disturbs the machine disturbs both; a ratio is the median of the rounds' ratios, with an interval of its own. Compare ratios; times move from machine to machine and from day to day.",
            "A row whose interval is wider than 5 % and 0.15 ns to each side is noisy and counts as not measured.",
            "Where two subscribers are compared, which a process can't hold both, whole processes take turns and each is one round.",
            "Below a nanosecond, a difference of 0.3 ns is a matter of where the linker put the code.",
    ])
}

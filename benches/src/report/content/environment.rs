//! What it was measured on, and how to read it.

use super::super::input::Machine;
use super::super::model::{Part, Section};
use crate::row::environment::{Environment, date};
use crate::table::number::{digits, percent, time};
use crate::table::{Cell, Table};

/// What is told of an environment, and how.
type Field<'a> = (&'a str, &'a dyn Fn(&Environment) -> String);

pub(super) fn environments(here: &Machine) -> Section {
    let benches: Vec<(&String, &Environment)> =
        here.benches.iter().filter_map(|(name, bench)| Some((name, bench.environment.as_ref()?))).collect();
    let fields: [Field<'_>; 14] = [
        ("measured until", &|e| date(e.time)),
        ("for", &|e| time(e.seconds * 1e9)),
        ("CPU", &|e| e.cpu.clone()),
        ("CPUs", &|e| format!("{}{}, {}", e.cpus, if e.guest { " of a guest" } else { "" }, e.arch)),
        ("governor", &|e| {
            if e.governors.is_empty() {
                "none: the clock is the host's".to_owned()
            } else {
                e.governors.join(", ")
            }
        }),
        ("system", &|e| e.system.clone()),
        ("kernel", &|e| e.kernel.clone()),
        ("defence against SRSO", &|e| e.returns.clone()),
        ("Rust", &|e| e.rustc.clone()),
        ("C++", &|e| e.cxx.clone()),
        ("commit", &|e| format!("{}{}", e.commit, if e.changed { ", with changes" } else { "" })),
        ("sink", &|e| e.sink.clone()),
        ("run", &|e| if e.quick { "--quick".to_owned() } else { "full".to_owned() }),
        ("load meanwhile", &|e| {
            e.load.map_or("unknown".to_owned(), |load| {
                format!(
                    "others {}, host {}, load average before {}",
                    percent(load.others),
                    percent(load.stolen),
                    digits(load.before)
                )
            })
        }),
    ];
    let mut table =
        Table::new("Environment", [""].into_iter().chain(benches.iter().map(|(name, _)| &name[..])));
    for (name, field) in fields {
        let values: Vec<String> = benches.iter().map(|(_, e)| field(e)).collect();
        // What is the same everywhere is said once.
        let same = values.len() > 1 && values.iter().all(|value| *value == values[0]);
        let cells = values.into_iter().enumerate().map(|(index, value)| match value {
            _ if same && index > 0 => Cell::text("same"),
            value if value.is_empty() => Cell::none("it could not be learnt"),
            value => Cell::Text(value),
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

pub(super) fn reading() -> Section {
    Section::new("reading", "How to read this", Vec::new()).with_text([
            "Every number is the median over rounds, with the bounds of its 95 % interval in small print. The cases of one comparison run in turn within each round, so what disturbs the machine disturbs both; a ratio is the median of the rounds' ratios, with an interval of its own. Compare ratios; times move from machine to machine and from day to day.",
            "A row whose interval is wider than 5 % and 0.15 ns to each side is noisy and counts as not measured.",
            "Where two subscribers are compared, which a process can't hold both, whole processes take turns and each is one round.",
            "Below a nanosecond, a difference of 0.3 ns is a matter of where the linker put the code.",
    ])
}

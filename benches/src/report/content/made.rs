//! The generated tables of `docs/costs.md`. Most of them are tables of the report, or a part of such a table. A table
//! is made from the rows (results) of one bench, or of all benches.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{events, findings, rows};
use crate::catalogue::{ATRACE, BENCHES, Bench, INSTRUCTIONS, Id, SUBSCRIBER};
use crate::report::input::Machine;
use crate::report::model::{Part, Section};
use crate::row::Known;
use crate::row::environment::date;
use crate::table::{Cell, Table, workload};

/// One or more generated tables, which replace the text between two marks on the page.
pub(crate) struct Made {
    /// The name of the tables, which is in the first of the two marks.
    pub(crate) name: &'static str,
    /// The bench that measures the rows of the tables, or `None` for all benches.
    bench: Option<&'static str>,
    tables: fn(&Machine) -> Vec<Table>,
}

/// The part of a workload's table that the page shows: the lines of some cases, and the columns of some modes.
/// `chosen.toml` lists these cases and modes for each workload.
#[derive(Deserialize)]
struct Chosen {
    base: String,
    cases: Vec<String>,
    modes: Vec<String>,
}

/// All generated tables of `docs/costs.md`.
pub(crate) const MADE: [Made; 11] = [
    Made { name: "events", bench: Some(ATRACE), tables: |here| tables(events::wrapper(here)) },
    Made { name: "perfetto", bench: Some(ATRACE), tables: |here| tables(events::perfetto(here)) },
    Made { name: "tracing", bench: Some(SUBSCRIBER), tables: |here| tables(events::subscriber(here)) },
    Made { name: "threads and watches", bench: Some(ATRACE), tables: events::threads },
    Made { name: "suspension", bench: Some("suspension"), tables: |here| some(here, "suspension") },
    Made { name: "threads", bench: Some("threads"), tables: |here| some(here, "threads") },
    Made { name: "coroutines", bench: Some("coroutines"), tables: |here| some(here, "coroutines") },
    Made { name: "live", bench: Some("live"), tables: |here| some(here, "live") },
    Made { name: "published", bench: None, tables: |here| rows::shown(here).into_iter().collect() },
    Made { name: "promises", bench: None, tables: |here| rows::not_kept(&here.judged).into_iter().collect() },
    Made { name: "environment", bench: None, tables: |here| tables(Some(rows::environments(here))) },
];

impl Made {
    /// Makes the tables as Markdown, and a text below them that names the command that has measured them, the date, and
    /// the machine. Returns `None` if the bench has not run.
    pub(crate) fn text(&self, here: &Machine) -> Option<String> {
        let tables = (self.tables)(here);
        let title =
            |table: &Table| if tables.len() > 1 { format!("{}:\n\n", table.title) } else { String::new() };
        let tables: Vec<String> = tables.iter().map(|table| title(table) + &table.markdown()).collect();
        let mut made = match self.bench {
            None => format!("Made by `cargo bench` and `report --docs`. {}", findings::about_run(here)),
            Some(bench) => made_by(here, bench)?,
        };
        let counted = here.benches.get(INSTRUCTIONS).and_then(|bench| bench.environment.as_ref());
        if let Some(e) = counted.filter(|_| tables.iter().any(|table| table.contains(INSTRUCTIONS))) {
            let command = BENCHES.iter().find(|bench| bench.name == INSTRUCTIONS).map(Bench::command);
            let (command, date) = (command.unwrap_or_default(), date(e.time));
            made = format!("{made} Instructions: `{command}`, {date}, commit {}.", e.commit);
        }
        (!tables.is_empty()).then(|| format!("{}\n{made}\n", tables.join("\n")))
    }

    /// Returns two numbers about the values in the tables that were measured for this workspace's code: how many are
    /// not known precisely enough, and how many there are in total.
    pub(crate) fn unknown(&self, here: &Machine) -> [usize; 2] {
        let tables = (self.tables)(here);
        let cells = tables.iter().flat_map(|table| &table.rows).flatten();
        let own = cells.filter_map(|cell| if let Cell::Value(value) = cell { Some(value) } else { None });
        own.filter(|value| value.own)
            .fold([0, 0], |[not, all], value| [not + usize::from(value.known >= Known::Few), all + 1])
    }
}

/// Returns a text with the command that runs a bench, and the conditions of its last run.
fn made_by(here: &Machine, name: &str) -> Option<String> {
    let (bench, known) = (here.benches.get(name)?, BENCHES.iter().find(|known| known.name == name)?);
    let has_peers = bench.rows.iter().any(|row| Id::of(&row.id).who.peer().is_some());
    let mut command = known.command();
    if has_peers {
        command = command.replace(" --bench", " --features peers --bench");
    }
    let others = bench.environment.iter().flat_map(|e| &e.cxx_others).filter(|_| name == "coroutines");
    let others: String =
        others.map(|other| format!(" Its C++ tasks were compiled by {other}, too.")).collect();
    Some(format!("Made by `{command}` and `report --docs`. {}{others}", findings::about_bench(bench)?))
}

fn tables(section: Option<Section>) -> Vec<Table> {
    let parts = section.into_iter().flat_map(|section| section.parts);
    let table = |part| if let Part::Table(table) = part { Some(table) } else { None };
    parts.filter_map(table).collect()
}

fn some(here: &Machine, name: &str) -> Vec<Table> {
    let mut chosen: BTreeMap<String, Chosen> =
        toml::from_str(include_str!("chosen.toml")).expect("the file has this form");
    let Some((bench, of)) = here.benches.get(name).zip(chosen.remove(name)) else { return Vec::new() };
    let columns = [vec!["case".to_owned(), of.base.clone()], of.modes].concat();
    let table = workload::added(name, &bench.rows, &of.base).only(&of.cases, &columns);
    vec![Table { note: String::new(), ..table }]
}

//! The tables of `docs/costs.md`. Each is a table of the report, or some lines of such a table, and comes from the
//! rows of one bench.

use super::{events, findings, rows};
use crate::catalogue::{ATRACE, BENCHES, Bench, INSTRUCTIONS, Id, SUBSCRIBER};
use crate::report::input::Machine;
use crate::report::model::{Part, Section};
use crate::row::Known;
use crate::row::environment::date;
use crate::table::{Cell, Table};

/// Generated tables, which are between two marks on the page. The marks contain the name of the tables.
pub(crate) struct Made {
    /// The name of the tables, which the marks contain.
    pub(crate) name: &'static str,
    /// The bench that measures the rows, or `None` for all benches.
    bench: Option<&'static str>,
    tables: fn(&Machine) -> Vec<Table>,
}

/// The part of a workload's table that the page shows: some lines, and the columns of some modes.
struct Chosen {
    bench: &'static str,
    base: &'static str,
    cases: &'static [&'static str],
    modes: &'static [&'static str],
}

const MODES: &[&str] = &["filtered adds", "on adds", "perfetto adds"];
const SUSPENSION: Chosen = Chosen {
    bench: "suspension",
    base: "none",
    cases: &[
        "rust/semaphore_as_mutex/inline",
        "rust/channel_sink/rendezvous/1_spans",
        "rust/channel_sink/32/1_spans",
        "rust/channel_sink_no_allocations/32",
    ],
    modes: MODES,
};
const THREADS: Chosen = Chosen {
    bench: "threads",
    base: "none",
    cases: &[
        "rust/threads_kernel_nonio",
        "rust/threads_kernel_io_0ms",
        "rust/threads_kernel_io_5ms",
        "rust/threads_task_nonio",
        "rust/threads_task_io_0ms",
        "rust/threads_task_io_5ms",
    ],
    modes: MODES,
};
const COROUTINES: Chosen = Chosen {
    bench: "coroutines",
    base: "none",
    cases: &[
        "rust/sequential/fib_5/one_core",
        "rust/thread/fib_5/one_core",
        "rust/future/fib_5/one_core",
        "rust/yield/fib_5/one_core",
        "rust/tokio/fib_5/one_core",
    ],
    modes: MODES,
};
const LIVE: Chosen = Chosen {
    bench: "live",
    base: "DEFAULT",
    cases: &["rust/launch", "rust/creation", "rust/dump_of_1000_tasks", "rust/dump_of_1000_tasks/fetched"],
    modes: &["S adds", "C adds", "C_L adds"],
};

/// All generated tables of `docs/costs.md`.
pub(crate) const MADE: [Made; 11] = [
    Made { name: "events", bench: Some(ATRACE), tables: |here| tables(events::wrapper(here)) },
    Made { name: "perfetto", bench: Some(ATRACE), tables: |here| tables(events::perfetto(here)) },
    Made { name: "tracing", bench: Some(SUBSCRIBER), tables: |here| tables(events::subscriber(here)) },
    Made { name: "threads and watches", bench: Some(ATRACE), tables: events::threads },
    Made { name: "suspension", bench: Some(SUSPENSION.bench), tables: |here| some(here, &SUSPENSION) },
    Made { name: "threads", bench: Some(THREADS.bench), tables: |here| some(here, &THREADS) },
    Made { name: "coroutines", bench: Some(COROUTINES.bench), tables: |here| some(here, &COROUTINES) },
    Made { name: "live", bench: Some(LIVE.bench), tables: |here| some(here, &LIVE) },
    Made { name: "published", bench: None, tables: |here| rows::shown(here).into_iter().collect() },
    Made { name: "promises", bench: None, tables: |here| rows::not_kept(&here.judged).into_iter().collect() },
    Made { name: "environment", bench: None, tables: |here| tables(Some(rows::environments(here))) },
];

impl Made {
    /// Makes the tables, and lines that name the command that has measured them, the date, and the machine. Returns
    /// `None` if the bench has not run.
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

    /// Returns how many of our own times in the tables are not known, and how many there are in total.
    pub(crate) fn unknown(&self, here: &Machine) -> [usize; 2] {
        let tables = (self.tables)(here);
        let cells = tables.iter().flat_map(|table| &table.rows).flatten();
        let own = cells.filter_map(|cell| if let Cell::Value(value) = cell { Some(value) } else { None });
        own.filter(|value| value.own)
            .fold([0, 0], |[not, all], value| [not + usize::from(value.known == Known::Not), all + 1])
    }
}

/// Names the command that runs a bench, and the conditions of its last run.
fn made_by(here: &Machine, name: &str) -> Option<String> {
    let (bench, known) = (here.benches.get(name)?, BENCHES.iter().find(|known| known.name == name)?);
    let has_peers = bench.rows.iter().any(|row| Id::of(&row.id).who.peer().is_some());
    let mut command = known.command();
    if has_peers {
        command = command.replace(" --bench", " --features peers --bench");
    }
    Some(format!("Made by `{command}` and `report --docs`. {}", findings::about_bench(bench)?))
}

fn tables(section: Option<Section>) -> Vec<Table> {
    let parts = section.into_iter().flat_map(|section| section.parts);
    let table = |part| if let Part::Table(table) = part { Some(table) } else { None };
    parts.filter_map(table).collect()
}

fn some(here: &Machine, of: &Chosen) -> Vec<Table> {
    let Some(bench) = here.benches.get(of.bench) else { return Vec::new() };
    let columns: Vec<&str> = ["case", of.base].into_iter().chain(of.modes.iter().copied()).collect();
    vec![Table {
        note: String::new(),
        ..rows::added(of.bench, &bench.rows, of.base).only(of.cases, &columns)
    }]
}

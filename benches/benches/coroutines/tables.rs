//! The lines of the original, as columns, and what the original left open.

use atrace_benches::instruments::clock::timer_floor;
use atrace_benches::measure::workload::Results;
use atrace_benches::table::{Cell, Table};

use super::{Place, Runner, is_original};

const COLUMNS: [&str; 12] = [
    "", "tasks", "total", "create", "resume", "compute", "switch", "destroy", "tasks/s", "resumes", "allocs",
    "frame",
];

/// How the numbers were measured.
const NOTE: &str = "\
Without instrumentation: ns of one task, and percent of its total.
switch: the resume of tasks with nothing to compute, in the same turns; compute: what a resume takes more than that.
    On several cores threads and tokio's tasks compute beside each other: compute is then less than what one task computes.
One coroutine (co_yield) or future (yield) runs all tasks: its create and destroy have a reading of the clock in them, and are
    as much of the total as all tasks together are. frame of tokio: the future, without the task that tokio makes of it.";

const ORIGINAL: &str = "
The original has 1000 tasks of fib 25: ATRACE_BENCH_ORIGINAL=1 cargo bench --bench coroutines -- fib_25";

pub(crate) fn of(results: &Results) -> Vec<Table> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let table = |place: Place| {
        let cores = if place.one_core || cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        let mut table = Table::new(format!("fib {}, {cores}", place.number()), COLUMNS);
        table.rows.extend(Runner::ALL.into_iter().filter_map(|runner| line(results, runner, place)));
        table
    };
    let mut tables: Vec<Table> = Place::all().map(table).filter(|table| !table.rows.is_empty()).collect();
    if let Some(last) = tables.last_mut() {
        let original = if is_original() { "" } else { ORIGINAL };
        last.note = format!("{NOTE}{original}{}", left_open(results).unwrap_or_default());
    }
    tables
}

fn number(ns: f64) -> String {
    if ns.abs() < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// A part in percent, which is 0 only where it is nothing.
fn percent(part: f64) -> String {
    let percent = part * 100.0;
    if percent.abs() >= 0.5 || percent == 0.0 { format!("{percent:.0}") } else { "<1".to_owned() }
}

/// One kind of task at one place.
fn line(results: &Results, runner: Runner, place: Place) -> Option<Vec<Cell>> {
    let (id, nothing) = (place.id(runner), place.with_nothing().id(runner));
    let total = results.row(&id, "none")?;
    let tasks = place.batch(runner);
    // A part of the total, of so many tasks.
    let part =
        |ns: f64, tasks: f64| Cell::Number(format!("{} {}%", number(ns), percent(ns / tasks / total.median)));
    let timed = |name: &str| {
        let is_one = runner.is_one_for_all() && name != "resume";
        let row = results.part(&id, name, "none");
        row.map_or(Cell::Empty, |row| part(row.median, if is_one { tasks as f64 } else { 1.0 }))
    };
    // All that a loop does is resuming.
    let resume = |id: &str| if runner.is_created() { format!("{id}/resume") } else { id.to_owned() };
    let compute = results.difference((&resume(&id), "none"), (&resume(&nothing), "none"));
    let computed = match compute {
        Some(compute) if compute.low > 0.0 => part(compute.median, 1.0),
        Some(_) => Cell::none("too little beside what it takes to resume a task"),
        None => Cell::not_measured(),
    };
    let switch = match runner.is_created() {
        true => results.part(&nothing, "resume", "none"),
        false => results.row(&nothing, "none"),
    };
    let count = |name: &str| total.counts.get(name).copied();
    let unless = |is_missing: bool, why: &str, cell: Cell| {
        if is_missing { cell.or(why) } else { cell.or_not_measured() }
    };
    const LOOP: &str = "a loop creates, resumes and destroys nothing";
    let created = |cell| unless(!runner.is_created(), LOOP, cell);
    let destroyed = match timed("destruction") {
        Cell::Empty if runner.is_created() && !runner.is_destroyed() => {
            Cell::none("a resume has it, as joining and awaiting destroy")
        }
        cell => created(cell),
    };
    let allocs = unless(
        id.starts_with("cc/"),
        "of C++ only coroutines' frames are counted",
        Cell::count(count("new").or(total.allocs)),
    );
    let has_frame = runner.is_created() && !matches!(runner, Runner::Thread | Runner::CcThread);
    Some(vec![
        Cell::name(runner.id()),
        Cell::Number(tasks.to_string()),
        Cell::Number(number(total.median)),
        created(timed("creation")),
        created(timed("resume")),
        computed,
        switch.map_or(Cell::Empty, |switch| part(switch.median, 1.0)).or_not_measured(),
        destroyed,
        Cell::Number(format!("{:.0}", 1e9 / total.median)),
        unless(
            count("resumes").is_none(),
            "nobody counts how often a loop, a thread of C++ or a task of tokio is resumed",
            Cell::count(count("resumes").map(|resumes| resumes * tasks as f64)),
        ),
        allocs,
        unless(!has_frame, "a loop and a thread have no frame", Cell::number(count("frame_bytes"), 0)),
    ])
}

/// What the original left open.
fn left_open(results: &Results) -> Option<String> {
    let place = Place { fibonacci: Some(5), one_core: true };
    let id = place.id(Runner::CcCoroutine);
    let part = |name: &str| results.part(&id, name, "none").map(|row| row.median);
    let (creation, destruction) = (part("creation")?, part("destruction")?);
    let row = results.row(&id, "none")?;
    let count = |name: &str| row.counts.get(name).copied();
    let frame = match (count("new"), count("frame_bytes")) {
        (Some(new), Some(bytes)) => format!("{new:.2} `new` of {bytes:.0} bytes each"),
        _ => "no `new`: the compiler has elided it".to_owned(),
    };
    Some(format!(
        "\nThe original asks whether its 18 ns to create a coroutine and 31 to destroy one are right. It read the clock\n    \
         around each, and began after the frame was allocated. In batches of {} it takes {creation:.1} and \
         {destruction:.1} ns, with\n    {frame}; two readings of the clock take {} ns here.",
        place.batch(Runner::CcCoroutine),
        2 * timer_floor().as_nanos()
    ))
}

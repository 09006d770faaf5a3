//! The lines of the original, as columns, and what the original left open.

use std::fmt::Write as _;

use atrace_benches::instruments::clock::timer_floor;
use atrace_benches::measure::workload::Results;

use super::{Place, Runner, is_original};

pub(crate) fn report(results: &Results) -> String {
    let mut text = String::new();
    let floor = timer_floor().as_nanos();
    let _ = writeln!(
        text,
        "without instrumentation; ns of one task, and percent of its total (a reading of the timer takes {floor} ns)"
    );
    for place in Place::all() {
        let cores =
            if place.one_core { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
        let title = format!("fib {}, {cores} core{}", place.number(), if cores == 1 { "" } else { "s" });
        let _ = writeln!(
            text,
            "\n{title:16}{:>5}{:>9}{:>13}{:>13}{:>13}{:>13}{:>13}{:>11}{:>8}{:>7}{:>6}",
            "tasks",
            "total",
            "create",
            "resume",
            "compute",
            "switch",
            "destroy",
            "tasks/s",
            "resumes",
            "allocs",
            "frame"
        );
        for runner in Runner::ALL {
            line(&mut text, results, runner, place);
        }
    }
    text.push_str(NOTES);
    if !is_original() {
        text.push_str(ORIGINAL);
    }
    left_open(&mut text, results);
    text
}

/// Why a cell is empty, and how the others were measured.
const NOTES: &str = "
switch: the resume of tasks with nothing to compute, in the same turns; compute: what a resume takes more than that.
    On several cores threads and tokio's tasks compute beside each other: compute is then less than what one task computes.
- of sequential: nothing is created, resumed or destroyed. - below destroy: a resume has it, as joining and awaiting destroy.
- below allocs: of C++ only coroutines' frames are counted. - below frame: threads have none.
One coroutine (co_yield) or future (yield) runs all tasks: its create and destroy have a reading of the clock in them, and are
    as much of the total as all tasks together are. frame of tokio: the future, without the task that tokio makes of it.
";

const ORIGINAL: &str =
    "The original has 1000 tasks of fib 25: ATRACE_BENCH_ORIGINAL=1 cargo bench --bench coroutines -- fib_25
";

fn number(ns: f64) -> String {
    if ns.abs() < 99.95 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// One kind of task at one place.
fn line(text: &mut String, results: &Results, runner: Runner, place: Place) {
    let id = place.id(runner);
    let Some(total) = results.row(&id, "none") else { return };
    let tasks = place.batch(runner);
    let dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let cell = |ns: f64, tasks: f64| {
        format!("{} {:>4}", number(ns), format!("{:.0}%", ns / tasks / total.median * 100.0))
    };
    let part = |name: &str| {
        let is_one = runner.is_one_for_all() && name != "resume";
        Some(cell(results.part(&id, name, "none")?.median, if is_one { tasks as f64 } else { 1.0 }))
    };
    // All that a loop does is resuming.
    let resume = |id: String| if runner.is_created() { format!("{id}/resume") } else { id };
    let (full, empty) = (resume(id.clone()), resume(place.with_nothing().id(runner)));
    let compute = results.difference((&full, "none"), (&empty, "none"));
    let nothing = place.with_nothing().id(runner);
    let switch = match runner.is_created() {
        true => results.part(&nothing, "resume", "none"),
        false => results.row(&nothing, "none"),
    };
    let count = |name: &str| total.counts.get(name).copied();
    let allocs = count("new").or(total.allocs);
    let _ = writeln!(
        text,
        "{:16}{tasks:>5}{:>9}{:>13}{:>13}{:>13}{:>13}{:>13}{:>11.0}{:>8}{:>7}{:>6}",
        runner.id(),
        number(total.median),
        dash(part("creation")),
        dash(part("resume")),
        dash(compute.map(|compute| cell(compute.median, 1.0))),
        dash(switch.map(|switch| cell(switch.median, 1.0))),
        dash(part("destruction")),
        1e9 / total.median,
        dash(count("resumes").map(|resumes| number(resumes * tasks as f64).replace(".0", ""))),
        dash(allocs.map(|allocs| format!("{allocs:.2}"))),
        dash(count("frame_bytes").map(|bytes| format!("{bytes:.0}"))),
    );
}

/// What the original left open.
fn left_open(text: &mut String, results: &Results) {
    let place = Place { fibonacci: Some(5), one_core: true };
    let id = place.id(Runner::CcCoroutine);
    let part = |name: &str| results.part(&id, name, "none").map(|row| row.median);
    let (Some(creation), Some(destruction), Some(row)) =
        (part("creation"), part("destruction"), results.row(&id, "none"))
    else {
        return;
    };
    let count = |name: &str| row.counts.get(name).copied();
    let frame = match (count("new"), count("frame_bytes")) {
        (Some(new), Some(bytes)) => format!("{new:.2} `new` of {bytes:.0} bytes each"),
        _ => "no `new`: the compiler has elided it".to_owned(),
    };
    let _ = writeln!(
        text,
        "The original asks whether its 18 ns to create a coroutine and 31 to destroy one are right. It read the \
         clock\naround each, and began after the frame was allocated. In batches of {} it takes {creation:.1} and \
         {destruction:.1} ns, with\n{frame}; two readings of the clock take {} ns here.",
        place.batch(Runner::CcCoroutine),
        2 * timer_floor().as_nanos()
    );
}

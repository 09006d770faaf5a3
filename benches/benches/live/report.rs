//! The original's table, with its labels, and what was promised.

use atrace_benches::measure::workload::Results;
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::row::Row;
use atrace_benches::stats::Interval;
use atrace_benches::table::{Cell, Table};

use super::modes::{BY_POINTERS, DEFAULT, ORIGINAL};

/// Its benchmarks: what they are called there, here, and whether the traces of creations were fetched.
const BENCHMARKS: [(&str, &str, &str); 13] = [
    ("Launch", "rust/launch", "N/A"),
    ("Launch, 2 threads", "rust/launch/2_threads", "N/A"),
    ("RunBlocking", "rust/run_blocking", "N/A"),
    ("RunBlocking, 2 threads", "rust/run_blocking/2_threads", "N/A"),
    ("RunBlockingLaunch", "rust/run_blocking_launch", "N/A"),
    ("RunBlockingLaunch, 2 threads", "rust/run_blocking_launch/2_threads", "N/A"),
    ("LongDelayOnDump", "rust/dump_of_long_delay", "false"),
    ("LongDelayOnDump", "rust/dump_of_long_delay/fetched", "true"),
    ("LotOfTasksOnDump (1000)", TASKS, "false"),
    ("LotOfTasksOnDump (1000)", FETCHED_TASKS, "true"),
    ("LotOfDelaysOnDump", "rust/dump_of_10000_delays", "false"),
    ("LotOfDelaysOnDump", "rust/dump_of_10000_delays/fetched", "true"),
    ("Creation of a span, 10 deep", CREATION, "N/A"),
];
const CREATION: &str = "rust/creation";
const TASKS: &str = "rust/dump_of_1000_tasks";
const FETCHED_TASKS: &str = "rust/dump_of_1000_tasks/fetched";

const LEGEND: &str = "\
modes: none is the original's NO_PROBES, DEFAULT its probes alone; C: traces of creations (CREATION_ST), S: sanitised
    (SANITIZE_ST), L: symbols when asked (LAZY_CREATION_ST); _fp: by frame pointers. registry: tracing's store of spans alone.
Its profile patchedlib is all nine modes; originallib, the library before there were lazy traces, is those without L, which
    here are the same code.
LotOfDelaysOnDump in none: a dump of nothing, beside a task at work.";

pub(crate) fn tables(results: &Results) -> Vec<Table> {
    let columns = [
        "Benchmark",
        "fetched",
        "options",
        "Mode",
        "Cnt",
        "Score ± Error (95 %)",
        "Units",
        "allocs/op",
        "B/op",
    ];
    let mut table = Table::new("", columns).with_note(LEGEND);
    for (benchmark, case, fetched) in BENCHMARKS {
        for mode in ORIGINAL.iter().chain(&["registry"]).chain(&BY_POINTERS).chain(&["bare"]) {
            if let Some(row) = results.row(case, mode) {
                table.push(line(benchmark, fetched, mode, row));
            }
        }
    }
    // Of the original's table.
    let there = |eager: f64, lazy: f64| eager / lazy;
    let fetched = times(results, FETCHED_TASKS).zip(times(results, TASKS));
    if let Some((fetched, dumped)) = fetched {
        table.note.push_str(&format!(
            "\nA dump of 1000 tasks with eager traces (C) takes {dumped} times as long as with lazy ones (C_L),\n    there \
             {:.1}; where the traces are fetched {fetched} times, there {:.1}: what C looked up when a span was\n    made is \
             only handed out, and with L a fetch looks it up.",
            there(16941.878, 415.108),
            there(3538.949, 1318.085)
        ));
    }
    if !results.modes().iter().any(|mode| BY_POINTERS.contains(&mode.name())) {
        table.note.push_str(
            "\nC_L_fp, C_S_L_fp and bare_fp are missing: this program has no frame pointers. With them:\n    \
             RUSTFLAGS=\"-C force-frame-pointers=yes\" cargo bench --bench live",
        );
    }
    vec![table]
}

/// How many times as long a dump of eager traces takes as one of lazy ones.
fn times(results: &Results, case: &str) -> Option<String> {
    let Interval { median, low, high, .. } = results.ratio((case, "C"), (case, "C_L"))?;
    Some(format!("{median:.2} ({low:.2}–{high:.2})"))
}

fn line(benchmark: &str, fetched: &str, mode: &str, row: &Row) -> [Cell; 9] {
    let count = |n| Cell::number(n, 1).or_not_measured();
    [
        Cell::name(benchmark),
        Cell::text(fetched),
        Cell::text(mode),
        Cell::text("avgt"),
        Cell::count(row.rounds.as_ref().map(|rounds| rounds.n as f64)).or_not_measured(),
        Cell::Number(format!("{:.1} ± {:.1}", row.median, row.interval().half_width())),
        Cell::text("ns/op"),
        count(row.allocs),
        count(row.bytes),
    ]
}

pub(crate) fn bars(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    // What a mode adds to a creation, of what another adds.
    let added = |mode: &str| results.difference((CREATION, mode), (CREATION, DEFAULT));
    let mut compare = |what: &str, of: &str, base: &str, judge: &dyn Fn(Interval) -> Verdict, asked: &str| {
        let Some((of, base)) = added(of).zip(added(base)) else { return };
        if of.low <= 0.0 || base.low <= 0.0 {
            bars.push(Judged::new(what, CREATION, "lost in the noise", asked, Verdict::Open));
            return;
        }
        let ratio = Interval {
            median: of.median / base.median,
            low: of.low / base.high,
            high: of.high / base.low,
            sure: of.sure && base.sure,
        };
        let ns = |of: Interval| format!("{:.1} ns", of.median);
        let more = format!("{:.2} – {:.2}: {} of {}", ratio.low, ratio.high, ns(of), ns(base));
        let measured = format!("{:.2}", ratio.median);
        bars.push(Judged::new(what, CREATION, measured, asked, judge(ratio)).more(more));
    };
    compare(
        "a lazy backtrace of the bare capture",
        "C_L",
        "bare",
        &|ratio| Verdict::at_most(1.10, ratio),
        "≤ 1.10",
    );
    compare("an eager backtrace, in lazy ones", "C", "C_L", &|ratio| Verdict::at_least(5.0, ratio), "≥ 5");
    compare(
        "the same, in lazy ones by frame pointers",
        "C",
        "C_L_fp",
        &|ratio| Verdict::at_least(50.0, ratio),
        "≥ 50",
    );
    // A few nanoseconds: as much as two programs differ by that are laid out differently. So of the whole.
    if let Some(ratio) = results.ratio((CREATION, "C_L_fp"), (CREATION, "bare_fp")) {
        let verdict = Verdict::at_most(1.10, ratio);
        let what = "a creation with a lazy backtrace by frame pointers, of one with the bare capture";
        let judged = Judged::new(what, CREATION, format!("{:.2}", ratio.median), "≤ 1.10", verdict);
        bars.push(judged.more(format!("{:.2} – {:.2}", ratio.low, ratio.high)));
    }
    let mode = if results.row(TASKS, "C_L_fp").is_some() { "C_L_fp" } else { "C_L" };
    for (what, row, asked) in [
        ("a dump of 1000 spans with backtraces", results.row(TASKS, mode), 60.0),
        ("the same with symbols, warm", results.row(FETCHED_TASKS, mode), 500.0),
    ] {
        if let Some(row) = row {
            let us = row.median / 1e3;
            let verdict = Verdict::at_most(asked * 1e3, row.interval());
            let of = format!("in the mode {mode}");
            bars.push(Judged::new(what, of, format!("{us:.1} µs"), format!("≤ {asked} µs"), verdict));
        }
    }
    bars
}

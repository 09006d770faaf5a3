//! What was promised.

use atrace_benches::measure::workload::Results;
use atrace_benches::promise::{Judged, Verdict};
use atrace_benches::stats::Interval;

use super::modes::DEFAULT;

const CREATION: &str = "rust/creation";
const TASKS: &str = "rust/dump_of_1000_tasks";
const FETCHED_TASKS: &str = "rust/dump_of_1000_tasks/fetched";

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
        let what = "a creation with a lazy backtrace by frame pointers, of one with the bare capture";
        bars.push(Judged::at_most(what, CREATION, ratio, 1.10, (2, "")));
    }
    let mode = if results.row(TASKS, "C_L_fp").is_some() { "C_L_fp" } else { "C_L" };
    for (what, case, most) in [
        ("a dump of 1000 spans with backtraces", TASKS, 60.0),
        ("the same with symbols, warm", FETCHED_TASKS, 500.0),
    ] {
        if let Some(row) = results.row(case, mode) {
            let Interval { median, low, high, sure } = row.interval();
            let us = Interval { median: median / 1e3, low: low / 1e3, high: high / 1e3, sure };
            bars.push(Judged::at_most(what, format!("in the mode {mode}"), us, most, (1, " µs")));
        }
    }
    bars
}

//! What is promised of all workloads: that `filtered` takes as long as `nosub`, and that `on` allocates what `nosub` does.

use super::results::{Results, allowed};
use crate::catalogue::Id;
use crate::promise::{Judged, Verdict};
use crate::row::Row;
use crate::stats::Interval;

/// Makes the promise that a row takes as long as `base` (`nosub`, `DEFAULT`): the difference is at most 2 ns or 1 %,
/// whichever is more. `None` where the row was not compared to that.
#[must_use]
pub fn zero_above(row: &Row, base: &str) -> Option<Judged> {
    zero_above_of(row, base, 1.0)
}

/// The same for one of `units` that an operation has ([`Results::units`]).
fn zero_above_of(row: &Row, base: &str, units: f64) -> Option<Judged> {
    let above = row.above.get(base)?;
    let allowed = allowed(row.median - above.ns, units) / units;
    let [ns, low, high] = [above.ns, above.low, above.high].map(|ns| ns / units);
    let verdict = Verdict::within([-allowed, allowed], Interval { median: ns, low, high, sure: above.sure });
    let more = format!("{low:+.2} – {high:+.2}");
    let (promise, of) = named(row, "takes as long as", base);
    Some(Judged::new(promise, of, format!("{ns:+.2} ns"), format!("0 ± {allowed:.2} ns"), verdict).more(more))
}

/// Makes the promise that a row allocates what `base` does, where that can be told exactly; where a runtime's own threads
/// allocate when they please, it is missed by one allocation every other operation.
fn no_allocations_above(row: &Row, base: &str, (allocs, bytes): (f64, f64), exact: bool) -> Judged {
    let (promise, of) = named(row, "allocates what", base);
    let (asked, kept) = match exact {
        true => ("0", allocs == 0.0 && bytes == 0.0),
        false => ("0 ± 0.5: what the runtime allocates differs", allocs.abs() < 0.5),
    };
    let judged = Judged::new(promise, of, format!("{allocs:+.3} allocs"), asked, Verdict::kept_if(kept));
    let judged = judged.more(format!("{bytes:+.1} B"));
    if exact { judged.exact() } else { judged }
}

/// What a promise about a row and another mode is called, and the case that it is about.
fn named(row: &Row, says: &str, base: &str) -> (String, String) {
    let (case, mode) = Id::case_and_mode(&row.id).unwrap_or((&row.id, "it"));
    let does = if says.starts_with("allocates") { " does" } else { "" };
    (format!("{mode} {says} {base}{does}"), case.to_owned())
}

/// What is promised of all workloads.
pub(super) fn common(results: &Results) -> Vec<Judged> {
    let mut bars = Vec::new();
    for case in results.traced_cases() {
        let row = results.row(case, "filtered");
        bars.extend(row.and_then(|row| zero_above_of(row, "nosub", results.units(case))));
    }
    for case in results.traced_cases() {
        // Whether there are times to compare or not: what is counted does not hang on the processor's speed.
        let more = results.allocated_above(case, "on", "nosub");
        let row = results.row(case, "on").zip(more);
        bars.extend(
            row.map(|(row, more)| no_allocations_above(row, "nosub", more, results.allocates_exactly(case))),
        );
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Above, Sink};

    #[test]
    fn a_wide_interval_leaves_it_open() {
        let ns = Interval::around(100.0, 0.0);
        let bar = |low: f64, high: f64| {
            let mut row = Row::new("a/filtered", ns, Sink::Null);
            let above = Interval { median: 0.0, low, high, sure: true };
            row.above.insert("nosub".into(), Above::from(above));
            zero_above(&row, "nosub").unwrap().verdict
        };
        assert_eq!(bar(-1.0, 2.0), Verdict::Kept);
        assert_eq!(bar(-1.0, 4.0), Verdict::Open);
        assert_eq!(bar(0.5, 1.0), Verdict::Kept);
        assert_eq!(bar(3.0, 9.0), Verdict::Missed);
    }

    #[test]
    fn what_allocates_when_it_pleases_may_differ_a_little() {
        let ns = Interval::around(1.0, 0.0);
        let kept = |allocs: f64| {
            let row = Row::new("a/on", ns, Sink::Null);
            no_allocations_above(&row, "nosub", (allocs, 0.0), false).verdict == Verdict::Kept
        };
        assert!(kept(0.0) && kept(0.4) && kept(-0.4));
        assert!(!kept(0.5) && !kept(1.0) && !kept(-0.6));
    }
}

//! What was promised, beside what was measured.

use super::results::Results;
use crate::row::Row;

/// Half an interval of a difference of zero may be this many nanoseconds…
const ZERO_NS: f64 = 2.0;
/// …or this part of what it is a difference to, whichever is more.
const ZERO_RATIO: f64 = 0.01;

/// How many nanoseconds half the interval of a difference of zero may be, to an operation that takes so long and
/// has so many things that it is about.
pub(super) fn allowed(ns: f64, things: f64) -> f64 {
    (ZERO_NS * things).max(ZERO_RATIO * ns)
}

/// A promise, and whether it was kept.
///
/// Of all workloads it is promised that `filtered` takes as long as `nosub`, and that `on` allocates what
/// `nosub` does. [`Workload::bars`](super::Workload::bars) adds to that.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    what: String,
    measured: String,
    asked: String,
    kept: bool,
    open: bool,
    exact: bool,
}

impl Bar {
    /// Makes a promise about time, which is only told when it is broken.
    pub fn new(
        what: impl Into<String>,
        measured: impl Into<String>,
        asked: impl Into<String>,
        kept: bool,
    ) -> Self {
        Self {
            what: what.into(),
            measured: measured.into(),
            asked: asked.into(),
            kept,
            open: false,
            exact: false,
        }
    }

    /// Leaves it open: what was measured may be what was asked for, but is not known well enough.
    #[must_use]
    fn open(mut self) -> Self {
        (self.kept, self.open) = (false, true);
        self
    }

    /// Makes it one about something that is counted: then it holds in a test, too, and breaking it fails the
    /// bench.
    #[must_use]
    pub fn exact(mut self) -> Self {
        self.exact = true;
        self
    }

    /// Makes the promise that a row takes as long as `base` (`nosub`, `DEFAULT`): the interval of the
    /// difference has 0 in it, and half of it is at most 2 ns or 1 %, whichever is more. With 0 in a wider one it is
    /// open. `None` where the row was not compared to that.
    #[must_use]
    pub fn zero_above(row: &Row, base: &str) -> Option<Self> {
        Self::zero_above_of(row, base, 1.0)
    }

    /// The same for one of `things` that an operation has ([`Results::things`]).
    #[must_use]
    pub fn zero_above_of(row: &Row, base: &str, things: f64) -> Option<Self> {
        let above = row.above.get(base)?;
        let allowed = allowed(row.median - above.ns, things) / things;
        let [ns, low, high] = [above.ns, above.low, above.high].map(|ns| ns / things);
        let has_zero = low <= 0.0 && high >= 0.0;
        let mut measured = format!("{ns:+.2} ns ({low:+.2} – {high:+.2})");
        if !has_zero && low >= -allowed && high <= allowed {
            measured.push_str(", all of which is within that, but not 0");
        }
        let asked = format!("0 within ± {allowed:.2} ns");
        let bar = Self::new(format!("{} above {base}", row.id), measured, asked, has_zero);
        Some(if has_zero && (high - low) / 2.0 > allowed { bar.open() } else { bar })
    }

    /// Makes the promise that a row allocates what `base` does.
    #[must_use]
    pub fn no_allocations_above(row: &Row, base: &str) -> Option<Self> {
        let above = row.above.get(base)?;
        let (allocs, bytes) = (above.allocs?, above.bytes?);
        let measured = format!("{allocs:+.3} allocs, {bytes:+.1} B");
        let what = format!("{} allocates above {base}", row.id);
        Some(Self::new(what, measured, "0", allocs == 0.0 && bytes == 0.0))
    }

    /// Whether breaking this fails the bench, and it is broken.
    pub(super) fn fails(&self) -> bool {
        self.exact && !self.kept
    }

    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }

    pub(super) fn kept(&self) -> bool {
        self.kept
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    pub(super) fn columns(&self) -> [&str; 3] {
        [&self.what, &self.measured, &self.asked]
    }
}

/// Makes the promise that a row allocates what `base` does, where a runtime's own threads allocate when they please: it
/// is broken by one allocation every other operation.
fn hardly_any_allocations_above(row: &Row, base: &str) -> Option<Bar> {
    let above = row.above.get(base)?;
    let (allocs, bytes) = (above.allocs?, above.bytes?);
    let measured = format!("{allocs:+.3} allocs, {bytes:+.1} B");
    let what = format!("{} allocates above {base}", row.id);
    Some(Bar::new(what, measured, "0 within ± 0.5: what the runtime allocates differs", allocs.abs() < 0.5))
}

/// What is promised of all workloads.
pub(super) fn common(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for case in results.traced_cases() {
        let row = results.row(case, "filtered");
        bars.extend(row.and_then(|row| Bar::zero_above_of(row, "nosub", results.things(case))));
    }
    for case in results.traced_cases() {
        let Some(row) = results.row(case, "on") else { continue };
        bars.extend(match results.allocates_exactly(case) {
            true => Bar::no_allocations_above(row, "nosub").map(Bar::exact),
            false => hardly_any_allocations_above(row, "nosub"),
        });
    }
    bars
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Above, Sink};
    use crate::stats::Interval;

    #[test]
    fn a_wide_interval_leaves_it_open() {
        let ns = Interval { median: 100.0, low: 100.0, high: 100.0, sure: true };
        let bar = |low: f64, high: f64| {
            let mut row = Row::new("a/filtered", ns, Sink::Null);
            let above = Above { ns: 0.0, low, high, allocs: None, bytes: None, raw_writes: None };
            row.above.insert("nosub".into(), above);
            let bar = Bar::zero_above(&row, "nosub").unwrap();
            (bar.kept(), bar.is_open())
        };
        assert_eq!(bar(-1.0, 2.0), (true, false));
        assert_eq!(bar(-1.0, 4.0), (false, true));
        assert_eq!(bar(0.5, 1.0), (false, false));
        assert_eq!(bar(3.0, 9.0), (false, false));
    }

    #[test]
    fn what_allocates_when_it_pleases_may_differ_a_little() {
        let ns = Interval { median: 1.0, low: 1.0, high: 1.0, sure: true };
        let kept = |allocs: f64| {
            let mut row = Row::new("a/on", ns, Sink::Null);
            let above = Above {
                ns: 0.0,
                low: 0.0,
                high: 0.0,
                allocs: Some(allocs),
                bytes: Some(0.0),
                raw_writes: None,
            };
            row.above.insert("nosub".into(), above);
            hardly_any_allocations_above(&row, "nosub").unwrap().kept()
        };
        assert!(kept(0.0) && kept(0.4) && kept(-0.4));
        assert!(!kept(0.5) && !kept(1.0) && !kept(-0.6));
    }
}

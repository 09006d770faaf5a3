//! What was promised, beside what was measured. It gates nothing: that is for someone who knows the machine.

use std::fmt;

use crate::catalogue::Id;
use crate::catalogue::promises::{Promise, must_not_allocate};
use crate::row::Row;

/// Promises beside the rows of a bench; one that no row is of is left out.
#[derive(Debug)]
pub struct Promised<'a> {
    /// What was promised.
    pub promises: &'a [Promise],
    /// What was measured.
    pub rows: &'a [Row],
}

impl fmt::Display for Promised<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:34} {:>8}  {:42} {:>5} {:>17} {:>8}",
            "promised", "ns", "vs", "ratio", "95 %", "at most"
        )?;
        for Promise { id, base, at_most } in self.promises {
            let [id, base] = [id, base].map(Id::to_string);
            let Some(row) = self.rows.iter().find(|row| row.id == id) else { continue };
            let Some(vs) = row.vs.get(&base).or_else(|| row.vs_process.get(&base)) else { continue };
            let verdict = match () {
                () if row.noisy => " noisy: not measured",
                () if vs.ratio <= *at_most => "",
                () => " MISSED",
            };
            let range = format!("{:.3}–{:.3}", vs.low, vs.high);
            let (ns, ratio) = (row.median, vs.ratio);
            write!(f, "\n{id:34} {ns:>8.2}  {base:42} {ratio:>5.2} {range:>17} {at_most:>8.2}{verdict}")?;
        }
        let counted = self.rows.iter().filter(|row| must_not_allocate(&Id::of(&row.id)));
        let counts: Vec<_> = counted.filter_map(|row| Some((row, row.allocs?))).collect();
        for (row, allocs) in counts.iter().filter(|(_, allocs)| *allocs > 0.0) {
            write!(f, "\nMISSED: {} allocates {allocs} times", row.id)?;
        }
        if !counts.is_empty() && counts.iter().all(|(_, allocs)| *allocs == 0.0) {
            write!(f, "\nallocations per operation: 0 in all {} rows that may have none", counts.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::promises;
    use crate::row::{Sink, Versus};
    use crate::stats::Interval;

    #[test]
    fn a_promise_is_kept_missed_or_not_measured() {
        let row = |id: &str, ratio: f64, noisy: bool, allocs: f64| {
            let mut row = Row::new(id, Interval { median: 1.0, low: 1.0, high: 1.0, sure: true }, Sink::Null);
            row.vs.insert(id.replace("rust", "cc"), Versus { ratio, low: ratio, high: ratio });
            (row.noisy, row.allocs) = (noisy, Some(allocs));
            row
        };
        let mut rows = [
            row("rust/tracing_off_begin/10", 0.20, false, 0.0),
            row("rust/tracing_off_begin/1000", 0.21, false, 0.0),
            row("rust/tracing_off_end", 0.10, true, 0.0),
        ];
        let said = |rows: &[Row]| Promised { promises: &promises::of_events(), rows }.to_string();
        let text = said(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[1].ends_with("0.20") && lines[2].ends_with("0.20 MISSED"), "{text}");
        assert!(
            lines[3].ends_with("noisy: not measured")
                && lines[4].ends_with("in all 3 rows that may have none")
        );
        rows[0].allocs = Some(1.0);
        assert!(
            said(&rows).ends_with("MISSED: rust/tracing_off_begin/10 allocates 1 times"),
            "{}",
            said(&rows)
        );
    }
}

//! What a person sees: what each mode adds, and the promises.

use std::fmt;

use super::bars::Bar;
use super::results::Results;
use crate::report::table::WIDTH;
use crate::row::{Above, Row};

const NAME: usize = 22;
const CELL: usize = 19;
const BASE: &str = "none";

/// Nanoseconds and bytes above `none`, of every case and part: a column a mode. What is above others is for the
/// workload's own table.
pub(super) struct Overhead<'a>(pub(super) &'a Results);

impl fmt::Display for Overhead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modes: Vec<_> =
            self.0.modes().iter().filter(|mode| mode.bases().first() == Some(&BASE)).collect();
        let columns = (WIDTH - NAME) / CELL;
        for modes in modes.chunks(columns) {
            write!(f, "{:NAME$}", format!("above {BASE}, 95 %"))?;
            for mode in modes {
                write!(f, "{:>CELL$}", mode.name())?;
            }
            writeln!(f)?;
            for case in self.0.traced_cases() {
                let row = |mode: &str| self.0.row(case, mode);
                self.lines(f, case, modes.iter().map(|mode| row(mode.name())))?;
                for part in self.0.parts(case) {
                    let row = |mode: &str| self.0.part(case, part, mode);
                    self.lines(f, &format!("{case}/{part}"), modes.iter().map(|mode| row(mode.name())))?;
                }
            }
        }
        Ok(())
    }
}

impl Overhead<'_> {
    /// The name on a line of its own, then the nanoseconds, then the bytes where they were counted.
    fn lines<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        name: &str,
        rows: impl Iterator<Item = Option<&'a Row>>,
    ) -> fmt::Result {
        let above: Vec<Option<&Above>> = rows.map(|row| row?.above.get(BASE)).collect();
        if above.iter().all(Option::is_none) {
            return Ok(());
        }
        let largest = above.iter().flatten().map(|above| above.ns.abs()).fold(0.0, f64::max);
        let (divisor, unit) = scale(largest);
        writeln!(f, "{name}")?;
        write!(f, "{:>NAME$}", format!("{unit}/op"))?;
        for above in &above {
            let cell = above.map_or_else(|| "-".to_owned(), |above| cell(above, divisor));
            write!(f, "{cell:>CELL$}")?;
        }
        writeln!(f)?;
        if above.iter().flatten().all(|above| above.bytes.is_none()) {
            return Ok(());
        }
        write!(f, "{:>NAME$}", "B/op (allocs)")?;
        for above in above {
            let counted = above.and_then(|above| above.bytes.zip(above.allocs));
            let cell =
                counted.map_or_else(|| "-".to_owned(), |(b, n)| format!("{} ({})", count(b), count(n)));
            write!(f, "{cell:>CELL$}")?;
        }
        writeln!(f)
    }
}

/// What to divide nanoseconds of this size by, and what they are then.
pub(super) fn scale(ns: f64) -> (f64, &'static str) {
    match ns {
        _ if ns < 1e5 => (1.0, "ns"),
        _ if ns < 1e8 => (1e3, "µs"),
        _ => (1e6, "ms"),
    }
}

fn cell(above: &Above, divisor: f64) -> String {
    let [ns, low, high] = [above.ns, above.low, above.high].map(|ns| ns / divisor);
    let digits = match ns.abs().max(low.abs()).max(high.abs()) {
        a if a < 99.95 => 1,
        _ => 0,
    };
    format!(" {ns:+.digits$} ({low:.digits$}–{high:.digits$})")
}

/// A count: whole if it is.
fn count(x: f64) -> String {
    if (x - x.round()).abs() < 5e-4 { format!("{:+.0}", x.round() + 0.0) } else { format!("{x:+.3}") }
}

/// The promises: those that count something always, those about time where time was measured.
pub(super) struct Bars<'a>(pub(super) &'a [Bar], pub(super) bool);

impl fmt::Display for Bars<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bars: Vec<_> = self.0.iter().filter(|bar| self.1 || bar.is_exact()).collect();
        if bars.is_empty() {
            return Ok(());
        }
        let kept = bars.iter().filter(|bar| bar.kept()).count();
        let exact = bars.iter().filter(|bar| bar.kept() && bar.is_exact()).count();
        write!(f, "\npromised: {kept} of {} kept, {exact} of them exact counts", bars.len())?;
        match bars.iter().filter(|bar| bar.is_open()).count() {
            0 => writeln!(f)?,
            open => writeln!(f, "; {open} open, as their intervals are too wide to tell")?,
        }
        for bar in bars.iter().filter(|bar| !(bar.kept() && bar.is_exact())) {
            let [what, measured, asked] = bar.columns();
            let verdict = match bar.kept() {
                true => "",
                false if bar.is_open() => "  OPEN",
                false => "  MISSED",
            };
            writeln!(f, "{what}\n    {measured}; asked for: {asked}{verdict}")?;
        }
        Ok(())
    }
}

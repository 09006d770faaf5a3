//! What a person sees of the rows: a table of at most 100 columns.

use std::fmt::{self, Write as _};

use crate::catalogue::Id;
use crate::row::{Row, Versus};

/// The most characters of a line.
pub const WIDTH: usize = 100;

/// Rows, to be displayed.
pub struct Table<'a> {
    title: &'a str,
    rows: &'a [Row],
    label: &'a dyn Fn(&str) -> String,
}

impl fmt::Debug for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("title", &self.title).finish_non_exhaustive()
    }
}

impl<'a> Table<'a> {
    /// Makes a table whose rows are called by their ids.
    #[must_use]
    pub fn new(title: &'a str, rows: &'a [Row]) -> Self {
        Self { title, rows, label: &|id| id.to_owned() }
    }

    /// Calls the rows otherwise.
    #[must_use]
    pub fn labels(mut self, label: &'a dyn Fn(&str) -> String) -> Self {
        self.label = label;
        self
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.rows.iter().map(|row| (self.label)(&row.id)).collect();
        let widths = names.iter().map(|name| name.chars().count());
        let name_width = widths.max().unwrap_or(0).min(40).max(self.title.chars().count());
        let mut line = String::new();
        write!(
            line,
            "{:name_width$} {:>8} {:>17} {:>6} {:7}",
            self.title, "median", "95 %", "allocs", "sink"
        )?;
        let indent = line.chars().count();
        writeln!(f, "{}", format!("{line}  ratio").trim_end())?;
        for (row, name) in self.rows.iter().zip(&names) {
            line.clear();
            write!(line, "{name:name_width$} ")?;
            if name.chars().count() > name_width {
                writeln!(f, "{name}")?;
                line = " ".repeat(name_width + 1);
            }
            let unit = if row.unit == "ns" { String::new() } else { format!(" {}", row.unit) };
            let digits = digits(row.median);
            let range = format!("{:.digits$}–{:.digits$}{unit}", row.low, row.high);
            let allocs = row.allocs.map_or_else(|| "-".into(), number_plain);
            write!(line, "{:>8.digits$} {range:>17} {allocs:>6} {:7}", row.median, row.sink)?;
            if row.noisy {
                // First, so that nobody reads the numbers before it.
                writeln!(f, "{line}  NOISY: counts as not measured")?;
                line.clear();
            }
            let across = row.vs_process.iter().map(|v| (v, " (processes)"));
            for ((base, versus), note) in row.vs.iter().map(|v| (v, "")).chain(across) {
                let text = format!("  {}{note}", ratio(&row.id, base, *versus));
                let used = line.chars().count();
                if used > indent || used + text.chars().count() > WIDTH {
                    if !line.is_empty() {
                        writeln!(f, "{}", line.trim_end())?;
                    }
                    line.clear();
                }
                if line.is_empty() {
                    let room = WIDTH.saturating_sub(text.chars().count());
                    line.push_str(&" ".repeat(indent.min(room)));
                }
                line.push_str(&text);
            }
            if !line.is_empty() {
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A ratio, with the base's name as short as it is clear: only who it is, if the rest is the same.
fn ratio(id: &str, base: &str, versus: Versus) -> String {
    let (mine, theirs) = (Id::of(id), Id::of(base));
    let name = if mine.what == theirs.what { theirs.who.to_string() } else { base.to_owned() };
    let (r, low, high) = (versus.ratio, versus.low, versus.high);
    // A ratio is as interesting below one as above it.
    let digits = if r < 0.1 { 3 } else { 2 };
    format!("{r:.digits$} ({low:.digits$}–{high:.digits$}) of {name}")
}

/// How many digits after the point: three that matter in all, or whole ones.
fn digits(median: f64) -> usize {
    match median.abs() {
        a if a < 9.995 => 2,
        a if a < 99.95 => 1,
        _ => 0,
    }
}

/// A count: whole if it is.
fn number_plain(x: f64) -> String {
    if x.fract() == 0.0 { format!("{x:.0}") } else { format!("{x:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sink;
    use crate::stats::Interval;

    #[test]
    fn is_aligned_and_fits() {
        let row = |id: &str, median: f64, half: f64| {
            let ns = Interval { median, low: median - half, high: median + half, sure: true };
            Row::new(id, ns, Sink::Tracefs)
        };
        let vs = |ratio: f64| Versus { ratio, low: ratio * 0.98, high: ratio * 1.02 };
        let mut off = row("rust/tracing_off_begin/10", 0.884, 0.01);
        off.allocs = Some(0.0);
        off.vs.insert("cc/tracing_off_begin/10".into(), vs(0.15));
        let mut on = row("rust/tracing_on_begin/1000", 728.4, 2.0);
        on.vs.insert("cc/tracing_on_begin/1000".into(), vs(0.8));
        on.vs.insert("limit/raw_write_of_the_same_bytes/1000".into(), vs(1.04));
        on.vs_process.insert("limit/nothing".into(), vs(0.05));
        let noisy = row("cc/tracing_on_begin/1000", 12.0, 3.0);
        let text = Table::new("main", &[off, on, noisy]).to_string();
        let expected = "\
main                         median              95 % allocs sink     ratio
rust/tracing_off_begin/10      0.88         0.87–0.89      0 tracefs  0.15 (0.15–0.15) of cc
rust/tracing_on_begin/1000      728           726–730      - tracefs  0.80 (0.78–0.82) of cc
                                          1.04 (1.02–1.06) of limit/raw_write_of_the_same_bytes/1000
                                                    0.050 (0.049–0.051) of limit/nothing (processes)
cc/tracing_on_begin/1000       12.0          9.0–15.0      - tracefs  NOISY: counts as not measured
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH));
    }

    #[test]
    fn labels_replace_ids() {
        let ns = Interval { median: 5.0, low: 5.0, high: 5.0, sure: true };
        let rows = [Row::new("cc/tracing_on_end", ns, Sink::Null)];
        let text = Table::new("seed", &rows).labels(&|_| "BM_TracingOnAtraceEnd".into()).to_string();
        assert!(text.contains("\nBM_TracingOnAtraceEnd     5.00         5.00–5.00      - null\n"), "{text}");
    }
}

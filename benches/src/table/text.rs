//! A table for terminals.

use std::fmt;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width, presets};

use super::{Cell, Table};

/// The most characters of a line.
pub const WIDTH: u16 = 120;

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reasons = self.reasons();
        let mut text = comfy_table::Table::new();
        text.load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(WIDTH)
            .set_header(&self.columns);
        for row in &self.rows {
            let cells = row.iter().map(|cell| match cell {
                Cell::List(all) => {
                    let each: Vec<String> = all.iter().map(|(of, cell)| format!("{cell} {of}")).collect();
                    each.join("\n")
                }
                cell => cell.said(&reasons),
            });
            text.add_row(cells.collect::<Vec<_>>());
        }
        for (index, column) in text.column_iter_mut().enumerate() {
            let is_words = |row: &Vec<Cell>| matches!(row.get(index), Some(Cell::List(_) | Cell::Text(_)));
            let left = index == 0 || self.rows.iter().any(is_words);
            column.set_cell_alignment(if left { CellAlignment::Left } else { CellAlignment::Right });
            column.set_padding((0, 2));
            // An id is not broken: the numbers beside it are, between their words.
            let names = self.rows.iter().filter_map(|row| match row.first() {
                Some(Cell::Name(name)) if index == 0 => Some(name),
                _ => None,
            });
            if let Some(longest) = names.clone().map(|name| name.chars().count() + 2).max()
                && names.clone().all(|name| !name.contains(' '))
            {
                let longest = u16::try_from(longest).unwrap_or(WIDTH).min(WIDTH / 2);
                column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(longest)));
            }
        }
        if !self.title.is_empty() {
            writeln!(f, "{}", self.title)?;
        }
        for line in text.lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        for line in self.below() {
            writeln!(f, "{line}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::of_rows;
    use super::*;
    use crate::row::{Row, Sink, Versus};
    use crate::stats::Interval;

    #[test]
    fn a_name_is_not_broken() {
        let name = "rust/channel_sink_no_allocations/rendezvous";
        let columns = ["case", "a", "b", "c", "d", "e", "f"];
        let mut table = Table::new("", columns);
        let number = || Cell::Text("-12092.0 µs (-19643.0 to 13092.0)".to_owned());
        table.push([Cell::name(name)].into_iter().chain(std::iter::repeat_with(number).take(6)));
        let text = table.to_string();
        assert!(text.contains(name) && text.contains("-19643.0 "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{text}");
    }

    #[test]
    fn is_aligned_and_fits() {
        let row =
            |id: &str, median: f64, half: f64| Row::new(id, Interval::around(median, half), Sink::Tracefs);
        let vs = |ratio: f64| Versus { ratio, low: ratio * 0.98, high: ratio * 1.02, sure: true };
        let mut off = row("rust/tracing_off_begin/10", 0.884, 0.01);
        off.allocs = Some(0.0);
        off.vs.insert("cc/tracing_off_begin/10".into(), vs(0.15));
        let mut on = row("rust/tracing_on_begin/1000", 728.4, 2.0);
        on.vs.insert("cc/tracing_on_begin/1000".into(), vs(0.8));
        on.vs.insert("limit/raw_write_of_the_same_bytes/1000".into(), vs(1.04));
        on.vs_process.insert("limit/nothing".into(), vs(0.05));
        let noisy = row("cc/tracing_on_begin/1000", 12.0, 3.0);
        let text = of_rows("main", &[off, on, noisy]).to_string();
        let expected = "\
main
case                                       median  compared                                allocations
rust/tracing_off_begin/10        0.88 (0.87–0.89)  0.15 (0.15–0.15) of cc                            0
rust/tracing_on_begin/1000          728 (726–730)  0.80 (0.78–0.82) of cc                           –a
                                                   1.04 (1.02–1.06) of
                                                   limit/raw_write_of_the_same_bytes/1000
                                                   0.050 (0.049–0.051) of limit/nothing
cc/tracing_on_begin/1000    12.0 (9.0–15.0) NOISY  –b                                               –a
–a: not counted.
–b: compared with nothing.
";
        assert_eq!(text, expected);
        assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)));
    }
}

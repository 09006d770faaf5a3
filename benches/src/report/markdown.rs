//! The report as Markdown: the text and the tables, without the plots.

use std::fmt::Write as _;

use super::model::{Cell, Part, Report, Table};
use super::number::{count, interval, ratio};

pub(crate) fn text(report: &Report) -> String {
    let mut out = String::new();
    // A string takes all that is written to it.
    let _ = write(&mut out, report);
    out
}

fn write(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "# {}\n\n{}\n", escaped(&report.title), escaped(&report.summary))?;
    if !report.about.is_empty() {
        writeln!(out, "{}\n", escaped(&report.about))?;
    }
    for finding in &report.findings {
        let value = finding.value.as_deref().unwrap_or("not measured");
        write!(out, "- {}: **{}**", escaped(&finding.what), escaped(value))?;
        for beside in &finding.beside {
            write!(out, "; {}", escaped(beside))?;
        }
        writeln!(out)?;
    }
    if !report.warnings.is_empty() {
        writeln!(out, "\n## Warnings\n")?;
        for warning in &report.warnings {
            writeln!(out, "- {}", escaped(warning))?;
        }
    }
    for section in &report.sections {
        writeln!(out, "\n## {}", escaped(&section.title))?;
        for text in &section.text {
            writeln!(out, "\n{}", escaped(text))?;
        }
        parts(out, &section.parts)?;
    }
    Ok(())
}

fn parts(out: &mut String, parts: &[Part]) -> std::fmt::Result {
    for part in parts {
        match part {
            Part::Table(table) => write_table(out, table)?,
            Part::Plot(plot) => {
                writeln!(out, "\n*{}: see report.html.* {}", escaped(&plot.title), escaped(&plot.caption))?;
            }
            Part::Folded(summary, inner) => {
                writeln!(out, "\n{}:", escaped(summary))?;
                self::parts(out, inner)?;
            }
        }
    }
    Ok(())
}

fn write_table(out: &mut String, table: &Table) -> std::fmt::Result {
    if !table.title.is_empty() {
        writeln!(out, "\n### {}", escaped(&table.title))?;
    }
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    writeln!(out, "\n{}", line(table.columns.iter().map(|column| escaped(column)).collect()))?;
    let rule = |index: usize| if index == 0 { "---" } else { "---:" };
    writeln!(out, "{}", line((0..table.columns.len()).map(|i| rule(i).to_owned()).collect()))?;
    for row in &table.rows {
        writeln!(out, "{}", line(row.iter().map(|c| escaped(&cell(c))).collect()))?;
    }
    if !table.note.is_empty() {
        writeln!(out, "\n{}", escaped(&table.note))?;
    }
    Ok(())
}

/// What a cell says.
pub(crate) fn cell(cell: &Cell) -> String {
    match cell {
        Cell::Empty => String::new(),
        Cell::Missing => "missing".to_owned(),
        Cell::Text(text) | Cell::Name(text) => text.clone(),
        Cell::List(all) => {
            let each: Vec<String> =
                all.iter().map(|(of, cell)| format!("{} {of}", self::cell(cell))).collect();
            each.join("; ")
        }
        Cell::Value(value) => {
            let (median, range, unit) = interval(value.median, value.low, value.high, &value.unit);
            let unit =
                if matches!(&unit[..], "ns" | "instructions") { String::new() } else { format!(" {unit}") };
            let range = if value.low < value.high { format!(" ({range})") } else { String::new() };
            format!("{median}{unit}{range}{}", if value.noisy { " NOISY" } else { "" })
        }
        Cell::Ratio(r, None) => ratio(*r),
        Cell::Ratio(r, Some((low, high))) => format!("{} ({}–{})", ratio(*r), ratio(*low), ratio(*high)),
        Cell::Count(n) => count(*n),
    }
}

/// Text that Markdown takes as it is.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // A name such as rust/tracing_on has no markup in it: within a word, `_` is itself.
            '\\' | '`' | '*' | '[' | ']' | '|' | '#' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_text() {
        assert_eq!(escaped("<img src=x>|[a](b)"), "&lt;img src=x&gt;\\|\\[a\\](b)");
        assert_eq!(escaped("rust/tracing_on_begin/10"), "rust/tracing_on_begin/10");
    }
}

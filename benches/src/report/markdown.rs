//! The report as Markdown: the text and the tables, without the plots.

use std::fmt::Write as _;

use super::model::{Part, Report, Section};
use crate::table::{self, escaped};

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
        write_section(out, section, true)?;
    }
    Ok(())
}

/// Writes a section, with a line for each plot or without.
pub(crate) fn write_section(out: &mut String, section: &Section, plots: bool) -> std::fmt::Result {
    writeln!(out, "\n## {}", escaped(&section.title))?;
    for text in &section.text {
        writeln!(out, "\n{}", escaped(text))?;
    }
    parts(out, &section.parts, plots)
}

fn parts(out: &mut String, parts: &[Part], plots: bool) -> std::fmt::Result {
    for part in parts {
        match part {
            Part::Table(table) => table::write(out, table)?,
            Part::Plot(_) if !plots => {}
            Part::Plot(plot) => {
                writeln!(out, "\n*{}: see report.html.* {}", escaped(&plot.title), escaped(&plot.caption))?;
            }
            Part::Folded(summary, inner) => {
                writeln!(out, "\n{}:", escaped(summary))?;
                self::parts(out, inner, plots)?;
            }
        }
    }
    Ok(())
}

//! What the documentation says of costs: `docs/costs.md` with its plot, and the lines of the README, from the same rows.
//!
//! Both carry a mark of the rows that they are of, so that a test can tell when one was made without the other.

use std::fmt::Write as _;
use std::path::Path;

use super::input::{Input, Machine};
use super::model::Report;
use super::{content, html, markdown, plot, write};
use crate::catalogue::{ATRACE, SUBSCRIBER};
use crate::table::number::{digits, ratio};

/// What a line is of: in words, the bench, the row, and the rows that it is held against, with their names.
type Line = (&'static str, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const LINES: [Line; 6] = [
    ("an event, off", ATRACE, "rust/tracing_off_begin/10", &[("cc/tracing_off_begin/10", "C++")]),
    (
        "an event, on",
        ATRACE,
        "rust/tracing_on_begin/10",
        &[("cc/tracing_on_begin/10", "C++"), ("limit/raw_write_begin/10", "a `write(2)` of the same bytes")],
    ),
    (
        "an event, on by Perfetto's way",
        ATRACE,
        "perfetto/tracing_on_begin/10",
        &[("limit/raw_write_begin/10", "a `write(2)` to the marker")],
    ),
    (
        "an event of `tracing`, filtered, off",
        SUBSCRIBER,
        "rust/filtered_event",
        &[("limit/no_subscriber_event", "no subscriber")],
    ),
    (
        "an event of `tracing`, on",
        SUBSCRIBER,
        "rust/tracing_on_event",
        &[("limit/raw_write_of_on_event", "the write")],
    ),
    (
        "a span with four fields, on",
        SUBSCRIBER,
        "rust/tracing_on_span_args",
        &[("limit/raw_write_of_on_span_args", "its two writes")],
    ),
];

/// The sections of the report that are documentation, by the beginnings of their ids.
const SECTIONS: [&str; 10] = [
    "promises",
    "events",
    "perfetto",
    "twelve",
    "kinds",
    "circumstances",
    "bench-",
    "original-",
    "environment",
    "reading",
];

/// Where the instructions go of what takes more than was asked for: of callgrind, by hand.
const PROFILES: &str = include_str!("profiles.md");

/// What stands before and after the lines in the README.
const BEGIN: &str = "<!-- costs ";
const END: &str = "<!-- /costs -->";

/// Writes `docs/costs.md`, `docs/costs.svg` and the lines in `README.md` below `root`.
pub(super) fn write_to(root: &Path, input: Input) -> Result<String, String> {
    let missing = LINES.iter().filter(|(_, bench, id, _)| input.here.row(bench, id).is_none());
    let missing: Vec<&str> = missing.map(|(_, _, id, _)| *id).collect();
    if !missing.is_empty() {
        return Err(format!("--docs: not measured: {}; run `cargo bench`", missing.join(", ")));
    }
    let lines = lines(&input.here);
    let plot = content::main_plot(&input.here);
    let report = content::report(input);
    let readme = root.join("README.md");
    let old = std::fs::read_to_string(&readme).map_err(|e| format!("reading {}: {e}", readme.display()))?;
    let new = replaced(&old, &lines)
        .ok_or_else(|| format!("{}: nothing between `{BEGIN}…` and `{END}`", readme.display()))?;
    let docs = root.join("docs");
    write(&docs, "costs.md", &page(&report, &lines))?;
    if let Some(plot) = plot {
        write(&docs, "costs.svg", &plot::file(&plot, html::PLOT_STYLE))?;
    }
    write(root, "README.md", &new)?;
    Ok(format!("{}, costs.svg, and the lines of {}", docs.join("costs.md").display(), readme.display()))
}

/// The lines as a table, between their marks.
fn lines(here: &Machine) -> String {
    let mut out = format!("{BEGIN}{:08x} -->\n| nanoseconds | | of |\n|---|---:|---|\n", mark(here));
    for (what, bench, id, bases) in LINES {
        let Some(row) = here.row(bench, id) else { continue };
        let ratios = bases
            .iter()
            .filter_map(|(base, name)| row.versus(base).map(|v| format!("{} of {name}", ratio(v.ratio))));
        let ratios: Vec<String> = ratios.collect();
        // A string takes all that is written to it.
        let _ = writeln!(out, "| {what} | **{}** | {} |", digits(row.median), ratios.join(", "));
    }
    let _ = write!(out, "\n{}\n{END}", content::about_run(here));
    out
}

/// The document around the lines.
fn page(report: &Report, lines: &str) -> String {
    let mut out = String::from(
        "# What it costs\n\nMade by `cargo bench && cargo run -p atrace-benches --bin report -- --docs`, never by hand. How a \
         comparison is decided: [design.md](design.md#how-a-comparison-is-decided).\n\n",
    );
    let _ = writeln!(
        out,
        "{lines}\n\n![What an event costs: Rust, C++ and the limits, tracing off and on](costs.svg)"
    );
    let is_told = |id: &str| {
        SECTIONS.iter().any(|section| id == *section || section.ends_with('-') && id.starts_with(section))
    };
    for section in report.sections.iter().filter(|section| is_told(&section.id)) {
        let _ = markdown::write_section(&mut out, section, false);
    }
    out.push_str(PROFILES);
    out
}

/// A number that other rows would not have: Fowler, Noll and Vo's hash of all of them.
fn mark(here: &Machine) -> u32 {
    let text = here.benches.values().map(|bench| serde_json::to_string(&bench.rows).unwrap_or_default());
    let bytes = text.flat_map(String::into_bytes);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns a text with the lines in the place of those that it has.
fn replaced(text: &str, lines: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{lines}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_replace_those_before() {
        let new = format!("{BEGIN}2 -->\nb\n{END}");
        let old = format!("x\n{BEGIN}1 -->\na\n{END}\ny\n");
        assert_eq!(replaced(&old, &new).unwrap(), format!("x\n{new}\ny\n"));
        assert_eq!(replaced("x", &new), None);
    }
}

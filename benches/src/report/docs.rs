//! Writes the documentation of costs: the lines in `README.md` and `docs/costs.md`, and the plot, all from the same
//! rows.
//!
//! Both texts contain a mark, a hash of the rows, so that a test can detect when only one of them was updated.

use std::fmt::Write as _;
use std::path::Path;

use super::content::{self, LINES};
use super::input::Machine;
use super::{html, write};
use crate::table::number::{digits, ratio};

/// The text before and after the lines in the README.
const BEGIN: &str = "<!-- costs ";
const END: &str = "<!-- /costs -->";

/// Writes the lines in `README.md` and `docs/costs.md` below `root`, and `docs/costs.svg`.
pub(super) fn write_to(root: &Path, here: &Machine) -> Result<String, String> {
    let missing = LINES.iter().filter(|(_, bench, id, _)| here.row(bench, id).is_none());
    let missing: Vec<&str> = missing.map(|(_, _, id, _)| *id).collect();
    if !missing.is_empty() {
        return Err(format!("--docs: not measured: {}; run `cargo bench`", missing.join(", ")));
    }
    let (lines, docs) = (lines(here), root.join("docs"));
    let mut texts = Vec::new();
    for (dir, name) in [(root, "README.md"), (&docs, "costs.md")] {
        let path = dir.join(name);
        let old = std::fs::read_to_string(&path).map_err(|e| format!("reading {}: {e}", path.display()))?;
        let none = || format!("{}: nothing between `{BEGIN}…` and `{END}`", path.display());
        texts.push((dir, name, replaced(&old, &lines).ok_or_else(none)?));
    }
    if let Some(plot) = content::main_plot(here) {
        write(&docs, "costs.svg", &html::file(&plot))?;
    }
    texts.iter().try_for_each(|(dir, name, text)| write(dir, name, text))?;
    Ok(format!("the lines of README.md and docs/costs.md, and docs/costs.svg, in {}", root.display()))
}

/// Makes the lines as a table between their marks.
fn lines(here: &Machine) -> String {
    let mut out = format!("{BEGIN}{:08x} -->\n| nanoseconds | | of |\n|---|---:|---|\n", mark(here));
    for (what, bench, id, bases) in LINES {
        let Some(row) = here.row(bench, id) else { continue };
        let ratio =
            |(base, name): &(&str, &str)| Some(format!("{} of {name}", ratio(row.versus(base)?.ratio)));
        let ratios: Vec<String> = bases.iter().filter_map(ratio).collect();
        // Writing to a string cannot fail.
        let words = row.known().words().map(|words| format!(" ({words})")).unwrap_or_default();
        let _ = writeln!(out, "| {what} | **{}**{words} | {} |", digits(row.median), ratios.join(", "));
    }
    let _ = write!(out, "\n{}\n{END}", content::about_run(here));
    out
}

/// Returns a hash of all shown rows (Fowler, Noll and Vo), so that other rows give another mark.
fn mark(here: &Machine) -> u32 {
    let text = here.benches.values().map(|bench| serde_json::to_string(&bench.rows).unwrap_or_default());
    let bytes = text.flat_map(String::into_bytes);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns a text in which the new lines replace the old lines.
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

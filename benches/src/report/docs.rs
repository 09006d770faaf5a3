//! Writes the documentation of costs: the table of key numbers in `README.md` and `docs/costs.md`, the other tables in
//! `docs/costs.md`, and the plot. All are made from the same rows (results). A table replaces the text between two
//! marks. A table whose bench has not run stays unchanged.
//!
//! `README.md` and `docs/costs.md` contain a mark with a hash of the rows, so that a test can detect when only one of
//! the two files was updated.

use std::fmt::Write as _;
use std::path::Path;

use super::content::made::MADE;
use super::content::{self, LINES, Line};
use super::input::Machine;
use super::{html, write};
use crate::row;
use crate::table::number::{digits, versus};

/// The mark before the table of key numbers in `README.md` and in `docs/costs.md`. The hash of the rows follows.
const BEGIN: &str = "<!-- costs ";
/// The mark after the table of key numbers.
const END: &str = "<!-- /costs -->";
/// The mark before another generated table of `docs/costs.md`. The name of the table follows.
const BEGIN_MADE: &str = "<!-- made ";
/// The mark after another generated table of `docs/costs.md`.
const END_MADE: &str = "<!-- /made -->";

/// Writes the table of key numbers in `README.md` and `docs/costs.md` below `root`, the other tables in
/// `docs/costs.md`, and the plot `docs/costs.svg`. Returns a message about the written files.
pub(super) fn write_to(root: &Path, here: &Machine) -> Result<String, String> {
    let missing = LINES.iter().filter(|line| here.row(&line.bench, &line.id).is_none());
    let missing: Vec<&str> = missing.map(|line| &line.id[..]).collect();
    if !missing.is_empty() {
        return Err(format!("--docs: not measured: {}; run `cargo bench`", missing.join(", ")));
    }
    let mut all = here.benches.values().flat_map(|bench| &bench.rows);
    if let Some(row) = all.find(|row| !row.is_in_range()) {
        return Err(format!(
            "--docs: the median of {} is outside of the range of its measured times",
            row.id
        ));
    }
    let (lines, docs) = (lines(here), root.join("docs"));
    let mut texts = Vec::new();
    for (dir, name) in [(root, "README.md"), (&docs, "costs.md")] {
        let path = dir.join(name);
        let old = std::fs::read_to_string(&path).map_err(|e| format!("reading {}: {e}", path.display()))?;
        let none = || format!("{}: nothing between `{BEGIN}…` and `{END}`", path.display());
        texts.push((dir, name, replaced(&old, &lines).ok_or_else(none)?));
    }
    let (mut left, costs) = (Vec::new(), texts.iter_mut().find(|(_, name, _)| *name == "costs.md"));
    if let Some((_, _, text)) = costs {
        (*text, left) = with_tables(text, &|name| {
            let made = MADE.iter().find(|made| made.name == name)?;
            Some(made.text(here))
        })?;
    }
    if let Some(plot) = content::main_plot(here) {
        write(&docs, "costs.svg", &html::svg(&plot).into_string())?;
    }
    texts.iter().try_for_each(|(dir, name, text)| write(dir, name, text))?;
    let left = match left.is_empty() {
        true => String::new(),
        false => format!("; these tables were not measured and stay as they were: {}", left.join(", ")),
    };
    let counts = MADE.iter().map(|made| made.unknown(here));
    let [unknown, all] = counts.fold([0, 0], |sum, of| [sum[0] + of[0], sum[1] + of[1]]);
    Ok(format!(
        "the lines of README.md, docs/costs.md with its tables, and docs/costs.svg, in {}; {unknown} of {all} own times in \
         its tables are not known{left}",
        root.display()
    ))
}

/// Replaces each generated table in `text`, which is between two marks, by the table that `made` returns for the name
/// in the first mark. `made` returns `None` if no table has this name, and `Some(None)` if the table was not measured.
/// Returns the new text, and the names of the tables that were not measured.
fn with_tables(
    text: &str,
    made: &dyn Fn(&str) -> Option<Option<String>>,
) -> Result<(String, Vec<String>), String> {
    let (mut out, mut left, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, after)) = rest.split_once(BEGIN_MADE) {
        let parts = after.split_once(" -->\n").and_then(|(name, after)| {
            let (old, after) = after.split_once(END_MADE)?;
            Some((name, old, after))
        });
        let (name, old, after) = parts.ok_or("docs/costs.md: a table has no mark at its end")?;
        let new = made(name).ok_or_else(|| format!("docs/costs.md: there is no table `{name}`"))?;
        left.extend(new.is_none().then(|| name.to_owned()));
        let table = new.as_deref().unwrap_or(old);
        out.push_str(&format!("{before}{BEGIN_MADE}{name} -->\n{table}{END_MADE}"));
        rest = after;
    }
    out.push_str(rest);
    Ok((out, left))
}

/// Returns the table of key numbers, with the marks before and after it.
fn lines(here: &Machine) -> String {
    let mut out = format!("{BEGIN}{:08x} -->\n| nanoseconds | | of |\n|---|---:|---|\n", mark(here));
    for Line { what, bench, id, beside } in LINES.iter() {
        let Some(row) = here.row(bench, id) else { continue };
        let beside_it = |(base, name): &(String, String)| {
            let v = row.versus(base)?;
            let name = if name == "C++" { content::cc(here, bench) } else { name };
            Some(format!("{} of {name}", versus(v)))
        };
        let ratios: Vec<String> = beside.iter().filter_map(beside_it).collect();
        // Writing to a string cannot fail.
        let words = row.known().words().map(|words| format!(" ({words})")).unwrap_or_default();
        let _ = writeln!(out, "| {what} | **{}**{words} | {} |", digits(row.median), ratios.join(", "));
    }
    let _ = write!(out, "\nMade by `cargo bench` and `report --docs`. {}\n{END}", content::about_run(here));
    out
}

/// Returns a hash of all rows of this machine (the function of Fowler, Noll and Vo). It is a part of the mark, so that
/// the mark changes when the rows change.
fn mark(here: &Machine) -> u32 {
    let text = here.benches.values().map(|bench| row::to_json(&bench.rows).unwrap_or_default());
    let bytes = text.flat_map(String::into_bytes);
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns `text` with the new table of key numbers, `lines`, in place of the old table, or `None` if the text lacks
/// the marks.
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

    #[test]
    fn tables_replace_those_before_unless_they_were_not_measured() {
        let page = |table: &str| {
            format!("x\n{BEGIN_MADE}a -->\n{table}{END_MADE}\ny\n{BEGIN_MADE}b -->\nold\n{END_MADE}\n")
        };
        let made = |name: &str| match name {
            "a" => Some(Some("new\n".to_owned())),
            "b" => Some(None),
            _ => None,
        };
        let (text, left) = with_tables(&page("old\n"), &made).unwrap();
        assert_eq!((text, left), (page("new\n"), vec!["b".to_owned()]));
        assert!(with_tables("<!-- made c -->\nx<!-- /made -->", &made).unwrap_err().contains("no table `c`"));
        assert!(with_tables("<!-- made a -->\nx", &made).unwrap_err().contains("no mark"));
    }

    #[test]
    fn the_page_has_all_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/costs.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (same, left) =
            with_tables(&page, &|name| MADE.iter().any(|made| made.name == name).then_some(None)).unwrap();
        assert_eq!(same, page);
        assert_eq!(left, MADE.map(|made| made.name), "in this order");
    }
}

//! Writes `docs/originals.md`: every line of the tables that the original benchmarks published, our corresponding row
//! (result), and how the two correspond. All of this comes from the catalogue, not from a measurement.

use std::fmt::Write as _;
use std::path::Path;

use super::write;
use crate::catalogue::TracingCase;
use crate::catalogue::published::{EVENTS, Field, Line, Measured, Original, TRACING, originals};
use crate::catalogue::{State, Who};

/// The name of the page in `docs` that lists the results of the original benchmarks.
const NAME: &str = "originals.md";

/// Writes the page below `root`, the directory of a checkout. Returns the path of the page.
pub(super) fn write_to(root: &Path) -> Result<String, String> {
    let docs = root.join("docs");
    write(&docs, NAME, &text())?;
    Ok(docs.join(NAME).display().to_string())
}

/// Makes the content of the page.
fn text() -> String {
    let all = originals();
    let lines: Vec<&Line> = all.iter().flat_map(|original| original.groups.iter().flatten()).collect();
    let without = lines.iter().filter(|line| line.here.is_err()).count();
    let by_role = lines.iter().filter(|line| is_by_role(line)).count();
    // Writing to a string cannot fail.
    let mut out = String::from("# What five benchmarks published, line by line\n\n");
    let _ = writeln!(
        out,
        "`cargo run -p atrace-benches --bin report -- --originals` writes this page from the catalogue \
         (`benches/src/catalogue/published`); a test fails while it is not up to date. The report \
         (`target/report/report.html`) has the numbers of a run beside those published here.\n\n\
         There are {} lines. For {without} of them we have no number of the same kind; the column \
         \"nearest\" names the number that comes nearest. {by_role} further lines have a share of the original's \
         samples in which a function ran; our number beside them is the share of all running threads of the same role, \
         whatever function they ran. The text above each list explains how the original's measurement and ours correspond. \"×\" is the \
         number of our operations that make up one operation of the original (100, if our number is a fraction and the \
         original's is in percent); if a run did fewer at once, its report says so beside the number.",
        lines.len(),
    );
    out.push_str(&times());
    for original in &all {
        out.push_str(&section(original));
    }
    out
}

/// Returns whether the published number of a line is about threads that ran one function, while our number is about all
/// running threads of a role, whatever function they ran.
fn is_by_role(line: &Line) -> bool {
    line.here.as_ref().is_ok_and(
        |of| matches!(of.field, Field::Count(name) if name.strip_prefix("all_runnable_").is_some()),
    )
}

/// Makes the section with the times of AOSP's two benchmarks.
fn times() -> String {
    let mut out = String::from(
        "\n## The times of AOSP's two benchmarks\n\n\
         These times are not among the lines of the lists below. For an event, the original and we call the same function \
         with the same name and the same tag in a loop, with tracing off or on. `rust/` is this library in place of AOSP's \
         wrapper, `aosp-like/` works as the wrapper does, `cc/` is C++ that calls libcutils (on a host, that of \
         `cc-bench/cutils`). For an operation of `tracing`, both use the same macro with the same fields: AOSP through a \
         layer over the registry, we through such a layer and through the subscriber alone. AOSP's layer is the default of \
         one thread; here a layer is the global default, as in most programs, but Criterion's cases of the bench \
         `subscriber` have AOSP's default.\n\n| case | there, ns | here |\n|---|---:|---|\n",
    );
    for of in EVENTS.iter() {
        let id = |who| of.id(who).to_string();
        let state = if of.state == State::Off { "off" } else { "on" };
        let (event, rust, cc) = (of.event, of.rust.ns, of.cc.ns);
        let _ = writeln!(
            out,
            "| {event}, {state}, Rust | {rust} | `{}`, `{}` |\n| {event}, {state}, C++ | {cc} | `{}` |",
            id(Who::Rust),
            id(Who::AospLike),
            id(Who::Cc),
        );
    }
    for of in TRACING.iter() {
        let what = match of.case {
            TracingCase::Event => "an event",
            TracingCase::EventArgs => "an event with four fields",
            TracingCase::Span => "a span",
            TracingCase::SpanArgs => "a span with four fields",
        };
        let (kind, layer, alone) = (of.kind, of.as_a_layer(), of.id());
        let _ = writeln!(out, "| {kind}: {what} | {} | `{layer}`, alone `{alone}` |", of.rust.ns);
    }
    out
}

fn section(original: &Original) -> String {
    let lines: Vec<&Line> = original.groups.iter().flatten().collect();
    let mut out = format!("\n## {}: {} lines\n", original.title, lines.len());
    if let Some(otherwise) = original.otherwise {
        let _ = write!(out, "\n{otherwise}\n");
    }
    let counted = |reason: fn(&Line) -> Option<&'static str>| {
        let mut all: Vec<(&str, usize)> = Vec::new();
        for reason in lines.iter().filter_map(|line| reason(line)) {
            match all.iter_mut().find(|(other, _)| *other == reason) {
                Some((_, lines)) => *lines += 1,
                None => all.push((reason, 1)),
            }
        }
        all
    };
    for (reason, lines) in counted(|line| line.none) {
        let _ = write!(out, "\nA run lacks the rows of {lines} lines if {reason}.\n");
    }
    for (reason, lines) in counted(|line| line.zero) {
        let _ = write!(out, "\nOur number may be 0 in {lines} lines: {reason}.\n");
    }
    for alike in lines.chunk_by(|a, b| a.alike == b.alike) {
        let has_near = alike.iter().any(|line| line.near.is_some());
        let [name, rule] = if has_near { [" nearest |", "---|"] } else { [""; 2] };
        let _ = write!(
            out,
            "\n{}\n\n| line | there | unit | here, in the bench `{}` | × |{name}\n|---|---:|---|---|---:|{rule}\n",
            alike[0].alike, original.bench
        );
        for line in alike {
            let there = line.there.map_or_else(|| "not legible".to_owned(), |there| format!("{there}"));
            let of = line.here.as_ref();
            let here = of.map_or_else(|why| format!("none: {why}"), |of| row(of, line.unit));
            let times = of.ok().filter(|of| of.times != 1.0).map(|of| of.times.to_string());
            let times_of = |near: &Measured| match near.times {
                1.0 => String::new(),
                times => format!(" × {times}"),
            };
            let near = line.near.as_ref().map(|near| row(near, "") + &times_of(near)).unwrap_or_default();
            let near = if has_near { format!(" {near} |") } else { String::new() };
            let (what, times) = (line.what.replace('<', "\\<"), times.unwrap_or_default());
            let _ = writeln!(out, "| {what} | {there} | {} | {here} | {times} |{near}", line.unit);
        }
    }
    out
}

/// Returns a text that says where the report has our number for a line of an original: the id of our row, and the
/// field of the row.
fn row(of: &Measured, unit: &str) -> String {
    let id = format!("`{}`", of.id);
    match of.field {
        Field::Time if unit == "ns" || unit.is_empty() || unit.ends_with("/op") => id,
        Field::Time => format!("time of {id}"),
        Field::PerSecond => format!("operations per second of {id}"),
        Field::Rate => format!("allocated per second by {id}"),
        Field::Bytes => format!("bytes allocated by {id}"),
        Field::Allocations => format!("allocations of {id}"),
        Field::Count(name) => format!("`{name}` of {id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_up_to_date() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(NAME);
        let page = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            page == text(),
            "docs/{NAME} is not up to date: cargo run -p atrace-benches --bin report -- --originals"
        );
    }

    #[test]
    fn the_nearest_number_has_a_column() {
        let (page, mut seen) = (text(), 0);
        for line in page.lines().filter(|line| line.contains(" | none: ")) {
            let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
            assert!(cells.len() == 6 && !cells[3].contains('`') && cells[5].contains('`'), "{line}");
            seen += 1;
        }
        assert!(seen > 0, "{page}");
    }

    #[test]
    fn few_lines_have_no_number() {
        let all = originals();
        let lines: Vec<&Line> = all.iter().flat_map(|original| original.groups.iter().flatten()).collect();
        let without: Vec<&&Line> = lines.iter().filter(|line| line.here.is_err()).collect();
        assert!(lines.len() == 446 && without.len() <= 100, "{} of {}", without.len(), lines.len());
        assert!(without.iter().all(|line| line.near.is_some()));
        assert!(lines.iter().all(|line| line.alike.split(' ').count() > 8), "a line has no `~` above it");
    }
}

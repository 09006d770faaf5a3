//! The report's sections that show all rows (results) of a kind: instructions, the benches of events and subscribers,
//! devices, and Criterion's results.
//!
//! Further sections are about the workloads with and without tracing; every line of the original benchmarks' tables
//! beside our number, with a check of the conclusions from these tables; the promises and the measured values; the
//! environments; and how to read the report.

use std::collections::BTreeMap;

use crate::catalogue::published::{Check, Field, Finding, Line, Measured, Original, originals as all};
use crate::catalogue::{ATRACE, INSTRUCTIONS, Id, SUBSCRIBER};
use crate::promise::{self, Judged, Verdict};
use crate::report::content::KNOWN;
use crate::report::input::Machine;
use crate::report::model::{Part, Section, slug};
use crate::row::environment::{Environment, date};
use crate::row::{AT_ONCE, Known, Row};
use crate::stats::Interval;
use crate::table::number::{count, ratio};
use crate::table::workload::{base, of_workload};
use crate::table::{Cell, Table, Value, of_rows};

pub(super) fn instructions(here: &Machine) -> Option<Section> {
    let rows = &here.benches.get(INSTRUCTIONS)?.rows;
    let table = of_rows("Instructions of one operation", rows).with_note("Instructions of the program, counted by callgrind: not those of the kernel. The counts are the same in each run, so a change of one instruction is visible even on a busy machine.");
    let parts = vec![Part::Folded(format!("{} cases", rows.len()), table)];
    (!rows.is_empty()).then(|| Section::new(INSTRUCTIONS, "Instructions", parts))
}

pub(super) fn everything(here: &Machine) -> Option<Section> {
    let benches = here.benches.iter().filter(|(name, _)| [ATRACE, SUBSCRIBER].contains(&&name[..]));
    let part = |(name, bench): (&String, &super::Bench)| {
        Part::Folded(format!("{name}: {} rows", bench.rows.len()), of_rows(name, &bench.rows))
    };
    let parts: Vec<Part> = benches.map(part).collect();
    (!parts.is_empty()).then(|| Section::new("rows", "Every row", parts))
}

/// Makes the section about a device.
pub(super) fn of_device(name: &str, device: &Machine) -> Section {
    let mut about = Table::new("The device", ["", ""]);
    device.device.iter().for_each(|(key, value)| about.push([key, value].map(Cell::text)));
    let rows = |(bench, found): (&String, &super::Bench)| {
        Part::Folded(format!("{bench}: every row"), of_rows(bench, &found.rows))
    };
    let parts = [Part::Table(about)].into_iter().chain(device.benches.iter().map(rows)).collect();
    Section::new(format!("device-{}", slug(name)), format!("Device: {name}"), parts)
}

/// Makes the section with the table of Criterion's results, beside our results for the same cases.
pub(super) fn criterion(here: &Machine) -> Option<Section> {
    let mut table = Table::new("Criterion", ["case", "Criterion's median", "the benches' median", "ratio"]).with_note("Criterion runs a case by itself for a fraction of a second, minutes after the benches compared it with others round by round: the difference between the two is the drift of the machine.");
    let benches = [ATRACE, SUBSCRIBER].into_iter().filter_map(|bench| here.benches.get(bench));
    for row in benches.flat_map(|bench| &bench.rows) {
        let Some(&[low, median, high]) = here.criterion.get(&Id::of(&row.id).in_criterion()) else {
            continue;
        };
        let ratio = match row.median {
            ns if ns > 0.0 => Cell::bare_ratio(median / ns),
            _ => Cell::none("the median is 0"),
        };
        let there = Cell::Value(Value::times(low, median, high));
        table.push([Cell::name(&row.id), there, Cell::value(Some(row)), ratio]);
    }
    let parts = vec![Part::Folded("What Criterion says of the same cases".to_owned(), table)];
    (!here.criterion.is_empty()).then(|| Section::new("criterion", "How sure this is", parts))
}

/// Makes a section for each bench that measures a workload (a whole program), that is, for each bench that is not in
/// `KNOWN`.
pub(super) fn workloads(here: &Machine) -> Vec<Section> {
    let known = |name: &String| KNOWN.contains(&&name[..]);
    let benches = here.benches.iter().filter(|(name, bench)| !known(name) && !bench.rows.is_empty());
    benches.map(|(name, bench)| workload(name, &bench.rows)).collect()
}

/// Makes the section about a workload: the cost that each mode (configuration of tracing) adds to each case.
fn workload(name: &str, rows: &[Row]) -> Section {
    let [added, others] = of_workload(name, rows);
    let mut parts = Vec::new();
    parts.extend((!added.rows.is_empty()).then_some(Part::Table(added)));
    match others.rows.len() {
        0 => {}
        n if n <= 30 || parts.is_empty() => parts.push(Part::Table(others)),
        n => parts.push(Part::Folded(format!("{name}: {n} more rows"), others)),
    }
    let base = base(rows);
    Section::new(format!("bench-{}", slug(name)), format!("Workload: {name}"), parts).with_text([format!(
        "Time, allocations and counts of one operation of the workload; what a mode adds is the median difference to \"{}\", with its interval: if zero is in the interval, no difference was found.",
        if base.is_empty() { "the same without tracing" } else { base }
    )])
}

/// Makes a section for each original benchmark.
pub(super) fn originals(here: &Machine) -> impl Iterator<Item = Section> + use<'_> {
    all().into_iter().map(|original| {
        let lines = original.groups.iter().map(Vec::len).sum::<usize>();
        let parts = vec![Part::Folded(format!("every line of its tables: {lines}"), table(&original, here))];
        let title = format!("There and here: {}", original.title);
        let quote = original.quote.map(|quote| format!("Its authors write: \"{quote}\""));
        let found = original.findings.iter().flat_map(|finding| found(finding, here));
        let text = quote.into_iter().chain(found).chain(original.otherwise.map(str::to_owned));
        Section::new(format!("original-{}", original.bench), title, parts).with_text(text)
    })
}

/// Lists the ratios that show a finding (a conclusion from an original benchmark's tables), and says whether our ratios
/// show the finding as well.
fn found(finding: &Finding, here: &Machine) -> impl Iterator<Item = String> {
    let compared = |check: &Check| {
        let ours = match checked(check, here) {
            None => "not measured in this run".to_owned(),
            Some((found, "yes")) => format!("{found}, which shows it as well"),
            Some((found, "no")) => format!("{found}, which does not show this"),
            Some((found, shows)) => format!("{found}: {shows}"),
        };
        let [of, by] = [&check.of, &check.by].map(named);
        let there = ratio(check.there);
        format!("The ratio of {of} to {by}: there {there}, here {ours} ({} would show it).", range(check))
    };
    let text = format!("Its tables show, in our words: {}", finding.text);
    std::iter::once(text).chain(finding.checks.iter().map(compared).collect::<Vec<_>>())
}

/// Returns our ratio for a finding (a conclusion from an original benchmark's tables), and a text that says whether the
/// ratio shows the finding. The ratio has an interval only if the two times were measured in the same rounds.
fn checked(Check { of, by, from, to, .. }: &Check, here: &Machine) -> Option<(Cell, &'static str)> {
    let are_times = [of, by].iter().all(|it| it.field == Field::Time) && of.times == by.times;
    let paired = here.row(of.bench, of.id).and_then(|row| row.versus(by.id)).filter(|_| are_times);
    if let Some(paired) = paired {
        let shows = match Verdict::within([*from, *to], Interval::from(*paired)) {
            Verdict::Kept => "yes",
            Verdict::Missed => "no",
            Verdict::Open => "not decided",
        };
        return Some((Cell::ratio(Some(paired), ""), shows));
    }
    let (of, by) = (value(of, "ns", here)?, value(by, "ns", here)?);
    let found = of.median / by.median;
    let known = of.known.max(by.known);
    let shows = match known {
        Known::Not => "not known",
        _ if (*from..=*to).contains(&found) => "yes",
        _ => "no",
    };
    Some((Cell::Ratio(found, None, known), shows))
}

/// Returns the range of ratios that show a finding, as text.
fn range(Check { from, to, .. }: &Check) -> String {
    if to.is_finite() { format!("{from} to {to}") } else { format!("at least {from}") }
}

/// Makes the table of the findings (conclusions from published tables), with our values of the ratios that show them.
pub(super) fn shown(here: &Machine) -> Option<Table> {
    let mut table = Table::new("", ["their tables show, in our words", "ratio", "there", "shown by", "here", "shows it"])
        .with_note("\"Shown by\" is the range of ratios that we count as showing the finding. A ratio here that has an interval was measured in the same rounds; the others are quotients of two medians. \"Speed varied\" and \"not known\" beside a ratio are those of the two times.");
    for Original { title, findings, .. } in all() {
        for Finding { text, checks } in findings {
            for check in checks {
                let (found, shows) = match checked(&check, here) {
                    Some((found, shows)) => (found, Cell::text(shows)),
                    None => (Cell::not_measured(), Cell::not_measured()),
                };
                let text = Cell::text(format!("{text} ({title})"));
                let ratio = Cell::text(format!("{} / {}", named(&check.of), named(&check.by)));
                let range = Cell::text(range(&check));
                table.push([text, ratio, Cell::bare_ratio(check.there), range, found, shows]);
            }
        }
    }
    let is_there = |row: &Vec<Cell>| matches!(row.get(4), Some(Cell::Ratio(..)));
    table.rows.iter().any(is_there).then_some(table)
}

/// Makes the table of the promises that are missed or open. Promises of a bench that have the same words and the same
/// limit share a line. A note below the table says how many promises are kept.
pub(super) fn not_kept(benches: &[(String, Vec<Judged>)]) -> Option<Table> {
    let all = || benches.iter().flat_map(|(bench, all)| all.iter().map(move |judged| (bench, judged)));
    let [missed, open, kept] = promise::counts(all().map(|(_, judged)| judged));
    let mut table = Table::new("", ["promise", "of", "measured", "asked", "came of it"])
        .with_note(format!("Of {} promises that this run judged, {kept} are kept; these are the others. A promise whose row was not measured is left out.", missed + open + kept));
    let mut groups: BTreeMap<(&String, &String, &String), Vec<&Judged>> = BTreeMap::new();
    for (bench, judged) in all().filter(|(_, judged)| judged.verdict != Verdict::Kept) {
        groups.entry((bench, &judged.promise, &judged.limit)).or_default().push(judged);
    }
    for ((bench, promise, limit), group) in groups {
        let each =
            |of: fn(&Judged) -> &str| group.iter().map(|judged| of(judged)).collect::<Vec<_>>().join(", ");
        let of = if group.len() > 3 { format!("{} cases", group.len()) } else { each(|judged| &judged.of) };
        let [missed, open, _] = promise::counts(group.iter().copied());
        let came = [(missed, "missed"), (open, "open")].into_iter().filter(|(n, _)| *n > 0);
        let came = came.map(|(n, word)| format!("{n} {word}")).collect::<Vec<_>>().join(", ");
        let measured = |judged: &&Judged| match &judged.more {
            more if more.is_empty() => judged.measured.clone(),
            more => format!("{} ({more})", judged.measured),
        };
        let measured = group.iter().map(measured).collect::<Vec<_>>().join(", ");
        let cells = [format!("{bench}: {promise}"), of, measured, limit.clone(), came];
        table.push(cells.map(Cell::text));
    }
    (missed + open + kept > 0).then_some(table)
}

/// Returns the id of our row (result), and the name of the field that has our number unless it is the
/// [time](Field::Time).
fn named(of: &Measured) -> String {
    let field = match of.field {
        Field::Time => return of.id.to_owned(),
        Field::PerSecond => "operations per second",
        Field::Rate => "allocated MB/s",
        Field::Bytes => "allocated bytes",
        Field::Allocations => "allocations",
        Field::Count(name) => name,
    };
    format!("{field} of {}", of.id)
}

fn table(original: &Original, here: &Machine) -> Table {
    let columns =
        ["line", "unit", "there", "of its first", "here", "of its first", "computed", "nearest", "row"];
    let mut table = Table::new("", columns).with_note(
        "Of another machine's numbers only ratios can be compared: each number is also held against the first of its group that has the same unit. \"Computed\" shows how a number of many operations was computed. \"Nearest\" is our most similar number for a line without a number of ours. docs/originals.md explains how each line corresponds to ours.",
    );
    for group in &original.groups {
        for line in group {
            let first = group.iter().find(|first| first.unit == line.unit).unwrap_or(line);
            let row = line.here.as_ref().map_or_else(|why| Cell::none(*why), |row| Cell::name(row.id));
            let near = match (&line.near, &line.here) {
                (Some(near), _) => nearest(near, here),
                (None, Ok(_)) => Cell::none("the line has a number"),
                (None, Err(why)) => Cell::none(*why),
            };
            let computed = line.here.as_ref().map_or_else(|why| Cell::none(*why), |of| computed(of, here));
            let (there, of_first) = (there(line), of_first(line.there, first.there));
            let (ours, ours_of_first) = (ours(line, here), ours_of_first(line, first, here));
            let [what, unit] = [line.what, line.unit].map(Cell::text);
            table.push([what, unit, there, of_first, ours, ours_of_first, computed, near, row]);
        }
    }
    table
}

/// Makes a cell that describes how our number in a line was computed from the measured number of one operation.
fn computed(of: &Measured, here: &Machine) -> Cell {
    let Some(row) = here.row(of.bench, of.id) else { return Cell::not_measured() };
    let at_once = row.counts.get(AT_ONCE).copied();
    let times = of.times;
    let is_part = matches!(of.field, Field::Count(name) if PARTS_OF_ALL.iter().any(|is| name.contains(is)));
    Cell::text(match at_once {
        _ if times == 1.0 || is_part => "as measured".to_owned(),
        Some(at_once) if at_once == times => format!("of {} at once", count(times)),
        Some(at_once) => format!("{} times one, of {} at once", count(times), count(at_once)),
        None => format!("{} times one", count(times)),
    })
}

/// Substrings of the names of counts that are fractions. The lines of the original benchmark show
/// these numbers in percent.
const PARTS_OF_ALL: [&str; 2] = ["_waiting", "_runnable"];

/// Makes the cell with our most similar number, for a line without a corresponding number. The cell has our unit, and
/// the name of the measured quantity.
fn nearest(near: &Measured, here: &Machine) -> Cell {
    let (what, unit) = match near.field {
        Field::Time => ("the operation's time", "ns"),
        Field::PerSecond => ("operations", "1/s"),
        Field::Rate => ("allocated", "MB/s"),
        Field::Bytes => ("allocated", "B"),
        Field::Allocations => ("allocations, each freed at once", "times"),
        Field::Count(name) if name.contains("_runnable") => ("all threads that run", "%"),
        Field::Count("freed_bytes") => ("freed", "B"),
        Field::Count(name) => (name, ""),
    };
    let Some(value) = value(near, "", here) else { return Cell::not_measured() };
    Cell::List(vec![(what.to_owned(), Cell::Value(Value { unit: unit.to_owned(), ..value }))])
}

fn there(line: &Line) -> Cell {
    let Some(median) = line.there else { return Cell::none("the published number is not legible") };
    let (low, high) = (median - line.error, median + line.error);
    Cell::Value(Value { unit: String::new(), ..Value::times(low, median, high) })
}

fn of_first(number: Option<f64>, first: Option<f64>) -> Cell {
    match number.zip(first) {
        None => Cell::none("it can not be read in what was published"),
        Some((_, 0.0)) => Cell::none("the first is 0"),
        Some((number, first)) => Cell::bare_ratio(number / first),
    }
}

fn ours(line: &Line, here: &Machine) -> Cell {
    match &line.here {
        Err(why) => Cell::none(*why),
        Ok(row) if is_left_out(line, row, here) => Cell::none(line.none.unwrap_or_default()),
        Ok(row) => {
            let value = value(row, line.unit, here);
            zero(line, value.as_ref()).or_else(|| value.map(Cell::Value)).unwrap_or_else(Cell::not_measured)
        }
    }
}

/// Returns whether the bench has run and our row is missing, which is allowed because the line gives a reason.
fn is_left_out(line: &Line, row: &Measured, here: &Machine) -> bool {
    line.none.is_some() && here.benches.contains_key(row.bench) && here.row(row.bench, row.id).is_none()
}

/// Returns a cell with 0 and a reason, if our number is 0 and the line gives a reason why it may be 0.
fn zero(line: &Line, value: Option<&Value>) -> Option<Cell> {
    let why = line.zero.filter(|_| value.is_some_and(|value| value.median == 0.0))?;
    Some(Cell::List(vec![(format!("({why})"), Cell::Count(0.0))]))
}

fn ours_of_first(line: &Line, first: &Line, here: &Machine) -> Cell {
    let number = |line: &Line| value(line.here.as_ref().ok()?, line.unit, here);
    let own = number(line);
    match (&line.here, own.as_ref().map(|own| own.median), number(first).map(|first| first.median)) {
        (Err(why), ..) => Cell::none(*why),
        (Ok(row), ..) if is_left_out(line, row, here) => Cell::none(line.none.unwrap_or_default()),
        (_, Some(number), Some(first)) if first != 0.0 => {
            zero(line, own.as_ref()).unwrap_or(Cell::bare_ratio(number / first))
        }
        (_, Some(_), _) => Cell::none("its first has no number here"),
        _ => Cell::not_measured(),
    }
}

/// Returns the number that we have measured, in the unit of the published number.
fn value(of: &Measured, unit: &str, here: &Machine) -> Option<Value> {
    let row = here.row(of.bench, of.id)?;
    let counted = |name: &str| {
        let median = *row.counts.get(name)?;
        let [low, high] = row.ranges.get(name).copied().unwrap_or([median; 2]);
        Some((median, low, high))
    };
    let by_time = (1e9 / row.median, 1e9 / row.high, 1e9 / row.low);
    let exactly = |number: f64| (number, number, number);
    let (median, low, high) = match of.field {
        Field::Time => (row.median, row.low, row.high),
        Field::PerSecond => by_time,
        Field::Rate => {
            let megabytes = row.bytes? / f64::from(1 << 20);
            let (median, low, high) = counted("ops_per_s").unwrap_or(by_time);
            (median * megabytes, low * megabytes, high * megabytes)
        }
        Field::Bytes => exactly(row.bytes?),
        Field::Allocations => exactly(row.allocs?),
        Field::Count(name) => counted(name)?,
    };
    let units = [("s/op", 1e9), ("ms/op", 1e6), ("us/op", 1e3)];
    let unit = units.iter().find(|(name, _)| *name == unit).map_or(1.0, |(_, ns)| *ns);
    let [median, low, high] = [median, low, high].map(|number| number * of.times / unit);
    // Allocations, and counts that have no range because they are no rates, are well known even if the time is
    // uncertain.
    let is_count = match of.field {
        Field::Bytes | Field::Allocations => true,
        Field::Count(name) => !row.ranges.contains_key(name),
        Field::Time | Field::PerSecond | Field::Rate => false,
    };
    let known = if is_count { Known::Well } else { row.known() };
    Some(Value { unit: String::new(), own: true, known, ..Value::times(low, median, high) })
}

/// Makes the section with the table of all promises that were judged.
pub(super) fn promised(benches: &[(String, Vec<Judged>)]) -> Option<Section> {
    let columns = ["bench", "promise", "of", "measured", "95 %", "asked", "came of it"];
    let mut table = Table::new("", columns).with_note(
        "Kept: the whole interval is within the limit; missed: the whole interval is outside; open: only a part of it is outside, fewer than six pairs were compared (of programs: fewer than six generations), or slices lost events.",
    );
    for (bench, all) in benches {
        for Judged { promise, of, measured, more, limit, verdict, .. } in all {
            let more = if more.is_empty() { Cell::none("it is exact") } else { Cell::text(more) };
            let [bench, promise, measured, limit] = [bench, promise, measured, limit].map(Cell::text);
            table.push([bench, promise, Cell::name(of), measured, more, limit, Cell::text(verdict.name())]);
        }
    }
    let title = format!("{} promises", table.rows.len());
    (title != "0 promises").then(|| Section::new("promises", "Promises", vec![Part::Folded(title, table)]))
}

pub(super) fn environments(here: &Machine) -> Section {
    let known = here.benches.iter();
    let known = known.filter_map(|(name, bench)| Some((&name[..], fields(bench.environment.as_ref()?))));
    let benches: Vec<(&str, BTreeMap<String, String>)> = known.collect();
    let names = benches.iter().map(|(name, _)| *name);
    let mut table = Table::new("Environment", [""].into_iter().chain(names));
    for name in benches.first().into_iter().flat_map(|(_, fields)| fields.keys()) {
        let values: Vec<&String> = benches.iter().filter_map(|(_, fields)| fields.get(name)).collect();
        // A value that is equal in all benches is shown only for the first bench.
        let same = values.len() > 1 && values.iter().all(|value| *value == values[0]);
        let cells = values.iter().enumerate().map(|(index, value)| match value {
            _ if same && index > 0 => Cell::text("same"),
            value if value.is_empty() => Cell::none("it could not be learnt"),
            value => Cell::text(*value),
        });
        table.push([Cell::text(name)].into_iter().chain(cells));
    }
    let none = "The benches left no description of the machine (an older version's results): measure again.";
    let (parts, text) =
        if benches.is_empty() { (vec![], Some(none)) } else { (vec![Part::Table(table)], None) };
    Section::new("environment", "What it was measured on", parts).with_text(text)
}

/// Returns the fields of an environment as texts, by the names that the file of the environment uses.
fn fields(of: &Environment) -> BTreeMap<String, String> {
    let Ok(serde_json::Value::Object(all)) = serde_json::to_value(of) else { return BTreeMap::new() };
    let text = |(name, value): (String, serde_json::Value)| match value {
        _ if name == "time" => (name, date(of.time)),
        serde_json::Value::String(text) => (name, text),
        serde_json::Value::Null => (name, String::new()),
        other => (name, other.to_string()),
    };
    all.into_iter().map(text).collect()
}

pub(super) fn reading() -> Section {
    Section::new("reading", "How to read this", Vec::new()).with_text([
            "Every number is the median over rounds, with the bounds of its 95 % interval in small print. The cases of one comparison run in turn within each round, so a disturbance of the machine affects both; a ratio is the median of the rounds' ratios, with an interval of its own. Compare ratios; times differ between machines and between days.",
            "\"Speed varied\": half of the time's interval is wider than 5 % and 0.15 ns, but a ratio of the same rounds is known to within 5 %. \"Not known\": neither is known to within 5 %; a promise may still be missed or kept by the whole interval.",
            "A process can't have two subscribers, so to compare two subscribers, whole processes take turns, and each process is one round.",
            "Below a nanosecond, a difference of 0.3 ns only shows where the linker placed the code.",
    ])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::report::input::Bench;
    use crate::row::Versus;

    /// Returns the results of a machine. They contain only the rows for the report's finding about the semaphore in the
    /// bench `suspension`, after `change` was called with each row.
    fn machine(change: fn(&mut Row)) -> Machine {
        let row = |id: &str| {
            let mut row = Row::around(id, 100.0, 0.5);
            change(&mut row);
            row
        };
        let rows = ["boxed", "inline"].map(|handler| row(&format!("rust/semaphore_as_mutex/{handler}/none")));
        let bench = Bench { rows: rows.into(), environment: None };
        Machine { benches: [("suspension".to_owned(), bench)].into(), ..Machine::default() }
    }

    fn line(here: &Machine) -> String {
        let table = shown(here).expect("it was measured");
        let line = table.rows.iter().find(|row| row[1].to_string().contains("semaphore_as_mutex/boxed"));
        line.expect("the finding is there")[4..].iter().map(|cell| format!("{cell} | ")).collect()
    }

    #[test]
    fn a_ratio_of_uncertain_rows_says_so() {
        assert_eq!(line(&machine(|_| ())), "1.00 | yes | ");
        assert_eq!(line(&machine(|row| row.noisy = true)), "1.00, not known | not known | ");
        let varied = |row: &mut Row| (row.noisy, row.is_base) = (true, true);
        assert_eq!(line(&machine(varied)), "1.00, speed varied | yes | ");
    }

    #[test]
    fn a_ratio_of_the_same_rounds_has_its_interval_and_is_judged_by_it() {
        fn versus(row: &mut Row, low: f64, high: f64) {
            let base = "rust/semaphore_as_mutex/inline/none".to_owned();
            row.noisy = true;
            row.vs.insert(base, Versus { ratio: 1.05, low, high, sure: true });
        }
        // If the ratio is between 0.9 and 1.2, the two handlers count as equally fast.
        assert_eq!(line(&machine(|row| versus(row, 1.03, 1.07))), "1.05 (1.03–1.07) | yes | ");
        assert_eq!(line(&machine(|row| versus(row, 1.03, 1.25))), "1.05 (1.03–1.25) | not decided | ");
        assert_eq!(line(&machine(|row| versus(row, 1.21, 1.25))), "1.05 (1.21–1.25) | no | ");
    }

    #[test]
    fn what_is_counted_is_known_although_the_time_is_not() {
        let here = machine(|row| {
            (row.noisy, row.bytes) = (true, Some(48.0));
            row.counts.insert("polls".to_owned(), 3.0);
        });
        let known = |field| {
            let of = Measured {
                bench: "suspension",
                id: "rust/semaphore_as_mutex/inline/none",
                field,
                times: 1.0,
            };
            value(&of, "", &here).unwrap().known
        };
        let fields = [Field::Time, Field::PerSecond, Field::Rate, Field::Bytes, Field::Count("polls")];
        let not = Known::Not;
        assert_eq!(fields.map(known), [not, not, not, Known::Well, Known::Well]);
    }

    #[test]
    fn ratios_of_a_finding_have_different_labels() {
        for Finding { text, checks } in all().into_iter().flat_map(|original| original.findings) {
            let labels: BTreeSet<_> = checks.iter().map(|check| [&check.of, &check.by].map(named)).collect();
            assert_eq!(labels.len(), checks.len(), "{text}");
        }
    }

    #[test]
    fn promises_that_are_not_kept_share_a_line() {
        let judged =
            |of: &str, measured: &str, verdict| Judged::new("a poll", of, measured, "≤ 1.05", verdict);
        let all = vec![
            judged("a", "1.01", Verdict::Kept),
            judged("b", "1.07", Verdict::Missed),
            judged("c", "1.05", Verdict::Open),
        ];
        let text = not_kept(&[("suspension".to_owned(), all)]).expect("there are promises").markdown();
        assert!(
            text.contains("| suspension: a poll | b, c | 1.07, 1.05 | ≤ 1.05 | 1 missed, 1 open |"),
            "{text}"
        );
        assert!(text.contains("Of 3 promises that this run judged, 1 are kept"), "{text}");
    }
}

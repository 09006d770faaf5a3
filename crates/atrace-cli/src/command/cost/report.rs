//! The results of `atrace cost`, as sentences, a table, and JSON.

use atrace_paired::{Groups, Interval};
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use super::program::Run;
use super::verdict::{Verdict, difference};
use crate::command::program::LARGEST;
use crate::command::terminal::{print, thousands};
use crate::process::{Process, Status};
use crate::service::{Counts, Report};

/// The results of the runs on the two sides of a comparison. The sides are usually tracing off and tracing on.
#[derive(Default)]
pub(super) struct Sides<T>(pub(super) [Vec<T>; 2]);

impl<T> Sides<T> {
    /// Returns the median of `value` for each side.
    pub(super) fn medians(&self, value: impl Fn(&T) -> f64) -> [Option<f64>; 2] {
        [0, 1].map(|side| median(self.0[side].iter().map(&value)))
    }
}

/// The cause of the difference between the two sides of a comparison, and the names of the sides.
pub(super) type Names = (&'static str, [&'static str; 2]);

/// A row of the table: a quantity, with its median on each side.
struct Row {
    name: &'static str,
    unit: Unit,
    sides: [Option<f64>; 2],
    verdict: Option<Verdict>,
}

/// The unit of a row.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Nanoseconds,
    Count,
    Bytes,
}

impl Unit {
    fn show(self, value: f64) -> String {
        let scaled = |value: f64, steps: &[(f64, &str)]| {
            let (scale, name) = steps.iter().rfind(|(scale, _)| value >= *scale).unwrap_or(&steps[0]);
            let value = value / scale;
            let decimals = match value {
                100.0.. => 0,
                10.0.. => 1,
                _ => 2,
            };
            format!("{value:.decimals$} {name}")
        };
        match self {
            _ if value == 0.0 => "0".to_owned(),
            Self::Nanoseconds => scaled(value, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")]),
            Self::Bytes => scaled(value, &[(1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB")]),
            Self::Count => thousands(value.round() as u64),
        }
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::Nanoseconds => "_ns",
            Self::Bytes => "_bytes",
            Self::Count => "",
        }
    }
}

/// The measurements to be printed.
#[derive(Default)]
pub(super) struct Shown {
    /// The cause of the measured difference: tracing, or the second of two commands. It is the subject of the
    /// sentences.
    pub(super) subject: &'static str,
    pub(super) sides: [&'static str; 2],
    rows: Vec<Row>,
    sentences: Vec<String>,
    pub(super) notes: Vec<String>,
    pairs: usize,
    seconds: f64,
    /// The number of nanoseconds by which the processor time is longer on the second side (usually with tracing on), if
    /// the verdict is that the two sides differ.
    added_ns: Option<Interval>,
}

/// Returns the maximum resident size that a process has had, in KiB.
fn peak(status: &Status) -> u64 {
    let text = status.get("VmHWM").and_then(|text| text.split_whitespace().next()?.parse().ok());
    text.unwrap_or_default()
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    Interval::of(&values.collect::<Vec<_>>()).map(|it| it.median)
}

impl Shown {
    /// Makes a result of `pairs` pairs, to which no quantity was added yet. `needed` is the number of pairs that an
    /// interval needs.
    pub(super) fn new(names: Names, pairs: usize, needed: usize, seconds: f64) -> Self {
        let (subject, sides) = names;
        let mut notes = Vec::new();
        if pairs < needed {
            let each = seconds / pairs.max(1) as f64;
            let enough = (each * (needed + 3) as f64).ceil();
            notes.push(format!(
                "{needed} pairs are needed for 99 %, and a pair takes about {each:.1} s: give it --time {enough}s"
            ));
        }
        Self { subject, sides, notes, pairs, seconds, ..Self::default() }
    }

    /// Adds a quantity that has a verdict to the result.
    pub(super) fn judge(&mut self, name: &'static str, sides: [Option<f64>; 2], verdict: Verdict) {
        self.sentences.push(verdict.sentence(self.subject, name, self.seconds));
        self.rows.push(Row { name, unit: Unit::Nanoseconds, sides, verdict: Some(verdict) });
    }

    /// Adds a quantity that has no verdict to the result.
    pub(super) fn beside(&mut self, name: &'static str, unit: Unit, sides: [Option<f64>; 2]) {
        if sides.iter().any(Option::is_some) {
            self.rows.push(Row { name, unit, sides, verdict: None });
        }
    }

    /// Adds the resources that the runs of a program used.
    pub(super) fn runs(&mut self, runs: &Sides<Run>, verdicts: [Verdict; 2]) {
        let of = |value: &dyn Fn(&Run) -> Option<f64>| {
            [0, 1].map(|side| median(runs.0[side].iter().filter_map(value)))
        };
        let [wall, processor] = verdicts;
        self.judge("wall time", of(&|run| Some(run.wall_ns)), wall);
        let used = of(&|run| Some(run.usage.processor_ns as f64));
        self.judge("processor time", used, processor);
        if let (Verdict::Differs(it), [Some(off), _]) = (processor, used) {
            self.added_ns = Some(it.map(|part| off * part)).filter(|added| added.median > 0.0);
        }
        self.beside("instructions", Unit::Count, of(&|run| Some(run.instructions? as f64)));
        self.beside("page faults", Unit::Count, of(&|run| Some(run.usage.faults as f64)));
        self.beside("context switches", Unit::Count, of(&|run| Some(run.usage.switches as f64)));
        // Until a child process executes the program, its peak memory includes the memory of this command. So a peak
        // that is not above this command's peak says nothing about the program.
        let own = Process::this().status().map_or(0, |status| peak(&status));
        let peak = |run: &Run| Some(run.usage.peak_kib).filter(|peak| *peak > own);
        self.beside("peak memory", Unit::Bytes, of(&|run| Some(peak(run)? as f64 * 1024.0)));
        self.note_groups(runs);
        self.note_outputs(runs);
        if runs.0.iter().flatten().any(|run| run.left) {
            let note = "the program left processes in the background, which were killed after each run";
            self.notes.push(note.to_owned());
        }
    }

    /// Adds the numbers of events and bytes that the sessions recorded, and the number of lost events. The last
    /// argument has the names of these three quantities.
    pub(super) fn recorded(&mut self, reports: &[Report], [events, bytes, lost_events]: [&'static str; 3]) {
        let of = |value: fn(&Counts) -> u64| median(reports.iter().map(|it| value(&it.counts) as f64));
        let sides = |on: Option<f64>| [on.map(|_| 0.0), on];
        self.beside(events, Unit::Count, sides(of(|counts| counts.events)));
        self.beside(bytes, Unit::Bytes, sides(of(|counts| counts.bytes)));
        let lost: u64 =
            reports.iter().map(|it| it.counts.lost + it.counts.uncounted + it.counts.unsaved).sum();
        self.beside(lost_events, Unit::Count, sides(of(|counts| counts.lost + counts.unsaved)));
        if lost > 0 {
            let can_grow = reports.iter().flat_map(|it| &it.lost).any(|it| it.room > 0 && it.kib < LARGEST);
            let advice = if can_grow { ": a larger ATRACE_SHMEM_KB makes room for them" } else { "" };
            self.notes.push(format!("events were lost, which cost less than recorded events{advice}"));
        }
    }

    fn note_groups(&mut self, runs: &Sides<Run>) {
        for (name, runs) in self.sides.iter().zip(&runs.0) {
            let walls: Vec<f64> = runs.iter().map(|run| run.wall_ns).collect();
            if let Some(Groups { medians, upper }) = Groups::of(&walls) {
                let [low, high] = medians.map(|ns| Unit::Nanoseconds.show(ns));
                self.notes.push(format!(
                    "{name}: the wall times are bimodal, about {low} and, in {:.0} % of the runs, about {high}: a single \
                     difference says little about either",
                    upper * 100.0
                ));
            }
        }
    }

    /// Adds a note if the program's output depends on the side: all runs of the first side print the same output, and
    /// some run of the second side prints another output.
    fn note_outputs(&mut self, runs: &Sides<Run>) {
        let [off, on] = &runs.0;
        let Some(first) = off.first().map(|run| run.printed) else { return };
        let others = on.iter().filter(|run| run.printed != first).count();
        if off.len() > 1 && off.iter().all(|run| run.printed == first) && others > 0 {
            let [off, on_name] = self.sides;
            self.notes.push(format!(
                "{on_name}: the program printed something else in {others} of {} runs; {off}, it always printed the same",
                on.len()
            ));
        }
    }

    /// Prints the sentences, the table and the notes.
    pub(super) fn print(&self) {
        self.sentences.iter().for_each(|sentence| print(sentence));
        print("");
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        let [off, on] = self.sides;
        table.set_header(["", off, on, "difference (99 %)"]);
        for Row { name, unit, sides, verdict } in &self.rows {
            let [off, on] = sides.map(|value| value.map_or("–".to_owned(), |value| unit.show(value)));
            let judged = verdict.map(|verdict| verdict.interval().map_or("–".to_owned(), difference));
            table.add_row([(*name).to_owned(), off, on, judged.unwrap_or_default()]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.to_string().lines().for_each(|line| print(line.trim_end()));
        print("");
        print(&format!(
            "{} pairs in {:.0} s; medians; figures without an interval are not judged",
            self.pairs, self.seconds
        ));
        for note in &self.notes {
            print(&format!("note: {note}"));
        }
    }

    /// Returns a sentence that compares a bill (as JSON) with the measured difference of the processor time.
    pub(super) fn explained(&self, bill: &Value) -> Option<String> {
        let (added, billed) = (self.added_ns?, bill["total"]["ns"].as_f64()?);
        let time = |ns| Unit::Nanoseconds.show(ns);
        let mut text = format!(
            "tracing adds {} ({} to {}) of processor time to a run; the bill's calls take {}, which is {:.0} % of that",
            time(added.median),
            time(added.low),
            time(added.high),
            time(billed),
            100.0 * billed / added.median
        );
        // Both times are estimates, so the difference between them is printed only if their intervals do not overlap.
        if bill["total"]["high"].as_f64().is_some_and(|high| high < added.low) {
            text += &format!("; {} are not billed", time(added.median - billed));
        }
        if let Some(ns) = bill["other_threads_ns"].as_f64() {
            text += &format!("; threads that made no call took {}", time(ns));
        }
        Some(text)
    }

    /// Returns all results as JSON. Differences are fractions.
    pub(super) fn json(&self) -> Map<String, Value> {
        let [off, on] = self.sides;
        let rows = self.rows.iter().map(|Row { name, unit, sides, verdict }| {
            let mut row = Map::new();
            for (side, value) in [off, on].into_iter().zip(sides) {
                row.insert(format!("{side}{}", unit.suffix()), json!(value));
            }
            if let Some(verdict) = verdict {
                row.insert("verdict".to_owned(), json!(verdict.word()));
                let json = |it: Interval| json!({ "median": it.median, "low": it.low, "high": it.high });
                row.insert("difference".to_owned(), verdict.interval().map_or(Value::Null, json));
            }
            (name.replace(' ', "_"), Value::Object(row))
        });
        let mut all = Map::from_iter(rows);
        all.insert("pairs".to_owned(), json!(self.pairs));
        all.insert("seconds".to_owned(), json!(self.seconds));
        all.insert("confidence".to_owned(), json!(atrace_paired::looks::CONFIDENCE));
        all.insert("sentences".to_owned(), json!(self.sentences));
        all.insert("notes".to_owned(), json!(self.notes));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Lost;

    #[test]
    fn more_memory_is_advised_only_if_there_can_be_more() {
        for (lost, is_advised) in [
            (Lost { room: 5, kib: 64, ..Lost::default() }, true),
            (Lost { room: 5, kib: LARGEST, ..Lost::default() }, false),
            (Lost { inside: 5, kib: 64, ..Lost::default() }, false),
        ] {
            let mut shown = Shown::new(("tracing", ["off", "on"]), 20, 9, 60.0);
            let counts = Counts { events: 9, lost: lost.events(), ..Counts::default() };
            shown.recorded(
                &[Report { counts, lost: vec![lost], ..Report::default() }],
                ["events", "bytes", "lost"],
            );
            let [note] = shown.notes.as_slice() else { panic!("{:?}", shown.notes) };
            assert!(note.starts_with("events were lost, which cost less"), "{note}");
            assert_eq!(note.contains("ATRACE_SHMEM_KB"), is_advised, "{note}");
        }
    }

    #[test]
    fn a_bill_is_compared_with_the_difference() {
        let mut shown = Shown::new(("tracing", ["off", "on"]), 20, 9, 60.0);
        let bill = |ns: f64, high: f64, others: Option<f64>| json!({ "total": { "ns": ns, "high": high }, "other_threads_ns": others });
        assert_eq!(shown.explained(&bill(40e6, 41e6, None)), None);
        shown.added_ns = Some(Interval::around(50e6, 5e6));
        assert_eq!(
            shown.explained(&bill(40e6, 44e6, Some(8e6))).unwrap(),
            "tracing adds 50.0 ms (45.0 ms to 55.0 ms) of processor time to a run; the bill's calls take 40.0 ms, which is 80 % \
             of that; 10.0 ms are not billed; threads that made no call took 8.00 ms"
        );
        for (high, ns, part) in [(46e6, 40e6, 80), (56e6, 55e6, 110)] {
            let said = shown.explained(&bill(ns, high, None)).unwrap();
            assert!(said.ends_with(&format!("which is {part} % of that")), "{said}");
        }
    }
}

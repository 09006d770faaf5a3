//! Formats the bill as a table.

use std::fmt::{self, Display, Formatter};

use crate::bill::{Bill, Line, NOT_BILLED};
use crate::directives;
use crate::estimate::Estimate;
use crate::raw::{Call, Kind};

/// The maximum number of callsites that the table shows, except with `{:#}`.
const MOST: usize = 30;
/// The table does not show a callsite that costs less than this share of the bill, except with `{:#}`.
const LEAST: f64 = 0.000_5;

impl Display for Bill {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let whole = if self.is_processor_time { "processor time" } else { "elapsed time" };
        let head = [&format!("share of {whole}"), "ns each", "calls", "kind", "callsite", "where"]
            .map(str::to_owned);
        let is_shown = |line: &&Line| f.alternate() || line.ns.sum > LEAST * self.total_ns.sum;
        let most = if f.alternate() { usize::MAX } else { MOST };
        let shown: Vec<_> = self.lines.iter().filter(is_shown).take(most).collect();
        let rows: Vec<_> = shown.iter().map(|line| self.row(line)).collect();
        write_table(f, &head, &rows)?;

        let rest = &self.lines[shown.len().min(self.lines.len())..];
        let (zero, others): (Vec<_>, Vec<_>) = rest.iter().partition(|line| !line.is_used());
        if !others.is_empty() {
            let ns = others.iter().fold(Estimate::default(), |sum, line| sum.plus(line.ns));
            writeln!(f, "further callsites: {}, with {}", others.len(), self.share(ns))?;
        }
        if !zero.is_empty() {
            writeln!(f, "filtered or not reached: {}, with 0 %", zero.len())?;
        }
        writeln!(
            f,
            "\ntotal: {} of {whole} in {} calls of {} ({} of {} {whole}, in {})",
            self.share(self.total_ns),
            grouped(self.calls),
            self.subject,
            seconds(self.total_ns.sum),
            seconds(self.whole_ns),
            seconds(self.elapsed_ns)
        )?;
        let of_others = self.others_ns.map(|ns| ns as f64).filter(|ns| *ns > LEAST * self.whole_ns);
        if let Some(ns) = of_others {
            let [share, sum] = [ns, self.total_ns.sum + ns].map(|ns| percent(100.0 * ns / self.whole_ns));
            let time = seconds(ns);
            writeln!(
                f,
                "threads that made no call, such as a writer: {share} % ({time}); with them the total is {sum} %"
            )?;
        }
        let metering = percent(100.0 * self.metering_ns / (self.whole_ns + self.metering_ns));
        let [timed, each] = [grouped(self.timed), format!("{:.1}", self.untimed_ns)];
        writeln!(
            f,
            "not billed: {NOT_BILLED}\nmetering itself: at least {metering} % ({each} ns for a call; {timed} calls were timed)"
        )?;
        for directive in directives::best(self) {
            writeln!(f, "`{}` saves {}", directive.text, self.share(directive.ns))?;
        }
        Ok(())
    }
}

impl Bill {
    fn row(&self, line: &Line) -> [String; 6] {
        let place = line.place.as_ref().map(|(file, number)| format!("{file}:{number}"));
        let each = if line.is_used() { grouped(line.each_ns().round() as u64) } else { "–".to_owned() };
        [
            self.share(line.ns),
            each,
            short(line.uses()),
            line.kind(),
            format!("`{}`", line.name),
            place.unwrap_or_else(|| "–".to_owned()),
        ]
    }

    /// Formats a time as a share of the process's time (`whole_ns`). The bounds of the interval follow, unless they
    /// have the same text.
    fn share(&self, ns: Estimate) -> String {
        let [low, sum, high] = [ns.low(), ns.sum, ns.high()].map(|ns| 100.0 * ns / self.whole_ns);
        if sum == 0.0 {
            return "0 %".to_owned();
        }
        let [low, middle, high] = [low, sum, high].map(|share| percent_like(share, sum));
        if low == high { format!("{middle} %") } else { format!("{middle} % ({low}–{high})") }
    }
}

impl Line {
    /// Returns a description of the calls that one span or event consists of.
    fn kind(&self) -> String {
        let uses = self.uses().max(1);
        let mut parts = Vec::new();
        let mut part = |call, one: &str, many: &str| match self.calls(call) {
            0 => {}
            calls if calls == uses => parts.push(one.to_owned()),
            calls if calls % uses == 0 => parts.push(format!("{} {many}", calls / uses)),
            calls => parts.push(format!("{:.1} {many}", calls as f64 / uses as f64)),
        };
        let fields = match self.fields {
            0 => String::new(),
            1 => ", 1 field".to_owned(),
            fields => format!(", {fields} fields"),
        };
        if self.kind == Kind::Unknown {
            return "calls of unknown callsites".to_owned();
        }
        if self.calls(Call::New) + self.calls(Call::Event) + self.calls(Call::Enter) == 0 {
            let kind = if self.kind == Kind::Span { "span" } else { "event" };
            let checks = if self.calls(Call::Check) > 0 { ", checked only" } else { ", never" };
            return format!("{kind}{fields}{checks}");
        }
        if self.kind == Kind::Event {
            return format!("event{fields}");
        }
        part(Call::New, "new", "new");
        part(Call::Enter, "1 enter", "enters");
        part(Call::Record, "1 record", "records");
        part(Call::Clone, "1 clone", "clones");
        let closes = if self.calls(Call::Close) > 0 { ", close" } else { "" };
        format!("span: {}{fields}{closes}", parts.join(", "))
    }
}

fn write_table(f: &mut Formatter<'_>, head: &[String; 6], rows: &[[String; 6]]) -> fmt::Result {
    let width = |column: usize| {
        let cells = std::iter::once(head).chain(rows).map(|row| row[column].chars().count());
        cells.max().unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let is_number = |column| matches!(column, 1 | 2);
    let line = |f: &mut Formatter<'_>, row: &[String; 6]| {
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            match is_number(column) {
                true => write!(f, "| {cell:>width$} ")?,
                false => write!(f, "| {cell:<width$} ")?,
            }
        }
        writeln!(f, "|")
    };
    line(f, head)?;
    for (column, width) in widths.into_iter().enumerate() {
        let [dashes, end] = [width + 1, 1].map(|count| "-".repeat(count));
        write!(f, "|{dashes}{}", if is_number(column) { ":" } else { &end })?;
    }
    writeln!(f, "|")?;
    rows.iter().try_for_each(|row| line(f, row))
}

/// Formats a percentage with one digit after the decimal point, with two digits if it is below 1 %, or with three
/// digits if it is below 0.1 %.
fn percent(share: f64) -> String {
    percent_like(share, share)
}

/// Formats a percentage with as many decimal places as [`percent`] uses for `other`.
fn percent_like(share: f64, other: f64) -> String {
    let digits = match other {
        1.0.. => 1,
        0.1.. => 2,
        _ => 3,
    };
    format!("{share:.digits$}")
}

/// Returns a number with commas: `1,212`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
    groups.collect::<Vec<_>>().join(",")
}

/// Formats a number. A number from one million on is written in millions.
fn short(number: u64) -> String {
    if number < 1_000_000 { grouped(number) } else { format!("{:.1} M", number as f64 / 1e6) }
}

fn seconds(ns: f64) -> String {
    match ns {
        ..1e6 => format!("{:.0} µs", ns / 1e3),
        ..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Callsite, Process, Sample, Sampled, Writer};

    /// Returns the measurements of `number` calls, of which every tenth was timed. Half of the timed calls took a fifth
    /// less than `mean`, and the other half a fifth more.
    fn calls(number: u64, mean: f64) -> Sampled {
        let samples = number / 10;
        let sum = mean * samples as f64;
        let short = Sample { number: samples, sum, squares: sum * mean * 1.04 };
        Sampled { calls: number, timed: samples, short, ..Sampled::default() }
    }

    /// Returns a bill with fixed content.
    pub(crate) fn bill() -> Bill {
        let mut writer = Writer::new(&Process {
            subject: "the subscriber",
            ns_per_tick: 0.5,
            processor_ns: Some(2_010_000_000),
            others_ns: Some(50_000_000),
            elapsed_ns: 4_000_000_000,
            untimed_ns: 2.0,
            timing_ns: 2.5,
        });
        let file = "/home/user/.cargo/registry/src/index-0123/app-1.0.0/src/state.rs";
        let mut add = |target, level, line, kind, of: &[(Call, u64, f64)]| {
            let fields = if kind == Kind::Span { 2 } else { 1 };
            let callsite = Callsite { kind, level, fields, name: "prewarm", target, file, line };
            writer.callsite(&callsite, |call| {
                let of = of.iter().find(|(of, ..)| *of == call);
                of.map(|(_, number, mean)| calls(*number, *mean)).unwrap_or_default()
            });
        };
        add("app", 5, 9, Kind::Event, &[]);
        add("app", 3, 7, Kind::Event, &[(Call::Event, 20_000, 6_000.0)]);
        add("app", 5, 10, Kind::Event, &[(Call::Event, 1_000, 400.0)]);
        let [new, close] = [(Call::New, 400_000, 400.0), (Call::Close, 400_000, 100.0)];
        let [enter, exit] = [Call::Enter, Call::Exit].map(|call| (call, 2_000_000, 50.0));
        add("app::state", 4, 88, Kind::Span, &[new, enter, exit, close]);
        writer.callsite(&Callsite::default(), |_| Sampled::default());
        Bill::read(&writer.finish()).unwrap()
    }

    #[test]
    fn a_bill_is_a_table() {
        let text = bill().to_string();
        let expected = "\
| share of processor time | ns each |   calls | kind                                 | callsite  | where                     |
|-------------------------|--------:|--------:|--------------------------------------|-----------|---------------------------|
| 10.0 %                  |     500 | 400,000 | span: new, 5 enters, 2 fields, close | `prewarm` | app-1.0.0/src/state.rs:88 |
| 3.0 %                   |   3,000 |  20,000 | event, 1 field                       | `app`     | app-1.0.0/src/state.rs:7  |
| 0.010 % (0.010–0.011)   |     200 |   1,000 | event, 1 field                       | `app`     | app-1.0.0/src/state.rs:10 |
filtered or not reached: 1, with 0 %

total: 13.0 % (13.0–13.1) of processor time in 4,821,000 calls of the subscriber (260.2 ms of 2.00 s processor time, in 4.00 s)
threads that made no call, such as a writer: 2.5 % (50.0 ms); with them the total is 15.5 %
not billed: the evaluation of arguments, the caches of `tracing`, and what calls displace from the processor's caches
metering itself: at least 0.54 % (2.0 ns for a call; 482,100 calls were timed)
`app=warn` saves 13.0 % (13.0–13.1)
`app::state=info` saves 10.0 %
";
        assert_eq!(text, expected, "{text}");
    }
}

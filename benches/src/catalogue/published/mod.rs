//! The results that the authors of the original benchmarks published: the times of AOSP's `libatrace_rust` benchmarks,
//! and [every line](originals()) of the result tables of all five benchmarks.
//!
//! AOSP measured on a Cuttlefish virtual device (`aosp_cf_x86_64_phone-userdebug`), so only ratios can be compared with
//! measurements on other machines. For Rust, there are three numbers: Criterion's estimate, and the ends of its 95 %
//! interval. For C++, the number is the `Time` of Google Benchmark.
//!
//! The text files beside this module hold the result tables of the original benchmarks. A line of a table has five
//! fields: description, number, error, unit, and our corresponding row (result). If we have no such row, the fifth
//! field has `-` and the reason. A blank line ends a group; a line is compared with the first line of its group that
//! has the same unit. All lines that do not belong to a table start with one of these marks:
//! - `#` begins a comment.
//! - `!` defines a reason. In the fifth field of a line, `0:` names the reason why our number may be 0, `none:` names
//!   the reason why a run may lack the row, and `near:` names our most similar number if we have no corresponding row.
//! - `~` begins the text that explains how the lines below it correspond to our rows.
//! - `"` begins a sentence that is quoted word for word from the authors of the original benchmark.
//! - `>` begins a finding (a conclusion from the original's tables), in our words. Each `?` below a finding begins a
//!   ratio of two published numbers that shows the finding, with our rows for the two numbers, and the range in which
//!   our ratio supports the finding.
//! - `=` begins a description of the differences between the original benchmark and ours.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::catalogue::id::{Id, State, Who};
use crate::catalogue::kinds::{Event, TracingCase, tracing_name};

/// A published time in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Published {
    /// The lower bound of the time, or the time itself if no bounds were published.
    pub low: f64,
    /// The time in nanoseconds.
    pub ns: f64,
    /// The upper bound of the time, or the time itself if no bounds were published.
    pub high: f64,
}

/// The published times of a case (a measured operation) of AOSP's benchmark of events.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OfEvent {
    /// Whether tracing was on.
    pub state: State,
    /// The [kind of event](super::EVENTS).
    pub event: &'static str,
    /// The published time of AOSP's Rust wrapper of libcutils.
    pub rust: Published,
    /// The published time of the same event in C++.
    pub cc: Published,
}

impl OfEvent {
    /// Returns the id of our row (result) for this case, in the implementation `who`.
    ///
    /// # Panics
    ///
    /// Never panics: the catalogue has every published event.
    pub fn id(&self, who: Who) -> Id {
        Id::event(who, self.state, Event::named(self.event).expect("the catalogue has it"))
    }
}

/// The published time of a case (a measured operation) of AOSP's benchmark of its `tracing` subscriber.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct OfTracing {
    /// The [kind of subscriber](super::SUBSCRIBERS).
    pub kind: &'static str,
    /// The measured operation.
    pub case: TracingCase,
    /// The time that AOSP published for the case.
    pub rust: Published,
}

impl OfTracing {
    /// Returns the id of our row (result) for this case, measured with our subscriber alone, without a registry.
    pub fn id(&self) -> Id {
        Id::new(Who::Rust, tracing_name(self.kind, self.case))
    }

    /// Returns the id of our row (result) for this case, measured with our layer over the registry, as in the original
    /// benchmark.
    pub fn as_a_layer(&self) -> Id {
        let kind = self.kind.strip_prefix("tracing_").unwrap_or(self.kind);
        Id::new(Who::Rust, tracing_name(&format!("layer_{kind}"), self.case))
    }
}

/// The content of `times.toml`.
#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct Times {
    events: Vec<OfEvent>,
    tracing: Vec<OfTracing>,
}

fn times() -> Times {
    toml::from_str(include_str!("times.toml")).expect("the file has this form")
}

/// The times that AOSP published for its benchmark of events.
pub static EVENTS: LazyLock<Vec<OfEvent>> = LazyLock::new(|| times().events);

/// The times that AOSP published for the benchmark of its `tracing` subscriber.
pub static TRACING: LazyLock<Vec<OfTracing>> = LazyLock::new(|| times().tracing);

/// An original benchmark that a bench of this crate repeats.
#[derive(Clone, Debug)]
pub struct Original {
    /// The bench that repeats the original benchmark.
    pub bench: &'static str,
    /// The title under which the report shows the original benchmark.
    pub title: &'static str,
    /// A sentence of the original benchmark's authors about the results, word by word, if there is such a sentence.
    pub quote: Option<&'static str>,
    /// The findings that the original benchmark's tables show.
    pub findings: Vec<Finding>,
    /// A description of the differences between the original benchmark and ours.
    pub otherwise: Option<&'static str>,
    /// The lines of the original benchmark's tables, in groups.
    pub groups: Vec<Vec<Line>>,
}

/// A finding that the tables of an original benchmark show.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The finding as a sentence in our words.
    pub text: &'static str,
    /// The ratios that show the finding.
    pub checks: Vec<Check>,
}

/// A published ratio that shows a finding, our corresponding ratio, and the range in which our ratio supports the
/// finding.
#[derive(Clone, Debug)]
pub struct Check {
    /// The published ratio: the quotient of two published numbers.
    pub there: f64,
    /// The numerator of our ratio: a number that we measure.
    pub of: Measured,
    /// The denominator of our ratio: a number that we measure.
    pub by: Measured,
    /// The lower end of the range in which our ratio supports the finding.
    pub from: f64,
    /// The upper end of the range in which our ratio supports the finding.
    pub to: f64,
}

/// A number that the authors of an original benchmark published.
#[derive(Clone, Debug)]
pub struct Line {
    /// A description of the number.
    pub what: &'static str,
    /// The published number, or `None` if the number is not legible in the original.
    pub there: Option<f64>,
    /// The published error of the number.
    pub error: f64,
    /// The unit of both the published number and ours.
    pub unit: &'static str,
    /// Our number that corresponds to the published number, or the reason why we do not measure such a number.
    pub here: Result<Measured, &'static str>,
    /// The reason why the number that we measure may be 0, if there is such a reason.
    pub zero: Option<&'static str>,
    /// The reason why even a run of all cases may lack the row with our number, if there is such a reason.
    pub none: Option<&'static str>,
    /// Our most similar number, if we measure no number of the same kind.
    pub near: Option<Measured>,
    /// A description of how the published number corresponds to ours.
    pub alike: &'static str,
}

/// A number that this crate measures.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The bench that measures the number.
    pub bench: &'static str,
    /// The id of the row that has the number.
    pub id: &'static str,
    /// The field of the row that has the number.
    pub field: Field,
    /// The number of our operations that together equal one operation of the original benchmark. Our number is
    /// multiplied by this factor.
    pub times: f64,
}

/// A field of a row (a measured result).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The time of one operation.
    Time,
    /// The number of operations per second.
    PerSecond,
    /// The number of allocated megabytes (2^20 bytes, as in JMH) per second.
    Rate,
    /// The number of bytes that one operation allocates.
    Bytes,
    /// The number of allocations of one operation.
    Allocations,
    /// The count with this name.
    Count(&'static str),
}

/// Returns the original benchmarks, in the order of the report.
///
/// # Panics
///
/// Never panics: the text files with the published tables are compiled into the program, and a test parses them.
pub fn originals() -> Vec<Original> {
    [
        ("atrace", "ATrace from Rust and C++", include_str!("atrace.txt")),
        ("suspension", "Cancellation handlers without allocation", include_str!("suspension.txt")),
        ("coroutines", "C++ coroutines and threads", include_str!("coroutines.txt")),
        ("threads", "Virtual and kernel threads", include_str!("threads.txt")),
        ("live", "Dumps of living coroutines", include_str!("dumps.txt")),
    ]
    .map(|(bench, title, text)| {
        parse(bench, title, text).unwrap_or_else(|| panic!("{bench}: a line has another form"))
    })
    .into()
}

fn parse(bench: &'static str, title: &'static str, text: &'static str) -> Option<Original> {
    let with = |mark| text.lines().filter_map(move |line| Some(line.strip_prefix(mark)?.trim()));
    let reasons: Vec<_> = with('!').map(|line| line.split_once(' ')).collect::<Option<_>>()?;
    let (mut groups, mut alike) = (vec![Vec::new()], "");
    for line in text.lines().filter(|line| !line.starts_with(['#', '!', '>', '?', '=', '"'])) {
        match line.strip_prefix('~') {
            Some(text) => alike = text.trim(),
            None if line.is_empty() => groups.push(Vec::new()),
            None => groups.last_mut()?.push(Line { alike, ..line_of(line, &reasons)? }),
        }
    }
    groups.retain(|group| !group.is_empty());
    let mut findings: Vec<Finding> = Vec::new();
    for line in text.lines() {
        if let Some(text) = line.strip_prefix('>') {
            findings.push(Finding { text: text.trim(), checks: Vec::new() });
        } else if let Some(check) = line.strip_prefix('?') {
            findings.last_mut()?.checks.push(check_of(check.trim())?);
        }
    }
    Some(Original { bench, title, quote: with('"').next(), findings, otherwise: with('=').next(), groups })
}

fn check_of(line: &'static str) -> Option<Check> {
    let [rows, there, holds] = split(line, " : ")?;
    let [of, by] = split(rows, " / ")?;
    let [above, below] = split(there, " / ")?.map(str::parse::<f64>);
    let (from, to) = match holds.strip_prefix("at least ") {
        Some(from) => (from, "inf"),
        None => holds.split_once(" to ")?,
    };
    let (bench, of) = of.split_once(' ')?;
    Some(Check {
        there: above.ok()? / below.ok()?,
        of: measured(bench, of)?,
        by: measured(bench, by)?,
        from: from.parse().ok()?,
        to: to.parse().ok()?,
    })
}

fn line_of(line: &'static str, reasons: &[(&str, &'static str)]) -> Option<Line> {
    let [what, there, error, unit, here] = split(line, "|")?.map(str::trim);
    let number = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    let reason = |name: &str| Some(reasons.iter().find(|(reason, _)| *reason == name)?.1);
    let row = |text: &'static str| text.split_once(' ').and_then(|(bench, row)| measured(bench, row));
    let mut words = here;
    let mut option = |mark: &str| {
        let (before, value) = words.split_once(mark)?;
        words = before;
        Some(value)
    };
    let near = option(" near:");
    let none = option(" none:");
    let zero = option(" 0:");
    let near = near.map(|text| row(text).ok_or(())).transpose().ok()?;
    let reason_of = |name: Option<&str>| name.map(|name| reason(name).ok_or(())).transpose();
    let (none, zero) = (reason_of(none).ok()?, reason_of(zero).ok()?);
    let here = match words.strip_prefix('-') {
        Some(name) => Err(reason(name)?),
        None => Ok(row(words)?),
    };
    let (there, error) = (number(there)?, number(error)?.unwrap_or(0.0));
    Some(Line { what, there, error, unit, here, zero, none, near, alike: "" })
}

fn measured(bench: &'static str, text: &'static str) -> Option<Measured> {
    let (id, field) = text.split_once(' ').unwrap_or((text, "ns"));
    let (field, times) = field.split_once('*').unwrap_or((field, "1"));
    let field = match field {
        "ns" => Field::Time,
        "per_s" => Field::PerSecond,
        "rate" => Field::Rate,
        "bytes" => Field::Bytes,
        "allocs" => Field::Allocations,
        other => Field::Count(other),
    };
    Some(Measured { bench, id, field, times: times.parse().ok()? })
}

fn split<const N: usize>(text: &'static str, at: &str) -> Option<[&'static str; N]> {
    text.split(at).collect::<Vec<_>>().try_into().ok()
}

#[cfg(test)]
mod published_tests {
    use super::*;

    #[test]
    fn bounds_hold_what_they_are_of() {
        let all = EVENTS.iter().flat_map(|e| [e.rust, e.cc]).chain(TRACING.iter().map(|s| s.rust));
        for Published { low, ns, high } in all {
            assert!(low <= ns && ns <= high);
        }
    }
}

#[cfg(test)]
mod lines_tests {
    use super::*;
    use crate::catalogue::BENCHES;

    #[test]
    fn every_line_has_a_row_or_a_reason() {
        let originals = originals();
        let lines = |original: &Original| original.groups.iter().map(Vec::len).sum::<usize>();
        assert_eq!(originals.iter().map(lines).collect::<Vec<_>>(), [12, 32, 128, 193, 81]);
        for Original { bench, findings, groups, .. } in &originals {
            assert!(BENCHES.iter().any(|known| known.name == *bench) && !findings.is_empty());
            for Finding { text, checks } in findings {
                assert!(!checks.is_empty(), "{text}");
                for Check { there, of, from, to, .. } in checks {
                    assert!(of.bench == *bench && (*from..=*to).contains(there), "{text} {there}");
                }
            }
            for Line { what, here, .. } in groups.iter().flatten() {
                match here {
                    Ok(here) => assert!(here.bench == *bench && here.id.contains('/'), "{what}"),
                    Err(why) => assert!(why.split(' ').count() > 4, "{what}: {why}"),
                }
            }
        }
    }

    #[test]
    fn what_has_another_form_is_none() {
        assert!(parse("x", "x", "> a\n? x a / b : 1 / 2 : at least 1\n").is_some());
        assert!(parse("x", "x", "> a\n? x a / b : 1 / 2 : at least 1\na | 1 | | ns | -why\n").is_none());
        assert!(parse("x", "x", "> a\n? x a / b : 1 / 2 : at most 1\n").is_none());
        assert!(parse("x", "x", "? x a / b : 1 / 2 : at least 1\n").is_none());
    }

    #[test]
    fn a_number_may_be_0_for_a_reason() {
        let of = |line: &'static str| {
            let text = format!("! why none is needed\n> a\n? x a / b : 1 / 2 : at least 1\n{line}\n");
            parse("x", "x", text.leak()).map(|original| original.groups[0][0].zero)
        };
        assert_eq!(of("a | 1 | | B/op | x b bytes"), Some(None));
        assert_eq!(of("a | 1 | | B/op | x b bytes 0:why"), Some(Some("none is needed")));
        assert_eq!(of("a | 1 | | B/op | x b bytes 0:what"), None);
    }
}

//! Every line of the originals' result tables, with the row here that is about the same, or why there is none; and what their
//! authors concluded.
//!
//! They stand in text files, a line each: what it is, the number, its error, the unit, and the row. A blank line ends a group,
//! whose lines are compared with its first. `!` names a reason, `0:` that for which a number here may be 0; `>` says the
//! conclusion, `?` by which ratio to tell whether it holds, `=` what the original has as a whole and ours has otherwise.

/// A benchmark that is repeated here.
#[derive(Clone, Debug)]
pub struct Original {
    /// The bench that repeats it.
    pub bench: &'static str,
    /// What it measured.
    pub title: &'static str,
    /// What its authors concluded, in a sentence.
    pub conclusion: &'static str,
    /// What it has as a whole and ours has otherwise.
    pub otherwise: Option<&'static str>,
    /// The ratio that the sentence is about.
    pub check: Check,
    /// The lines of its tables, by groups.
    pub groups: Vec<Vec<Line>>,
}

/// A ratio by which a conclusion is told to hold.
#[derive(Clone, Debug)]
pub struct Check {
    /// The ratio in what was published.
    pub there: f64,
    /// The rows here.
    pub of: Measured,
    /// What they are divided by.
    pub by: Measured,
    /// Where the ratio is if the conclusion holds.
    pub from: f64,
    /// Its other end.
    pub to: f64,
}

/// A number that was published.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is about.
    pub what: &'static str,
    /// The number; none where it can't be read.
    pub there: Option<f64>,
    /// How far it may be off.
    pub error: f64,
    /// What both are in.
    pub unit: &'static str,
    /// The number of the same here, or why there is none.
    pub here: Result<Measured, &'static str>,
    /// Why that may be 0.
    pub zero: Option<&'static str>,
}

/// Something that is measured here.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The bench.
    pub bench: &'static str,
    /// The row.
    pub id: &'static str,
    /// What of it.
    pub field: Field,
    /// How many of them are one there.
    pub times: f64,
}

/// What of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Its time.
    Time,
    /// How often a second holds that.
    PerSecond,
    /// How many megabytes are allocated in a second.
    Rate,
    /// The bytes that are allocated.
    Bytes,
    /// What was counted under this name.
    Count(&'static str),
}

/// Returns the originals, in the order in which a full run repeats them.
///
/// # Panics
///
/// Never: the files are part of the program, and a test has read them.
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
    let mut groups = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with(['#', '!', '>', '?', '='])) {
        match line.is_empty() {
            true => groups.push(Vec::new()),
            false => groups.last_mut()?.push(line_of(line, &reasons)?),
        }
    }
    groups.retain(|group| !group.is_empty());
    let [rows, there, holds] = split(with('?').next()?, " : ")?;
    let [of, by] = split(rows, " / ")?;
    let [above, below] = split(there, " / ")?.map(str::parse::<f64>);
    let (from, to) = match holds.strip_prefix("at least ") {
        Some(from) => (from, "inf"),
        None => holds.split_once(" to ")?,
    };
    let (bench_of_rows, of) = of.split_once(' ')?;
    let check = Check {
        there: above.ok()? / below.ok()?,
        of: measured(bench_of_rows, of)?,
        by: measured(bench_of_rows, by)?,
        from: from.parse().ok()?,
        to: to.parse().ok()?,
    };
    let (conclusion, otherwise) = (with('>').next()?, with('=').next());
    Some(Original { bench, title, conclusion, otherwise, check, groups })
}

fn line_of(line: &'static str, reasons: &[(&str, &'static str)]) -> Option<Line> {
    let [what, there, error, unit, here] = split(line, "|")?.map(str::trim);
    let number = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    let reason = |name: &str| Some(reasons.iter().find(|(reason, _)| *reason == name)?.1);
    let (here, zero) = match here.split_once(" 0:") {
        Some((here, name)) => (here, Some(reason(name)?)),
        None => (here, None),
    };
    let here = match here.strip_prefix('-') {
        Some(name) => Err(reason(name)?),
        None => {
            let (bench, row) = here.split_once(' ')?;
            Ok(measured(bench, row)?)
        }
    };
    Some(Line { what, there: number(there)?, error: number(error)?.unwrap_or(0.0), unit, here, zero })
}

fn measured(bench: &'static str, text: &'static str) -> Option<Measured> {
    let (id, field) = text.split_once(' ').unwrap_or((text, "ns"));
    let (field, times) = field.split_once('*').unwrap_or((field, "1"));
    let field = match field {
        "ns" => Field::Time,
        "per_s" => Field::PerSecond,
        "rate" => Field::Rate,
        "bytes" => Field::Bytes,
        other => Field::Count(other),
    };
    Some(Measured { bench, id, field, times: times.parse().ok()? })
}

fn split<const N: usize>(text: &'static str, at: &str) -> Option<[&'static str; N]> {
    text.split(at).collect::<Vec<_>>().try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::BENCHES;

    #[test]
    fn every_line_has_a_row_or_a_reason() {
        let originals = originals();
        let lines = |original: &Original| original.groups.iter().map(Vec::len).sum::<usize>();
        assert_eq!(originals.iter().map(lines).collect::<Vec<_>>(), [12, 32, 128, 193, 81]);
        for Original { bench, check, groups, .. } in &originals {
            assert!(BENCHES.iter().any(|known| known.name == *bench) && check.of.bench == *bench);
            assert!(check.there.is_finite() && check.from < check.to);
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

//! The screen that ends `cargo bench`: each promise, its numbers, and what came of it.

use std::fmt;
use std::path::{Path, PathBuf};

use super::judged::{Judged, Verdict, read};

/// The most lines of a screen.
const LINES: usize = 40;
/// The most characters of a line.
const WIDTH: usize = 120;
/// How many numbers of a group are shown that say what was promised.
const SHOWN: usize = 4;

/// What the benches have promised, on one screen.
#[derive(Debug, Default)]
pub struct Screen {
    lines: Vec<(Verdict, String)>,
    kept: usize,
    missed: usize,
    open: usize,
    problems: Vec<String>,
    measured: PathBuf,
}

impl Screen {
    /// Reads what the benches have left.
    pub fn read(measured: &Path) -> Self {
        let (benches, problems) = read(measured);
        let mut screen = Self { problems, measured: measured.to_owned(), ..Self::default() };
        for (bench, all) in &benches {
            screen.add(bench, all);
        }
        screen
    }

    /// Adds the promises of a bench, a line for those that say the same of different cases.
    pub fn add(&mut self, bench: &str, all: &[Judged]) {
        let mut groups: Vec<(&str, Vec<&Judged>)> = Vec::new();
        for judged in all {
            match judged.verdict {
                Verdict::Kept => self.kept += 1,
                Verdict::Missed => self.missed += 1,
                Verdict::Open => self.open += 1,
            }
            match groups.iter_mut().find(|(promise, _)| *promise == judged.promise) {
                Some((_, group)) => group.push(judged),
                None => groups.push((&judged.promise, vec![judged])),
            }
        }
        for (promise, mut group) in groups {
            // Stable: within a verdict in the order of the bench.
            group.sort_by_key(|judged| judged.verdict);
            let worst = group.first().map_or(Verdict::Kept, |judged| judged.verdict);
            self.lines.push((worst, line(bench, promise, &group)));
        }
    }

    /// Returns all lines, without what is around them.
    pub fn lines(&self) -> String {
        self.lines.iter().map(|(_, line)| &line[..]).collect::<Vec<_>>().join("\n")
    }

    /// Tells whether there is nothing to show.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.problems.is_empty()
    }
}

/// One line: the worst verdict, the promise, and the numbers.
fn line(bench: &str, promise: &str, group: &[&Judged]) -> String {
    let of = |verdict| group.iter().filter(|judged| judged.verdict == verdict).count();
    let verdict = match [Verdict::Missed, Verdict::Open].map(of) {
        [0, 0] => "kept".to_owned(),
        [0, open] => format!("{open} open"),
        [missed, 0] => format!("{missed} MISSED"),
        [missed, open] => format!("{missed} MISSED, {open} open"),
    };
    let same = group.iter().all(|judged| judged.limit == group[0].limit);
    let limit = if same { format!(" {}", group[0].limit) } else { String::new() };
    let number = |judged: &&Judged| {
        let limit = if same { String::new() } else { format!(" {}", judged.limit) };
        let verdict = match judged.verdict {
            Verdict::Kept => "",
            other => &format!(" {}", other.name()),
        };
        match group.len() {
            1 => format!("{} {}{verdict}", judged.measured, judged.of),
            _ => format!("{} {}{limit}{verdict}", judged.of, judged.measured),
        }
    };
    let shown: Vec<String> = group.iter().take(SHOWN).map(number).collect();
    let more = match group.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!("; {more} more"),
    };
    format!("{verdict:16} {bench}: {promise}{limit}: {}{more}", shown.join(", "))
}

impl fmt::Display for Screen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kept, missed, open, .. } = self;
        let all = kept + missed + open;
        writeln!(
            f,
            "Promises: {all}, of which {kept} kept, {missed} missed, {open} open (not known well enough)."
        )?;
        // The title, the line of what is left out, and two at the end.
        let room = LINES - 4 - self.problems.len().min(5);
        let mut shown: Vec<&(Verdict, String)> = self.lines.iter().collect();
        shown.sort_by_key(|(verdict, _)| *verdict == Verdict::Kept);
        let left = shown.len().saturating_sub(room);
        for (_, line) in shown.iter().take(room) {
            writeln!(f, "{}", cut(line))?;
        }
        if left > 0 {
            writeln!(f, "{left} more lines are in the report")?;
        }
        for problem in self.problems.iter().take(5) {
            writeln!(f, "{}", cut(problem))?;
        }
        writeln!(f, "Everything that was printed: {}/*.txt", self.measured.display())?;
        f.write_str("All numbers, with plots: cargo run -p atrace-benches --bin report")
    }
}

/// A line that has room.
fn cut(line: &str) -> String {
    match line.chars().count() {
        n if n <= WIDTH => line.to_owned(),
        _ => line.chars().take(WIDTH - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(promise: &str, of: &str, verdict: Verdict) -> Judged {
        Judged::new(promise, of, "0.13", "≤ 0.20", verdict)
    }

    #[test]
    fn what_was_not_kept_comes_first() {
        let mut screen = Screen::default();
        screen.add(
            "atrace",
            &[
                judged("off, of C++", "off_end", Verdict::Kept),
                judged("on, of C++", "on_end", Verdict::Kept),
                judged("on, of C++", "on_int", Verdict::Missed),
                judged("on, of C++", "on_int64", Verdict::Open),
            ],
        );
        let text = screen.to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Promises: 4, of which 2 kept, 1 missed, 1 open (not known well enough).");
        assert_eq!(
            lines[1],
            "1 MISSED, 1 open atrace: on, of C++ ≤ 0.20: on_int 0.13 MISSED, on_int64 0.13 open, on_end 0.13"
        );
        assert_eq!(lines[2], "kept             atrace: off, of C++ ≤ 0.20: 0.13 off_end");
        assert!(lines[4].starts_with("All numbers"), "{text}");
    }

    #[test]
    fn it_has_room_on_a_screen() {
        let mut screen = Screen { problems: vec!["x".repeat(300); 9], ..Screen::default() };
        for group in 0..60 {
            let name = format!("promise {group}");
            let all: Vec<Judged> =
                (0..30).map(|i| judged(&name, &format!("case_{i}"), Verdict::Kept)).collect();
            screen.add("coroutines", &all);
        }
        screen.add("live", &[judged("late", "x", Verdict::Missed)]);
        let text = screen.to_string();
        assert_eq!(text.lines().count(), LINES);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("live: late") && text.contains("; 26 more") && text.contains("30 more lines"));
    }
}

//! How many instructions an operation may take.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::path::Path;

use serde::Deserialize;

use crate::catalogue::{Id, Who};
use crate::row::{self, Row};

/// By how many percent a count may be above its bound.
const GROWTH: f64 = 3.0;

/// The content of `bounds.toml`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bounds {
    /// The compiler whose code was counted.
    rustc: String,
    /// By how many percent a count may be above.
    growth: f64,
    /// The counts, by their ids.
    pub(crate) instructions: BTreeMap<String, f64>,
}

impl Bounds {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("{}: {e}; --update makes it", path.display()))?;
        let bounds: Self = toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
        let counts = bounds.instructions.values().chain([&bounds.growth]);
        if bounds.instructions.is_empty() || !counts.into_iter().all(|n| n.is_finite() && *n > 0.0) {
            return Err(format!(
                "{}: every bound is a number above zero, and there are some",
                path.display()
            ));
        }
        Ok(bounds)
    }

    /// Makes bounds of what was counted of this workspace's code.
    pub(crate) fn of(rustc: &str, rows: &[Row]) -> Self {
        let own = rows.iter().filter(|row| is_own(row));
        // Two digits: what is below is the call of the loop.
        let instructions = own.map(|row| (row.id.clone(), (row.median * 100.0).round() / 100.0)).collect();
        Self { rustc: version(rustc).to_owned(), growth: GROWTH, instructions }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = String::from(
            "# How many instructions of its own an operation takes, counted by callgrind on x86_64; `.ci/run` fails where\n\
             # it takes more than `growth` percent above. A change that is worth it, or another compiler, is taken over by\n\
             #     cargo run -p atrace-benches --bin instructions -- --update\n\
             # What is counted, and why it does not depend on the machine: benches/src/measure/instructions/mod.rs.\n\n",
        );
        let _ = write!(text, "rustc = \"{}\"\ngrowth = {:.1}\n\n[instructions]\n", self.rustc, self.growth);
        for (id, count) in &self.instructions {
            let _ = writeln!(text, "\"{id}\" = {count:.2}");
        }
        let dir = path.parent().unwrap_or(Path::new("."));
        let name = path.file_name().and_then(|name| name.to_str()).ok_or("bounds have a file name")?;
        row::replace(dir, name, text.as_bytes()).map_err(|e| e.to_string())
    }

    /// These, if they are for the code of `rustc`.
    pub(crate) fn for_compiler(self, rustc: &str) -> Result<Self, String> {
        match version(rustc) {
            here if here == self.rustc => Ok(self),
            here => Err(format!(
                "the bounds are of code compiled by Rust {0}, this is Rust {here}: \
                 `cargo +{0} run -p atrace-benches --bin instructions -- --check`, or take this one over with --update",
                self.rustc
            )),
        }
    }

    pub(crate) fn check(&self, rows: &[Row]) -> Verdict {
        let mut verdict = Verdict { growth: self.growth, ..Verdict::default() };
        for (id, &bound) in &self.instructions {
            let Some(row) = rows.iter().find(|row| row.id == *id) else {
                verdict.missing.push(id.clone());
                continue;
            };
            verdict.checked += 1;
            let part = row.median / bound;
            let change = Change { id: id.clone(), bound, count: row.median };
            if part > 1.0 + self.growth / 100.0 {
                verdict.more.push(change);
            } else if part < 1.0 / (1.0 + self.growth / 100.0) {
                verdict.fewer.push(change);
            }
        }
        let known = |row: &&Row| is_own(row) && !self.instructions.contains_key(&row.id);
        verdict.unbounded = rows.iter().filter(known).map(|row| row.id.clone()).collect();
        verdict
    }
}

/// Whether what was counted has bounds: it is this workspace's own code.
fn is_own(row: &Row) -> bool {
    matches!(Id::of(&row.id).who, Who::Rust | Who::Perfetto)
}

/// The number in what a compiler says of itself.
fn version(rustc: &str) -> &str {
    rustc.split(' ').nth(1).unwrap_or(rustc)
}

/// Counts beside their bounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    growth: f64,
    checked: usize,
    more: Vec<Change>,
    fewer: Vec<Change>,
    missing: Vec<String>,
    unbounded: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
struct Change {
    id: String,
    bound: f64,
    count: f64,
}

impl Verdict {
    pub(crate) fn passes(&self) -> bool {
        self.more.is_empty() && self.missing.is_empty() && self.unbounded.is_empty() && self.checked > 0
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, changes) in [("MORE   ", &self.more), ("fewer  ", &self.fewer)] {
            for Change { id, bound, count } in changes {
                let percent = (count / bound - 1.0) * 100.0;
                writeln!(f, "{what} {id}: {count:.2} instructions, bound {bound:.2} ({percent:+.1} %)")?;
            }
        }
        for id in &self.missing {
            writeln!(f, "MISSING {id}: has a bound, and was not counted")?;
        }
        for id in &self.unbounded {
            writeln!(f, "UNKNOWN {id}: was counted, and has no bound")?;
        }
        if self.passes() {
            write!(
                f,
                "{} operations take at most {} % more instructions than their bounds",
                self.checked, self.growth
            )?;
            if !self.fewer.is_empty() {
                write!(f, "; --update takes over those that take fewer")?;
            }
            return Ok(());
        }
        write!(
            f,
            "FAILED: see above. If that is meant: `cargo run -p atrace-benches --bin instructions -- --update`, and \
             commit benches/bounds.toml with a word on why"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::Sink;
    use crate::stats::Interval;

    const RUSTC: &str = "rustc 1.95.0 (59807616e 2026-04-14)";

    fn rows(begin: f64) -> Vec<Row> {
        let row = |id: &str, n| Row::new(id, Interval::around(n, 0.0), Sink::File);
        vec![row("rust/tracing_on_begin/10", begin), row("rust/tracing_off_end", 4.0), row("cc/x", 1700.0)]
    }

    #[test]
    fn four_percent_fail_and_two_pass() {
        let bounds = Bounds::of(RUSTC, &rows(100.0));
        assert_eq!(bounds.instructions.len(), 2);
        assert!(bounds.check(&rows(100.0)).passes());
        assert!(bounds.check(&rows(102.0)).passes());
        let more = bounds.check(&rows(104.0));
        assert!(!more.passes());
        let text = more.to_string();
        assert!(
            text.starts_with(
                "MORE    rust/tracing_on_begin/10: 104.00 instructions, bound 100.00 (+4.0 %)\n"
            ),
            "{text}"
        );
        assert!(text.contains("--update"), "{text}");
        let fewer = bounds.check(&rows(90.0));
        assert!(fewer.passes() && fewer.to_string().contains("fewer   rust/tracing_on_begin/10"), "{fewer}");
    }

    #[test]
    fn what_is_not_there_fails() {
        let bounds = Bounds::of(RUSTC, &rows(100.0));
        let missing = bounds.check(&rows(100.0)[1..]);
        assert!(
            !missing.passes() && missing.to_string().starts_with("MISSING rust/tracing_on_begin/10"),
            "{missing}"
        );
        let new = Bounds::of(RUSTC, &rows(100.0)[1..]).check(&rows(100.0));
        assert!(!new.passes() && new.to_string().starts_with("UNKNOWN rust/tracing_on_begin/10"), "{new}");
    }

    #[test]
    fn what_is_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bounds.toml");
        let bounds = Bounds::of(RUSTC, &rows(100.257));
        bounds.write(&path).unwrap();
        assert_eq!(Bounds::read(&path).unwrap(), bounds);
        assert_eq!(bounds.instructions["rust/tracing_on_begin/10"], 100.26);
        let other = bounds.clone().for_compiler("rustc 1.96.0 (x)").unwrap_err();
        assert!(other.contains("`cargo +1.95.0 run"), "{other}");
        assert!(bounds.for_compiler(RUSTC).is_ok());
        for (text, why) in [
            ("", "missing field"),
            ("rustc = 7\n", "invalid type"),
            ("rustc = \"1\"\ngrowth = 3.0\n[instructions]\n", "there are some"),
            ("rustc = \"1\"\ngrowth = nan\n[instructions]\na = 1.0\n", "above zero"),
            ("rustc = \"1\"\ngrowth = 3.0\nother = 1\n[instructions]\na = 1.0\n", "unknown field"),
        ] {
            std::fs::write(&path, text).unwrap();
            let e = Bounds::read(&path).unwrap_err();
            assert!(e.contains(why) && e.contains("bounds.toml"), "{text}: {e}");
        }
        let none = Bounds::read(&dir.path().join("none.toml")).unwrap_err();
        assert!(none.contains("--update makes it"), "{none}");
    }
}

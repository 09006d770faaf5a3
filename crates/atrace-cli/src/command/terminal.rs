//! The command's output, its errors and its exit status.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use crate::escape::{quoted, shown};

/// The exit status of a command that failed.
const FAILED: u8 = 1;

/// An error of the command: one or more lines that describe the failure and, in most cases, a remedy.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    pub(crate) status: u8,
}

pub(crate) type Result<T = ()> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: FAILED }
    }

    pub(crate) fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }
}

/// Returns a function that turns an error `e` into a failure with the text `what: e`.
pub(crate) fn failed<E: fmt::Display>(what: impl fmt::Display) -> impl FnOnce(E) -> Failure {
    move |e| Failure::new(format!("{what}: {e}"))
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::new(e.to_string())
    }
}

/// Displays a path, escaped for a terminal.
pub(crate) fn shown_path(path: &Path) -> impl fmt::Display + '_ {
    shown(path.as_os_str().as_bytes())
}

/// Quotes a path for a shell.
pub(crate) fn quoted_path(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// The first error that occurred while a line was printed to stdout.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line to stdout. If that fails, the error is stored, and [`unprinted`] returns it.
pub(crate) fn print(line: &str) {
    let mut stdout = io::stdout();
    if let Err(e) = writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        note(e);
    }
}

/// Stores an error that occurred while a line was printed. A closed pipe does not count as an error, because the reader
/// of the pipe has probably ended on purpose.
pub(crate) fn note(e: io::Error) {
    if e.kind() != ErrorKind::BrokenPipe {
        let _ = UNPRINTED.set(e);
    }
}

/// Returns the first error that occurred while a line was printed to stdout, if there was one.
pub(crate) fn unprinted() -> Option<Failure> {
    UNPRINTED.get().map(|e| Failure::new(format!("the output is not whole: {e}")))
}

/// Writes a line to stderr. Does not use `eprintln!`, which panics if the write fails.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "atrace: {line}");
}

/// Formats a number with a comma before each group of three digits, as in `1,234,567`.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let parts: Vec<_> = digits.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy).collect();
    parts.join(",")
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_apart() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(super::thousands(number), text);
        }
    }
}

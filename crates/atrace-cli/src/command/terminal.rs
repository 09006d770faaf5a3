//! The command's output, its errors and its exit status.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use crate::escape::{quoted, shown};

/// The exit status of a command that failed.
const FAILED: u8 = 1;

/// An error: one or more lines that say what failed and what to do.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    pub(crate) status: u8,
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), status: FAILED }
    }

    pub(crate) fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }
}

/// What failed: `what`, because of `e`.
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

impl From<atrace::control::Error> for Failure {
    fn from(e: atrace::control::Error) -> Self {
        Self::new(e.to_string())
    }
}

/// A path, fit for a terminal.
pub(crate) fn shown_path(path: &Path) -> impl fmt::Display + '_ {
    shown(path.as_os_str().as_bytes())
}

/// A path, fit for a shell.
pub(crate) fn quoted_path(path: &Path) -> String {
    quoted(path.as_os_str().as_bytes())
}

/// Why the output is not whole.
static UNPRINTED: OnceLock<io::Error> = OnceLock::new();

/// Prints a line of the output; [`unprinted`] returns what could not be.
pub(crate) fn print(line: &str) {
    let mut stdout = io::stdout();
    if let Err(e) = writeln!(stdout, "{line}").and_then(|()| stdout.flush()) {
        note(e);
    }
}

/// Notes that something could not be printed; a reader that has seen enough is no failure.
pub(crate) fn note(e: io::Error) {
    if e.kind() != ErrorKind::BrokenPipe {
        let _ = UNPRINTED.set(e);
    }
}

/// What is missing of the output, and why.
pub(crate) fn unprinted() -> Option<Failure> {
    UNPRINTED.get().map(|e| Failure::new(format!("the output is not whole: {e}")))
}

/// Writes a line to stderr. Not `eprintln!`, which panics when stderr is gone.
pub(crate) fn say(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "atrace: {line}");
}

/// A number with its thousands apart.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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

//! What a person is told. Not by `println!` and `eprintln!`, which panic when nobody reads on.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Prints a line.
pub(crate) fn say(line: impl Display) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Prints on stderr that something is wrong.
pub(crate) fn complain(what: impl Display) {
    let _ = writeln!(io::stderr(), "error: {what}");
}

/// Ends a program with what is wrong.
pub(crate) fn fail(status: u8, what: impl Display) -> ExitCode {
    complain(what);
    ExitCode::from(status)
}

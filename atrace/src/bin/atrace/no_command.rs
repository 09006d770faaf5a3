//! The command on a system without tracing: it says so.

use std::io::Write as _;
use std::process::ExitCode;

pub(crate) fn main() -> ExitCode {
    let _ = writeln!(std::io::stderr(), "atrace: there is tracing on Linux and Android only");
    ExitCode::FAILURE
}

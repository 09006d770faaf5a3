//! Counts the instructions of every kind of event; see [`atrace_benches::measure::instructions`].

use std::process::ExitCode;

fn main() -> ExitCode {
    atrace_benches::measure::instructions::main()
}

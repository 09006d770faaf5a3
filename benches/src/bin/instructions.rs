//! Counts the instructions of every kind of event; see [`atrace_benches::instructions`].

use std::process::ExitCode;

fn main() -> ExitCode {
    atrace_benches::instructions::main()
}

//! The command `atrace`: records what programs trace, switches them on and off, and finds out why nothing
//! shows.
//!
//! Everything it changes it puts back, and each of its errors says what to do.

#[cfg_attr(no_tracing, path = "no_command.rs")]
mod command;

fn main() -> std::process::ExitCode {
    command::main()
}

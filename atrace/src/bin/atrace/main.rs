//! The command `atrace`: records what programs trace, switches them on and off, and finds out why nothing
//! shows.
//!
//! Everything it changes it puts back, and each of its errors says what to do.

#[cfg(any(target_os = "linux", target_os = "android"))]
mod command;

#[cfg(any(target_os = "linux", target_os = "android"))]
fn main() -> std::process::ExitCode {
    command::main()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn main() -> std::process::ExitCode {
    use std::io::Write as _;
    let _ = writeln!(std::io::stderr(), "atrace: there is tracing on Linux and Android only");
    std::process::ExitCode::FAILURE
}

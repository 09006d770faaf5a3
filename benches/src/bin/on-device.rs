//! Builds the benches for an Android device, runs them there and brings the results back; see
//! [`atrace_benches::device`].

use std::process::ExitCode;

fn main() -> ExitCode {
    atrace_benches::device::main()
}

//! Makes one report of what the benches have measured; see [`atrace_benches::report`].

use std::process::ExitCode;

fn main() -> ExitCode {
    atrace_benches::report::main()
}

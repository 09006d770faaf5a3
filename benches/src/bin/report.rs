//! Makes one report from the results of all benches; see [`atrace_benches::report`].

use std::process::ExitCode;

fn main() -> ExitCode {
    atrace_benches::report::main()
}

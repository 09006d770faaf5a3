//! Prints, on one screen, the verdicts about the promises (limits for results) of all benches. `cargo bench` runs
//! benches in the order of their names, so this bench is the last.

use std::process::ExitCode;

use atrace_benches::harness::args::Args;
use atrace_benches::harness::output::fail;
use atrace_benches::promise::Screen;
use atrace_benches::row;

fn main() -> ExitCode {
    let args = match Args::from_env() {
        Ok(args) => args,
        Err(e) => return fail(1, e),
    };
    if let Some(answer) = args.answer(|| format!("\n{}", Screen::read(&row::dir()))) {
        println!("{answer}");
    }
    ExitCode::SUCCESS
}

//! Says what came of all promises, on one screen. It is the last that `cargo bench` runs, as that goes by names.

use std::process::ExitCode;

use atrace_benches::harness::args::Args;
use atrace_benches::promise::Screen;
use atrace_benches::row;

fn main() -> ExitCode {
    let args = match Args::from_env() {
        Ok(args) => args,
        Err(e) => {
            eprintln!("error: {e}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(answer) = args.answer(|| format!("\n{}", Screen::read(&row::dir()))) {
        println!("{answer}");
    }
    ExitCode::SUCCESS
}

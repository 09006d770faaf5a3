//! Traces a small program with `tracing` and saves the trace in the file `basic.trace`.
//!
//! On a Linux host, run the example as root (by default the kernel lets only root write to the marker):
//!
//! ```text
//! cargo build -p atrace-subscriber --example basic
//! sudo target/debug/examples/basic
//! ```
//!
//! Open the file at <https://ui.perfetto.dev>. Your own program needs only the code after the comment "From here on",
//! which sets a subscriber. Tracing is then switched on by the command `atrace`, by Perfetto, or in the developer
//! settings of an Android device.

use std::error::Error;
use std::time::Duration;

use atrace::control::{Control, Properties};
use atrace_cli::tracefs::Instance;
use atrace_subscriber::AtraceSubscriber;
use tracing::{Level, debug, error, info, info_span, instrument, span, trace, warn};

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("ATRACE_MARKER").is_none() {
        return record();
    }
    // From here on, this is an ordinary program.
    tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter())?;
    sample();
    Ok(())
}

/// Does some work, as a program that uses `tracing` does.
fn sample() {
    info!("started");
    debug!(answer = 42, name = "basic", "with fields: {}", "and arguments");
    trace!(tags = ?["a", "b"], elapsed = ?Duration::from_millis(3), "values by their Debug");

    let outer = span!(Level::INFO, "outer span", frames = 3);
    outer.in_scope(|| {
        for number in 0..3 {
            frame(number);
            info!(counter.frames = number + 1); // a counter, which Perfetto draws as a graph
        }
    });

    let failure = "not a number".parse::<i32>().unwrap_err();
    error!(error = &failure as &dyn Error, "could not parse");
    warn!("done");

    // A span whose whole life is shown on the track `requests`, whatever thread enters the span.
    let request = info_span!("request", atrace.track = "requests", number = 1);
    std::thread::spawn(move || {
        request.in_scope(|| std::thread::sleep(Duration::from_millis(1)));
        std::thread::sleep(Duration::from_millis(1));
    })
    .join()
    .expect("the thread does not panic");
}

#[instrument]
fn frame(number: i32) {
    std::thread::sleep(Duration::from_millis(1));
    info_span!("decode").in_scope(|| std::thread::sleep(Duration::from_millis(1)));
}

/// Runs this program again with tracing on and with a trace buffer of its own, and saves the buffer.
fn record() -> Result<(), Box<dyn Error>> {
    let instance = Instance::create("atrace-basic")?;
    instance.set_clock("boot")?;
    instance.set_option("record-tgid", true)?;
    let program = std::env::current_exe()?;
    let directory = tempfile::tempdir()?;
    let properties = directory.path().join("properties");
    let switched = Control::from(Properties::open_path(&properties)?).enable("*")?;
    let status = std::process::Command::new(program)
        .env("ATRACE_MARKER", instance.marker_path())
        .env("ATRACE_PROPERTIES", &properties)
        .status()?;
    switched.keep(); // The temporary directory with the properties is deleted at the end.
    let trace = std::path::Path::new("basic.trace");
    std::fs::write(trace, instance.read_trace()?)?;
    println!(
        "{} events in {}: open it at https://ui.perfetto.dev",
        instance.markers()?.count(),
        trace.display()
    );
    instance.remove()?;
    if status.success() { Ok(()) } else { Err(format!("the program failed: {status}").into()) }
}

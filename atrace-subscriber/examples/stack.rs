//! Logs to the terminal as usual, and writes spans and events to ATrace while tracing is on.
//!
//! The log shows events of level `INFO` and above, whether tracing is on or not. The trace shows all levels. While
//! tracing is off, the layer for ATrace costs almost nothing. Another process can switch tracing on for this process,
//! by this process's name. Or this process switches tracing on itself:
//!
//! ```text
//! cargo run -p atrace-subscriber --example stack        # only logs, unless something switches it on meanwhile
//! cargo run -p atrace-subscriber --example stack -- on  # switches itself on half way (root, to see it in the trace)
//! ```

use std::error::Error;
use std::time::Duration;

use atrace::control::{Control, ThisProcess};
use atrace_subscriber::{AtraceFilter, AtraceLayer};
use tracing::{debug, info, info_span, level_filters::LevelFilter};
use tracing_subscriber::prelude::*;

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_filter(LevelFilter::INFO))
        .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
        .init();
    info!(sink = %atrace::sink(), "tracing goes there");

    work("first half");
    let switched = match std::env::args().nth(1).as_deref() {
        Some("on") => Some(Control::open()?.enable(ThisProcess)?),
        _ => None,
    };
    std::thread::sleep(Duration::from_millis(10)); // Usually the callsites are enabled within this time.
    work("second half");
    drop(switched); // Tracing is switched back to its state at the start.
    Ok(())
}

fn work(part: &str) {
    let _work = info_span!("work", part).entered();
    let traced = tracing::enabled!(tracing::Level::DEBUG);
    info!(traced, "working");
    for step in 0..3 {
        debug!(step, "not in the log, but in the trace");
        std::thread::sleep(Duration::from_millis(1));
    }
}

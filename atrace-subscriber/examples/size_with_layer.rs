//! The server program of the example `size_without`, with tracing: its spans and events go through a layer over the
//! registry. Code that runs too often for `tracing` calls `atrace` directly.
//!
//! The script `.ci/size` builds the four examples `size_…`, and compares the sizes of their binaries.

#[path = "size/traced.rs"]
mod traced;
#[path = "size/work.rs"]
mod work;

use atrace_subscriber::{AtraceFilter, AtraceLayer};
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = AtraceLayer::default().with_filter(AtraceFilter::default());
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    println!("events go to {}", atrace::sink());
    traced::main()?;
    Ok(())
}

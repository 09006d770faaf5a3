//! The service of `size_without`, traced: its spans and events through a layer over the registry,
//! and by `atrace` itself what is too hot for `tracing`.
//!
//! `.ci/size` builds and compares them.

#[path = "size/work.rs"]
mod work;

use atrace::{AtraceTag, atrace_begin_fmt, atrace_end, atrace_int64, begin_scoped_event, trace_method};
use atrace_subscriber::{AtraceFilter, AtraceLayer};
use tracing_subscriber::Layer as _;
use tracing_subscriber::layer::SubscriberExt as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = AtraceLayer::default().with_filter(AtraceFilter::default());
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(layer))?;
    println!("events go to {}", atrace::sink());
    traced()?;
    Ok(())
}

fn traced() -> std::io::Result<()> {
    trace_method!(AtraceTag::App);
    let _serving = begin_scoped_event(AtraceTag::App, "serve");
    atrace_begin_fmt(AtraceTag::App, format_args!("of {}", std::process::id()));
    let done = work::main();
    atrace_end(AtraceTag::App);
    atrace_int64(AtraceTag::App, "done", i64::from(done.is_ok()));
    done
}

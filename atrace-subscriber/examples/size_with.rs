//! The server program of the example `size_without`, with tracing: its spans and events go through this crate's
//! subscriber instead of the registry. Code that runs so often that `tracing` would cost too
//! much calls `atrace` directly.
//!
//! The script `.ci/size` builds the four examples `size_…`, and compares the sizes of their binaries.

#[path = "size/traced.rs"]
mod traced;
#[path = "size/work.rs"]
mod work;

use atrace_subscriber::AtraceSubscriber;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter())?;
    println!("events go to {}", atrace::sink());
    traced::main()?;
    Ok(())
}

//! The service of `size_without` with tracing: its spans and events go through the subscriber instead of the
//! registry, and code that runs too often for `tracing` calls `atrace` itself.
//!
//! `.ci/size` builds the services and compares them.

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

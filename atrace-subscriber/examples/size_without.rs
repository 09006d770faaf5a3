//! A service whose subscriber is only the registry of `tracing-subscriber`. A comparison with `size_with` shows what
//! tracing adds to the size of a program.
//!
//! `.ci/size` builds the services and compares them.

#[path = "size/work.rs"]
mod work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    Ok(work::main()?)
}

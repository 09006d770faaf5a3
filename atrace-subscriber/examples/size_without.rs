//! A small server program whose subscriber is only the registry of `tracing-subscriber`. A comparison with the example
//! `size_with` shows how much tracing adds to the size of a program.
//!
//! The script `.ci/size` builds the four examples `size_…`, and compares the sizes of their binaries.

#[path = "size/work.rs"]
mod work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    Ok(work::main()?)
}

//! The server program of the example `size_without`, which also writes events by calling `atrace` directly. The spans
//! of the program are not traced.
//!
//! The script `.ci/size` builds the four examples `size_…`, and compares the sizes of their binaries.

#[path = "size/traced.rs"]
mod traced;
#[path = "size/work.rs"]
mod work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    println!("events go to {}", atrace::sink());
    traced::main()?;
    Ok(())
}

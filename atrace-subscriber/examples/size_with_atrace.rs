//! The service of `size_without` with events that are written by `atrace` itself. Its spans are not traced.
//!
//! `.ci/size` builds the services and compares them.

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

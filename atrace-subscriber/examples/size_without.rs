//! A service whose subscriber is `tracing-subscriber`'s registry alone: compared with `size_with`, it shows what tracing adds to
//! a program's size.
//!
//! `.ci/size` builds the services and compares them.

#[path = "size/work.rs"]
mod work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    Ok(work::main()?)
}

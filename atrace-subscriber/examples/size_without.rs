//! A service whose subscriber is `tracing-subscriber`'s registry alone: beside `size_with`, what tracing adds to a program's size.
//!
//! `.ci/size` builds and compares them.

#[path = "size/work.rs"]
mod work;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(tracing_subscriber::registry())?;
    Ok(work::main()?)
}

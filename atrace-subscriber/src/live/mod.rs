//! Shows which spans are alive, where each span was created, and which threads are inside it. Use this module to find
//! out why a program hangs.
//!
//! ```
//! use atrace_subscriber::live::{self, LiveLayer};
//! use tracing_subscriber::prelude::*;
//!
//! tracing_subscriber::registry().with(LiveLayer::default().with_backtraces(64)).init();
//! let _request = tracing::info_span!("request", id = 7).entered();
//! let _wait = tracing::info_span!("wait", queue = "jobs").entered();
//! assert_eq!(live::dump().spans().len(), 2);
//! println!("{}", live::dump()); // A tree. With `{:#}`: without backtraces.
//! ```
//!
//! If the layer also has the option [`with_sanitised(true)`](LiveLayer::with_sanitised), this program prints:
//!
//! ```text
//! 2 spans are alive
//! └─ request{id = 7}  my_program  2.1ms, in main (4711)
//!    │  my_program::main (src/main.rs:5:16)
//!    └─ wait{queue = "jobs"}  my_program  1.9ms, in main (4711)
//!          my_program::main (src/main.rs:6:13)
//! ```
//!
//! The span of a task (`tokio::spawn(work().instrument(info_span!("work")))`) is shown while the span is alive,
//! whichever threads poll the task. If no thread is inside a task's span, the task is waiting. [`LiveLayer`] documents
//! the costs, and the rules for threads and forks.

mod dump;
mod layer;
mod rules;
mod spans;
mod stack;
mod symbols;
mod table;
mod thread;

pub use dump::{Dump, Span, dump};
pub use layer::{Handle, LiveLayer};
pub use stack::{Walk, return_addresses};
pub use symbols::Frame;
pub use thread::Thread;

/// Returns the description of a span named `span` with this id and the target `t`.
#[cfg(test)]
fn description_of_a_test(id: u64) -> table::Description {
    static METADATA: std::sync::LazyLock<&tracing_core::Metadata<'_>> =
        std::sync::LazyLock::new(|| crate::callsites::metadata_of_a_test("span", "t"));
    let at = std::time::Instant::now();
    table::Description { id, parent: None, metadata: *METADATA, at, fields: None, frames: None }
}

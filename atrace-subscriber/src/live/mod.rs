//! Which spans are alive now, where each was made, and who is inside: for the program that hangs.
//!
//! ```
//! use atrace_subscriber::live::{self, LiveLayer};
//! use tracing_subscriber::prelude::*;
//!
//! tracing_subscriber::registry().with(LiveLayer::new().with_backtraces(true)).init();
//!
//! let _request = tracing::info_span!("request", id = 7).entered();
//! let _wait = tracing::info_span!("wait", queue = "jobs").entered();
//! let dump = live::dump();
//! assert_eq!(dump.len(), 2);
//! let wait = dump.spans().find(|span| span.name() == "wait").unwrap();
//! assert_eq!(wait.fields(), r#"queue = "jobs""#);
//! println!("{dump}"); // A tree. With `{:#}`: without backtraces.
//! ```
//!
//! prints
//!
//! ```text
//! 2 spans are alive
//! └─ request{id = 7}  my_program  2.1 ms, in main (4711)
//!    │  my_program::main (src/main.rs:7)
//!    └─ wait{queue = "jobs"}  my_program  1.9 ms, in main (4711)
//!          my_program::main (src/main.rs:8)
//! ```
//!
//! A task is shown while its span lives, on whichever thread it is polled:
//! `tokio::spawn(work().instrument(info_span!("work")))`. A span without anyone inside is a task that waits.
//!
//! # Backtraces
//!
//! [`LiveLayer::with_backtraces`] keeps with each span the return addresses of the stack that made it. What
//! functions these are is looked up when someone asks ([`Symbols::Lazy`]), once an address, or at each
//! creation ([`Symbols::Eager`]), which costs far more. In an `async` program the stack of a
//! creation is that of the poll: who awaits whom at that moment.
//!
//! [`LiveLayer::with_sanitised`] leaves out the frames of the runtime and of `tracing`.
//!
//! How addresses are found is [`Walk`]'s to say. **A program on x86-64 should be compiled with frame
//! pointers**, `RUSTFLAGS="-C force-frame-pointers=yes"`: else the
//! unwinder finds them, which takes far longer. (Rust's standard library has them already; 64-bit ARM always has.) Functions have names where
//! the binary has symbols, files and lines where it has debug information, `debug = "line-tables-only"` in the
//! profile.
//!
//! # Rules
//!
//! *Threads.* Everything may be called on any thread, at any time, also within what `tracing` calls: by a
//! value's `Debug`, by another layer. A dump looks at one part of the spans after the other: each record is as
//! it was at one moment, two of them perhaps not at the same, and a span that is made or closed meanwhile may
//! or may not be in it. Nobody waits longer than the copying of such a part takes. Spans that a signal handler
//! makes on a thread that was just in here are not shown.
//!
//! *Cost.* A span costs a clock reading, an entry in a table, and the formatting of its fields; entering and
//! leaving look it up there. Memory stays with the layer for as many spans as were alive at a time, each with room for
//! the return addresses that [may be kept](LiveLayer::with_depth).
//!
//! *Fork.* A child begins with none: the spans of its parent are not its own. It waits for no thread of its parent's;
//! what those had stays in its memory, unused. In one that was forked while another thread looked symbols up,
//! functions have no names: a lock is held by a thread that is not there.
//!
//! *Registry.* The layer needs a span's life to be kept: a `Registry` below it. Beside an
//! [`AtraceLayer`](crate::AtraceLayer) with a filter of its own, spans are alive for this layer on or off; below
//! a filter for the whole stack, only what the filter lets through.

mod dump;
mod layer;
mod rules;
mod spans;
mod stack;
mod symbols;
mod table;
mod thread;

pub use dump::{Backtrace, Dump, Span, dump};
pub use layer::{Handle, LiveLayer};
pub use spans::Symbols;
pub use stack::{Walk, return_addresses};
pub use symbols::Frame;
pub use thread::Thread;

/// A span named `span` with the target `t`.
#[cfg(test)]
fn description_of_a_test(id: u64) -> table::Description {
    static METADATA: std::sync::LazyLock<&tracing_core::Metadata<'_>> =
        std::sync::LazyLock::new(|| crate::callsites::metadata_of_a_test("span", "t"));
    let at = std::time::Instant::now();
    table::Description { id, parent: None, metadata: *METADATA, at, fields: None, frames: None }
}

//! Where a measuring process lives: its command line, its sink, and who cleans up behind it however it ends.

pub mod args;
mod exit;
pub mod output;
pub mod progress;
pub mod supervise;
pub(crate) mod terminal;

pub use self::exit::exit_code;

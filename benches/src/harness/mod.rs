//! Where a measuring process lives: its command line, its sink, and who cleans up behind it however it ends.

pub mod args;
pub mod child;
mod exit;
pub mod output;
pub mod progress;
pub mod reader;
mod session;
mod sink;
pub mod supervise;
pub(crate) mod terminal;

pub use self::exit::exit_code;
pub use self::session::Session;

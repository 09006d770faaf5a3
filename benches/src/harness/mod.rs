//! The environment of a measuring process: its command line, its sink (the file to which events go), its output, and
//! the cleanup after the process has ended, even if it was killed.

pub mod args;
pub mod child;
pub mod output;
pub mod reader;
mod session;
pub mod supervise;

pub use self::output::exit_code;
pub use self::session::Session;

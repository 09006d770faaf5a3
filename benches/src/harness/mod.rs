//! Where a measuring process lives: its command line, its sink, who cleans up behind it however it ends, and someone to
//! talk to.

pub mod args;
mod exit;
pub mod http;
pub mod supervise;
pub(crate) mod terminal;

pub use self::exit::exit_code;

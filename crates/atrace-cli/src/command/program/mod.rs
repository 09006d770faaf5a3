//! The program that `atrace run` starts, from its start to its end.
//!
//! - `child` starts the program and waits for it; `stage` is the process that becomes the program;
//! - `signals` and `witness` find out which signals have to be forwarded;
//! - `run_directory` and `store` hold the service's socket and the program's property store;
//! - `tree` finds the processes of the program that can't be recorded.

mod child;
mod run_directory;
mod signals;
pub(crate) mod stage;
mod store;
mod tree;
pub(crate) mod witness;

pub(crate) use self::child::{FAILED, Program, code, wait};
pub(crate) use self::run_directory::ServiceSocket;
pub(crate) use self::signals::Signals;
pub(crate) use self::store::ProgramStore;
pub(crate) use self::tree::Tree;
pub(crate) use self::witness::Witness;

//! The program that `atrace run` starts: from its start to its end, with its signals and its processes.

mod child;
mod place;
mod signals;
pub(crate) mod stage;
mod store;
mod tree;
pub(crate) mod witness;

pub(crate) use self::child::{FAILED, Program, code, wait};
pub(crate) use self::place::ServicePlace;
pub(crate) use self::signals::Signals;
pub(crate) use self::store::ProgramStore;
pub(crate) use self::tree::Tree;
pub(crate) use self::witness::Witness;

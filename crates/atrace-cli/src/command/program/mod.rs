//! The program that `atrace run` starts, from its start to its end.
//!
//! - `child` starts the program and waits for it;
//! - `signals` catches signals, and determines which of them must be forwarded to the program;
//! - `directory` creates a directory for the service's socket or the program's property store;
//! - `outliving` waits for processes that are still running after the program has ended;
//! - `tree` finds the processes of the program that can't be recorded.

mod child;
mod directory;
mod outliving;
mod signals;
mod tree;

pub(crate) use self::child::{FAILED, StageArgs, become_main, code, has_ended, start, wait};
pub(crate) use self::directory::{LARGEST, ProgramStore, ServiceSocket, memory_kb};
pub(crate) use self::outliving::wait_for_rest;
pub(crate) use self::signals::{Signals, Witness, WitnessArgs, witness_main};
pub(crate) use self::tree::Tree;

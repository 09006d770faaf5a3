//! The file to which a recording is saved.

mod output;
pub(crate) mod systrace;
mod target;

pub(crate) use self::output::Output;
pub(crate) use self::target::{Existing, chance, numbered, roots_own};

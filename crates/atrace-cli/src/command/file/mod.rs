//! The file that a recording is saved to.

mod output;
pub(crate) mod systrace;
mod target;

pub(crate) use self::output::Output;
pub(crate) use self::target::{Existing, chance, numbered, roots_own};

//! What everybody exchanges: the measured file, which a bench leaves in `target/overhead/` for the report, the tests and
//! the next run.
//!
//! A file is a JSON array of rows. Whatever a later version adds is ignored by an earlier one.

pub mod environment;
mod file;
mod model;
mod replacement;

pub use self::file::{can_write, dir, read, write, write_to};
pub(crate) use self::file::{env_path, target_dir};
pub use self::model::{Above, PERCENTS, Rounds, Row, Sink, Versus};
pub(crate) use self::replacement::replace;

//! What was promised, beside what was measured: judged by the benches, left in files, and shown when all have run.

mod judged;
mod screen;

pub use self::judged::{Judged, Verdict, read, write};
pub use self::screen::Screen;

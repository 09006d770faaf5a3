//! Where nothing forks: one process, and its values and turns.

mod turn;
mod value;

pub use self::turn::Turn;
pub use self::value::PerProcess;

/// The only process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(());

impl Generation {
    /// Always 1.
    pub const fn number(self) -> u64 {
        1
    }
}

/// Returns the generation of the only process.
pub fn generation() -> Generation {
    Generation(())
}

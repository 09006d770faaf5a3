//! Unique numbers of callsites, assigned on first use.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The number that is shared by all callsites that find no unique number left. All unique numbers are smaller than this
/// number.
pub const BEYOND: u32 = 16_384;
/// The first number of a callsite. Smaller numbers are reserved for the categories. (Each tag is a category.)
pub const FIRST: u32 = 32;

/// A callsite's number; 0 until it is assigned.
#[derive(Debug)]
pub struct Number(pub(crate) AtomicU32);

impl Number {
    /// Returns the number of the callsite. On first use, the number is taken from `next`.
    #[inline(always)]
    pub(crate) fn of(&self, next: &AtomicU32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => self.take(next),
            number => number,
        }
    }

    /// Takes a number from `next` for this callsite. If several threads take a number for the same callsite at once,
    /// the callsite gets the number that is stored first; the other numbers stay unused.
    #[cold]
    #[inline(never)]
    fn take(&self, next: &AtomicU32) -> u32 {
        let more = |number| (number < BEYOND).then_some(number + 1);
        let number = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).unwrap_or(BEYOND);
        match self.0.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => number,
            Err(present) => present,
        }
    }
}

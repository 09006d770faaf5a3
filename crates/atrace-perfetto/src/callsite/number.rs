//! Unique numbers of callsites, assigned on first use.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The number of all callsites beyond the last unique one. Every unique number is smaller.
pub const BEYOND: u32 = 16_384;
/// The first number of a callsite. Smaller numbers belong to the tags' categories.
pub const FIRST: u32 = 32;

/// A callsite's number; 0 until it is assigned.
#[derive(Debug)]
pub struct Number(pub(crate) AtomicU32);

impl Number {
    /// Returns the number. On first use it is taken from `next`.
    #[inline(always)]
    pub(crate) fn of(&self, next: &AtomicU32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => self.take(next),
            number => number,
        }
    }

    /// If several threads use it for the first time at once, one of them assigns its number. The numbers of
    /// the others stay unused.
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

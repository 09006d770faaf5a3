//! Numbers of places in the program, taken once each.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The number of those that came too late for one of their own; all others are smaller.
pub const BEYOND: u32 = 16_384;
/// Smaller numbers are those of the tags' categories.
pub const FIRST: u32 = 32;

/// A place's number, once it has taken one; zero until then.
#[derive(Debug)]
pub struct Number(pub(crate) AtomicU32);

impl Number {
    /// The number; taken from `next` if it has none.
    #[inline(always)]
    pub(crate) fn of(&self, next: &AtomicU32) -> u32 {
        match self.0.load(Ordering::Relaxed) {
            0 => self.take(next),
            number => number,
        }
    }

    /// Of threads that come first at once, one gives its number to the place, and nobody has those of the others.
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

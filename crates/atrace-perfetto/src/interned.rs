//! The callsites whose constant data was already written (interned) in a sequence of packets, as a bitmap by callsite
//! number.

use crate::callsite::BEYOND;

const WORDS: usize = BEYOND as usize / 64;

/// A bitmap of callsite numbers. If all bits are 0, no callsite was interned.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Interned {
    /// The number of words of the bitmap in use: all words from this index on are zero. `clear` touches only the words
    /// in use, because pages that are never touched take no memory.
    used: u32,
    words: [u64; WORDS],
}

impl Interned {
    /// Returns whether the callsite with this number was interned.
    #[inline(always)]
    pub(crate) fn has(&self, number: u32) -> bool {
        let word = self.words.get(number as usize / 64).copied().unwrap_or_default();
        word >> (number % 64) & 1 == 1
    }

    /// Adds a callsite. A number that is too large for the bitmap is ignored.
    pub(crate) fn add(&mut self, number: u32) {
        if let Some(word) = self.words.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
            self.used = self.used.max(number / 64 + 1);
        }
    }

    /// Removes all callsites.
    pub(crate) fn clear(&mut self) {
        let used = self.used as usize;
        self.words.iter_mut().take(used).for_each(|word| *word = 0);
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_known_until_it_is_cleared() {
        let mut interned = Interned { used: 0, words: [0; WORDS] };
        for round in 0..3 {
            let numbers = [0, 1, 63, 64, 65, 1000, BEYOND - 1].map(|number| (number + round) % BEYOND);
            for (at, number) in numbers.iter().enumerate() {
                assert!(!interned.has(*number));
                interned.add(*number);
                assert!(numbers[..=at].iter().all(|number| interned.has(*number)));
                assert!(!numbers[at + 1..].iter().any(|number| interned.has(*number)));
            }
            interned.clear();
            assert!((0..BEYOND).all(|number| !interned.has(number)));
        }
        // Numbers outside of the bitmap are never in the set.
        interned.add(BEYOND);
        assert!(!interned.has(BEYOND) && !interned.has(u32::MAX));
    }
}

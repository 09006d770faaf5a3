//! Which callsites a state has told: a bit for each number.

use crate::callsite::BEYOND;

const WORDS: usize = BEYOND as usize / 64;

/// See the module. All zeroes: none.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Told {
    /// The words from this one on are zero, and perhaps never touched.
    used: u32,
    words: [u64; WORDS],
}

impl Told {
    /// Whether it was told.
    #[inline(always)]
    pub(crate) fn has(&self, number: u32) -> bool {
        let word = self.words.get(number as usize / 64).copied().unwrap_or_default();
        word >> (number % 64) & 1 == 1
    }

    /// It was told.
    pub(crate) fn add(&mut self, number: u32) {
        if let Some(word) = self.words.get_mut(number as usize / 64) {
            *word |= 1 << (number % 64);
            self.used = self.used.max(number / 64 + 1);
        }
    }

    /// None was.
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
        let mut told = Told { used: 0, words: [0; WORDS] };
        for round in 0..3 {
            let numbers = [0, 1, 63, 64, 65, 1000, BEYOND - 1].map(|number| (number + round) % BEYOND);
            for (at, number) in numbers.iter().enumerate() {
                assert!(!told.has(*number));
                told.add(*number);
                assert!(numbers[..=at].iter().all(|number| told.has(*number)));
                assert!(!numbers[at + 1..].iter().any(|number| told.has(*number)));
            }
            told.clear();
            assert!((0..BEYOND).all(|number| !told.has(number)));
        }
        // Those beyond are never known.
        told.add(BEYOND);
        assert!(!told.has(BEYOND) && !told.has(u32::MAX));
    }
}

//! An order that changes every round but is the same in every run.

/// The splitmix64 generator: small, fast, and good enough to put cases in an order.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle(u64);

impl Shuffle {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Puts `items` in a random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The bias of the remainder is below 2^-60 for as many cases as a bench has.
            let other = usize::try_from(self.next() % (last as u64 + 1)).unwrap_or(0);
            items.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_everywhere_equally_often() {
        let mut seen = [[0_u32; 4]; 4];
        let mut random = Shuffle::new(1);
        let mut items = [0, 1, 2, 3];
        for _ in 0..40_000 {
            random.shuffle(&mut items);
            for (place, &item) in items.iter().enumerate() {
                seen[place][item] += 1;
            }
        }
        assert!(seen.iter().flatten().all(|n| (9_600..10_400).contains(n)), "{seen:?}");
    }
}

//! Index arithmetic for tables that grow by adding parts, each twice as large as the part before. In such a table no
//! entry ever moves.

/// Returns the index of the part that contains entry `at`, and the index of the entry within that part. The first
/// part has `first` entries.
pub(crate) const fn locate(at: usize, first: usize) -> (usize, usize) {
    let part = (at / first + 1).ilog2() as usize;
    (part, at - first * ((1 << part) - 1))
}

/// Returns the number of entries in the first `parts` parts.
pub(crate) const fn room(parts: usize, first: usize) -> usize {
    first * ((1 << parts) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_indices_are_somewhere_in_order() {
        let mut next = 0;
        for part in 0..5 {
            assert_eq!(room(part, 16), next);
            for at in 0..16 << part {
                assert_eq!(locate(next, 16), (part, at));
                next += 1;
            }
        }
    }
}

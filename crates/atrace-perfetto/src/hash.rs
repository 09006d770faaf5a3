//! Hashes of texts.
//!
//! A track's number is derived from the hash of its name and a seed, which depends on the process and on the track's
//! key. The functions are `const`, so that the compiler can hash constant names. For each word of eight bytes, the hash
//! function combines the word with its state by exclusive-or, multiplies the result by a constant, and folds the
//! 128-bit product into 64 bits, similarly to wyhash and rapidhash. The hash function does not resist an attacker who
//! searches for collisions.

use atrace_sys::text::cut;

use crate::args::TRACK_NAME_MAX;

pub(crate) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a state: multiplies the exclusive-or of the word and the state by [`FACTOR`], and returns the
/// exclusive-or of both halves of the product.
pub(crate) const fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word) as u128 * FACTOR as u128;
    product as u64 ^ (product >> 64) as u64
}

/// Derives a number from a text's [hash](hash()). Different seeds give the same text different numbers.
#[inline(always)]
pub(crate) const fn seeded(seed: u64, hash: u64) -> u64 {
    mix(mix(hash, seed), FACTOR)
}

/// Returns the hash of a text.
#[inline]
pub(crate) const fn hash(text: &[u8]) -> u64 {
    let mut state = FACTOR.rotate_left(32) ^ (text.len() as u64).wrapping_mul(FACTOR);
    let mut rest = text;
    while let Some((word, behind)) = rest.split_first_chunk::<8>() {
        state = mix(state, u64::from_le_bytes(*word));
        rest = behind;
    }
    mix(state, last_word(text))
}

/// Returns the hash of a track's name, cut at [`TRACK_NAME_MAX`] bytes. This function is not inlined: it is
/// long and has several callers.
#[inline(never)]
pub const fn of_name(name: &str) -> u64 {
    hash(cut(name, TRACK_NAME_MAX).as_bytes())
}

/// Returns the last eight bytes of a text, or all bytes of a shorter text, as a word. If two different texts have the
/// same length, and at most eight bytes, their words differ.
#[inline(always)]
const fn last_word(text: &[u8]) -> u64 {
    if let Some(last) = text.last_chunk::<8>() {
        u64::from_le_bytes(*last)
    } else if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        (u32::from_le_bytes(*first) as u64) << 32 | u32::from_le_bytes(*last) as u64
    } else {
        let (mut word, mut rest) = (0, text);
        while let Some((byte, behind)) = rest.split_first() {
            word = word << 8 | *byte as u64;
            rest = behind;
        }
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_numbers_of_their_own() {
        let mut texts = vec![&b""[..], b"a", b"b", b"\0", b"\0\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi"];
        // Texts of each length, with a different byte at each position.
        let others: Vec<Vec<u8>> = (1..20)
            .flat_map(|len| (0..=len).map(move |at| (0..len).map(|byte| 1 + u8::from(byte == at)).collect()))
            .collect();
        texts.extend(others.iter().map(Vec::as_slice));
        let mut numbers: Vec<_> =
            texts.iter().flat_map(|text| [0, 1, 2].map(|seed| seeded(seed, hash(text)))).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 3 * texts.len());
    }
}

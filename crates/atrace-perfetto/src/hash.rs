//! Hashes of texts.
//!
//! A track's number is derived from the hash of its name and a seed, which depends on the process and on the track's
//! key. The functions are `const`, so that the compiler can hash constant names. For each word of the text, the hash
//! multiplies the state, changed by the word, by a constant, and folds the 128-bit product, similarly to wyhash and
//! rapidhash. The hash does not resist an attacker who looks for collisions.

use atrace_sys::text::cut;

use crate::args::TRACK_NAME_MAX;

pub(crate) const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a state: multiplies the exclusive-or of the two by [`FACTOR`], and returns the exclusive-or of
/// both halves of the product.
pub(crate) const fn mix(state: u64, word: u64) -> u64 {
    let product = (state ^ word) as u128 * FACTOR as u128;
    product as u64 ^ (product >> 64) as u64
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

/// Returns the last eight bytes of a text, or all bytes of a shorter text. Two different texts of the same length, at
/// most eight bytes, give different words.
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

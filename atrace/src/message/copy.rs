//! Copies a text, and scans the text for *suspect* bytes: bytes that must, or may have to, be replaced in a message.
//!
//! Suspect bytes are control characters (below 0x20, and 0x7f), `<`, and `|` if the caller asks for it.
//!
//! - *Short texts*, less than 32 bytes, are copied as two pieces of equal size, which may overlap. The same pieces are
//!   tested for suspect bytes, 16 bytes at a time.
//! - *Long texts* are copied in one pass: on a processor with AVX2 in vectors, otherwise in a loop that the compiler
//!   can vectorise. With AVX2, the pass computes three values for each lane (a byte's position in a vector): the
//!   minimum of the bytes, the minimum of the bytes xor `<` (and, if `|` is suspect, of the bytes xor `|`), and the
//!   maximum of the bytes as signed numbers. A lane had a suspect byte exactly if its first value is below 0x20, its
//!   second value is 0, or its third value is 0x7f. So the pass needs no branch for each byte.

use std::mem::MaybeUninit;

use atrace_sys::text::{SHORT, put_ends};

/// Returns whether a byte is replaced in every text of a message.
#[inline(always)]
pub(super) const fn is_unsafe(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

/// Returns whether a byte is suspect, that is, must or may have to be replaced. If `bar` is true, `|` is suspect, too.
#[inline(always)]
const fn is_suspect(byte: u8, bar: bool) -> bool {
    is_unsafe(byte) || byte == b'<' || (bar && byte == b'|')
}

/// Copies `from` to `to`, which must have the same length. Returns whether the text has a suspect byte
/// ([`is_suspect`]). If `bar` is true, `|` is suspect, too.
#[inline(always)]
pub(super) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    if from.len() < SHORT {
        copy_short(from, to, bar)
    } else if bar {
        copy_long::<true>(from, to)
    } else {
        copy_long::<false>(from, to)
    }
}

/// Returns whether the text has a suspect byte (a byte that may have to be replaced), without copying the text.
#[inline(always)]
pub(super) fn has_suspect(text: &[u8], bar: bool) -> bool {
    match text.last_chunk() {
        Some(&last) => are_suspect(last, text.as_chunks().0, bar),
        None => {
            let mut unread = [MaybeUninit::uninit(); 16];
            copy_short(text, &mut unread[..text.len()], bar)
        }
    }
}

/// Does the same as [`copy`], for texts of less than [`SHORT`] bytes.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub(super) fn copy_short(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    let both = if let (Some(&first), Some(&last)) = (from.first_chunk::<8>(), from.last_chunk::<8>()) {
        if let (Some(&first), Some(&last)) = (from.first_chunk::<16>(), from.last_chunk::<16>()) {
            put_ends(to, first, last);
            return are_suspect(first, &[last], bar);
        }
        put_ends(to, first, last);
        [u64::from_ne_bytes(first), u64::from_ne_bytes(last)]
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<4>(), from.last_chunk::<4>()) {
        put_ends(to, first, last);
        [u64::from(u32::from_ne_bytes(first)) << 32 | u64::from(u32::from_ne_bytes(last)); 2]
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<2>(), from.last_chunk::<2>()) {
        put_ends(to, first, last);
        let both = u64::from(u16::from_ne_bytes(first)) << 16 | u64::from(u16::from_ne_bytes(last));
        [both << 32 | both; 2]
    } else if let ([byte], [to]) = (from, to) {
        to.write(*byte);
        return is_suspect(*byte, bar);
    } else {
        return false;
    };
    are_suspect((u128::from(both[0]) << 64 | u128::from(both[1])).to_ne_bytes(), &[], bar)
}

/// Returns whether one of the bytes of the chunks is suspect ([`is_suspect`]).
#[cfg(target_arch = "x86_64")]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn are_suspect(first: [u8; 16], others: &[[u8; 16]], bar: bool) -> bool {
    use std::arch::x86_64::*;
    // SAFETY: every x86_64 processor has SSE2.
    unsafe {
        let all = |byte: u8| _mm_set1_epi8(byte as i8);
        let suspects = |chunk: [u8; 16]| {
            let chunk = u128::from_ne_bytes(chunk);
            let bytes = _mm_set_epi64x((chunk >> 64) as i64, chunk as i64);
            let are_control = _mm_cmpeq_epi8(bytes, _mm_min_epu8(bytes, all(0x1f)));
            let are_delete = _mm_cmpeq_epi8(bytes, all(0x7f));
            // `|` and `<` differ in one bit. This bit is cleared, so that `|` becomes `<`.
            let angles = if bar { _mm_and_si128(bytes, all(!(b'|' ^ b'<'))) } else { bytes };
            let are_angles = _mm_cmpeq_epi8(angles, all(b'<'));
            _mm_or_si128(are_control, _mm_or_si128(are_delete, are_angles))
        };
        let mut found = suspects(first);
        for chunk in others {
            found = _mm_or_si128(found, suspects(*chunk));
        }
        _mm_movemask_epi8(found) != 0
    }
}

/// Returns whether one of the bytes of the chunks is suspect ([`is_suspect`]).
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn are_suspect(first: [u8; 16], others: &[[u8; 16]], bar: bool) -> bool {
    let suspect = |chunk: [u8; 16]| {
        let chunk = u128::from_ne_bytes(chunk);
        word_is_suspect(chunk as u64, bar) | word_is_suspect((chunk >> 64) as u64, bar)
    };
    others.iter().fold(suspect(first), |found, chunk| found | suspect(*chunk))
}

/// Returns whether one of the eight bytes of `word` is suspect ([`is_suspect`]). The tests set the high bit of each
/// byte that is not suspect; the sums do not carry from one byte to the next, so the result is exact. (Cf. H. S.
/// Warren, "Hacker's Delight", "Find first 0-byte".)
#[cfg(any(test, not(target_arch = "x86_64")))]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn word_is_suspect(word: u64, bar: bool) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES * 0x80;
    // Sets the high bit of each byte whose low seven bits are at least `n`.
    let at_least = |value: u64, n: u64| (value & !HIGH) + ONES * (0x80 - n);
    let differs = |byte: u8| {
        let other = word ^ (ONES * u64::from(byte));
        other | at_least(other, 1)
    };
    let mut fine = (word | at_least(word, 0x20)) & differs(0x7f) & differs(b'<');
    if bar {
        fine &= differs(b'|');
    }
    fine & HIGH != HIGH
}

/// Does the same as [`copy`], for texts of at least [`SHORT`] bytes.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_long<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    // The vectors would take 2.5 KiB of stack in an unoptimised build. So only optimised builds and unit tests, which
    // have enough stack, use them.
    #[cfg(all(target_arch = "x86_64", any(test, not(debug_assertions))))]
    if from.len() == to.len() && from.len() >= SHORT && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2, and both slices have `from.len()` bytes, at least a vector's, as was just checked. They
        // do not overlap, because one of them is borrowed mutably.
        return unsafe { copy_avx2::<BAR>(from.as_ptr(), to.as_mut_ptr(), from.len()) };
    }
    copy_plain::<BAR>(from, to)
}

/// Does the same as [`copy`], in a loop that the compiler can vectorise.
#[inline(never)]
fn copy_plain<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    let mut found = false;
    for (&from, to) in from.iter().zip(to) {
        to.write(from);
        found |= (from < 0x20) | (from == 0x7f) | (from == b'<') | (BAR & (from == b'|'));
    }
    found
}

/// Does the same as [`copy_plain`] with explicit vectors, in half the time.
///
/// The texts are passed as pointers. With references, the compiler would see that the texts do not overlap, and would
/// make two passes, the first of which is a `memcpy`.
///
/// # Safety
///
/// `len` must be at least 32, a vector's size. `len` bytes must be readable at `from` and writable at `to`, and the two
/// ranges must not overlap.
#[cfg(all(target_arch = "x86_64", any(test, not(debug_assertions))))]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2<const BAR: bool>(from: *const u8, to: *mut MaybeUninit<u8>, len: usize) -> bool {
    use std::arch::x86_64::*;
    const WIDTH: usize = 32;
    let (angle, bar) = (_mm256_set1_epi8(b'<' as i8), _mm256_set1_epi8(b'|' as i8));
    let (mut least, mut least_other) = (_mm256_set1_epi8(-1), _mm256_set1_epi8(-1));
    // The largest signed byte is 0x7f.
    let mut most = _mm256_set1_epi8(i8::MIN);
    let mut step = |at: usize| {
        // SAFETY: the calls below pass only positions from which a whole vector lies within both texts.
        let bytes = unsafe {
            let bytes = _mm256_loadu_si256(from.add(at).cast());
            _mm256_storeu_si256(to.add(at).cast(), bytes);
            bytes
        };
        let mut other = _mm256_xor_si256(bytes, angle);
        if BAR {
            other = _mm256_min_epu8(other, _mm256_xor_si256(bytes, bar));
        }
        least = _mm256_min_epu8(least, bytes);
        most = _mm256_max_epi8(most, bytes);
        least_other = _mm256_min_epu8(least_other, other);
    };
    let mut at = 0;
    if len >= 4 * WIDTH {
        // Continues at an aligned address, so that only the first and the last store may touch two cache lines.
        step(0);
        at = WIDTH - to.addr() % WIDTH;
    }
    while at + 4 * WIDTH <= len {
        (0..4).for_each(|vector| step(at + vector * WIDTH));
        at += 4 * WIDTH;
    }
    while at + WIDTH < len {
        step(at);
        at += WIDTH;
    }
    step(len - WIDTH);
    let are_control = _mm256_cmpeq_epi8(least, _mm256_min_epu8(least, _mm256_set1_epi8(0x1f)));
    let are_other = _mm256_cmpeq_epi8(least_other, _mm256_setzero_si256());
    let are_delete = _mm256_cmpeq_epi8(most, _mm256_set1_epi8(0x7f));
    _mm256_movemask_epi8(_mm256_or_si256(are_delete, _mm256_or_si256(are_control, are_other))) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = fn(&[u8], &mut [MaybeUninit<u8>], bool) -> bool;

    /// The distance between two values or positions that are checked. Under Miri, one value at one position is enough:
    /// Miri checks which memory is accessed, and the accessed memory depends only on the length of a text.
    const STEP: usize = if cfg!(miri) { 256 } else { 1 };

    fn check(copy: Copy, from: &[u8], bar: bool, suspect: bool) {
        const AROUND: usize = 32;
        let mut room = [MaybeUninit::new(0xa5_u8); 256 + 2 * AROUND];
        let found = copy(from, &mut room[AROUND..][..from.len()], bar);
        // SAFETY: all bytes of `room` were initialised when it was created.
        let room = unsafe { std::slice::from_raw_parts(room.as_ptr().cast::<u8>(), room.len()) };
        let (before, rest) = room.split_at(AROUND);
        let (to, after) = rest.split_at(from.len());
        assert_eq!(to, from);
        assert!(
            before.iter().chain(after).all(|byte| *byte == 0xa5),
            "the bytes around the text have changed"
        );
        assert_eq!(found, suspect, "{:?} bar {bar}", from.escape_ascii().to_string());
    }

    /// Checks variants of a text without suspect bytes: the byte at `place` is replaced by each of `values` in turn.
    fn check_at(copy: Copy, text: &mut [u8], place: usize, values: impl Iterator<Item = u8>) {
        let before = text[place];
        for value in values.step_by(STEP) {
            text[place] = value;
            for bar in [false, true] {
                check(copy, text, bar, is_suspect(value, bar));
            }
        }
        text[place] = before;
    }

    /// Returns the byte values near the limits of the suspect values: they differ from a limit by at most one, or in
    /// one bit.
    fn edges() -> impl Iterator<Item = u8> {
        let is_near = |value: u8, edge: u8| value.abs_diff(edge) <= 1 || (value ^ edge).count_ones() == 1;
        (0..=255).filter(move |&value| [0, 0x1f, 0x7f, b'<', b'|'].iter().any(|&edge| is_near(value, edge)))
    }

    /// Checks texts of these lengths: at each position of the text with the byte values of `edges`, and at three
    /// positions with all 256 byte values.
    fn check_all(copy: Copy, lengths: impl Iterator<Item = usize>) {
        for length in lengths {
            let mut text: Vec<u8> = (0..length).map(|at| b"a~\x80\xff "[at % 5]).collect();
            for bar in [false, true] {
                check(copy, &text, bar, false);
                // A text of one repeated byte value: the scan must not miss suspect bytes because there are several
                // equal ones.
                for value in [0, 0x7f, b'<', b'|'].into_iter().step_by(STEP) {
                    check(copy, &vec![value; length], bar, length > 0 && is_suspect(value, bar));
                }
            }
            for place in (0..length).step_by(STEP) {
                check_at(copy, &mut text, place, edges());
            }
            if let Some(last) = length.checked_sub(1) {
                for place in [0, last / 2, last] {
                    check_at(copy, &mut text, place, 0..=255);
                }
            }
        }
    }

    /// Checks texts with two suspect bytes of all kinds, at positions at which the second byte could hide the first
    /// byte from the scan: in the same lane of two vectors, and in two lanes of one vector.
    fn check_pairs(copy: Copy, length: usize) {
        const SUSPECTS: [u8; 4] = [b'\n', 0x7f, b'<', b'|'];
        let mut text = vec![b'a'; length];
        for distance in [1, 8, 16, 32, 64].into_iter().filter(|&distance| distance < length) {
            for place in (0..length - distance).step_by(STEP) {
                for (one, other) in SUSPECTS.into_iter().flat_map(|one| SUSPECTS.map(|other| (one, other))) {
                    (text[place], text[place + distance]) = (one, other);
                    for bar in [false, true] {
                        check(copy, &text, bar, is_suspect(one, bar) || is_suspect(other, bar));
                    }
                }
                (text[place], text[place + distance]) = (b'a', b'a');
            }
        }
    }

    #[test]
    fn short_texts_are_copied_and_looked_at() {
        check_all(copy, 0..=34);
        for length in [2, 3, 7, 15, 31] {
            check_pairs(copy, length);
        }
    }

    /// Checks the scan by eight-byte words, which processors other than x86-64 use for short texts.
    #[test]
    fn words_are_looked_at() {
        let by_words: Copy = |from, to, bar| {
            let bytes = from.try_into().map(u128::from_ne_bytes).unwrap();
            let found = word_is_suspect(bytes as u64, bar) | word_is_suspect((bytes >> 64) as u64, bar);
            copy(from, to, bar);
            found
        };
        check_all(by_words, 16..=16);
        check_pairs(by_words, 16);
    }

    /// Checks the function that scans a text after the text was copied without a scan.
    #[test]
    fn texts_are_looked_at_in_place() {
        let in_place: Copy = |from, to, bar| {
            copy(from, to, bar);
            has_suspect(from, bar)
        };
        check_all(in_place, 0..=49);
        check_pairs(in_place, 97);
    }

    #[test]
    fn long_texts_are_copied_and_looked_at() {
        let lengths =
            if cfg!(miri) { vec![32, 63, 97] } else { vec![47, 48, 63, 64, 65, 95, 96, 127, 128, 200] };
        let copies: &[Copy] =
            &[
                copy,
                |from, to, bar| {
                    if bar { copy_plain::<true>(from, to) } else { copy_plain::<false>(from, to) }
                },
            ];
        for &copy in copies {
            check_all(copy, lengths.iter().copied());
            check_pairs(copy, 97);
        }
    }
}

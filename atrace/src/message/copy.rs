//! Copying a text while looking for bytes that must not stand in a message.
//!
//! The looking is done with minimums, lane by lane of a vector: of all the bytes, of all the bytes xor 0x7F,
//! xor `<`, xor `|`. There is such a byte exactly when a lane of the first ends up below 0x20, or one of the
//! others at 0. That is three or four operations a vector beside the load and the store, so that a long name
//! costs little more than `memcpy`.

use std::mem::MaybeUninit;

/// Tells whether a byte can't stand in any text of a message.
#[inline(always)]
pub(super) const fn is_unsafe(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

/// Tells whether a byte asks for a second look at its text: it must be replaced, or may have to be.
#[inline(always)]
const fn is_suspect(byte: u8, bar: bool) -> bool {
    is_unsafe(byte) || byte == b'<' || (bar && byte == b'|')
}

/// Tells whether one of the bytes is suspect.
#[inline(always)]
pub(super) fn has_suspect(bytes: &[u8], bar: bool) -> bool {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= 16 && !cfg!(all(debug_assertions, not(test))) {
        // SAFETY: every x86_64 processor has SSE2; there are at least 16 bytes.
        return unsafe { x86::scan_sse2(bytes, bar) };
    }
    let mut found = false;
    for &byte in bytes {
        found |= is_unsafe(byte) | (byte == b'<') | (bar & (byte == b'|'));
    }
    found
}

/// Copies `from` to the front of `to`, which must be as long, and tells whether a byte is suspect: one that
/// is no text, a `<`, or, where `bar` asks for it, a `|`.
#[inline(always)]
pub(super) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    if from.len() >= 32 {
        if bar { copy_long::<true>(from, to) } else { copy_long::<false>(from, to) }
    } else {
        copy_short(from, to, bar)
    }
}

/// [`copy`] of less than 32 bytes: as two pieces of fixed length that overlap.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_short(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    if from.len() >= 16 {
        return copy_16(from, to, bar);
    }
    if let (Some(&first), Some(&last)) = (from.first_chunk::<8>(), from.last_chunk::<8>()) {
        put_ends(to, first, last);
        return word_is_suspect(u64::from_ne_bytes(first), bar)
            | word_is_suspect(u64::from_ne_bytes(last), bar);
    }
    if let (Some(&first), Some(&last)) = (from.first_chunk::<4>(), from.last_chunk::<4>()) {
        put_ends(to, first, last);
        let both = u64::from(u32::from_ne_bytes(first)) << 32 | u64::from(u32::from_ne_bytes(last));
        return word_is_suspect(both, bar);
    }
    let mut found = false;
    if let (&[first, ..], &[.., last]) = (from, from) {
        let middle = from[from.len() / 2];
        put_ends(to, [first], [last]);
        to[from.len() / 2].write(middle);
        found = is_suspect(first, bar) | is_suspect(middle, bar) | is_suspect(last, bar);
    }
    found
}

/// [`copy`] of 16 to 31 bytes.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_16(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    if from.len() != to.len() || from.len() < 16 {
        return false;
    }
    // SAFETY: every x86_64 processor has SSE2; there are at least 16 bytes, and as many in both.
    unsafe { if bar { x86::copy_sse2::<true>(from, to) } else { x86::copy_sse2::<false>(from, to) } }
}

/// [`copy`] of 16 to 31 bytes, by words: of arrays of lanes the compiler does not make vectors here.
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_16(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
    let mut found = false;
    if let (Some(&first), Some(&last)) = (from.first_chunk::<16>(), from.last_chunk::<16>()) {
        put_ends(to, first, last);
        for both in [u128::from_ne_bytes(first), u128::from_ne_bytes(last)] {
            found |= word_is_suspect(both as u64, bar) | word_is_suspect((both >> 64) as u64, bar);
        }
    }
    found
}

/// Writes the first and the last bytes of `to`.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn put_ends<const N: usize>(to: &mut [MaybeUninit<u8>], first: [u8; N], last: [u8; N]) {
    if let Some(to) = to.first_chunk_mut() {
        *to = first.map(MaybeUninit::new);
    }
    if let Some(to) = to.last_chunk_mut() {
        *to = last.map(MaybeUninit::new);
    }
}

/// Tells whether one of the eight bytes is suspect: exactly, by tests of each byte's high bit into which
/// nothing is carried.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn word_is_suspect(word: u64, bar: bool) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    const HIGH: u64 = ONES * 0x80;
    // The high bit of a lane is set where its low seven bits are at least `n`.
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

/// [`copy`] of 32 bytes and more.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_long<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    if from.len() != to.len() {
        return false;
    }
    if cfg!(all(debug_assertions, not(test))) {
        // Not optimised, vectors take 2.5 KiB of stack. (The unit tests have that.)
        for (&from, to) in from.iter().zip(to) {
            to.write(from);
        }
        return has_suspect(from, BAR);
    }
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has AVX2; there are at least 32 bytes, and as many in both.
        unsafe { x86::copy_avx2::<BAR>(from, to) }
    } else {
        // SAFETY: as above; every x86_64 processor has SSE2.
        unsafe { x86::copy_sse2::<BAR>(from, to) }
    }
}

/// [`copy`] of 32 bytes and more.
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
fn copy_long<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    copy_lanes::<BAR>(from, to)
}

/// [`copy`] of 32 bytes and more, in terms that the compiler makes vectors of.
#[cfg(any(test, not(target_arch = "x86_64")))]
#[inline(never)]
fn copy_lanes<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
    let mut seen = Minimums::<32>::new();
    for (from, to) in from.as_chunks().0.iter().zip(to.as_chunks_mut().0) {
        seen.copy(from, to, BAR);
    }
    if let (Some(from), Some(to)) = (from.last_chunk(), to.last_chunk_mut()) {
        seen.copy(from, to, BAR);
    }
    seen.has_suspect(BAR)
}

/// The minimums of all the bytes seen so far, lane by lane.
#[cfg(any(test, not(target_arch = "x86_64")))]
struct Minimums<const N: usize> {
    plain: [u8; N],
    delete: [u8; N],
    angle: [u8; N],
    bar: [u8; N],
}

#[cfg(any(test, not(target_arch = "x86_64")))]
impl<const N: usize> Minimums<N> {
    #[inline(always)]
    fn new() -> Self {
        Self { plain: [0xff; N], delete: [0xff; N], angle: [0xff; N], bar: [0xff; N] }
    }

    #[inline(always)]
    fn copy(&mut self, from: &[u8; N], to: &mut [MaybeUninit<u8>; N], bar: bool) {
        for lane in 0..N {
            let byte = from[lane];
            self.plain[lane] = self.plain[lane].min(byte);
            self.delete[lane] = self.delete[lane].min(byte ^ 0x7f);
            self.angle[lane] = self.angle[lane].min(byte ^ b'<');
            if bar {
                self.bar[lane] = self.bar[lane].min(byte ^ b'|');
            }
            to[lane] = MaybeUninit::new(byte);
        }
    }

    #[inline(always)]
    fn has_suspect(&self, bar: bool) -> bool {
        let mut found = false;
        for lane in 0..N {
            found |= (self.plain[lane] < 0x20) | (self.delete[lane] == 0) | (self.angle[lane] == 0);
            found |= bar & (self.bar[lane] == 0);
        }
        found
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The same with the processor's vectors named: left to itself the compiler makes two passes, `memcpy`
    //! first.

    use std::arch::x86_64::*;
    use std::mem::MaybeUninit;

    /// Defines a copy by vectors of one width: two a turn, then one, then the last ones, which overlap what
    /// is done.
    macro_rules! vector_copy {
        (
            $name:ident, $feature:literal, $vector:ty, $width:literal,
            $load:ident, $store:ident, $set1:ident, $min:ident, $xor:ident, $and:ident, $equal:ident, $mask:ident
        ) => {
            /// # Safety
            ///
            /// The processor must have the feature; `from` and `to` must be of one length, at least a vector's.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name<const BAR: bool>(from: &[u8], to: &mut [MaybeUninit<u8>]) -> bool {
                const WIDTH: usize = $width;
                let source = from.as_ptr();
                let target = to.as_mut_ptr();
                let (delete, angle, bar) = ($set1(0x7f), $set1(b'<' as i8), $set1(b'|' as i8));
                let mut plain_min = $set1(-1);
                let mut other_min = $set1(-1);
                let mut bar_min = $set1(-1);
                let mut at = 0;
                let mut step = |at: usize| {
                    // SAFETY: the callers below pass only places with a whole vector behind them in both.
                    let bytes = unsafe { $load(source.add(at).cast::<$vector>()) };
                    // SAFETY: as above.
                    unsafe { $store(target.add(at).cast::<$vector>(), bytes) };
                    plain_min = $min(plain_min, bytes);
                    other_min = $min(other_min, $min($xor(bytes, delete), $xor(bytes, angle)));
                    if BAR {
                        bar_min = $min(bar_min, $xor(bytes, bar));
                    }
                };
                if from.len() >= 4 * WIDTH {
                    // From where a store no longer touches two cache lines.
                    step(0);
                    at = WIDTH - target.addr() % WIDTH;
                }
                while at + 2 * WIDTH <= from.len() {
                    step(at);
                    step(at + WIDTH);
                    at += 2 * WIDTH;
                }
                if at + WIDTH <= from.len() {
                    step(at);
                }
                step(from.len() - WIDTH);
                let zero = $set1(0);
                let control = $equal($and(plain_min, $set1(!0x1f)), zero);
                let mut found = $mask(control) | $mask($equal(other_min, zero));
                if BAR {
                    found |= $mask($equal(bar_min, zero));
                }
                found != 0
            }
        };
    }

    /// Tells whether one of the bytes is suspect.
    ///
    /// # Safety
    ///
    /// There must be at least 16 bytes.
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn scan_sse2(bytes: &[u8], bar: bool) -> bool {
        // `<` and `|` differ in this bit alone.
        let either = _mm_set1_epi8(if bar { 0x40 } else { 0 });
        let angle = _mm_or_si128(_mm_set1_epi8(b'<' as i8), either);
        let delete = _mm_set1_epi8(0x7f);
        let mut plain_min = _mm_set1_epi8(-1);
        let mut other_min = _mm_set1_epi8(-1);
        let mut step = |at: usize| {
            // SAFETY: below, only places with a whole vector behind them are passed.
            let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().add(at).cast()) };
            plain_min = _mm_min_epu8(plain_min, bytes);
            let is_angle = _mm_xor_si128(_mm_or_si128(bytes, either), angle);
            other_min = _mm_min_epu8(other_min, _mm_min_epu8(_mm_xor_si128(bytes, delete), is_angle));
        };
        let mut at = 0;
        while at + 16 < bytes.len() {
            step(at);
            at += 16;
        }
        step(bytes.len() - 16);
        let zero = _mm_setzero_si128();
        let control = _mm_cmpeq_epi8(_mm_and_si128(plain_min, _mm_set1_epi8(!0x1f)), zero);
        _mm_movemask_epi8(_mm_or_si128(control, _mm_cmpeq_epi8(other_min, zero))) != 0
    }

    vector_copy!(
        copy_avx2,
        "avx2",
        __m256i,
        32,
        _mm256_loadu_si256,
        _mm256_storeu_si256,
        _mm256_set1_epi8,
        _mm256_min_epu8,
        _mm256_xor_si256,
        _mm256_and_si256,
        _mm256_cmpeq_epi8,
        _mm256_movemask_epi8
    );

    vector_copy!(
        copy_sse2,
        "sse2",
        __m128i,
        16,
        _mm_loadu_si128,
        _mm_storeu_si128,
        _mm_set1_epi8,
        _mm_min_epu8,
        _mm_xor_si128,
        _mm_and_si128,
        _mm_cmpeq_epi8,
        _mm_movemask_epi8
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = fn(&[u8], &mut [MaybeUninit<u8>], bool) -> bool;

    fn check(copy: Copy, from: &[u8], bar: bool, suspect: bool) {
        let mut to = [MaybeUninit::new(0xa5); 256];
        let to = &mut to[..from.len()];
        let found = copy(from, to, bar);
        // SAFETY: initialised when made.
        let to = unsafe { std::slice::from_raw_parts(to.as_ptr().cast::<u8>(), to.len()) };
        assert_eq!(to, from);
        assert_eq!(found, suspect, "{:?} bar {bar}", from.escape_ascii().to_string());
    }

    /// Checks a text that is not suspect with each value in turn at this place.
    fn check_at(copy: Copy, text: &mut [u8], place: usize, values: impl Iterator<Item = u8>) {
        let before = text[place];
        for value in values.step_by(if cfg!(miri) { 37 } else { 1 }) {
            text[place] = value;
            for bar in [false, true] {
                check(copy, text, bar, is_suspect(value, bar));
            }
        }
        text[place] = before;
    }

    /// Copies, and looks afterwards.
    fn copy_first(from: &[u8], to: &mut [MaybeUninit<u8>], bar: bool) -> bool {
        to.iter_mut().zip(from).for_each(|(to, &from)| _ = to.write(from));
        has_suspect(from, bar)
    }

    /// The values at the bounds of what is suspect: beside one, or one bit from it.
    fn edges() -> impl Iterator<Item = u8> {
        let is_near = |value: u8, edge: u8| value.abs_diff(edge) <= 1 || (value ^ edge).count_ones() == 1;
        (0..=255).filter(move |&value| [0, 0x1f, 0x7f, b'<', b'|'].iter().any(|&edge| is_near(value, edge)))
    }

    /// The values that matter at each place, and every value at three, of texts of each length at which the way of copying
    /// changes.
    fn check_all(copy: Copy, lengths: impl Iterator<Item = usize>) {
        for length in lengths {
            let mut text: Vec<u8> = (0..length).map(|at| b"a~\x80\xff "[at % 5]).collect();
            for bar in [false, true] {
                check(copy, &text, bar, false);
            }
            for place in (0..length).step_by(if cfg!(miri) { 37 } else { 1 }) {
                check_at(copy, &mut text, place, edges());
            }
            if let Some(last) = length.checked_sub(1) {
                for place in [0, last / 2, last] {
                    check_at(copy, &mut text, place, 0..=255);
                }
            }
        }
    }

    /// Two suspects of every two kinds, where one could undo the other: in one lane of two vectors, in two lanes of one.
    fn check_pairs(copy: Copy, length: usize) {
        const SUSPECTS: [u8; 4] = [b'\n', 0x7f, b'<', b'|'];
        let mut text = vec![b'a'; length];
        for distance in [1, 8, 16, 32, 64].into_iter().filter(|&distance| distance < length) {
            for place in (0..length - distance).step_by(if cfg!(miri) { 37 } else { 1 }) {
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
        for copy in [copy, copy_first] {
            check_all(copy, 0..=34);
            for length in [2, 3, 7, 15, 31] {
                check_pairs(copy, length);
            }
        }
    }

    #[test]
    fn long_texts_are_copied_and_looked_at() {
        let lengths =
            if cfg!(miri) { vec![32, 63, 97] } else { vec![47, 48, 63, 64, 65, 95, 96, 127, 128, 200] };
        let copies: &[Copy] = &[
            copy,
            copy_first,
            |from, to, bar| if bar { copy_lanes::<true>(from, to) } else { copy_lanes::<false>(from, to) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: SSE2 is part of x86_64, the lengths are equal and above 32.
            |from, to, bar| unsafe {
                if bar { x86::copy_sse2::<true>(from, to) } else { x86::copy_sse2::<false>(from, to) }
            },
        ];
        for &copy in copies {
            check_all(copy, lengths.iter().copied());
            check_pairs(copy, 97);
        }
    }
}

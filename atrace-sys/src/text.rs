//! Copies and cuts texts without an allocation.

use std::mem::MaybeUninit;

/// The length in bytes from which a text is copied by `memcpy`. Shorter texts are copied without a call.
pub const SHORT: usize = 32;

/// Copies a text to memory of the same length. A short text is copied as two pieces of a fixed size, which may
/// overlap.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn put(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    if from.len() >= SHORT {
        to.copy_from_slice(as_uninit(from));
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<16>(), from.last_chunk::<16>()) {
        put_ends(to, first, last);
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<8>(), from.last_chunk::<8>()) {
        put_ends(to, first, last);
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<4>(), from.last_chunk::<4>()) {
        put_ends(to, first, last);
    } else if let (Some(&first), Some(&last)) = (from.first_chunk::<2>(), from.last_chunk::<2>()) {
        put_ends(to, first, last);
    } else if let ([byte], [to]) = (from, to) {
        to.write(*byte);
    }
}

/// Writes the first and the last `N` bytes of `to`.
#[cfg_attr(debug_assertions, inline(never))]
#[cfg_attr(not(debug_assertions), inline(always))]
pub fn put_ends<const N: usize>(to: &mut [MaybeUninit<u8>], first: [u8; N], last: [u8; N]) {
    if let Some(to) = to.first_chunk_mut::<N>() {
        to.copy_from_slice(as_uninit(&first));
    }
    if let Some(to) = to.last_chunk_mut::<N>() {
        to.copy_from_slice(as_uninit(&last));
    }
}

/// Returns `bytes` as a slice of possibly uninitialised bytes, so that it can be copied to such a slice of
/// uninitialised memory.
#[inline(always)]
pub fn as_uninit(bytes: &[u8]) -> &[MaybeUninit<u8>] {
    // SAFETY: initialised bytes are valid as `MaybeUninit`, and nothing can be written through a shared reference.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len()) }
}

/// Cuts a text to at most `max` bytes, at a character boundary.
#[inline]
pub const fn cut(text: &str, max: usize) -> &str {
    if text.len() <= max { text } else { cut_long(text, max) }
}

/// Cuts a text as [`cut`] does. This function is not inlined: where the length of the text is a constant, the compiler
/// would unroll the loop.
#[cold]
#[inline(never)]
const fn cut_long(text: &str, max: usize) -> &str {
    let mut end = max;
    while !text.is_char_boundary(end) {
        end -= 1; // `end` never falls below 0, which is a character boundary.
    }
    text.split_at(end).0
}

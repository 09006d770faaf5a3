//! Matching patterns and parsing numbers by the C library, as libcutils does.

use std::ffi::{CStr, c_int};

use super::c;
use crate::c_text::CText;

/// Returns whether `text` matches a shell pattern, in which a backslash is an ordinary character.
pub(crate) fn fnmatch(pattern: &CStr, text: &CStr) -> bool {
    c::fnmatch(pattern.into(), text.into(), libc::FNM_NOESCAPE) == 0
}

/// Parses the number at the start of a text, by C's rules with base 0. Returns it, `None` if it is too large, and the
/// text behind it. If there is no number, the rest is the whole text.
pub(crate) fn strtoull(text: &CStr) -> (Option<u64>, &CStr) {
    read(text, c::strtoull)
}

/// [`strtoull`] for signed numbers.
pub(crate) fn strtoimax(text: &CStr) -> (Option<i64>, &CStr) {
    read(text, c::strtoimax)
}

type Read<'a, T> = extern "C" fn(CText<'a>, &mut CText<'a>, c_int) -> T;

fn read<'a, T>(text: &'a CStr, by: Read<'a, T>) -> (Option<T>, &'a CStr) {
    let _errno = super::ErrnoGuard::new();
    super::errno::set_errno(0);
    let mut end = text.into();
    let value = by(text.into(), &mut end, 0);
    let is_in_range = super::errno() != libc::ERANGE;
    (is_in_range.then_some(value), end.to_c_str())
}

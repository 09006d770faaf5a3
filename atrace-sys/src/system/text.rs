//! How C's library reads patterns and numbers, as libcutils asks it.

use std::ffi::{CStr, c_int};

use super::c;
use crate::c_text::CText;

/// Tells whether `text` matches the shell pattern, in which a backslash is an ordinary character.
pub(crate) fn fnmatch(pattern: &CStr, text: &CStr) -> bool {
    c::fnmatch(pattern.into(), text.into(), libc::FNM_NOESCAPE) == 0
}

/// The number that a text starts with, by C's rules with base 0, and what follows it; `None` for one that is too large.
/// Where there is no number, all the text follows.
pub(crate) fn strtoull(text: &CStr) -> (Option<u64>, &CStr) {
    read(text, c::strtoull)
}

/// As [`strtoull`], with a sign.
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

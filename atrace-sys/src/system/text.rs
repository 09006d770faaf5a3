//! How C's library reads patterns and numbers, as libcutils asks it.

use std::ffi::{CStr, c_char, c_int, c_ulonglong};

/// Tells whether `text` matches the shell pattern, in which a backslash is an ordinary character.
pub(crate) fn fnmatch(pattern: &CStr, text: &CStr) -> bool {
    // SAFETY: both are C strings.
    unsafe { libc::fnmatch(pattern.as_ptr(), text.as_ptr(), libc::FNM_NOESCAPE) == 0 }
}

/// The number that a text starts with, by C's rules with base 0, and what follows it; `None` for one that is too large.
/// Where there is no number, all the text follows.
pub(crate) fn strtoull(text: &CStr) -> (Option<u64>, &CStr) {
    unsafe extern "C" {
        // SAFETY: the signature is that of stdlib.h.
        fn strtoull(text: *const c_char, end: *mut *mut c_char, base: c_int) -> c_ulonglong;
    }
    read(text, strtoull)
}

/// As [`strtoull`], with a sign.
pub(crate) fn strtoimax(text: &CStr) -> (Option<i64>, &CStr) {
    unsafe extern "C" {
        // SAFETY: the signature is that of inttypes.h, where intmax_t has 64 bits.
        fn strtoimax(text: *const c_char, end: *mut *mut c_char, base: c_int) -> i64;
    }
    read(text, strtoimax)
}

type Read<T> = unsafe extern "C" fn(*const c_char, *mut *mut c_char, c_int) -> T;

fn read<T>(text: &CStr, by: Read<T>) -> (Option<T>, &CStr) {
    let _errno = super::ErrnoGuard::new();
    super::errno::set_errno(0);
    let mut end = std::ptr::null_mut();
    // SAFETY: a C string, and a writable place for where it was read to.
    let value = unsafe { by(text.as_ptr(), &mut end, 0) };
    let is_in_range = super::errno() != libc::ERANGE;
    // SAFETY: where it was read to is within the text, its end included.
    (is_in_range.then_some(value), unsafe { CStr::from_ptr(end) })
}

//! Writes events from Rust in the same way as a wrapper of libcutils, such as AOSP's `libatrace_rust`. For each event,
//! this module makes a C string of the name, and calls a C function, which contains an inline function of libcutils'
//! header.
//!
//! The caller must check with [`missing`](crate::missing) that libcutils has `atrace_end_body`.

use std::ffi::{CString, c_char, c_int};

#[allow(unsafe_code, reason = "C functions")]
unsafe extern "C" {
    // SAFETY: the signatures are those of `bench.h`. The functions that are `safe` take only numbers.
    safe fn cc_bench_is_tag_enabled(tag: u64) -> c_int;
    fn cc_bench_begin(tag: u64, name: *const c_char);
    safe fn cc_bench_end(tag: u64);
}

/// Begins an event, if its tag is enabled.
///
/// # Panics
///
/// Panics if the tag is enabled and the name contains a NUL.
#[inline]
#[expect(unsafe_code, reason = "a C string goes to C as a pointer")]
pub fn begin(tag: u64, name: &str) {
    if cc_bench_is_tag_enabled(tag) != 0 {
        let name = CString::new(name).expect("the name has no NUL");
        // SAFETY: the string is NUL-terminated, and libcutils no longer uses it when the call returns.
        unsafe { cc_bench_begin(tag, name.as_ptr()) };
    }
}

/// Ends an event, if its tag is enabled.
#[inline]
pub fn end(tag: u64) {
    cc_bench_end(tag);
}

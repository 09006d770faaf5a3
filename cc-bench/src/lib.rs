//! The C++ side of the benches: what a C++ program pays for ATrace.
//!
//! Each function runs one operation in a loop that is entirely C++, with the tag `ATRACE_TAG_APP`, and comes back when
//! it has done `iterations` of them; whoever calls it takes the time. The same loop is the "off" and the "on" case:
//! the system properties decide (`atrace_sys::properties`), and [`enabled_tags`] tells. Measured in either state,
//! they are the cases of the original C++ benchmark:
//!
//! | benchmark | properties | function |
//! |---|---|---|
//! | `BM_TracingOffAtraceBegin/10`, `/1000` | off | [`begin`] with a name of 10, 1000 characters |
//! | `BM_TracingOffAtraceEnd` | off | [`end`] |
//! | `BM_TracingOnAtraceBegin/10`, `/1000` | on | [`begin`] with a name of 10, 1000 characters |
//! | `BM_TracingOnAtraceEnd` | on | [`end`] |
//!
//! # Which libcutils
//!
//! On Android the loops call the device's. A host has none that traces, so `cutils/` builds one: a `libcutils.so`
//! that does what libcutils does, and beside it a `libproperties.so` with what libcutils asks bionic for. Both are
//! shared libraries because the calls between them are part of the price.
//!
//! The library reads its properties as libcutils does, so a flags property that does not exist yet when the first of
//! these functions is called is never noticed: set the properties first.
//!
//! # Linking
//!
//! `cargo run`, `test` and `bench` find the libraries. For a binary that is also started directly, the build script
//! of its package (which must depend on this one) says where they are:
//!
//! ```no_run
//! // build.rs
//! println!("cargo::rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_CC_BENCH_LIBDIR").unwrap());
//! ```
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The tag that the loops test.
pub const TAG: u64 = atrace_sys::bindings::ATRACE_TAG_APP;

// What the macro makes is public whether or not its module is.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    unsafe extern "C++" {
        include!("cc-bench/src/bench.h");

        unsafe fn begin(name: *const c_char, iterations: u64);
        fn end(iterations: u64);
        unsafe fn scoped(name: *const c_char, iterations: u64);
        unsafe fn instant(name: *const c_char, iterations: u64);
        unsafe fn instant_for_track(track: *const c_char, name: *const c_char, iterations: u64);
        unsafe fn counter_int(name: *const c_char, iterations: u64);
        unsafe fn counter_int64(name: *const c_char, iterations: u64);
        unsafe fn async_begin(name: *const c_char, iterations: u64);
        unsafe fn async_end(name: *const c_char, iterations: u64);
        unsafe fn async_for_track_begin(track: *const c_char, name: *const c_char, iterations: u64);
        unsafe fn async_for_track_end(track: *const c_char, iterations: u64);
        fn is_enabled(iterations: u64) -> u64;
        fn raw_write(fd: i32, message: &[u8], iterations: u64) -> u64;

        fn enabled_tags() -> u64;
        fn update_tags();
        fn cutils_library() -> String;
    }
}

/// Declares loops over strings: the bridge takes pointers, as its own strings have no NUL at the end and would have to
/// be copied before each loop.
macro_rules! loops {
    ($($(#[$doc:meta])* $name:ident($($string:ident),+);)+) => {$(
        $(#[$doc])*
        #[expect(unsafe_code, reason = "C strings go to C++ as pointers")]
        pub fn $name($($string: &CStr,)+ iterations: u64) {
            // SAFETY: the strings are C strings, and the loop has ended with them when the call returns.
            unsafe { ffi::$name($($string.as_ptr(),)+ iterations) }
        }
    )+};
}

loops! {
    /// Begins events: `atrace_begin`.
    #[doc(alias = "BM_TracingOffAtraceBegin")]
    #[doc(alias = "BM_TracingOnAtraceBegin")]
    begin(name);

    /// Begins and ends an event in each iteration, through a class whose constructor and destructor do it.
    scoped(name);

    /// Writes instants: `atrace_instant`.
    instant(name);

    /// Writes instants on a named track: `atrace_instant_for_track`.
    instant_for_track(track, name);

    /// Counts from 0 up: `atrace_int`.
    #[doc(alias = "atrace_int")]
    counter_int(name);

    /// Counts from 0 up: `atrace_int64`.
    #[doc(alias = "atrace_int64")]
    counter_int64(name);

    /// Begins asynchronous events, with the cookies 0, 1, …: `atrace_async_begin`.
    async_begin(name);

    /// Ends asynchronous events, with the cookies 0, 1, …: `atrace_async_end`.
    async_end(name);

    /// Begins asynchronous events on a named track, with the cookies 0, 1, …: `atrace_async_for_track_begin`.
    async_for_track_begin(track, name);

    /// Ends asynchronous events on a named track, with the cookies 0, 1, …: `atrace_async_for_track_end`.
    async_for_track_end(track);
}

/// Ends events: `atrace_end`.
#[doc(alias = "BM_TracingOffAtraceEnd")]
#[doc(alias = "BM_TracingOnAtraceEnd")]
pub fn end(iterations: u64) {
    ffi::end(iterations);
}

/// Asks whether [`TAG`] is enabled; returns how often it was.
#[doc(alias = "atrace_is_tag_enabled")]
pub fn is_enabled(iterations: u64) -> u64 {
    ffi::is_enabled(iterations)
}

/// Writes `message` to `fd`, one `write(2)` an iteration; returns how many were taken whole.
pub fn raw_write(fd: BorrowedFd<'_>, message: &[u8], iterations: u64) -> u64 {
    ffi::raw_write(fd.as_raw_fd(), message, iterations)
}

/// Returns the tags that libcutils has enabled, after it looked whether the flags property has changed.
#[doc(alias = "atrace_get_enabled_tags")]
pub fn enabled_tags() -> u64 {
    ffi::enabled_tags()
}

/// Has libcutils read the properties anew: it does not notice when only `debug.atrace.app_*` change.
#[doc(alias = "atrace_update_tags")]
pub fn update_tags() {
    ffi::update_tags();
}

/// Returns the path of the libcutils that the loops call; `dlopen` of it gives that same instance.
///
/// # Panics
///
/// When the dynamic linker does not know it.
pub fn cutils_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = ffi::cutils_library();
        assert!(!path.is_empty(), "the dynamic linker does not know where atrace_begin_body comes from");
        path.into()
    })
}

//! The C++ side of the benches: measures what ATrace costs a C++ program.
//!
//! Each function with a parameter `iterations` runs one operation that many times, in a loop that is entirely C++. The
//! events have the tag `ATRACE_TAG_APP`, except those of [`begin_other_tag`]. The caller measures the time. The same
//! loop is used with tracing off and with tracing on. The system properties (`atrace_sys::properties`) switch tracing,
//! and [`enabled_tags`] returns the enabled tags. The loops measure these cases of the original C++ benchmark:
//!
//! | benchmark | properties | function |
//! |---|---|---|
//! | `BM_TracingOffAtraceBegin/10`, `/1000` | off | [`begin`] with a name of 10, 1000 characters |
//! | `BM_TracingOffAtraceEnd` | off | [`end`] |
//! | `BM_TracingOnAtraceBegin/10`, `/1000` | on | [`begin`] with a name of 10, 1000 characters |
//! | `BM_TracingOnAtraceEnd` | on | [`end`] |
//!
//! [`coroutines`] has tasks without ATrace, for a workload of the benches. [`wrapper`] writes events from Rust as
//! AOSP's wrapper does.
//!
//! # Which libcutils
//!
//! On Android, the loops call the device's libcutils, if it has the called functions (see [`missing`]). A host has no
//! libcutils that traces, so two libraries are built from `cutils/`: a `libcutils.so` that works like Android's
//! libcutils, and a `libproperties.so` with the functions that libcutils takes from bionic. Both are shared
//! libraries, because calls between libraries are part of the cost.
//!
//! The host's `libcutils.so` reads its properties like Android's libcutils: if the flags property does not exist at the
//! first call of a tracing function, the library never notices the property. So set the properties before the first
//! call.
//!
//! # Linking
//!
//! `cargo run`, `test` and `bench` find the libraries. If a binary is also started without cargo, its package must
//! depend on `cc-bench`, and its build script must pass the directory of the libraries to the linker:
//!
//! ```no_run
//! // build.rs
//! println!("cargo::rustc-link-arg=-Wl,-rpath,{}", std::env::var("DEP_CC_BENCH_LIBDIR").unwrap());
//! ```

pub mod coroutines;
pub mod wrapper;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use atrace_sys::properties::Properties;

/// The tag that the loops test.
pub const TAG: u64 = atrace_sys::bindings::ATRACE_TAG_APP;

// The macro generates public items, even in a private module.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    unsafe extern "C++" {
        // SAFETY: cxx makes the C++ compiler compare each signature with the header. Functions without `unsafe` take no
        // raw pointer.
        include!("cc-bench/src/bench.h");

        unsafe fn begin(name: *const c_char, iterations: u64);
        unsafe fn begin_other_tag(name: *const c_char, iterations: u64);
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
        fn get_tags(iterations: u64) -> u64;
        fn raw_write(fd: i32, message: &[u8], iterations: u64) -> u64;
        fn inline_writes(fd: i32, messages: &[u8], lengths: &[usize], iterations: u64) -> u64;

        fn has(function: &str) -> bool;
        fn enabled_tags() -> u64;
        fn update_tags();
        fn cutils_library() -> String;
    }
}

/// Declares functions that run loops with strings. `calls` names the function of libcutils that a loop calls in
/// addition to `atrace_get_enabled_tags`. The strings are passed as pointers, because the string types of the bridge to
/// C++ do not end with a NUL, and would have to be copied before each loop.
macro_rules! loops {
    ($($(#[$doc:meta])* $name:ident($($string:ident),+) calls $function:literal;)+) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        ///
        /// Panics if the function is [`missing`].
        #[expect(unsafe_code, reason = "C strings go to C++ as pointers")]
        pub fn $name($($string: &CStr,)+ iterations: u64) {
            must_have($function);
            // SAFETY: the strings are NUL-terminated, and the loop no longer uses them when the call returns.
            unsafe { ffi::$name($($string.as_ptr(),)+ iterations) }
        }
    )+};
}

loops! {
    /// Begins events: `atrace_begin`.
    #[doc(alias = "BM_TracingOffAtraceBegin")]
    #[doc(alias = "BM_TracingOnAtraceBegin")]
    begin(name) calls "atrace_begin_body";

    /// Begins events of a tag that stays off while [`TAG`] is on.
    begin_other_tag(name) calls "atrace_begin_body";

    /// Begins and ends an event in each iteration, through the constructor and destructor of a class.
    scoped(name) calls "atrace_end_body";

    /// Writes instants: `atrace_instant`.
    instant(name) calls "atrace_instant_body";

    /// Writes instants on a named track: `atrace_instant_for_track`.
    instant_for_track(track, name) calls "atrace_instant_for_track_body";

    /// Sets a counter to 0, 1, 2, …: `atrace_int`.
    #[doc(alias = "atrace_int")]
    counter_int(name) calls "atrace_int_body";

    /// Sets a counter to 0, 1, 2, …: `atrace_int64`.
    #[doc(alias = "atrace_int64")]
    counter_int64(name) calls "atrace_int64_body";

    /// Begins asynchronous events, with the cookies 0, 1, …: `atrace_async_begin`.
    async_begin(name) calls "atrace_async_begin_body";

    /// Ends asynchronous events, with the cookies 0, 1, …: `atrace_async_end`.
    async_end(name) calls "atrace_async_end_body";

    /// Begins asynchronous events on a named track, with the cookies 0, 1, …: `atrace_async_for_track_begin`.
    async_for_track_begin(track, name) calls "atrace_async_for_track_begin_body";

    /// Ends asynchronous events on a named track, with the cookies 0, 1, …: `atrace_async_for_track_end`.
    async_for_track_end(track) calls "atrace_async_for_track_end_body";
}

/// Ends events: `atrace_end`.
///
/// # Panics
///
/// Panics if `atrace_end_body` is [`missing`].
#[doc(alias = "BM_TracingOffAtraceEnd")]
#[doc(alias = "BM_TracingOnAtraceEnd")]
pub fn end(iterations: u64) {
    must_have("atrace_end_body");
    ffi::end(iterations);
}

/// Returns why `function` of libcutils, such as `atrace_end_body`, can't be called on this device, or `None` if it
/// can be called. The device's libcutils may be too old, or from Android 13, whose `atrace_async_for_track_end_body`
/// takes other arguments.
///
/// C++ programs call inline functions of a header, which call `atrace_get_enabled_tags` first. If that function is
/// missing, every function counts as missing.
pub fn missing(function: &str) -> Option<&'static str> {
    static KNOWN: OnceLock<Vec<(&str, String)>> = OnceLock::new();
    let known = KNOWN.get_or_init(|| {
        let why = |function| match () {
            () if !ffi::has(TAGS) => Some(format!("this device's libcutils has no {TAGS}")),
            () if !ffi::has(function) => Some(format!("this device's libcutils has no {function}")),
            () if function == TRACK_END && !track_end_is_todays() => {
                Some(format!("{function} of this device takes other arguments (Android 13's takes a name)"))
            }
            () => None,
        };
        FUNCTIONS.into_iter().filter_map(|function| Some((function, why(function)?))).collect()
    });
    known.iter().find(|(other, _)| *other == function).map(|(_, why)| why.as_str())
}

const TAGS: &str = "atrace_get_enabled_tags";
const TRACK_END: &str = "atrace_async_for_track_end_body";

/// The functions of libcutils that the loops call.
const FUNCTIONS: [&str; 11] = [
    TAGS,
    "atrace_begin_body",
    "atrace_end_body",
    "atrace_async_begin_body",
    "atrace_async_end_body",
    "atrace_async_for_track_begin_body",
    TRACK_END,
    "atrace_instant_body",
    "atrace_instant_for_track_body",
    "atrace_int_body",
    "atrace_int64_body",
];

/// Returns whether `atrace_async_for_track_end_body` has the parameters that it has since Android 14. The symbol does
/// not show the parameters, but they follow from the API level. A statically linked program has the libcutils that is
/// built here.
fn track_end_is_todays() -> bool {
    if cfg!(any(not(target_os = "android"), target_feature = "crt-static")) {
        return true;
    }
    Properties::open().ok().and_then(Properties::api_level).is_some_and(|level| level > 33)
}

fn must_have(function: &str) {
    if let Some(why) = missing(function) {
        panic!("{why}");
    }
}

/// Checks in each iteration whether [`TAG`] is enabled, and returns how many times the tag was enabled.
///
/// # Panics
///
/// Panics if `atrace_get_enabled_tags` is [`missing`].
#[doc(alias = "atrace_is_tag_enabled")]
pub fn is_enabled(iterations: u64) -> u64 {
    must_have(TAGS);
    ffi::is_enabled(iterations)
}

/// Gets the enabled tags in each iteration, and returns the tags that the last iteration got.
///
/// # Panics
///
/// Panics if `atrace_get_enabled_tags` is [`missing`].
pub fn get_tags(iterations: u64) -> u64 {
    must_have(TAGS);
    ffi::get_tags(iterations)
}

/// Writes `message` to `fd` with one `write(2)` per iteration, and returns the number of complete
/// writes.
pub fn raw_write(fd: BorrowedFd<'_>, message: &[u8], iterations: u64) -> u64 {
    ffi::raw_write(fd.as_raw_fd(), message, iterations)
}

/// Messages that a loop writes by the system call's instruction itself, without any function call. The cost of this
/// loop is the lowest possible cost of writing messages. On processors other than x86_64 and aarch64, the loop calls
/// `syscall()`.
#[derive(Clone, Debug)]
pub struct InlineWrites {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl InlineWrites {
    /// Makes an `InlineWrites` with these messages.
    pub fn of<M: AsRef<[u8]>>(messages: &[M]) -> Self {
        let all = messages.iter().map(AsRef::as_ref);
        Self { bytes: all.clone().flatten().copied().collect(), lengths: all.map(<[u8]>::len).collect() }
    }

    /// Writes all messages to `fd` one after the other, `iterations` times, and returns the number of complete
    /// writes.
    pub fn run(&self, fd: BorrowedFd<'_>, iterations: u64) -> u64 {
        ffi::inline_writes(fd.as_raw_fd(), &self.bytes, &self.lengths, iterations)
    }
}

/// Returns the tags that are enabled in libcutils, after libcutils has checked the flags property for a change.
///
/// # Panics
///
/// Panics if `atrace_get_enabled_tags` is [`missing`].
#[doc(alias = "atrace_get_enabled_tags")]
pub fn enabled_tags() -> u64 {
    must_have(TAGS);
    ffi::enabled_tags()
}

/// Makes libcutils read the properties again. Without this call, libcutils does not notice a change that only affects
/// `debug.atrace.app_*`.
#[doc(alias = "atrace_update_tags")]
pub fn update_tags() {
    ffi::update_tags();
}

/// Returns the path of the libcutils that the loops call; `dlopen` of this path returns the same instance.
///
/// # Panics
///
/// Panics if the dynamic linker does not know the path.
pub fn cutils_library() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = ffi::cutils_library();
        assert!(!path.is_empty(), "the dynamic linker does not know where atrace_begin_body comes from");
        path.into()
    })
}

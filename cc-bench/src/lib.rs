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
//! [`coroutines`] is about tasks, without ATrace: what a workload is made of.
//!
//! # Which libcutils
//!
//! On Android the loops call the device's, as far as it has what they call (see [`missing`]). A host has none that
//! traces, so `cutils/` builds one: a `libcutils.so` that does what libcutils does, and beside it a `libproperties.so`
//! with what libcutils asks bionic for. Both are shared libraries because the calls between them are part of the price.
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

pub mod coroutines;

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use atrace_sys::properties::Properties;

/// The tag that the loops test.
pub const TAG: u64 = atrace_sys::bindings::ATRACE_TAG_APP;

// What the macro makes is public whether or not its module is.
#[allow(unreachable_pub)]
#[allow(unsafe_code, reason = "a bridge to C++ is unsafe on both of its sides")]
#[cxx::bridge(namespace = "cc_bench")]
mod ffi {
    unsafe extern "C++" {
        // SAFETY: cxx has the C++ compiler compare each signature with the header's; what is not `unsafe` takes no raw pointer.
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

/// Declares loops over strings, and the function of libcutils that each calls beside `atrace_get_enabled_tags`: the
/// bridge takes pointers, as its own strings have no NUL at the end and would have to be copied before each loop.
macro_rules! loops {
    ($($(#[$doc:meta])* $name:ident($($string:ident),+) calls $function:literal;)+) => {$(
        $(#[$doc])*
        ///
        /// # Panics
        ///
        /// When the function is [`missing`].
        #[expect(unsafe_code, reason = "C strings go to C++ as pointers")]
        pub fn $name($($string: &CStr,)+ iterations: u64) {
            must_have($function);
            // SAFETY: the strings are C strings, and the loop has ended with them when the call returns.
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

    /// Begins and ends an event in each iteration, through a class whose constructor and destructor do it.
    scoped(name) calls "atrace_end_body";

    /// Writes instants: `atrace_instant`.
    instant(name) calls "atrace_instant_body";

    /// Writes instants on a named track: `atrace_instant_for_track`.
    instant_for_track(track, name) calls "atrace_instant_for_track_body";

    /// Counts from 0 up: `atrace_int`.
    #[doc(alias = "atrace_int")]
    counter_int(name) calls "atrace_int_body";

    /// Counts from 0 up: `atrace_int64`.
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
/// When `atrace_end_body` is [`missing`].
#[doc(alias = "BM_TracingOffAtraceEnd")]
#[doc(alias = "BM_TracingOnAtraceEnd")]
pub fn end(iterations: u64) {
    must_have("atrace_end_body");
    ffi::end(iterations);
}

/// Says why programs of today can't call `function` of libcutils, such as `atrace_end_body`, on this device: its
/// libcutils is too old, or Android 13's, in which `atrace_async_for_track_end_body` takes other arguments.
///
/// What C++ programs call of it is a header's inline function that asks `atrace_get_enabled_tags` first; without that,
/// every function is missing.
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

/// The symbol does not tell how it is called; the API level does. A statically linked program has the libcutils built
/// here.
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

/// Asks whether [`TAG`] is enabled; returns how often it was.
///
/// # Panics
///
/// When `atrace_get_enabled_tags` is [`missing`].
#[doc(alias = "atrace_is_tag_enabled")]
pub fn is_enabled(iterations: u64) -> u64 {
    must_have(TAGS);
    ffi::is_enabled(iterations)
}

/// Asks which tags are enabled, in each iteration; returns the last answer.
///
/// # Panics
///
/// When `atrace_get_enabled_tags` is [`missing`].
pub fn get_tags(iterations: u64) -> u64 {
    must_have(TAGS);
    ffi::get_tags(iterations)
}

/// Writes `message` to `fd`, one `write(2)` an iteration; returns how many were taken whole.
pub fn raw_write(fd: BorrowedFd<'_>, message: &[u8], iterations: u64) -> u64 {
    ffi::raw_write(fd.as_raw_fd(), message, iterations)
}

/// Messages that are written by the system call's instruction in the loop itself: the least that writing them can cost, as
/// nothing is called and nothing returns. On 32-bit processors it is `syscall()`.
#[derive(Clone, Debug)]
pub struct InlineWrites {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl InlineWrites {
    /// Keeps these messages.
    pub fn of<M: AsRef<[u8]>>(messages: &[M]) -> Self {
        let all = messages.iter().map(AsRef::as_ref);
        Self { bytes: all.clone().flatten().copied().collect(), lengths: all.map(<[u8]>::len).collect() }
    }

    /// Writes all of them to `fd`, one after the other, so many times; returns how many writes were taken whole.
    pub fn run(&self, fd: BorrowedFd<'_>, iterations: u64) -> u64 {
        ffi::inline_writes(fd.as_raw_fd(), &self.bytes, &self.lengths, iterations)
    }
}

/// Returns the tags that libcutils has enabled, after it looked whether the flags property has changed.
///
/// # Panics
///
/// When `atrace_get_enabled_tags` is [`missing`].
#[doc(alias = "atrace_get_enabled_tags")]
pub fn enabled_tags() -> u64 {
    must_have(TAGS);
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

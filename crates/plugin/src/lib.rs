//! A shared library that traces, for tests of programs that load and unload such a library. It contains its own copies
//! of `atrace` and of std, as every `cdylib` does.

#![expect(unsafe_code, reason = "its functions are looked up by name")]

use std::ffi::{CStr, c_char};

use atrace::{AtraceTag, atrace_begin, atrace_end, atrace_instant, atrace_is_tag_enabled, perfetto, watch};

/// Writes an event.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_event() {
    atrace_instant(AtraceTag::App, "plugin");
}

/// Returns whether tracing is on.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_is_on() -> bool {
    atrace_is_tag_enabled(AtraceTag::App)
}

/// Begins a slice.
///
/// # Safety
///
/// `name` must be a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_begin(name: *const c_char) {
    // SAFETY: the caller passes a C string.
    let name = unsafe { CStr::from_ptr(name) };
    atrace_begin(AtraceTag::App, name.to_str().unwrap_or_default());
}

/// Ends the slice that was begun last.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_end() {
    atrace_end(AtraceTag::App);
}

/// Returns the timestamp that an event gets in Perfetto's memory if the event is written now.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_now() -> u64 {
    atrace_perfetto::clock::now()
}

/// Connects to Perfetto's service.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_connect() {
    perfetto::connect();
}

/// Starts a watch of the tags ([`watch::watch`]) that is never stopped. Returns whether the watch could be started.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_watch() -> bool {
    watch::watch(|_| ()).map(std::mem::forget).is_ok()
}

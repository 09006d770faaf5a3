//! A shared library that traces, for tests of programs that load and unload it. It has its own copies of `atrace` and of
//! std, as each such library does.

#![expect(unsafe_code, reason = "its functions are looked up by name")]

use atrace::{AtraceTag, atrace_instant, perfetto, watch};

/// Writes an event.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_event() {
    atrace_instant(AtraceTag::App, "plugin");
}

/// Connects to Perfetto's service.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_connect() {
    perfetto::connect();
}

/// Starts a watch that is never stopped. Returns whether it could be started.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_watch() -> bool {
    watch::watch(|_| ()).map(std::mem::forget).is_ok()
}

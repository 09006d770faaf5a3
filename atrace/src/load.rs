//! What is done as the program or library is loaded, so that no event has to.
//!
//! An event may come in a signal handler that interrupted the allocator, or in a child forked while another thread held a
//! lock. That can't be known for sure there, so nothing below an event allocates, takes a lock or loads a library. What
//! needs that is done here, before `main`, and again by whoever asks outside of events (`atrace_init`, `sink`,
//! `atrace_update_tags`, a watch …):
//!
//! - the sink is chosen: the environment is read, and the marker and the properties, or libcutils, are opened;
//! - with `ATRACE_BACKEND=perfetto`, what the first event needs to connect is made.
//!
//! The system's loader calls what the section `.init_array` lists (System V ABI, "Initialization and Termination
//! Functions"), in the order of the libraries: an event of a library that is loaded before this one is not written.

use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::process::Undisturbed;

use crate::sink::choice;

#[used]
#[cfg(not(miri))]
#[expect(
    unsafe_code,
    reason = "the section has addresses of functions, which may ignore what they are called with"
)]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// The program is not to be traced: nothing is done as it is loaded.
static IS_SKIPPED: AtomicBool = AtomicBool::new(false);

/// Has this library do nothing as the program is loaded: it opens no file and makes no property store.
///
/// For a program that switches or examines others and is not traced itself, as the command `atrace`. It has to be called
/// before the library's own function at load, so from a section `.init_array.N` with N below 65535, which the loader takes
/// before `.init_array`. What the program asks for later, [`sink()`](crate::sink()) for one, is opened then.
///
/// ```
/// #[used]
/// #[unsafe(link_section = ".init_array.00101")]
/// static NOT_TRACED: extern "C" fn() = atrace::skip_load;
/// # fn main() {}
/// ```
pub extern "C" fn skip_load() {
    IS_SKIPPED.store(true, Ordering::Relaxed);
}

#[cfg_attr(miri, expect(dead_code, reason = "nothing is loaded there"))]
extern "C" fn at_load() {
    if IS_SKIPPED.load(Ordering::Relaxed) {
        return;
    }
    let _undisturbed = Undisturbed::new();
    atrace_sys::state::prepare();
    choice::choose_now();
}

//! The work that is done when the program or library is loaded, so that no event has to do this work.
//!
//! # Why
//!
//! An event may be written in a signal handler that interrupted the allocator, or in a child that was forked while
//! another thread held a lock. An event can't reliably detect either case. So no function that an event calls
//! allocates, takes a lock or loads a library.
//!
//! # What is done
//!
//! - A shared library that contains this crate, such as a plugin, is kept loaded until the process ends. `dlclose` does
//!   not unmap the library, because there is no way to end its threads and to remove its fork handlers, thread keys,
//!   descriptors and memory.
//! - The sink is chosen: the environment is read, and the marker and the properties, or a library, are opened.
//! - With `ATRACE_BACKEND=perfetto`, the memory that the first event needs to connect to the service is allocated.
//! - The variable `ATRACE_STATE` is read, so that an event can create the state page without reading the environment.
//!
//! If the sink could not be opened for a temporary reason, some functions that write no events (`atrace_init`, `sink`,
//! `atrace_update_tags`, a watch …) try again to open the sink.
//!
//! # When
//!
//! The work is done before `main`, or in `dlopen`: the system's loader calls the functions that the section
//! `.init_array` lists (System V ABI, "Initialization and Termination Functions"), one library after the other. If
//! another library is initialised before this one, the events that the other library's initialisation writes are lost.

use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::process::{Undisturbed, stay_loaded};

use crate::sink::choice;

#[used]
#[cfg(not(miri))]
#[expect(
    unsafe_code,
    reason = "the loader calls the function in this section with arguments, which a C function may ignore"
)]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Whether [`skip_load`] was called.
static IS_SKIPPED: AtomicBool = AtomicBool::new(false);

/// Makes this library do nothing when the program is loaded: the library opens no file and creates no
/// property store.
///
/// This is for programs that switch or examine other programs and are not traced themselves, such as the command
/// `atrace`. The call must come before the library's own initializer, which runs from `.init_array`. So call this
/// function from a section `.init_array.N` with N below 65535, which the linker places before `.init_array`. If the
/// program calls functions such as [`sink()`](crate::sink()) later, these open the files that they need.
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

/// Returns whether [`skip_load`] was called.
pub(crate) fn is_skipped() -> bool {
    IS_SKIPPED.load(Ordering::Relaxed)
}

#[cfg_attr(miri, expect(dead_code, reason = "miri has no loader"))]
extern "C" fn at_load() {
    if IS_SKIPPED.load(Ordering::Relaxed) {
        return;
    }
    let _undisturbed = Undisturbed::new();
    stay_loaded();
    atrace_sys::state::prepare();
    atrace_sys::fork::generation(); // Before Linux 4.14 this registers a fork handler, which an event must not do.
    choice::choose_now();
}

//! Lets `atrace record` find this process: a sleeping thread connects to Perfetto's service once there is one.
//!
//! # How it works
//!
//! On a host, the process's socket thread (`atrace-perfetto`) sleeps on the serial of the user's property store. `atrace record`
//! sets a property there ([`Control::announce`](crate::control::Control::announce)) as soon as it listens for programs. The
//! thread wakes and connects. If a service is there already, it connects at once.
//!
//! Until the first session the process does not change: its events go to its sink, at the same cost. From the first session
//! on, the backend is chosen for each event (`refresh.rs`).
//!
//! # When not
//!
//! Android has its own rules for finding a service. A program with elevated rights does not act on what another user has set.
//! `ATRACE_BACKEND` and `ATRACE_MARKER` already say where events should go. The command `atrace` is not traced.
//!
//! # Forks
//!
//! A child starts a thread of its own at its first event, which finds `ASK` among the wanted tags. The fork handler prepares
//! that, because the parent may not have had a session yet.

use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::process;
use atrace_sys::properties::Properties;

use crate::load::is_skipped;
use crate::sink::first;
use crate::{producer, refresh, state, watch};

/// Whether this process or an ancestor has begun to look for a service.
static IS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Lets `atrace record` find this process, as [`atrace_init`](crate::atrace_init) does.
///
/// If a Perfetto service runs, this connects to it as [`connect`](crate::perfetto::connect) does. Otherwise a thread sleeps
/// until a recording by the same user begins, and connects within a second. The thread polls nothing, and no code of the program
/// runs on it. A service that is started in another way is found only at the next recording;
/// [`connect`](crate::perfetto::connect) polls for a service instead.
///
/// This does nothing on Android, in a program with elevated rights (`AT_SECURE`), if the variable `ATRACE_BACKEND` or
/// `ATRACE_MARKER` has a value, and if it was called before.
pub fn attach() {
    let is_named =
        || ["ATRACE_BACKEND", "ATRACE_MARKER"].into_iter().any(|name| process::variable(name).is_some());
    if cfg!(any(target_os = "android", miri))
        || !producer::EXISTS
        || IS_BEGUN.load(Ordering::Relaxed)
        || process::has_elevated_rights()
        || is_skipped()
        || is_named()
        || IS_BEGUN.swap(true, Ordering::AcqRel)
    {
        return;
    }
    let _undisturbed = process::Undisturbed::new();
    let store = Properties::try_open();
    let Some(serial) = store.ok().and_then(Properties::area_serial_word) else { return };
    refresh::follow_sessions();
    atrace_sys::fork::in_children(in_child);
    if producer::is_service_there() {
        first::enable_perfetto();
        producer::seek(serial);
        refresh::update();
        watch::tags_may_have_changed();
    } else {
        producer::seek(serial);
        state::publish();
    }
}

extern "C" fn in_child() {
    refresh::choose_per_event();
}

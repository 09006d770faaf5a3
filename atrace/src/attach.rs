//! Lets `atrace record` find this process: a thread sleeps until a service of Perfetto's runs, and then
//! connects.
//!
//! # How it works
//!
//! On a host (Linux without Android), the process's *socket thread*, which talks to Perfetto's service, sleeps on the
//! serial of the user's property store. `atrace record` sets a property there (`debug.atrace.service`) as soon as it
//! listens for programs. This wakes the thread, which then connects to the service. If a service runs already, the
//! thread connects at once.
//!
//! If no service runs yet, the events of the process go to its sink until the first session (recording by the service),
//! at the same cost as without this module. From the first session on, the backend is chosen for each event
//! (`refresh.rs`).
//!
//! # When not
//!
//! Android has its own rules for finding a service. So this module does nothing on Android. On a host, it does nothing
//! in a program with elevated rights, because another user may have set the properties; in a program whose variable
//! `ATRACE_BACKEND` or `ATRACE_MARKER` chooses where events go; and in the command `atrace`, which is not traced.
//!
//! # Forks
//!
//! In a forked child, the first event starts the child's own thread. The fork handler makes all tags count as enabled,
//! so that the event passes the gate even if the parent has had no session yet. It also sets the bit `ASK`, by which
//! the event finds that the process must connect.

use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::process;
use atrace_sys::properties::Properties;

use crate::load::is_skipped;
use crate::sink;
use crate::{producer, refresh, state, watch};

/// Whether this process or an ancestor has begun to look for a service.
static IS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Lets `atrace record` find this process, unless an earlier call has done so. [`atrace_init`](crate::atrace_init)
/// documents the rules.
pub(crate) fn attach() {
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
    let Some(serial) = store.ok().and_then(Properties::area_serial_word) else {
        IS_BEGUN.store(false, Ordering::Release); // The next call tries again.
        return;
    };
    refresh::follow_sessions();
    atrace_sys::fork::in_children(in_child);
    if producer::is_service_there() {
        sink::enable_perfetto();
        producer::seek(serial);
        refresh::update();
        watch::tags_may_have_changed();
    } else {
        producer::seek(serial);
        state::publish();
    }
    // If no thread can be started, watches that began before are not told of sessions. `attach` can't return this
    // error.
    let _ = watch::sessions_are_possible();
}

extern "C" fn in_child() {
    refresh::choose_per_event();
}

//! Callbacks that run when the tags that sessions want, or the state of the connection, have changed.

use atrace_sys::OnceRef;

/// The callbacks.
static ON_CHANGE: [OnceRef<fn()>; 2] = [const { OnceRef::new() }; 2];
/// Registers a callback for changes of the wanted tags or the state of the connection.
///
/// The callback usually runs on the socket thread, which may have no thread-locals. It also runs on the thread of a
/// recording, when the recording begins and ends, and on the thread that starts the socket thread, even if this happens
/// in the middle of an event. So the callback must not allocate, take a lock, panic, or run code of the program. There
/// is room for two callbacks: one for each of the two modules of the crate `atrace` that call this function.
/// Registering a callback again does nothing.
pub fn on_change(body: &'static fn()) {
    // Uses the first free entry, unless an entry before it already holds this callback.
    for place in &ON_CHANGE {
        match place.set(body) {
            Err(present) if !std::ptr::eq(present, body) => {}
            _ => return,
        }
    }
}

/// Calls the callbacks.
pub(crate) fn changed() {
    ON_CHANGE.iter().filter_map(OnceRef::get).for_each(|body| body());
}

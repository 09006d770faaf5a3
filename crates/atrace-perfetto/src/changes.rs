//! Who is told when sessions want other tags than before, or the connection stands otherwise.

use atrace_sys::OnceRef;

/// Called when sessions want other tags than before, or the connection stands otherwise, on the socket's thread, where
/// nothing of the program's runs.
static ON_CHANGE: [OnceRef<fn()>; 2] = [const { OnceRef::new() }; 2];
/// Has `body` called when sessions want other tags than before, or the connection stands otherwise, on the socket's thread:
/// it runs nothing of the program's.
pub fn on_change(body: &'static fn()) {
    // Each of the two that there are has a place; the first of them that is free, or its own.
    for place in &ON_CHANGE {
        match place.set(body) {
            Err(present) if !std::ptr::eq(present, body) => {}
            _ => return,
        }
    }
}

/// Sessions want other tags than before, or it stands otherwise.
pub(crate) fn changed() {
    ON_CHANGE.iter().filter_map(OnceRef::get).for_each(|body| body());
}

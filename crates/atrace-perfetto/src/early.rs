//! Events that are lost before the service has said which sessions there are.
//!
//! They are counted in memory that the service reads, as soon as there is such memory: it learns of them however the process
//! ends.

use std::sync::atomic::{AtomicPtr, Ordering};

use crate::event::Event;
use crate::memory::{Arena, Loss};
use crate::pool::Shared;

/// The memory of the connection; null where there is none.
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

/// The memory of the connection.
pub(crate) fn arena() -> Option<&'static Arena> {
    // SAFETY: null, or an arena, which lives for ever.
    #[expect(unsafe_code, reason = "events find the arena by a pointer")]
    unsafe {
        ARENA.load(Ordering::SeqCst).as_ref()
    }
}

/// Has there be this memory, or none: of a connection that was made or is gone, and in a forked child. Async-signal-safe.
pub(crate) fn set_arena(arena: Option<&'static Arena>) {
    let pointer = arena.map_or(std::ptr::null_mut(), |arena| std::ptr::from_ref(arena).cast_mut());
    ARENA.store(pointer, Ordering::SeqCst);
}

/// An event is lost, as there is no answer; returns true of the begin of a thread's slice: its end is lost as well.
#[inline(never)]
pub(crate) fn lose(shared: &Shared, event: &Event<'_>) -> bool {
    if event.opens() < 0 {
        lose_end(shared);
        return false;
    }
    count(shared);
    let is_begin = event.opens() > 0;
    if is_begin {
        shared.unbegun.fetch_add(1, Ordering::Relaxed);
    }
    is_begin
}

/// The end of a slice that began before all sessions: it is lost where the begin was.
#[cold]
pub(crate) fn lose_end(shared: &Shared) {
    let less = |unbegun: u64| unbegun.checked_sub(1);
    if shared.unbegun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
        count(shared);
    }
}

fn count(shared: &Shared) {
    shared.early.fetch_add(1, Ordering::Relaxed);
    shared.untold.fetch_add(1, Ordering::SeqCst);
    tell(shared);
}

/// Counts what was lost in the memory that the service reads, if there is such memory: of this and the socket's thread, which
/// has made it, one sees what the other did.
#[inline(never)]
pub(crate) fn tell(shared: &Shared) {
    if let Some(arena) = arena() {
        let events = shared.untold.swap(0, Ordering::SeqCst);
        arena.count_lost(Loss::Early, i32::try_from(events).unwrap_or(i32::MAX));
    }
}

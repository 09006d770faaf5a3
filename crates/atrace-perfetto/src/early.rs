//! Counts events that are lost before the service has reported which sessions exist.
//!
//! The number of lost events is in shared memory as soon as the connection has shared memory. So the service can read
//! the number even if the process is killed.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::memory::{Arena, Loss};

/// The counts of a process. All zeros are a valid value.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct EarlyLosses {
    /// The number of events that were lost.
    pub(crate) events: AtomicU64,
    /// The number of lost events that are not published yet, that is, not yet counted in shared memory.
    unpublished: AtomicU64,
    /// The number of open slices whose begins were lost. Their ends will be lost as well.
    unbegun: AtomicU64,
}

/// The shared memory of the connection, or null if there is none.
static ARENA: AtomicPtr<Arena> = AtomicPtr::new(std::ptr::null_mut());

/// Returns the shared memory of the connection, if there is any.
pub(crate) fn arena() -> Option<&'static Arena> {
    // SAFETY: the pointer is null, or comes from a reference to an arena, which lives forever.
    #[expect(unsafe_code, reason = "events find the arena through an atomic pointer")]
    unsafe {
        ARENA.load(Ordering::SeqCst).as_ref()
    }
}

/// Sets the shared memory of the connection, or removes it (`None`). This is called when the connection gets memory,
/// after the connection is lost, and in a forked child.
///
/// Async-signal-safe.
pub(crate) fn set_arena(arena: Option<&'static Arena>) {
    let pointer = arena.map_or(std::ptr::null_mut(), |arena| std::ptr::from_ref(arena).cast_mut());
    ARENA.store(pointer, Ordering::SeqCst);
}

impl EarlyLosses {
    /// Sets all counts to 0.
    pub(crate) fn clear(&self) {
        for count in [&self.events, &self.unpublished, &self.unbegun] {
            count.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a lost event that changes the number of open slices of its thread by `opens`. Returns true if the event
    /// begins a slice of the thread, whose end will then be lost as well.
    #[inline(never)]
    pub(crate) fn lose(&self, opens: i32) -> bool {
        if opens < 0 {
            self.lose_end();
            return false;
        }
        self.count();
        let is_begin = opens > 0;
        if is_begin {
            self.unbegun.fetch_add(1, Ordering::Relaxed);
        }
        is_begin
    }

    /// Counts an end as lost, if this process has lost more begins than ends so far. This is called for an end if the
    /// slice began before the session, or if the sessions are not known yet. The process has only one count of lost
    /// begins, so the lost begin may be that of another slice.
    #[cold]
    pub(crate) fn lose_end(&self) {
        let less = |unbegun: u64| unbegun.checked_sub(1);
        if self.unbegun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            self.count();
        }
    }

    /// Counts a lost event.
    #[inline(never)]
    pub(crate) fn count(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
        self.unpublished.fetch_add(1, Ordering::SeqCst);
        self.publish();
    }

    /// Returns whether there are lost events that are not yet counted in shared memory.
    pub(crate) fn has_unpublished(&self) -> bool {
        self.unpublished.load(Ordering::Relaxed) != 0
    }

    /// Takes the count of lost events back from shared memory that the service has not accepted. The count is moved to
    /// the connection's next shared memory.
    pub(crate) fn take_back(&self, arena: &Arena) {
        set_arena(None);
        self.unpublished.fetch_add(arena.take_lost(Loss::Early).into(), Ordering::SeqCst);
    }

    /// Moves the count of unpublished lost events to shared memory, if the connection has shared memory.
    ///
    /// [`count`](Self::count) calls this after it has counted an event, and the socket thread calls it after it has set
    /// the shared memory. The accesses are sequentially consistent, so at least one of the two threads sees the other
    /// thread's write, and moves the count.
    #[inline(never)]
    pub(crate) fn publish(&self) {
        if let Some(arena) = arena() {
            let events = self.unpublished.swap(0, Ordering::SeqCst);
            arena.count_lost(Loss::Early, i32::try_from(events).unwrap_or(i32::MAX));
        }
    }
}

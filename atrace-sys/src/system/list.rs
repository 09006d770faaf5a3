//! Bionic's list of threads, which no thread of ours changes while the process is forked.
//!
//! The list has a lock that `pthread_create` takes, and a detached thread at its end. A child that is forked meanwhile finds it
//! held, and can start no thread any more. So there is a lock around it that `fork` waits for, and our threads are
//! not detached: each joins at its end the one that was at its own before.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use super::c;

static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The last thread that was at its end; 0: none. Changed only while the lock is held, so never at a fork.
static LEFT: AtomicIsize = AtomicIsize::new(0);

extern "C" fn hold() {
    while IS_HELD.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn release() {
    IS_HELD.store(false, Ordering::Release);
}

/// A child has none of its parent's threads.
extern "C" fn forget() {
    LEFT.store(0, Ordering::Relaxed);
    release();
}

/// How `pthread_create` is to make a thread.
pub(super) const JOINABLE: libc::c_int = libc::PTHREAD_CREATE_JOINABLE;

/// Has `start` call `pthread_create`; the thread calls [`leave`] last. All signals must be blocked: a handler could fork.
pub(super) fn starting(start: impl FnOnce() -> libc::c_int) -> libc::c_int {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // Without memory for them it is as if there were none.
        c::pthread_atfork(Some(hold), Some(release), Some(forget));
    }
    hold();
    let code = start();
    release();
    code
}

/// The calling thread, which was made while [`starting`], is about to end.
pub(super) fn leave() {
    hold();
    let before = LEFT.swap(c::pthread_self() as isize, Ordering::Relaxed);
    if before != 0 {
        // SAFETY: a thread of ours that nobody else joins. It ends by itself: it is behind its `release`.
        unsafe { libc::pthread_join(before as libc::pthread_t, std::ptr::null_mut()) };
    }
    release();
}

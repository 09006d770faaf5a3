//! Makes sure that no thread of this library holds the lock of bionic's list of threads while the process is forked.
//!
//! `pthread_create` takes the list's lock, and so does a detached thread at its end. A child that is forked while a
//! thread holds this lock finds the lock held and can never start a thread. So a lock of this module is held during
//! both operations, and `fork` waits for that lock. In addition, the threads of this library are not detached: each
//! thread, at its end, joins the thread that ended before it.

use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

use super::c;

static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The last thread that has ended, which the next ending thread joins; or 0 if there is none. This value only changes
/// while the lock of this module is held, so it never changes during a fork.
static LEFT: AtomicIsize = AtomicIsize::new(0);

extern "C" fn hold() {
    while IS_HELD.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
}

extern "C" fn release() {
    IS_HELD.store(false, Ordering::Release);
}

/// Forgets the thread to be joined. A forked child calls this function, because its parent's threads do not exist in
/// the child.
extern "C" fn forget() {
    LEFT.store(0, Ordering::Relaxed);
    release();
}

/// The detach state of this library's threads, for the attributes that are passed to `pthread_create`.
pub(super) const JOINABLE: libc::c_int = libc::PTHREAD_CREATE_JOINABLE;

/// Calls `start`, which must call `pthread_create`, while the lock of this module is held. The new thread must call
/// [`leave`] as its last action. All signals must be blocked, because a signal handler could fork.
pub(super) fn starting(start: impl FnOnce() -> libc::c_int) -> libc::c_int {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // If there is no memory for the fork handlers, threads are started nevertheless, without this protection.
        c::pthread_atfork(Some(hold), Some(release), Some(forget));
    }
    hold();
    let code = start();
    release();
    code
}

/// Joins the thread that ended last. A thread that was created within [`starting`] must call this as its last action.
pub(super) fn leave() {
    hold();
    let before = LEFT.swap(c::pthread_self() as isize, Ordering::Relaxed);
    if before != 0 {
        // SAFETY: `before` is a thread of this library that no other code joins. It ends soon, because it has released
        // the lock.
        unsafe { libc::pthread_join(before as libc::pthread_t, std::ptr::null_mut()) };
    }
    release();
}

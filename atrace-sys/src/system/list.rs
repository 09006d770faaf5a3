//! Bionic's list of threads, which no thread of ours changes while the process is forked.
//!
//! The list has a lock that `pthread_create` takes, and a detached thread at its end. A child that is forked meanwhile finds it
//! held, and can start no thread any more. So there is a lock around it that `fork` waits for, and our threads are
//! not detached: who starts the next one joins those that are gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use super::{c, is_thread};

static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The threads that are at their end, and their numbers. Locked only while the other lock is held, so never at a fork.
static LEAVING: Mutex<Vec<(libc::pthread_t, u32)>> = Mutex::new(Vec::new());

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
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner).clear();
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
    let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut at = 0;
    while let Some(&(thread, number)) = leaving.get(at) {
        if is_thread(number) {
            at += 1;
        } else {
            // SAFETY: a thread of ours that was not joined, and is gone.
            unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
            leaving.swap_remove(at);
        }
    }
    drop(leaving);
    let code = start();
    release();
    code
}

/// The calling thread, which was made while [`starting`], is about to end.
pub(super) fn leave() {
    hold();
    let this = (c::pthread_self(), c::gettid().cast_unsigned());
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner).push(this);
    release();
}

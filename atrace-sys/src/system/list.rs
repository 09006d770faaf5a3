//! Bionic's list of threads, which no thread of ours changes while the process is forked.
//!
//! The list has a lock that `pthread_create` takes, and a detached thread at its end. A child that is forked meanwhile finds it
//! held, and can start no thread any more. So there is a lock around it that `fork` waits for, and our threads are
//! not detached: who starts the next one joins those that are gone.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

static IS_HELD: AtomicBool = AtomicBool::new(false);
/// The threads that are at their end, and their numbers. Locked only while the other lock is held, so never at a fork.
static LEAVING: Mutex<Vec<(libc::pthread_t, libc::pid_t)>> = Mutex::new(Vec::new());

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

/// Calls `pthread_create`; the thread is not detached, and calls [`leave`] last. All signals must be blocked: a handler
/// could fork.
///
/// # Safety
/// As for `pthread_create`.
pub(super) unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *mut libc::pthread_attr_t,
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    start: *mut c_void,
) -> libc::c_int {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: functions that are there as long as the process; without memory for them it is as if there were none.
        unsafe { libc::pthread_atfork(Some(hold), Some(release), Some(forget)) };
    }
    hold();
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner).retain(|&(thread, number)| {
        // SAFETY: numbers; no signal is sent.
        let is_there = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) } == 0;
        if !is_there {
            // SAFETY: a thread of ours that was not joined, and is gone.
            unsafe { libc::pthread_join(thread, std::ptr::null_mut()) };
        }
        is_there
    });
    // SAFETY: the caller's.
    let code = unsafe { libc::pthread_create(thread, attributes, run, start) };
    release();
    code
}

/// The calling thread, which [`create`] made, is about to end.
pub(super) fn leave() {
    hold();
    // SAFETY: take nothing, and return numbers.
    let this = unsafe { (libc::pthread_self(), libc::gettid()) };
    LEAVING.lock().unwrap_or_else(PoisonError::into_inner).push(this);
    release();
}

//! A helper thread that the program it lives in does not notice: no signal lands on it, no descriptor is kept
//! open by it.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

/// Starts a thread on which no signal of the process is delivered.
///
/// A program's signal handlers expect its own threads.
///
/// # Errors
///
/// When the system has no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are writable; sigfillset initialises the first, pthread_sigmask the second. A thread
    // inherits the mask of its maker, so the mask is set around the start and put back.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // A thread has the descriptors of its maker.
    let has_left = LEFT.get();
    let thread = Builder::new().name(name.to_owned()).spawn(move || {
        LEFT.set(has_left);
        body();
    });
    // SAFETY: `before` holds this thread's mask, see above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    thread
}

/// Gives the calling thread a descriptor table of its own, and empties it; tells whether that was done.
///
/// While threads share their table, the kernel counts references at each `write(2)`: 65–80 ns on the machine
/// this was measured on, for a second thread that only sleeps. After this call no descriptor of the process
/// is open in the calling thread, and it keeps none of them open. Nothing that reads, writes, opens or closes
/// may run in it from then on.
///
/// Needs `close_range(2)` of Linux 5.9 and, as the system call filter of an app kills it for calls that its
/// Android does not know, Android 13; before that nothing is changed.
#[doc(alias = "close_range")]
pub fn leave_descriptors() -> bool {
    // In every architecture since its introduction; libc does not name it for all Android targets.
    const SYS_CLOSE_RANGE: libc::c_long = 436;
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    if !may_call_close_range() {
        return false;
    }
    // SAFETY: affects the calling thread's own descriptors only, which the caller gives up.
    let left = unsafe {
        libc::syscall(SYS_CLOSE_RANGE, 0 as libc::c_uint, libc::c_uint::MAX, CLOSE_RANGE_UNSHARE) == 0
    };
    if left {
        LEFT.set(true);
    }
    left
}

/// Android's filter lets apps make the call since Android 13; who makes an unknown one gets a SIGSYS.
#[cfg(target_os = "android")]
fn may_call_close_range() -> bool {
    use crate::properties::Properties;
    const ANDROID_13: u32 = 33;
    Properties::open().ok().and_then(Properties::api_level).is_some_and(|level| level >= ANDROID_13)
}

#[cfg(not(target_os = "android"))]
fn may_call_close_range() -> bool {
    true
}

thread_local! {
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

/// Tells whether the calling thread has [left](leave_descriptors) the descriptors of the process.
pub(crate) fn has_left_descriptors() -> bool {
    LEFT.get()
}

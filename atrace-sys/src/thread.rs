//! A helper thread that the program it lives in does not notice: no signal lands on it, no descriptor is kept
//! open by it.

use std::cell::Cell;
use std::ffi::c_void;
use std::io;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How much stack such a thread has, as one of std's.
const STACK: usize = 2 << 20;

struct Start {
    /// With a NUL.
    name: Vec<u8>,
    has_left: bool,
    body: Box<dyn FnOnce() + Send>,
}

/// Starts a thread on which no signal of the process is delivered. Nobody waits for it. A panic in it ends it, once the
/// panic hook has reported it.
///
/// A program's signal handlers expect its own threads. It is none of std's, where each thread takes a lock as it starts: a
/// child forked meanwhile could start no more.
///
/// # Errors
///
/// When the system has no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: both sets are writable; sigfillset initialises the first, pthread_sigmask the second. A thread
    // inherits the mask of its maker, so the mask is set around the start and put back.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // A thread has the descriptors of its maker.
    let name = name.bytes().take(15).chain([0]).collect();
    let start = Box::into_raw(Box::new(Start { name, has_left: LEFT.get(), body: Box::new(body) }));
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::zeroed();
    let mut thread = MaybeUninit::<libc::pthread_t>::zeroed();
    // SAFETY: the attributes are initialised first and destroyed last; `run` takes the box over if it is called.
    let code = unsafe {
        libc::pthread_attr_init(attributes.as_mut_ptr());
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), STACK);
        let code = libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), run, start.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        code
    };
    // SAFETY: `before` holds this thread's mask, see above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    if code == 0 {
        return Ok(());
    }
    // SAFETY: made above, and no thread has it.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(code))
}

extern "C" fn run(start: *mut c_void) -> *mut c_void {
    // SAFETY: the box that `spawn_quiet` gave to this thread alone.
    let Start { name, has_left, body } = *unsafe { Box::from_raw(start.cast::<Start>()) };
    // SAFETY: a text that ends with a NUL.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    LEFT.set(has_left);
    if let Err(thrown) = catch_unwind(AssertUnwindSafe(body)) {
        std::mem::forget(thrown); // It may panic as it is dropped.
    }
    std::ptr::null_mut()
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

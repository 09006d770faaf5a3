//! Threads of the process: starting them, and facts about the calling thread.

use std::ffi::c_void;
use std::io;

#[cfg(target_os = "android")]
use super::list::{JOINABLE as STATE, leave, starting};
use super::signals::{Blocked, Signals};
use super::{Errno, c, stay_loaded, zeros};

#[cfg(not(target_os = "android"))]
const STATE: libc::c_int = libc::PTHREAD_CREATE_DETACHED;

#[cfg(not(target_os = "android"))]
fn starting(start: impl FnOnce() -> libc::c_int) -> libc::c_int {
    start()
}

#[cfg(not(target_os = "android"))]
fn leave() {}

/// The stack size of a thread of [`spawn`] in bytes, which is the default of std.
const STACK: usize = 2 << 20;

type Body = Box<dyn FnOnce() + Send>;

/// The argument of a new thread: its name, with at least one NUL, and its body.
struct Start([u8; 16], Body);

/// Starts a thread that the caller can't join and that blocks all signals except those that the C library uses itself.
/// `body` must not panic. Allocates.
pub(crate) fn spawn(name: &str, body: Body) -> io::Result<()> {
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: the pointer is the box that `spawn` has given to this thread alone.
        let Start(name, body) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        let _ = c::name_thread(&name);
        body();
        leave();
        std::ptr::null_mut()
    }
    let mut text = [0; 16];
    let length = name.len().min(15);
    text[..length].copy_from_slice(&name.as_bytes()[..length]);
    stay_loaded();
    let start = Box::into_raw(Box::new(Start(text, body)));
    let mut attributes: libc::pthread_attr_t = zeros();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::zeroed();
    // A new thread inherits the signal mask of the thread that makes it.
    let blocked = Blocked::new(&Signals::all());
    // SAFETY: the attributes are initialised first and destroyed last. `run` takes over the box if it is called.
    let code = unsafe {
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        libc::pthread_attr_setdetachstate(&mut attributes, STATE);
        let code = starting(|| libc::pthread_create(thread.as_mut_ptr(), &attributes, run, start.cast()));
        libc::pthread_attr_destroy(&mut attributes);
        code
    };
    drop(blocked);
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the box was made above, and no thread has taken it over.
    drop(unsafe { Box::from_raw(start) });
    Err(Errno(code).into())
}

/// Gives the calling thread an empty descriptor table of its own.
pub(crate) fn leave_descriptors() -> bool {
    const CLOSE_RANGE_UNSHARE: libc::c_int = 1 << 1;
    close_range(0, CLOSE_RANGE_UNSHARE)
}

/// Closes all descriptors from `first` on. `flags` has the same meaning as in `close_range(2)`. Needs Linux 5.9.
pub(crate) fn close_range(first: libc::c_int, flags: libc::c_int) -> bool {
    // The caller gives up the descriptors that are closed. The kernel takes -1 for the highest descriptor.
    c::close_range(first, -1, flags).is_ok()
}

/// Returns the kernel's id of the calling thread, if it is known.
#[inline]
pub fn thread_number() -> Option<u32> {
    u32::try_from(c::gettid()).ok().filter(|_| !cfg!(miri))
}

/// Returns the bounds of the calling thread's stack, if they are known: its lowest address, and the address behind its
/// highest byte. May allocate.
pub fn stack_bounds() -> Option<(usize, usize)> {
    let mut attributes: libc::pthread_attr_t = zeros();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    if cfg!(miri) {
        return None;
    }
    // SAFETY: the attributes are only used and destroyed if pthread_getattr_np has initialised them. Both results are
    // written to local variables.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let is_known = libc::pthread_attr_getstack(&attributes, &mut low, &mut size) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        if !is_known {
            return None;
        }
    }
    let high = low.addr().checked_add(size)?;
    // A range of 1024 bytes or less is not a stack.
    (!low.is_null() && size > 1024).then_some((low.addr(), high))
}

/// Sets the calling thread's cancellation state, and returns the former state.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn set_cancelable(state: i32) -> i32 {
    let mut old = 0;
    c::pthread_setcancelstate(state, &mut old);
    old
}

/// Does nothing, because bionic has no cancellation.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn set_cancelable(state: i32) -> i32 {
    state
}

/// Returns whether this process has a thread with this kernel id.
pub fn is_thread(number: u32) -> bool {
    // Signal 0 is not sent; the kernel only checks whether a signal could be sent to the thread.
    let sent = c::tgkill(super::process_id().cast_signed(), number.cast_signed(), 0);
    sent.map_or_else(|error| error != Errno(libc::ESRCH), |_| true)
}

/// Reads the name of the calling thread, with a NUL at its end.
pub(crate) fn thread_name(name: &mut [u8; 16]) {
    let _ = c::name_of_thread(name);
}

/// Returns the seccomp mode of the calling thread, that is, how the kernel filters the thread's
/// system calls. 0 means no filter.
pub(crate) fn seccomp_mode() -> u32 {
    c::seccomp_mode().map_or(0, |mode| mode as u32)
}

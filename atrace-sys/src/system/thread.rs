//! Threads of the process.

use std::ffi::c_void;
use std::io;

use super::signals::{Blocked, Signals};
use super::{Plain, zeros};

/// How much stack a thread of [`spawn`] has, as one of std's.
const STACK: usize = 2 << 20;

// SAFETY: initialised by the C library before it is read.
unsafe impl Plain for libc::pthread_attr_t {}

type Body = Box<dyn FnOnce() + Send>;

/// What a thread is given: its name, with a NUL, and what it does.
struct Start(Vec<u8>, Body);

/// Starts a thread that nobody waits for, on which no signal is delivered; `body` must not panic. Allocates.
pub(crate) fn spawn(name: &str, body: Body) -> io::Result<()> {
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: the box that `spawn` gave to this thread alone.
        let Start(name, body) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        // SAFETY: a text that ends with a NUL.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        body();
        leave();
        std::ptr::null_mut()
    }
    let start = Box::into_raw(Box::new(Start(name.bytes().take(15).chain([0]).collect(), body)));
    let mut attributes: libc::pthread_attr_t = zeros();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::zeroed();
    // A thread inherits the mask of its maker.
    let blocked = Blocked::new(&Signals::all());
    // SAFETY: the attributes are initialised first and destroyed last; `run` takes the box over if it is called.
    let code = unsafe {
        libc::pthread_attr_init(&mut attributes);
        libc::pthread_attr_setstacksize(&mut attributes, STACK);
        let code = create(thread.as_mut_ptr(), &mut attributes, run, start.cast());
        libc::pthread_attr_destroy(&mut attributes);
        code
    };
    drop(blocked);
    if code == 0 {
        return Ok(());
    }
    // SAFETY: made above, and no thread has it.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(code))
}

#[cfg(target_os = "android")]
use super::list::{create, leave};

/// Calls `pthread_create`; the thread is detached.
///
/// # Safety
/// As for `pthread_create`.
#[cfg(not(target_os = "android"))]
unsafe fn create(
    thread: *mut libc::pthread_t,
    attributes: *mut libc::pthread_attr_t,
    run: extern "C" fn(*mut c_void) -> *mut c_void,
    start: *mut c_void,
) -> libc::c_int {
    // SAFETY: the caller's.
    unsafe {
        libc::pthread_attr_setdetachstate(attributes, libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_create(thread, attributes, run, start)
    }
}

#[cfg(not(target_os = "android"))]
fn leave() {}

/// Gives the calling thread an empty descriptor table of its own.
pub(crate) fn leave_descriptors() -> bool {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    close_range(0, CLOSE_RANGE_UNSHARE)
}

/// Closes the descriptors from `first` on; `flags` as in `close_range(2)`. Of Linux 5.9.
pub(crate) fn close_range(first: libc::c_uint, flags: libc::c_uint) -> bool {
    // In every architecture since its introduction; libc does not name it for all Android targets.
    const SYS_CLOSE_RANGE: libc::c_long = 436;
    // SAFETY: numbers. What is closed, the caller gives up.
    unsafe { libc::syscall(SYS_CLOSE_RANGE, first, libc::c_uint::MAX, flags) == 0 }
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_number() -> Option<u32> {
    // SAFETY: takes nothing, and returns a number.
    u32::try_from(unsafe { libc::gettid() }).ok().filter(|_| !cfg!(miri))
}

/// Where the calling thread's stack is: its lowest address and the one behind its highest.
pub(crate) fn stack_bounds() -> Option<(usize, usize)> {
    let mut attributes: libc::pthread_attr_t = zeros();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    if cfg!(miri) {
        return None;
    }
    // SAFETY: the attributes are read and given back only where pthread_getattr_np has made them; both results are
    // written to variables that live here.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return None;
        }
        let told = libc::pthread_attr_getstack(&attributes, &mut low, &mut size) == 0;
        libc::pthread_attr_destroy(&mut attributes);
        if !told {
            return None;
        }
    }
    let high = low.addr().checked_add(size)?;
    // Less than this is no stack.
    (!low.is_null() && size > 1024).then_some((low.addr(), high))
}

/// Sets whether the calling thread can be cancelled; returns what it was.
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) fn set_cancelable(state: i32) -> i32 {
    unsafe extern "C" {
        // SAFETY: the signature is that of pthread.h.
        fn pthread_setcancelstate(state: i32, old: *mut i32) -> i32;
    }
    let mut old = 0;
    // SAFETY: `old` is writable; the state is one of the two, and no cancellation point.
    unsafe { pthread_setcancelstate(state, &mut old) };
    old
}

/// Bionic has no cancellation.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub(crate) fn set_cancelable(state: i32) -> i32 {
    state
}

/// Whether the process has a thread of this number.
#[cfg(not(no_tracing))]
pub(crate) fn is_thread(number: u32) -> bool {
    // SAFETY: no signal is sent, it is asked only whether one could be.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), number, 0) };
    sent == 0 || super::errno() != libc::ESRCH
}

/// Writes the name of the calling thread, with a NUL.
pub(crate) fn thread_name(name: &mut [u8; 16]) {
    // SAFETY: the kernel writes 16 bytes at most.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
}

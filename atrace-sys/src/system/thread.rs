//! Threads of the process.

use std::ffi::c_void;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::c::{self, Call};
#[cfg(target_os = "android")]
use super::list::{JOINABLE as STATE, leave, starting};
use super::signals::{Blocked, Signals};
use super::{Plain, bare, zeros};
use crate::fork::generation;

#[cfg(not(target_os = "android"))]
const STATE: libc::c_int = libc::PTHREAD_CREATE_DETACHED;

#[cfg(not(target_os = "android"))]
fn starting(start: impl FnOnce() -> libc::c_int) -> libc::c_int {
    start()
}

#[cfg(not(target_os = "android"))]
fn leave() {}

/// How much stack a thread of [`spawn`] has, as one of std's.
const STACK: usize = 2 << 20;

// SAFETY: initialised by the C library before it is read.
unsafe impl Plain for libc::pthread_attr_t {}

type Body = Box<dyn FnOnce() + Send>;

/// What a thread is given: its name, with a NUL at least, and what it does.
struct Start([u8; 16], Body);

/// Starts a thread that nobody waits for, on which no signal is delivered; `body` must not panic. Allocates.
pub(crate) fn spawn(name: &str, body: Body) -> io::Result<()> {
    extern "C" fn run(start: *mut c_void) -> *mut c_void {
        // SAFETY: the box that `spawn` gave to this thread alone.
        let Start(mut name, body) = *unsafe { Box::from_raw(start.cast::<Start>()) };
        name_of_thread(true, &mut name);
        body();
        leave();
        std::ptr::null_mut()
    }
    let mut text = [0; 16];
    let length = name.len().min(15);
    text[..length].copy_from_slice(&name.as_bytes()[..length]);
    let start = Box::into_raw(Box::new(Start(text, body)));
    let mut attributes: libc::pthread_attr_t = zeros();
    let mut thread = std::mem::MaybeUninit::<libc::pthread_t>::zeroed();
    // A thread inherits the mask of its maker.
    let blocked = Blocked::new(&Signals::all());
    // SAFETY: the attributes are initialised first and destroyed last; `run` takes the box over if it is called.
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
    // SAFETY: made above, and no thread has it.
    drop(unsafe { Box::from_raw(start) });
    Err(io::Error::from_raw_os_error(code))
}

/// The generation of a process and the kernel's number of its bare thread, while there is one.
static BARE: AtomicU64 = AtomicU64::new(0);

/// Tells whether the calling thread is one of [`spawn_bare`], which has no thread-locals.
pub(crate) fn is_bare() -> bool {
    let bare = BARE.load(Ordering::Relaxed);
    bare != 0 && bare == bare_here()
}

/// The word for the calling thread.
fn bare_here() -> u64 {
    // SAFETY: no arguments. The C library's function may keep the number in a thread-local.
    let number = unsafe { bare::call(libc::SYS_gettid, [0; 6]) };
    generation().number() << 32 | number as u32 as u64
}

/// Starts a thread without the C library ([`bare`]), on which no signal is delivered. Async-signal-safe.
pub(crate) fn spawn_bare(body: extern "C" fn()) -> bool {
    extern "C" fn run(body: usize) {
        BARE.store(bare_here(), Ordering::Relaxed);
        name_of_thread(true, &mut b"atrace-perfetto\0".to_owned());
        // SAFETY: the address of a function of this type, given below.
        let body: extern "C" fn() =
            unsafe { std::mem::transmute(std::ptr::with_exposed_provenance::<()>(body)) };
        body();
        // Unless another one was started since.
        let _ = BARE.compare_exchange(bare_here(), 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    let blocked = change_mask(libc::SIG_BLOCK, u64::MAX);
    let started = bare::start(run, (body as *const ()).expose_provenance());
    change_mask(libc::SIG_SETMASK, blocked);
    started
}

/// Changes which signals the calling thread has blocked, the C library's own among them; returns which it had.
fn change_mask(how: libc::c_int, mask: u64) -> u64 {
    let mut before = 0_u64;
    let (mask, place) = ((&raw const mask).expose_provenance(), (&raw mut before).expose_provenance());
    let numbers = [how as isize, mask as isize, place as isize, size_of::<u64>() as isize, 0, 0];
    // SAFETY: the kernel reads and writes 64 bits.
    unsafe { bare::call(libc::SYS_rt_sigprocmask, numbers) };
    before
}

/// Gives the calling thread an empty descriptor table of its own.
pub(crate) fn leave_descriptors() -> bool {
    const CLOSE_RANGE_UNSHARE: libc::c_uint = 1 << 1;
    close_range(0, CLOSE_RANGE_UNSHARE)
}

/// Closes the descriptors from `first` on; `flags` as in `close_range(2)`. Of Linux 5.9.
pub(crate) fn close_range(first: libc::c_uint, flags: libc::c_uint) -> bool {
    // What is closed, the caller gives up.
    let numbers = [first, libc::c_uint::MAX, flags].map(|number| number as isize);
    Call::CLOSE_RANGE.call(numbers).is_ok()
}

/// The kernel's number of the calling thread.
pub(crate) fn thread_number() -> Option<u32> {
    u32::try_from(c::gettid()).ok().filter(|_| !cfg!(miri))
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
    let mut old = 0;
    c::pthread_setcancelstate(state, &mut old);
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
    // No signal is sent, it is asked only whether one could be.
    let sent = Call::TGKILL.call([super::process_id() as isize, number as isize, 0]);
    sent.map_or_else(|error| error.raw_os_error() != Some(libc::ESRCH), |_| true)
}

/// Writes the name of the calling thread, with a NUL.
pub(crate) fn thread_name(name: &mut [u8; 16]) {
    name_of_thread(false, name);
}

/// Sets or reads the name of the calling thread.
fn name_of_thread(set: bool, name: &mut [u8; 16]) {
    let command = if set { libc::PR_SET_NAME } else { libc::PR_GET_NAME };
    let place = name.as_mut_ptr().expose_provenance() as isize;
    // SAFETY: the kernel reads or writes 16 bytes at most.
    unsafe { bare::call(libc::SYS_prctl, [command as isize, place, 0, 0, 0, 0]) };
}

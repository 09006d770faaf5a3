//! System calls and functions of the C libraries of Linux and Android, as safe functions.
//!
//! - A failed call returns errno as an error. The call may also change errno, so a caller that must leave errno
//!   unchanged holds an [`ErrnoGuard`].
//! - A function allocates only if its documentation says so, because signal handlers and forked children call functions
//!   of this module.
//! - On systems without tracing, `unsupported.rs` replaces this module.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

pub(crate) mod bare;
pub(crate) mod c;
mod clock;
#[cfg(target_os = "linux")]
pub(crate) mod directory;
mod errno;
pub(crate) mod file;
pub(crate) mod futex;
mod library;
#[cfg(target_os = "android")]
mod list;
mod memory;
mod process;
pub(crate) mod signals;
mod thread;

pub(crate) use self::clock::clock_time;
pub use self::clock::{process_time, thread_time, time_of_thread};
pub use self::errno::{Errno, ErrnoGuard, Result};
pub use self::file::Descriptor;
pub use self::library::stay_loaded;
pub(crate) use self::library::{Library, library_of};
pub use self::memory::mapped_from;
pub(crate) use self::memory::wiped_on_fork;
pub use self::memory::{Mapped, Region, Shared, page_size};
pub use self::process::*;
pub(crate) use self::signals::complain;
pub(crate) use self::thread::{
    close_range, leave_descriptors, seccomp_mode, set_cancelable, spawn, thread_name,
};
pub use self::thread::{is_thread, stack_bounds, thread_number};

/// Types for which zeroes are a valid value, such as structures that the C library or the kernel fills in.
///
/// # Safety
///
/// Zeroes must be a valid value of the type.
pub unsafe trait Plain {}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: the type consists of numbers and of pointers that may be null.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(libc::msghdr, libc::cmsghdr, libc::sockaddr_un, libc::ucred, file::wide::stat, file::wide::statfs);
plain!(libc::sigset_t, libc::sigaction, libc::stack_t, libc::pthread_attr_t, libc::rusage);

pub(crate) fn zeros<T: Plain>() -> T {
    // SAFETY: the trait guarantees that zeroes are valid.
    unsafe { std::mem::zeroed() }
}

/// Converts bytes to an `OsStr`, which may consist of any bytes.
pub(crate) fn os_str(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Converts the result of a C function that returns -1 and sets errno when it fails.
pub(crate) fn check(result: libc::c_int) -> Result<libc::c_int> {
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Returns whether an operation that failed with this errno may succeed soon: there was no free descriptor, memory or
/// other resource, or the operation was interrupted.
pub fn may_pass(errno: i32) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN | libc::EINTR)
}

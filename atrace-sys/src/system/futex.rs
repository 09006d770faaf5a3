//! Futexes: sleeping until a word of shared memory changes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::{Errno, Result, bare, c};

/// Converts a duration to the system's type.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        // Less than 10^9, which fits into every width.
        tv_nsec: duration.subsec_nanos() as _,
    }
}

/// Sleeps while the word is `expected`, until a wake, a signal or the end of `timeout`.
///
/// It may also return for no reason, so the caller must check the word.
pub(crate) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Result<()> {
    match futex(word, libc::FUTEX_WAIT, expected, Some(&timespec(timeout))) {
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)) => Ok(()),
        result => result,
    }
}

/// Wakes all threads that sleep on the word, in any process.
pub(crate) fn wake(word: &AtomicU32) {
    // A failure is harmless, because sleepers check the word from time to time.
    let _ = futex(word, libc::FUTEX_WAKE, libc::c_int::MAX as u32, None);
}

fn futex(
    word: &AtomicU32,
    operation: libc::c_int,
    value: u32,
    timeout: Option<&libc::timespec>,
) -> Result<()> {
    let timeout = timeout.map_or(std::ptr::null(), std::ptr::from_ref);
    let numbers = [
        word.as_ptr().expose_provenance() as isize,
        operation as isize,
        value as isize,
        timeout.expose_provenance() as isize,
        0,
        0,
    ];
    // SAFETY: the word and the timeout are valid during the call. Without FUTEX_PRIVATE_FLAG the kernel identifies
    // the word by its file and offset, so that other processes can wake us; it only reads the mapping.
    c::answer(unsafe { bare::call(libc::SYS_futex, numbers) }).map(drop)
}

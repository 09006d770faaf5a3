//! Futexes: sleeping until a word of shared memory changes.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use super::{Errno, Result, c};

/// Converts a duration to a `timespec`.
pub(crate) fn timespec(duration: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        // The number is less than 10^9, so it fits into every width of the field.
        tv_nsec: duration.subsec_nanos() as _,
    }
}

/// Sleeps while the word is `expected`: until another thread wakes this one, a signal arrives, or `timeout`
/// has passed.
///
/// The function may return for no reason, so the caller must check the word.
///
/// # Errors
///
/// Returns the error of the system if the call is not allowed.
pub fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> Result<()> {
    // Without FUTEX_PRIVATE_FLAG the kernel identifies the word by its file and offset, so that other processes can
    // wake this thread. The kernel only reads the mapping.
    match c::futex_wait(word, expected.cast_signed(), &timespec(timeout)) {
        Err(Errno(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)) => Ok(()),
        result => result.map(drop),
    }
}

/// Wakes all threads that sleep on the word, in any process.
pub fn wake(word: &AtomicU32) {
    // A failure is harmless, because sleepers check the word from time to time.
    let _ = c::futex_wake(word, libc::c_int::MAX);
}

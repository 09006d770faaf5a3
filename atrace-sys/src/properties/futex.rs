//! Sleeping until a word of shared memory changes.

use std::io;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Sleeps while the word is `expected`, until woken, interrupted or `timeout`.
///
/// Returns early for no reason, too: the caller must look at the word again.
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout: Duration) -> io::Result<()> {
    let timeout = libc::timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        // Below a thousand million, which every width holds.
        tv_nsec: timeout.subsec_nanos() as _,
    };
    // SAFETY: the word and the timeout are live for the call. Without FUTEX_PRIVATE_FLAG, the kernel knows
    // the word by its file and offset, so that other processes can wake us; reading is all that it needs of
    // the mapping.
    let result = unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const timeout,
            std::ptr::null::<u32>(),
            0,
        )
    };
    if result == 0 {
        return Ok(());
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR | libc::ETIMEDOUT)) => Ok(()),
        error => Err(error),
    }
}

/// Wakes all who sleep on the word, in any process.
pub(super) fn wake(word: &AtomicU32) {
    // SAFETY: the word is live for the call. A failure is harmless, as sleepers look again by themselves.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAKE,
            libc::c_int::MAX,
            std::ptr::null::<libc::timespec>(),
            std::ptr::null::<u32>(),
            0,
        );
    }
}

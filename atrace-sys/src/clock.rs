//! The system's clock, and whether the process may read the processor's counter.

use crate::process::ErrnoGuard;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::system::c;
use crate::system::file;

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds, from the C library or, if this process may not read the
/// processor's counter, from a system call.
#[cold]
#[inline(never)]
pub fn asked() -> u64 {
    // Every supported kernel has this clock.
    time(libc::CLOCK_BOOTTIME, is_allowed()).unwrap_or_default()
}

/// Returns the time of a clock in nanoseconds, or `None` if there is no such clock. If `by_library` is true, calls the
/// C library's function, which may read the processor's counter; otherwise makes a system call. Sets errno if it fails.
pub(crate) fn time(clock: libc::clockid_t, by_library: bool) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and an unknown clock is an error.
    let is_told = unsafe {
        if by_library {
            libc::clock_gettime(clock, &raw mut time) == 0
        } else {
            libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) == 0
        }
    };
    is_told.then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the processor time of the calling thread in nanoseconds, or `None` if the system does not let the process
/// ask for it. Makes a system call. Async-signal-safe.
#[doc(alias = "CLOCK_THREAD_CPUTIME_ID")]
pub fn of_thread() -> Option<u64> {
    let _errno = ErrnoGuard::new();
    time(libc::CLOCK_THREAD_CPUTIME_ID, true)
}

/// Returns whether the process may read the processor's counter (`PR_SET_TSC`). A new thread inherits this right from
/// the thread that creates it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn is_allowed() -> bool {
    static IS_ALLOWED: crate::OnceRef<bool> = crate::OnceRef::new();
    *IS_ALLOWED.get_or(|| {
        let mut mode = 0;
        if c::counter_mode(&mut mode).is_err() || mode == libc::PR_TSC_ENABLE { &true } else { &false }
    })
}

/// Returns whether the process may read the processor's counter, which is always true on this architecture.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub fn is_allowed() -> bool {
    true
}

/// Reads the name of the clock source that the kernel uses, with a line feed at its end. Returns its length, or 0 if
/// it is not known.
pub fn source(name: &mut [u8]) -> usize {
    file::read_start(c"/sys/devices/system/clocksource/clocksource0/current_clocksource", name)
}

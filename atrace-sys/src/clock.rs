//! The system's clock, and whether the process may read the processor's counter.

use crate::process::ErrnoGuard;
#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::system::c;
use crate::system::file;

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds, from a system call.
#[cold]
#[inline(never)]
pub fn asked() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable. The call can't fail, because every supported kernel has this clock. The C library's
    // function reads the processor's counter, so it is only called if that is allowed.
    unsafe {
        if is_allowed() {
            libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time);
        } else {
            libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut time);
        }
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the processor time of the calling thread in nanoseconds, or `None` if the process may not ask for it.
/// Makes a system call. Async-signal-safe.
#[doc(alias = "CLOCK_THREAD_CPUTIME_ID")]
pub fn of_thread() -> Option<u64> {
    let _errno = ErrnoGuard::new();
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable.
    let is_told = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } == 0;
    is_told.then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns whether the process may read the counter (`PR_SET_TSC`). A new thread inherits this right from the
/// thread that creates it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn is_allowed() -> bool {
    static IS_ALLOWED: crate::OnceRef<bool> = crate::OnceRef::new();
    *IS_ALLOWED.get_or(|| {
        let mut mode = 0;
        if c::counter_mode(&mut mode).is_err() || mode == libc::PR_TSC_ENABLE { &true } else { &false }
    })
}

/// Returns whether the process may read the counter, which is always true on this architecture.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub fn is_allowed() -> bool {
    true
}

/// Reads the name of the clock source that the kernel uses, with a line feed at its end. Returns its length, or 0 if
/// it is not known.
pub fn source(name: &mut [u8]) -> usize {
    file::read_start(c"/sys/devices/system/clocksource/clocksource0/current_clocksource", name)
}

//! The system's clock, and whether the process may read the processor's counter.

#[cfg(all(target_arch = "x86_64", not(miri)))]
use crate::system::c;
use crate::system::{ErrnoGuard, clock_time, file};

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds. Calls the C library, which may read the processor's counter. If
/// this process may not read that counter, makes a system call instead.
#[cold]
#[inline(never)]
pub fn asked() -> u64 {
    // Every supported kernel has `CLOCK_BOOTTIME`.
    clock_time(libc::CLOCK_BOOTTIME, is_allowed()).unwrap_or_default()
}

/// Returns the processor time of the calling thread in nanoseconds, or `None` if the system does not let the process
/// read this time. Makes a system call. Async-signal-safe.
#[doc(alias = "CLOCK_THREAD_CPUTIME_ID")]
pub fn of_thread() -> Option<u64> {
    let _errno = ErrnoGuard::new();
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID, true)
}

/// Returns whether the process may read the processor's counter (`PR_SET_TSC`). A new thread inherits this right from
/// the thread that creates it.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn is_allowed() -> bool {
    static IS_ALLOWED: crate::word::OnceRef<bool> = crate::word::OnceRef::new();
    *IS_ALLOWED.get_or(|| {
        let mut mode = 0;
        if c::counter_mode(&mut mode).is_err() || mode == libc::PR_TSC_ENABLE { &true } else { &false }
    })
}

/// Returns true: on this architecture, every process may read the processor's counter.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub fn is_allowed() -> bool {
    true
}

/// Reads the name of the clock source that the kernel uses, with a line feed at its end. Returns the length of the
/// name, or 0 if the name is not known.
pub fn source(name: &mut [u8]) -> usize {
    file::read_start(c"/sys/devices/system/clocksource/clocksource0/current_clocksource", name)
}

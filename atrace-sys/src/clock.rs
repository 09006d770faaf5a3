//! The system's clock, and whether the processor's counter may stand in for it.

use crate::system::file;

/// Asks the system for the time of `CLOCK_BOOTTIME`, in nanoseconds.
#[cold]
#[inline(never)]
pub fn asked() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writable. It can't fail for this clock, which every supported kernel has. The C library's function reads the
    // counter, too.
    unsafe {
        if is_allowed() {
            libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time);
        } else {
            libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_BOOTTIME, &raw mut time);
        }
    }
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Whether the process may read the counter (`PR_SET_TSC`); a new thread is told what its maker was.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub fn is_allowed() -> bool {
    use std::sync::atomic::{AtomicU32, Ordering};

    /// 0: not asked, 1: no, 2: yes.
    static IS_ALLOWED: AtomicU32 = AtomicU32::new(0);
    if IS_ALLOWED.load(Ordering::Relaxed) == 0 {
        let mut mode: libc::c_int = 0;
        // SAFETY: the kernel writes an int.
        let is_asked = unsafe { libc::prctl(libc::PR_GET_TSC, &raw mut mode) == 0 };
        let is_allowed = !is_asked || mode == libc::PR_TSC_ENABLE;
        IS_ALLOWED.store(1 + u32::from(is_allowed), Ordering::Relaxed);
    }
    IS_ALLOWED.load(Ordering::Relaxed) == 2
}

/// Whether the process may read the counter: it always may.
#[cfg(any(miri, not(target_arch = "x86_64")))]
pub fn is_allowed() -> bool {
    true
}

/// Reads the name of the clock that the kernel itself goes by, which ends in a line feed; returns how many bytes it has, 0
/// where that can't be known.
pub fn source(name: &mut [u8]) -> usize {
    file::read_start(c"/sys/devices/system/clocksource/clocksource0/current_clocksource", name)
}

//! The time of a clock, and processor times.

/// Returns the time of a clock in nanoseconds, or `None` if there is no such clock. If `by_library` is true, calls the
/// C library's function, which may read the processor's counter; otherwise makes a system call. Sets errno if it fails.
pub(crate) fn clock_time(clock: libc::clockid_t, by_library: bool) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and an unknown clock is an error.
    let is_known = unsafe {
        if by_library {
            libc::clock_gettime(clock, &raw mut time) == 0
        } else {
            libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) == 0
        }
    };
    is_known.then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Returns the processor time that the calling thread has used, in nanoseconds, or `None` if the system does not
/// report it. Makes a system call.
pub fn thread_time() -> Option<u64> {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID, true)
}

/// Returns the processor time that all threads of the process have used, in nanoseconds, or `None` if the system
/// does not report it. Makes a system call.
pub fn process_time() -> Option<u64> {
    clock_time(libc::CLOCK_PROCESS_CPUTIME_ID, true)
}

/// Returns the processor time that another thread of this process has used, in nanoseconds. Returns `None` if the
/// thread has ended, or if the system does not report the time. `thread` is the thread's
/// [number](crate::thread::number). Makes a system call.
pub fn time_of_thread(thread: u32) -> Option<u64> {
    // The kernel's number of a thread's clock consists of the inverted thread id, shifted by three bits, 4 for a
    // thread, and 2 for the scheduler's precise time.
    clock_time(!(thread as libc::clockid_t) << 3 | 6, true)
}

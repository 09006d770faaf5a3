//! Times for measuring short pieces of work: the processor's counter, and the processor time of a thread and
//! of the process.
//!
//! On systems without tracing, neither the counter nor processor times are available, and a caller can only use
//! `std::time::Instant`.
//!
//! Source of the counters' properties: Intel's manual, volume 3, "Invariant TSC"; Arm's document "The Generic
//! Timer".

pub use crate::system::{process_time, thread_time, time_of_thread};

/// Reads the processor's counter. The result is only valid if [`has_counter`] returned true.
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(any(miri, no_tracing))))]
#[inline(always)]
pub fn counter() -> u64 {
    let ticks: u64;
    // SAFETY: every x86-64 processor has a time stamp counter, and `has_counter` has returned false if the process may
    // not read it. Linux allows every program to read aarch64's virtual counter. Reading either counter changes no
    // memory.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        (ticks = std::arch::x86_64::_rdtsc());
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags));
    }
    ticks
}

/// Returns 0: this target has no time stamp counter that can be read.
#[cfg(any(miri, no_tracing, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
#[inline(always)]
pub fn counter() -> u64 {
    0
}

/// Returns whether the counter has a constant speed and may be read. This function opens a file, so call it before the
/// process gives up the right to open files.
#[cfg(all(target_arch = "x86_64", not(any(miri, no_tracing))))]
pub fn has_counter() -> bool {
    // CPUID 8000_0007h, EDX bit 8: the counter has the same speed in all power states.
    #[allow(unused_unsafe, reason = "`__cpuid` is a safe function only in newer compilers")]
    // SAFETY: every x86-64 processor has the instruction `cpuid`.
    let is_invariant = unsafe {
        let most = std::arch::x86_64::__cpuid(0x8000_0000).eax;
        most >= 0x8000_0007 && std::arch::x86_64::__cpuid(0x8000_0007).edx & 1 << 8 != 0
    };
    // The kernel checks whether the counters of all processors agree. If they do not agree, the kernel uses another
    // clock source.
    let mut name = [0; 16];
    let len = crate::clock::source(&mut name);
    let is_trusted = len == 0 || name.starts_with(b"tsc\n") || name.starts_with(b"kvm-clock\n");
    is_invariant && is_trusted && crate::clock::is_allowed()
}

/// Returns whether the counter has a constant speed and may be read.
#[cfg(all(target_arch = "aarch64", not(any(miri, no_tracing))))]
pub fn has_counter() -> bool {
    true
}

/// Returns false: this target has no time stamp counter that can be read.
#[cfg(any(miri, no_tracing, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub fn has_counter() -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no such clocks")]
    fn processor_time_passes_while_working() {
        // The process's time is read before the thread's time, so that at the end the process has used at least as much
        // processor time as the thread.
        let (process, thread) = (process_time().unwrap(), thread_time().unwrap());
        while thread_time().unwrap() < thread + 1_000_000 {}
        assert!(process_time().unwrap() >= process + 1_000_000);
        let number = crate::thread::number().unwrap();
        let other = std::thread::spawn(move || (time_of_thread(number), crate::thread::number().unwrap()));
        let (of_this, ended) = other.join().unwrap();
        assert!(of_this.unwrap() >= thread + 1_000_000);
        // For a moment after `join` has returned, the kernel may still know the thread.
        let start = std::time::Instant::now();
        while time_of_thread(ended).is_some() {
            assert!(start.elapsed() < std::time::Duration::from_secs(60));
        }
    }

    #[test]
    fn the_counter_never_runs_backwards() {
        if has_counter() {
            let all: Vec<_> = (0..1000).map(|_| counter()).collect();
            assert!(all.is_sorted() && all[0] < all[999], "{all:?}");
        }
    }
}

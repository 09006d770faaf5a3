//! System calls without the C library, and *bare* threads: threads that were not created by the C library.
//!
//! # Why
//!
//! An event may be written in a signal handler that interrupted `malloc`, in a forked child whose parent's threads held
//! locks, or on a thread that is about to end. The code that writes an event must work in these situations. So it makes
//! system calls directly. Unlike the functions of the C library, these system calls need no errno, no thread-local and
//! no lock, and are not cancellation points.
//!
//! # Bare threads
//!
//! [`start`] starts a thread by `clone(2)` alone, on a mapped stack. The thread has **no thread-locals**. Code that
//! runs on it must not allocate, panic, take a lock of std or use errno. It may call only functions of the C library
//! that use no thread-local: those that copy or compare memory, and simple queries such as `clock_gettime` and
//! `geteuid`. The register for thread-locals points into zeroed memory, so that code that uses a thread-local by
//! mistake does not change a thread-local of another thread. Only x86_64 and aarch64 have bare threads.
//!
//! Sources: `clone(2)`, `syscall(2)`; for the registers, the ABI of each architecture.

use std::ffi::c_long;

use super::Result;

/// Makes a system call. Returns its result, or a negated errno.
///
/// # Safety
///
/// The caller must obey the rules of the system call `number`.
#[cfg(bare)]
#[inline(always)]
pub(crate) unsafe fn call(number: c_long, [a, b, c, d, e, f]: [isize; 6]) -> isize {
    let result;
    // SAFETY: the caller obeys the rules of the system call. The kernel changes only the registers rax, rcx and r11
    // (x86-64), or x0 (aarch64).
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            in("x8") number as isize,
            inlateout("x0") a => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack),
        );
    }
    result
}

/// Makes a system call. Returns its result, or a negated errno. Leaves errno unchanged.
///
/// # Safety
///
/// The caller must obey the rules of the system call `number`.
#[cfg(not(bare))]
#[inline(never)]
pub(crate) unsafe fn call(number: c_long, [a, b, c, d, e, f]: [isize; 6]) -> isize {
    let _errno = super::ErrnoGuard::new();
    // SAFETY: the caller obeys the rules of the system call.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    if result == -1 { -(super::errno::errno() as isize) } else { result as isize }
}

/// The body of a bare thread. Its argument is the number that was passed to [`start`].
pub(crate) type Body = extern "C" fn(usize);

/// The size of a bare thread's stack in bytes. Pages that are never touched take no memory.
#[cfg(bare)]
const STACK: usize = 256 << 10;
/// The number of zeroed bytes on each side of the address in the thread-local register.
#[cfg(bare)]
const LOCALS: usize = 16 << 10;

/// Starts a thread that runs `body(argument)`, with the caller's signal mask. Returns an error if the thread can't be
/// started.
///
/// Async-signal-safe.
#[cfg(bare)]
pub(crate) fn start(body: Body, argument: usize) -> Result<()> {
    use super::memory::Region;

    const FLAGS: libc::c_int = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM
        | libc::CLONE_SETTLS;
    // The memory contains, from low to high addresses: an inaccessible page, the stack, and zeroes around the address
    // in the thread-local register.
    let guard = super::page_size();
    let size = guard + STACK + 2 * LOCALS;
    let memory = Region::own(size)?;
    let (base, stack) = (memory.at(0), memory.at(guard + STACK));
    let locals = stack.wrapping_add(LOCALS);
    // SAFETY: all addresses are aligned and within the mapping, which no other code uses. The guard is the mapping's
    // first page. On x86-64, the word to which the thread-local register points must contain its own address. The new
    // thread takes over the mapping.
    let started = unsafe {
        call(libc::SYS_mprotect, [base as isize, guard as isize, libc::PROT_NONE as isize, 0, 0, 0]);
        locals.cast::<*mut u8>().write(locals);
        clone_with(FLAGS, stack, locals, body, argument, base, size)
    };
    super::c::answer(started)?;
    std::mem::forget(memory);
    Ok(())
}

#[cfg(not(bare))]
pub(crate) fn start(_: Body, _: usize) -> Result<()> {
    Err(super::Errno(libc::ENOSYS))
}

/// Clones the calling thread. The new thread calls `body(argument)` on `stack`, unmaps `base`, and ends.
///
/// # Safety
///
/// `flags` must be the flags with which `clone(2)` creates a thread. `stack` must be the aligned end of memory that no
/// other code uses, and `locals` an address for thread-locals. Both addresses must be within the mapping of `size`
/// bytes at `base`.
#[cfg(bare)]
unsafe fn clone_with(
    flags: libc::c_int,
    stack: *mut u8,
    locals: *mut u8,
    body: Body,
    argument: usize,
    base: *mut u8,
    size: usize,
) -> isize {
    let result;
    // SAFETY: the caller's contract. The new thread has the same registers except for the stack pointer, and never
    // leaves this assembly block.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r9",
            "mov rdi, r13",
            "mov rsi, r14",
            "mov eax, {munmap}",
            "syscall",
            "xor edi, edi",
            "mov eax, {exit}",
            "syscall",
            "ud2",
            "2:",
            munmap = const libc::SYS_munmap,
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags as isize,
            in("rsi") stack,
            in("rdx") 0_usize,
            in("r10") 0_usize,
            in("r8") locals,
            in("r9") body,
            in("r12") argument,
            in("r13") base,
            in("r14") size,
            lateout("rcx") _,
            lateout("r11") _,
        );
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, #0",
            "mov x30, #0",
            "mov x0, x20",
            "blr x21",
            "mov x0, x22",
            "mov x1, x23",
            "mov x8, #{munmap}",
            "svc #0",
            "mov x0, #0",
            "mov x8, #{exit}",
            "svc #0",
            "brk #1",
            "2:",
            munmap = const libc::SYS_munmap,
            exit = const libc::SYS_exit,
            inlateout("x0") flags as isize => result,
            in("x1") stack,
            in("x2") 0_usize,
            in("x3") locals,
            in("x4") 0_usize,
            in("x8") libc::SYS_clone,
            in("x20") argument,
            in("x21") body,
            in("x22") base,
            in("x23") size,
        );
    }
    result
}

#[cfg(all(test, bare))]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_bare_thread_runs_and_ends() {
        static DONE: AtomicUsize = AtomicUsize::new(0);
        extern "C" fn body(number: usize) {
            // SAFETY: the calls have no arguments. The ids of the thread and of the process differ, because this thread
            // is not the first thread of the process.
            let is_other =
                unsafe { call(libc::SYS_gettid, [0; 6]) } != unsafe { call(libc::SYS_getpid, [0; 6]) };
            DONE.fetch_add(if is_other { number } else { 0 }, Ordering::SeqCst);
        }
        for round in 1..=100 {
            assert_eq!(start(body, 3), Ok(()));
            while DONE.load(Ordering::SeqCst) < 3 * round {
                std::thread::yield_now();
            }
        }
        assert_eq!(DONE.load(Ordering::SeqCst), 300);
    }

    #[test]
    fn a_failed_call_leaves_errno() {
        super::super::errno::set_errno(77);
        // SAFETY: no descriptor has the number -1.
        assert_eq!(unsafe { call(libc::SYS_close, [-1, 0, 0, 0, 0, 0]) }, -(libc::EBADF as isize));
        assert_eq!(super::super::errno::errno(), 77);
    }
}

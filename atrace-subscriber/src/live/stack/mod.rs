//! Backtraces: the return addresses on the calling thread's stack. All unsafe code of this crate is in this folder.
//!
//! In a program with frame pointers, each frame begins with the address of its caller's frame, and beside it the return
//! address: a linked list. In a program without, that register holds any number. So nothing is trusted:
//!
//! - Each frame must lie above the one before and within the thread's stack, as the thread library reports it (asked
//!   once per thread). The library may report more than there is: for a main thread, the size that its stack may grow to.
//!   So the kernel is asked whether there is memory from the lowest stack pointer up.
//! - The walk must end at the thread's outermost frame. That frame is learnt when a walk on this thread agrees with the
//!   unwinder, address by address, up to the frames of the C library that starts threads.
//! - A walk that ends anywhere else (code without frame pointers, a coroutine's stack, the first time on a thread)
//!   is discarded. The unwinder repeats it, and the next walk may be compared with the unwinder's result.
//!
//! Two things can't be seen: a function without frame pointers that leaves their register alone hides its caller,
//! and a signal handler hides the function that the signal interrupted.
#![allow(unsafe_code, reason = "reads the stack")]

mod frames;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::thread;

use self::frames::{FrameAddress, KnownStack, Registers, StackFrame};

/// How return addresses are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// By following frame pointers, the fastest way. Where a stack turns out not to
    /// have them, the unwinder is asked.
    ///
    /// On x86-64 a program has them after `RUSTFLAGS="-C force-frame-pointers=yes"`; on 64-bit ARM always.
    FramePointers,
    /// By the unwinder, from the tables that panics use, which takes far longer.
    Unwinding,
}

impl Walk {
    /// The fastest way that works in this program: tried on the calling thread, the first time.
    pub fn of_this_program() -> Self {
        static FOUND: AtomicBool = AtomicBool::new(false);
        if FOUND.load(Ordering::Relaxed) {
            return Self::FramePointers;
        }
        // Only success is kept: this may be a thread that has nothing but a strange stack.
        let found = agrees(PROBED);
        FOUND.store(found, Ordering::Relaxed);
        if found { Self::FramePointers } else { Self::Unwinding }
    }
}

/// The most return addresses that are kept of a stack.
pub(super) const DEEPEST: usize = 256;
/// Calls that a probe makes below its caller.
const PROBED: usize = 8;

thread_local! {
    /// What a walk on this thread may read, and where it must end.
    static STACK: Cell<KnownStack> = const { Cell::new(KnownStack::NONE) };
    /// Where this thread's stack is, from and to; (0, 0) if that was not asked yet, (1, 1) if nobody knows.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Writes the return addresses of the calling thread to `into`, the innermost first; returns how many.
///
/// The first is within the function that calls this. It is what the processor returns to: the call is the
/// instruction before.
///
/// Where frame pointers are asked for and this stack does not have them, the unwinder is asked.
///
/// # Examples
///
/// ```
/// use atrace_subscriber::live::{Walk, return_addresses};
///
/// let mut addresses = [0; 64];
/// let found = return_addresses(Walk::of_this_program(), &mut addresses);
/// assert!(found > 2 && addresses[..found].iter().all(|address| *address != 0));
/// ```
#[inline(never)]
pub fn return_addresses(by: Walk, into: &mut [usize]) -> usize {
    let here = registers();
    if by == Walk::FramePointers
        && let Some(found) = follow(here, into)
    {
        return found;
    }
    unwind_and_learn(by, here, into)
}

/// [`return_addresses`], where frame pointers lead all the way; else nothing, and `into` holds anything.
#[inline(never)]
pub(super) fn by_frame_pointers(into: &mut [usize]) -> Option<usize> {
    follow(registers(), into)
}

/// Those of the function that this is inlined into.
#[inline(always)]
fn registers() -> Registers {
    let (stack, frame);
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
    // SAFETY: copies two registers.
    unsafe {
        std::arch::asm!("mov {}, rsp", "mov {}, rbp", out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    #[cfg(all(target_arch = "aarch64", target_pointer_width = "64", not(miri)))]
    // SAFETY: copies two registers.
    unsafe {
        std::arch::asm!("mov {}, sp", "mov {}, x29", out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        not(miri)
    )))]
    {
        // Somewhere in the function's frame; of frame pointers nothing is known.
        let local = 0_u8;
        (stack, frame) = (std::ptr::from_ref(std::hint::black_box(&local)).addr(), 0);
    }
    Registers { stack, frame }
}

/// Removes what 64-bit ARM may sign return addresses with.
#[inline(always)]
fn without_signature(address: usize) -> usize {
    #[cfg(all(target_arch = "aarch64", target_pointer_width = "64", not(miri)))]
    {
        let stripped;
        // SAFETY: XPACLRI (a hint, nothing on processors that do not sign) changes the register x30 alone.
        unsafe {
            std::arch::asm!("mov x30, {0}", "hint #7", "mov {0}, x30", inlateout(reg) address => stripped,
                out("x30") _, options(nomem, nostack, preserves_flags));
        }
        stripped
    }
    #[cfg(not(all(target_arch = "aarch64", target_pointer_width = "64", not(miri))))]
    address
}

/// The caller's frame and the return address.
///
/// # Safety
///
/// The address is of a walk over what [`STACK`] says may be read, on the calling thread, from the stack pointer of a
/// function that has not returned.
#[inline(always)]
unsafe fn read(at: FrameAddress) -> (usize, usize) {
    let words = at.get() as *const usize;
    // SAFETY: they are aligned, and above the stack pointer and below the end of this thread's stack, where there
    // is memory (`see`) for as long as the function runs. What is there need not be a frame: then it is data of a
    // function that has not returned, which another thread might write meanwhile. So the compiler is to suppose
    // nothing (volatile), and each word, read at once, is taken for no more than any number.
    let (caller, address) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
    (caller, without_signature(address))
}

/// Follows frame pointers from here to the outermost frame.
#[inline(always)]
fn follow(here: Registers, into: &mut [usize]) -> Option<usize> {
    // SAFETY: it is this thread's stack, and `here` is of a caller.
    frames::follow(&STACK.get(), here, into, |at| unsafe { read(at) })
}

/// Asks the unwinder, and sees whether it could have been spared that.
#[cold]
#[inline(never)]
fn unwind_and_learn(by: Walk, here: Registers, into: &mut [usize]) -> usize {
    if by == Walk::Unwinding || here.frame == 0 {
        return unwind(here.stack, into);
    }
    // Where nothing was called from so deep before, that was all.
    if see(here.stack)
        && let Some(found) = follow(here, into)
    {
        return found;
    }
    let mut all = [0; DEEPEST];
    let all = match unwind(here.stack, &mut all) {
        // What is deeper can't be compared to its end.
        DEEPEST => &all[..],
        found => {
            learn(here, &all[..found]);
            &all[..found]
        }
    };
    let found = all.len().min(into.len());
    into[..found].copy_from_slice(&all[..found]);
    found
}

/// Finds out which frame is the outermost, if frame pointers show what the unwinder found.
fn learn(here: Registers, unwound: &[usize]) {
    let stack = STACK.get();
    // SAFETY: it is this thread's stack, and `here` is of a caller.
    if let Some(root) = frames::outermost(&stack, here, unwound, |at| unsafe { read(at) }) {
        STACK.set(KnownStack { root, ..stack });
    }
}

/// Lets walks begin at this stack pointer, if it is on this thread's stack and there is memory all the way up;
/// tells whether none could before.
fn see(from: usize) -> bool {
    if BOUNDS.get() == (0, 0) {
        let (low, high) = thread::stack().unwrap_or((1, 1));
        BOUNDS.set((low, high));
        STACK.set(KnownStack { low: high, high, root: StackFrame::default() });
    }
    let ((lowest, _), stack) = (BOUNDS.get(), STACK.get());
    if from < lowest || from >= stack.low {
        return false;
    }
    let Some(low) = thread::mapped_from(from, stack.low) else { return false };
    STACK.set(KnownStack { low, ..stack });
    true
}

/// Calls itself so many times, then says whether frame pointers show that as the unwinder does.
#[inline(never)]
fn agrees(calls: usize) -> bool {
    let agrees = match calls.checked_sub(1) {
        Some(calls) => agrees(calls),
        None => {
            let known = STACK.get();
            STACK.set(KnownStack { root: StackFrame::default(), ..known });
            return_addresses(Walk::FramePointers, &mut []);
            let seen = STACK.get();
            let agrees = seen.root != StackFrame::default();
            if !agrees {
                STACK.set(KnownStack { root: known.root, ..seen });
            }
            agrees
        }
    };
    // What comes after a call keeps it from being a jump.
    std::hint::black_box(agrees)
}

/// The return addresses of the frames from the first above the stack pointer `from` on.
fn unwind(from: usize, into: &mut [usize]) -> usize {
    let mut found = 0;
    let mut is_above = false;
    let mut frame = |frame: &backtrace::Frame| {
        let stack = frame.sp() as usize;
        let address = frame.ip() as usize;
        // Where the stack is not told, all are taken. What a signal handler interrupted may lie on a lower stack.
        is_above |= stack == 0 || stack > from;
        // The outermost of a thread may return to nowhere.
        if is_above && address != 0 {
            match into.get_mut(found) {
                Some(place) => *place = address,
                None => return false,
            }
            found += 1;
        }
        true
    };
    #[cfg(unix)]
    // SAFETY: what it would synchronise is a debugging library that only Windows has. Here it is
    // `_Unwind_Backtrace`, which any number of threads may call at once.
    unsafe {
        backtrace::trace_unsynchronized(&mut frame);
    }
    #[cfg(not(unix))]
    backtrace::trace(&mut frame);
    found
}

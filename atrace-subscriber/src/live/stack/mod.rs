//! Backtraces: the return addresses on the calling thread's stack. All unsafe code of the feature `live` is in this folder.
//!
//! # Two ways
//!
//! The unwinder reads tables of the program to find each caller. This method works in nearly all programs, but takes
//! long. With *frame pointers* there is a faster method: each frame begins with the address of the caller's frame,
//! followed by the return address, and a register points to the youngest frame. So the frames are a linked list. In
//! code without frame pointers the register may hold any number.
//!
//! # Checks
//!
//! Each link of the list is checked:
//!
//! - Each frame must lie above the previous frame and within the thread's stack. The thread library is asked for the
//!   bounds of the stack once per thread. It may report more than the mapped stack: for a main thread, it reports the
//!   size to which the stack may grow. So a system call checks that all memory above the lowest stack pointer of the
//!   thread's walks is mapped.
//! - The walk must end at the thread's outermost frame (or follow 512 more frames after its buffer is full). The
//!   outermost frame is stored after a walk of this thread whose addresses all agree with the unwinder's addresses, up
//!   to the frames of the C library that start a thread.
//! - A walk that ends anywhere else is discarded, and the unwinder is used. This happens in code without frame
//!   pointers, on a coroutine's stack, and in the first walk of a thread. The unwinder's result may show the outermost
//!   frame, which is then stored for the next walk.
//!
//! # Limits
//!
//! A function that has no frame pointer, but leaves the register unchanged, hides its caller from a walk by frame
//! pointers. A signal handler hides the function that the signal interrupted.
#![allow(unsafe_code, reason = "reads the stack")]

mod frames;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use atrace_sys::thread;

use self::frames::{FrameAddress, KnownStack, Registers, StackFrame, Walker};

/// The method by which return addresses are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// Follows frame pointers, which is the fastest method. For a stack without frame pointers, the unwinder is used.
    ///
    /// A program for x86-64 has frame pointers if it is built with `RUSTFLAGS="-C force-frame-pointers=yes"`; a program
    /// for 64-bit ARM has them by default.
    FramePointers,
    /// Uses the unwinder, which reads the same tables as a panic. This takes far longer than following frame pointers.
    Unwinding,
}

impl Default for Walk {
    /// Returns the fastest method that works in this program. Each call tries frame pointers on the calling thread,
    /// until frame pointers have worked once in this program.
    fn default() -> Self {
        static FOUND: AtomicBool = AtomicBool::new(false);
        if FOUND.load(Ordering::Relaxed) {
            return Self::FramePointers;
        }
        // Only success is stored: a failure may be due to an unusual stack of this thread.
        let found = agrees(PROBED);
        FOUND.store(found, Ordering::Relaxed);
        if found { Self::FramePointers } else { Self::Unwinding }
    }
}

/// The maximum number of return addresses that are stored for a stack.
pub(super) const DEEPEST: usize = 256;
/// The number of nested calls with which [`Walk::default`] tests whether frame pointers work.
const PROBED: usize = 8;

thread_local! {
    /// The part of this thread's stack that a walk may read, and the frame at which the walk must end.
    static STACK: Cell<KnownStack> = const { Cell::new(KnownStack::NONE) };
    /// The bounds of this thread's stack; (0, 0) if they were not read from the system yet, and (1, 1) if the system
    /// can't report them.
    static BOUNDS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Writes the return addresses on the calling thread's stack to `into`, the innermost first. Returns the number of
/// addresses.
///
/// The first address is within the function that calls `return_addresses`. A return address is the address of the
/// instruction after a call.
///
/// If `by` is [`Walk::FramePointers`] and this stack does not have frame pointers, the unwinder is used.
///
/// # Examples
///
/// ```
/// use atrace_subscriber::live::{Walk, return_addresses};
///
/// let mut addresses = [0; 64];
/// let found = return_addresses(Walk::default(), &mut addresses);
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

/// Does the same as [`return_addresses`], by frame pointers only. Returns `None` if the chain of frame pointers breaks
/// before the outermost frame. (A chain that continues for 512 frames after `into` is full counts as complete.) After
/// `None`, `into` may contain anything.
#[inline(never)]
pub(super) fn by_frame_pointers(into: &mut [usize]) -> Option<usize> {
    follow(registers(), into)
}

/// Returns the stack pointer and the frame pointer of the function into which this function is inlined.
#[inline(always)]
fn registers() -> Registers {
    let (stack, frame);
    #[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_pointer_width = "64", not(miri)))]
    // SAFETY: copies two registers.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        std::arch::asm!("mov {}, rsp", "mov {}, rbp", out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "aarch64")]
        std::arch::asm!("mov {}, sp", "mov {}, x29", out(reg) stack, out(reg) frame,
            options(nomem, nostack, preserves_flags));
    }
    #[cfg(not(all(
        any(target_arch = "x86_64", target_arch = "aarch64"),
        target_pointer_width = "64",
        not(miri)
    )))]
    {
        // An address in the function's frame is used as the stack pointer. 0 means that there is no frame pointer.
        let local = 0_u8;
        (stack, frame) = (std::ptr::from_ref(std::hint::black_box(&local)).addr(), 0);
    }
    Registers { stack, frame }
}

/// Removes the signature that 64-bit ARM may add to return addresses (pointer authentication).
#[inline(always)]
fn without_signature(address: usize) -> usize {
    #[cfg(all(target_arch = "aarch64", target_pointer_width = "64", not(miri)))]
    {
        let stripped;
        // SAFETY: XPACLRI changes only the register x30. It is a hint, which processors without pointer authentication
        // ignore.
        unsafe {
            std::arch::asm!("mov x30, {0}", "hint #7", "mov {0}, x30", inlateout(reg) address => stripped,
                out("x30") _, options(nomem, nostack, preserves_flags));
        }
        stripped
    }
    #[cfg(not(all(target_arch = "aarch64", target_pointer_width = "64", not(miri))))]
    address
}

/// Begins a walk over the range of the calling thread's stack that [`STACK`] allows. `here` must have the registers of a
/// caller of this function.
#[inline(always)]
fn walk(here: Registers) -> Option<Walker<impl Fn(FrameAddress) -> (usize, usize)>> {
    Walker::new(STACK.get(), here, |at| {
        let words = at.get() as *const usize;
        // SAFETY: both words are aligned, above the stack pointer and below the end of this thread's stack. The memory
        // there is mapped (`see` has checked this) as long as the caller runs. The words need not be a frame: they may
        // be data of a function that has not returned, and another thread may write such data at the same time. So the
        // reads are volatile, and the compiler assumes nothing about the words. Each word is read in one access, and
        // any value of a word is valid.
        let (caller, address) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
        (caller, without_signature(address))
    })
}

/// Follows frame pointers from the registers `here` to the outermost frame.
#[inline(always)]
fn follow(here: Registers, into: &mut [usize]) -> Option<usize> {
    walk(here)?.follow(into)
}

/// Uses the unwinder, and stores the outermost frame if the result shows it, so that the next walk may not need the
/// unwinder.
#[cold]
#[inline(never)]
fn unwind_and_learn(by: Walk, here: Registers, into: &mut [usize]) -> usize {
    if by == Walk::Unwinding || here.frame == 0 {
        return unwind(here.stack, into);
    }
    // Perhaps the walk failed only because it began deeper in the stack than all earlier walks of this thread.
    if see(here.stack)
        && let Some(found) = follow(here, into)
    {
        return found;
    }
    let mut all = [0; DEEPEST];
    let all = match unwind(here.stack, &mut all) {
        // If the buffer is full, the stack may be deeper, so the outermost frame is not known.
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

/// Stores which frame is the outermost one, if frame pointers lead to the same addresses as the unwinder.
fn learn(here: Registers, unwound: &[usize]) {
    if let Some(root) = walk(here).and_then(|walker| walker.outermost(unwound)) {
        STACK.set(KnownStack { root, ..STACK.get() });
    }
}

/// Allows walks from the stack pointer `from` up, if `from` is on this thread's stack and the whole stack above it is
/// mapped. Returns true if such walks are allowed now and were not allowed before.
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

/// Calls itself `calls` times, and then returns whether frame pointers lead to the same addresses as the
/// unwinder.
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
    // Work after the recursive call prevents a tail call.
    std::hint::black_box(agrees)
}

/// Uses the unwinder to write the return addresses of all frames above the stack pointer `from`. Returns their number.
fn unwind(from: usize, into: &mut [usize]) -> usize {
    let mut found = 0;
    let mut is_above = false;
    let mut frame = |frame: &backtrace::Frame| {
        let stack = frame.sp() as usize;
        let address = frame.ip() as usize;
        // If the unwinder does not report the stack pointer of a frame, all frames are used. Once a frame was above
        // `from`, all later frames are used, even lower ones: a signal handler may run on a stack of its own, and the
        // stack of the interrupted function may be lower.
        is_above |= stack == 0 || stack > from;
        // The outermost frame of a thread may have the return address 0.
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
    // SAFETY: calls need to be synchronised only for a debugging library of Windows. On Unix, this function calls
    // `_Unwind_Backtrace`, which any number of threads may call at once.
    unsafe {
        backtrace::trace_unsynchronized(&mut frame);
    }
    #[cfg(not(unix))]
    backtrace::trace(&mut frame);
    found
}

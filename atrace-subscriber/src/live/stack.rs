//! Who called: the return addresses on the calling thread's stack. The one place of this crate with unsafe code.
//!
//! A program that is compiled with frame pointers has, at each frame's start, the address of its caller's
//! frame and beside it the return address: a linked list, read in a few nanoseconds. A program that is not
//! has any number at all in that register. So nothing is believed:
//!
//! - Each frame must lie above the one before and within the thread's stack, as the system's thread library
//!   tells it (asked once a thread). What is read is thereby always mapped memory of this thread's own.
//! - The walk must end at the thread's outermost frame. Which that is was learnt when a walk on this thread
//!   agreed with the unwinder, address by address, up to the frames of the C library that starts threads.
//! - A walk that ends anywhere else (code of another language without frame pointers, a stack of a coroutine,
//!   the first time on a thread) counts for nothing: the unwinder does it again, and what it finds may be
//!   what the next walk is held against.
//!
//! What can't be seen so: a function without frame pointers that leaves their register alone hides its caller.
#![allow(unsafe_code, reason = "reads the stack; the only module of this crate that may")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How return addresses are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Walk {
    /// By following frame pointers, some ten nanoseconds for a whole stack. Where a stack turns out not to
    /// have them, the unwinder is asked.
    ///
    /// On x86-64 a program has them after `RUSTFLAGS="-C force-frame-pointers=yes"`; on 64-bit ARM always.
    FramePointers,
    /// By the unwinder, from the tables that panics use: microseconds.
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
/// Frames of the C library, around a thread's outermost frame, that need not have frame pointers.
const OUTER: usize = 4;
/// How far a walk goes on, once it has all it can keep, to see that it ends where it should.
const FURTHER: usize = 512;

thread_local! {
    /// Where this thread's stack ends: 0 if that was not asked yet, 1 if nobody knows.
    static HIGH: Cell<usize> = const { Cell::new(0) };
    static LOW: Cell<usize> = const { Cell::new(0) };
    /// The outermost frame of this thread, at which a walk must end; 0 if none is known.
    static ROOT: Cell<usize> = const { Cell::new(0) };
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
    let here = Registers::read();
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
    follow(Registers::read(), into)
}

#[derive(Clone, Copy)]
struct Registers {
    /// The stack pointer: what is below is not in use.
    stack: usize,
    /// What may be the address of the function's frame.
    frame: usize,
}

impl Registers {
    /// Of the function that this is inlined into.
    #[inline(always)]
    fn read() -> Self {
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
            (stack, frame) = (0, 0);
        }
        Self { stack, frame }
    }
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

/// Where frames may be: above what was seen, up to the stack's end.
#[derive(Clone, Copy)]
struct Range {
    low: usize,
    high: usize,
}

impl Range {
    /// From the stack pointer up; None if that is not within the stack that the thread is known to have.
    #[inline(always)]
    fn above(stack: usize) -> Option<Self> {
        let high = HIGH.get();
        (stack >= LOW.get() && stack < high).then_some(Self { low: stack, high })
    }

    /// The frame's two words, the caller's frame and the return address, if it may be one: then what is below
    /// it is left behind.
    #[inline(always)]
    fn frame(&mut self, at: usize) -> Option<(usize, usize)> {
        const FRAME: usize = 2 * size_of::<usize>();
        if at < self.low || at > self.high - FRAME || !at.is_multiple_of(align_of::<usize>()) {
            return None;
        }
        let words = at as *const usize;
        // SAFETY: `at` is aligned, and both words are between this thread's stack pointer and the end of its
        // stack (`low` began as the one and only grows, `high` is the other and more than a frame above
        // nothing), which is mapped and readable. They are words of this thread's own frames: no other
        // thread writes them while it is here; volatile, as the compiler knows nothing of them.
        let (caller, address) = unsafe { (words.read_volatile(), words.add(1).read_volatile()) };
        self.low = at + FRAME;
        Some((caller, without_signature(address)))
    }
}

/// Follows frame pointers from here to the outermost frame.
#[inline(always)]
fn follow(here: Registers, into: &mut [usize]) -> Option<usize> {
    let root = ROOT.get();
    if root == 0 {
        return None;
    }
    let mut range = Range::above(here.stack)?;
    let mut at = here.frame;
    for (found, place) in into.iter_mut().enumerate() {
        let (caller, address) = range.frame(at)?;
        *place = address;
        if at == root {
            return Some(found + 1);
        }
        at = caller;
    }
    for _ in 0..FURTHER {
        if at == root {
            return Some(into.len());
        }
        (at, _) = range.frame(at)?;
    }
    // So many that they are hardly a coincidence.
    Some(into.len())
}

/// Asks the unwinder, and sees whether it could have been spared that.
#[cold]
#[inline(never)]
fn unwind_and_learn(by: Walk, here: Registers, into: &mut [usize]) -> usize {
    if by == Walk::Unwinding {
        return unwind(here.stack, into);
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

/// Follows frame pointers as far as they agree with what the unwinder found; if that is all the way, the frame
/// they end at is the thread's outermost.
fn learn(here: Registers, unwound: &[usize]) {
    if HIGH.get() == 0 {
        let (low, high) = bounds().unwrap_or((1, 1));
        LOW.set(low);
        HIGH.set(high);
    }
    let Some(mut range) = Range::above(here.stack) else { return };
    let (mut at, mut last, mut agreed) = (here.frame, 0, 0);
    while let Some((caller, address)) = range.frame(at)
        && unwound.get(agreed) == Some(&address)
    {
        last = at;
        at = caller;
        agreed += 1;
    }
    if agreed > 1 && unwound.len() - agreed <= OUTER {
        ROOT.set(last);
    }
}

/// Calls itself so many times, then says whether frame pointers show that as the unwinder does.
#[inline(never)]
fn agrees(calls: usize) -> bool {
    let agrees = match calls.checked_sub(1) {
        Some(calls) => agrees(calls),
        None => {
            let known = ROOT.take();
            return_addresses(Walk::FramePointers, &mut []);
            let agrees = ROOT.get() != 0;
            if !agrees {
                ROOT.set(known);
            }
            agrees
        }
    };
    // What comes after a call keeps it from being a jump.
    std::hint::black_box(agrees)
}

/// The return addresses of the frames above the stack pointer `from`.
fn unwind(from: usize, into: &mut [usize]) -> usize {
    let mut found = 0;
    let mut frame = |frame: &backtrace::Frame| {
        let stack = frame.sp() as usize;
        let address = frame.ip() as usize;
        // Where the stack is not told, all are taken. The outermost of a thread may return to nowhere.
        if (stack == 0 || stack > from) && address != 0 {
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

/// Where the calling thread's stack is: its lowest address and the one behind its highest.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are read and given back only where pthread_getattr_np has made them; both results are
    // written to variables that live here.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let told = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if !told {
            return None;
        }
    }
    let low = low as usize;
    let high = low.checked_add(size)?;
    // Less than this is no stack.
    (low != 0 && size > 1024).then_some((low, high))
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn bounds() -> Option<(usize, usize)> {
    None
}

/// The kernel's number of the calling thread, where it is known.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn thread_number() -> Option<u32> {
    // SAFETY: takes nothing, and returns a number.
    let number = unsafe { libc::syscall(libc::SYS_gettid) };
    u32::try_from(number).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn thread_number() -> Option<u32> {
    None
}

static FORKS: AtomicU32 = AtomicU32::new(0);

/// Has forks counted from now on.
pub(super) fn count_forks() {
    #[cfg(unix)]
    {
        static HANDLER: std::sync::Once = std::sync::Once::new();

        extern "C" fn in_child() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }

        HANDLER.call_once(|| {
            // SAFETY: the function adds to a number, which may be done in any child.
            unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        });
    }
}

/// How many forks lie between the process that began to count them and this one.
#[inline]
pub(super) fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Registers that say what a hostile program says.
    fn here(frame: usize) -> Registers {
        Registers { frame, ..Registers::read() }
    }

    fn known_stack() -> (usize, usize) {
        learn(here(0), &[]);
        (LOW.get(), HIGH.get())
    }

    /// Frames that say so, in this thread's own stack; the last one's caller is `end`.
    fn chain<const N: usize>(frames: &mut [[usize; 2]; N], end: usize) -> (usize, usize) {
        // They are read by their addresses.
        let first = (&raw const frames[0]).expose_provenance();
        for (at, frame) in frames.iter_mut().enumerate() {
            *frame = [first + 16 * (at + 1), 0x1000 + at];
        }
        frames[N - 1][0] = end;
        std::hint::black_box(frames);
        (first, first + 16 * (N - 1))
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn a_walk_ends_at_the_outermost_frame_or_counts_for_nothing() {
        let (low, high) = known_stack();
        let mut frames = [[0; 2]; 5];
        let (first, last) = chain(&mut frames, 0);
        assert!(low < first && first < high, "{low:x} {first:x} {high:x}");
        let mut into = [0; 16];
        let from = Registers { stack: first, frame: first };

        ROOT.set(0);
        assert_eq!(follow(from, &mut into), None);
        ROOT.set(last);
        assert_eq!(follow(from, &mut into), Some(5));
        assert_eq!(into[..6], [0x1000, 0x1001, 0x1002, 0x1003, 0x1004, 0]);
        // No room for all: still seen to end where it should.
        assert_eq!(follow(from, &mut into[..3]), Some(3));
        assert_eq!(follow(from, &mut []), Some(0));
        ROOT.set(last + 16);
        assert_eq!(follow(from, &mut into), None);
        assert_eq!(follow(from, &mut into[..3]), None);
        assert_eq!(follow(from, &mut into[..5]), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn frames_outside_of_the_stack_are_not_read() {
        let (low, high) = known_stack();
        ROOT.set(high - 16);
        let mut into = [0; 16];
        let here = Registers::read();
        // Any of them, read, would be a fault or another thread's.
        for frame in
            [0, 1, 8, low - 8, low, here.stack - 8, high - 8, high, usize::MAX, usize::MAX - 7, 1 << 63]
        {
            assert_eq!(follow(Registers { frame, ..here }, &mut into), None, "{frame:x}");
        }
        // Within, but not aligned; and on a stack that is not this thread's.
        assert_eq!(follow(Registers { frame: here.stack + 65, ..here }, &mut into), None);
        let heap = Box::new([[0_usize; 2]; 4]);
        let frame = heap.as_ptr().expose_provenance();
        assert_eq!(follow(Registers { frame, stack: frame }, &mut into), None);
        assert_eq!(follow(Registers { frame: here.stack, stack: low - 64 }, &mut into), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn frames_that_do_not_rise_end_a_walk() {
        known_stack();
        let mut frames = [[0; 2]; 5];
        let (first, last) = chain(&mut frames, 0);
        let from = Registers { stack: first, frame: first };
        ROOT.set(last);
        for back in [first, first + 32, first + 24, first + 33] {
            frames[2][0] = back;
            std::hint::black_box(&mut frames);
            assert_eq!(follow(from, &mut [0; 16]), None);
            assert_eq!(follow(from, &mut [0; 2]), None);
        }
        frames[2][0] = last;
        std::hint::black_box(&mut frames);
        assert_eq!(follow(from, &mut [0; 16]), Some(4));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn nothing_is_learnt_of_frames_that_the_unwinder_does_not_see() {
        known_stack();
        let mut frames = [[0; 2]; 12];
        let (first, last) = chain(&mut frames, 0);
        let from = Registers { stack: first, frame: first };
        let seen: Vec<usize> = (0..16).map(|at| 0x1000 + at).collect();
        let learnt = |unwound: &[usize]| {
            ROOT.set(0);
            learn(from, unwound);
            ROOT.get()
        };
        assert_eq!(learnt(&seen[..12]), last);
        // The C library's around them need no frame pointers, a whole program's do.
        assert_eq!(learnt(&seen), last);
        assert_eq!(learnt(&[&seen[..], &[1]].concat()), 0);
        let mut other = seen.clone();
        other[3] = 1;
        assert_eq!(learnt(&other), 0);
        assert_eq!(learnt(&seen[1..]), 0);
        assert_eq!(learnt(&[]), 0);
        // What lies beyond the outermost frame is no frame: the walk will end before it.
        assert_eq!(learnt(&seen[..9]), first + 16 * 8);
    }

    #[test]
    fn what_was_found_is_what_the_unwinder_finds() {
        #[inline(never)]
        fn both(into: &mut [[usize; 64]; 2]) -> [usize; 2] {
            let found = [Walk::FramePointers, Walk::Unwinding].map(|by| {
                let into = &mut into[usize::from(by == Walk::Unwinding)];
                // Twice: the first time may be by the unwinder.
                return_addresses(by, into);
                return_addresses(by, into)
            });
            std::hint::black_box(found)
        }
        let mut into = [[0; 64]; 2];
        let [pointers, unwound] = both(&mut into);
        assert!(
            pointers > 3 && unwound >= pointers && unwound - pointers <= OUTER,
            "{pointers} of {unwound}"
        );
        // But for where they were called from.
        assert_eq!(into[0][1..pointers], into[1][1..pointers]);
    }
}

//! Who called: the return addresses on the calling thread's stack. The one place of this crate with unsafe code.
//!
//! A program that is compiled with frame pointers has, at each frame's start, the address of its caller's
//! frame and beside it the return address: a linked list, read in a few nanoseconds. A program that is not
//! has any number at all in that register. So nothing is believed:
//!
//! - Each frame must lie above the one before and within the thread's stack, as the system's thread library
//!   tells it (asked once a thread). Above the lowest stack pointer seen so far, the kernel said that there is memory: what
//!   the library tells of a main thread is what its stack may grow to, and under `ulimit -s unlimited` the heap
//!   is within that.
//! - The walk must end at the thread's outermost frame. Which that is was learnt when a walk on this thread
//!   agreed with the unwinder, address by address, up to the frames of the C library that starts threads.
//! - A walk that ends anywhere else (code of another language without frame pointers, a stack of a coroutine,
//!   the first time on a thread) counts for nothing: the unwinder does it again, and what it finds may be
//!   what the next walk is held against.
//!
//! What can't be seen so: a function without frame pointers that leaves their register alone hides its caller,
//! and a signal handler hides the function that the signal interrupted.
#![allow(unsafe_code, reason = "reads the stack; the only module of this crate that may")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::frames::{self, Frame, Place, Registers, Stack};

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

thread_local! {
    /// What a walk on this thread may read, and where it must end.
    static STACK: Cell<Stack> = const { Cell::new(Stack::NONE) };
    /// Where this thread's stack is, from and to; (0, 0) if that was not asked yet, (1, 1) if nobody knows.
    static TOLD: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
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
/// The place is of a walk over what [`STACK`] says may be read, on the calling thread, from the stack pointer of a
/// function that has not returned.
#[inline(always)]
unsafe fn read(place: Place) -> (usize, usize) {
    let words = place.address() as *const usize;
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
    frames::follow(&STACK.get(), here, into, |place| unsafe { read(place) })
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
    if let Some(root) = frames::outermost(&stack, here, unwound, |place| unsafe { read(place) }) {
        STACK.set(Stack { root, ..stack });
    }
}

/// Lets walks begin at this stack pointer, if it is on this thread's stack and there is memory all the way up;
/// tells whether none could before.
fn see(from: usize) -> bool {
    if TOLD.get() == (0, 0) {
        let (low, high) = bounds().unwrap_or((1, 1));
        TOLD.set((low, high));
        STACK.set(Stack { low: high, high, root: Frame::default() });
    }
    let ((lowest, _), stack) = (TOLD.get(), STACK.get());
    if from < lowest || from >= stack.low {
        return false;
    }
    let Some(low) = mapped(from, stack.low) else { return false };
    STACK.set(Stack { low, ..stack });
    true
}

/// Calls itself so many times, then says whether frame pointers show that as the unwinder does.
#[inline(never)]
fn agrees(calls: usize) -> bool {
    let agrees = match calls.checked_sub(1) {
        Some(calls) => agrees(calls),
        None => {
            let known = STACK.get();
            STACK.set(Stack { root: Frame::default(), ..known });
            return_addresses(Walk::FramePointers, &mut []);
            let seen = STACK.get();
            let agrees = seen.root != Frame::default();
            if !agrees {
                STACK.set(Stack { root: known.root, ..seen });
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

/// Where the page of the address `from` begins, if there is memory from it to `to`.
#[cfg(all(any(target_os = "linux", target_os = "android"), not(miri)))]
fn mapped(from: usize, to: usize) -> Option<usize> {
    // SAFETY: takes a number and returns one.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let low = from - from % page;
    // A byte for each page: of what is in memory now, which does not matter.
    let mut pages = [0_u8; 1024];
    for part in (low..to).step_by(page * pages.len()) {
        let size = (to - part).min(page * pages.len());
        // SAFETY: it writes a byte for each begun page, of which there are no more than there is room for; of the memory
        // that it is asked about it touches nothing.
        let said =
            unsafe { libc::mincore(std::ptr::without_provenance_mut(part), size, pages.as_mut_ptr().cast()) };
        if said != 0 {
            return None;
        }
    }
    Some(low)
}

#[cfg(not(all(any(target_os = "linux", target_os = "android"), not(miri))))]
fn mapped(_: usize, _: usize) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// The calling thread's stack, as it was told and from where on it was seen.
    fn known_stack() -> (usize, usize) {
        see(registers().stack);
        TOLD.get()
    }

    fn set_root(root: Frame) {
        STACK.set(Stack { root, ..STACK.get() });
    }

    /// Links the frames, which return to 0x1000, 0x1001 and so on; says where the first is, and what the last is.
    fn link<const N: usize>(frames: &mut [[usize; 2]; N]) -> (usize, Frame) {
        // They are read by their addresses.
        let first = (&raw const frames[0]).expose_provenance();
        for (at, frame) in frames.iter_mut().enumerate() {
            *frame = [first + 16 * (at + 1), 0x1000 + at];
        }
        black_box(frames);
        (first, Frame { at: first + 16 * (N - 1), address: 0x1000 + N - 1 })
    }

    /// What the test around it is about takes frame pointers.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn has_frame_pointers() -> bool {
        let has = Walk::of_this_program() == Walk::FramePointers;
        assert!(has || option_env!("LIVE_TEST_FRAME_POINTERS").is_none());
        has
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn what_is_on_this_stack_is_read() {
        let (low, high) = known_stack();
        let mut frames = [[0; 2]; 5];
        let (first, root) = link(&mut frames);
        assert!(low < first && first < high);
        let mut into = [0; 16];
        let from = Registers { stack: first, frame: first };
        set_root(root);
        assert_eq!(follow(from, &mut into), Some(5));
        assert_eq!(into[..6], [0x1000, 0x1001, 0x1002, 0x1003, 0x1004, 0]);
        set_root(Frame { at: root.at + 16, ..root });
        assert_eq!(follow(from, &mut into), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn what_is_elsewhere_is_not() {
        let (low, high) = known_stack();
        let mut into = [0; 16];
        let here = registers();
        set_root(Frame { at: high - 16, address: 0 });
        // Any of them, read, would be a fault or another thread's.
        for frame in
            [0, 1, 8, low - 8, low, here.stack - 8, high - 8, high, usize::MAX, usize::MAX - 7, 1 << 63]
        {
            assert_eq!(follow(Registers { frame, ..here }, &mut into), None, "{frame:x}");
        }
        // Good frames, in memory that is no stack and on the stack of another thread.
        let mut frames = Box::new([[0; 2]; 4]);
        let (first, root) = link(&mut frames);
        set_root(root);
        let there = Registers { frame: first, stack: first };
        assert_eq!(follow(there, &mut into), None);
        assert_eq!(follow(Registers { frame: first, ..here }, &mut into), None);
        let mut frames = [[0; 2]; 4];
        let (first, root) = link(&mut frames);
        std::thread::scope(|scope| {
            let other = move || {
                known_stack();
                set_root(root);
                let there = Registers { frame: first, stack: first };
                assert_eq!(follow(there, &mut [0; 16]), None);
                assert_eq!(follow(Registers { frame: first, ..registers() }, &mut [0; 16]), None);
                assert!(!see(first), "it is not this thread's");
                assert_eq!(follow(there, &mut [0; 16]), None);
            };
            scope.spawn(other).join().unwrap();
        });
        // On this stack, but the stack pointer is said to be below it, or above.
        set_root(root);
        for stack in [low - 64, low - 1, 0, high, high + 64] {
            assert!(!see(stack));
            assert_eq!(follow(Registers { frame: first, stack }, &mut into), None);
        }
        assert_eq!(follow(Registers { frame: first, stack: first }, &mut into), Some(4));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn a_stack_is_seen_as_far_down_as_it_was_used() {
        let (low, _) = known_stack();
        let seen = STACK.get();
        let here = registers().stack;
        assert!(seen.low <= here && seen.low > here - 0x2_0000 && seen.low.is_multiple_of(0x1000));
        assert!(!see(here), "that was seen");
        let pages = seen.low - 0x8000;
        assert!(low < pages && see(pages + 8));
        assert_eq!(STACK.get(), Stack { low: pages, ..seen });
        assert!(!see(pages) && see(low) && !see(low) && !see(low - 1));
    }

    /// A mapping of 4 pages of 64 KiB (the largest that a page is) without the second.
    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn a_hole_is_no_memory() {
        const PAGE: usize = 0x1_0000;
        // SAFETY: new memory, of which a part is given back again.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let start = libc::mmap(std::ptr::null_mut(), 5 * PAGE, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let hole = start.wrapping_byte_add(start.align_offset(PAGE)).wrapping_byte_add(PAGE);
            assert_eq!(libc::munmap(hole, PAGE), 0);
            hole.addr() - PAGE
        };
        let [hole, above, end] = [1, 2, 4].map(|page| start + page * PAGE);
        assert_eq!(mapped(start, hole), Some(start));
        assert_eq!(mapped(start + 9, hole - 3), Some(start));
        assert_eq!(mapped(start, hole + 1), None);
        assert_eq!(mapped(hole - 1, end), None);
        assert_eq!(mapped(hole, end), None);
        assert_eq!(mapped(above - 1, end), None);
        assert_eq!(mapped(above, end), Some(above));
        assert_eq!(mapped(above + 9, end - 9), Some(above));
        assert_eq!(mapped(0, 1), None);
        // SAFETY: what is left of it.
        unsafe { libc::munmap(std::ptr::without_provenance_mut(start), 4 * PAGE) };
    }

    /// Where the thread library tells of much more than there is, which is so of a main thread, a stack there (of a
    /// coroutine) has nothing between it and the thread's own.
    #[test]
    #[cfg(target_os = "linux")]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn nothing_is_read_between_another_stack_and_the_thread_s() {
        const SIZE: usize = 0x4_0000;
        let (_, high) = known_stack();
        let seen = STACK.get();
        // SAFETY: new memory, the upper half of which is given back.
        let start = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // Below all stacks, if that is free.
            let wish = std::ptr::without_provenance_mut(0x2000_0000);
            let start = libc::mmap(wish, SIZE, protection, flags, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::munmap(start.wrapping_byte_add(SIZE / 2), SIZE / 2), 0);
            start
        };
        let there = start.expose_provenance();
        assert!(there < seen.low, "new memory is below");
        TOLD.set((0x1000, high));
        set_root(Frame { at: high - 16, address: 0 });
        for stack in [there, there + SIZE / 2 - 16, there + SIZE / 2] {
            assert!(!see(stack));
            for frame in [stack, there + SIZE / 2] {
                // Read, the second would be a fault.
                assert_eq!(follow(Registers { stack, frame }, &mut [0; 4]), None);
            }
        }
        assert_eq!(STACK.get().low, seen.low);
        // SAFETY: the half that is left.
        unsafe { libc::munmap(start, SIZE / 2) };
    }

    /// Runs the function on a stack of its own, which is nobody's.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn on_another_stack(stack: &mut [u64], run: extern "C" fn()) {
        // SAFETY: both contexts are written before they are read, and live until the function, which has a stack that nobody
        // else uses, has come back here.
        unsafe {
            let mut back = std::mem::zeroed::<libc::ucontext_t>();
            let mut there = std::mem::zeroed::<libc::ucontext_t>();
            assert_eq!(libc::getcontext(&mut there), 0);
            there.uc_stack.ss_sp = stack.as_mut_ptr().cast();
            there.uc_stack.ss_size = size_of_val(stack);
            there.uc_link = &mut back;
            libc::makecontext(&mut there, run, 0);
            assert_eq!(libc::swapcontext(&mut back, &there), 0);
        }
    }

    /// What the walks find from where this is called.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[derive(Debug, Default, PartialEq, Eq)]
    struct Found {
        by_frame_pointers: Option<Vec<usize>>,
        unwound: Vec<usize>,
        either: Vec<usize>,
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    impl Found {
        extern "C" fn look() {
            let mut into = [0; 64];
            let pointers = by_frame_pointers(&mut into).map(|found| into[..found].to_vec());
            let [unwound, either] = [Walk::Unwinding, Walk::FramePointers].map(|by| {
                let found = return_addresses(by, &mut into);
                into[..found].to_vec()
            });
            FOUND.set(Self { by_frame_pointers: pointers, unwound, either });
        }

        extern "C" fn on_signal(_: libc::c_int) {
            Self::look();
        }

        /// From here.
        fn here() -> Self {
            // The first time may be by unwinding.
            Self::look();
            Self::look();
            FOUND.take()
        }
    }

    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    thread_local! {
        static FOUND: Cell<Found> = Cell::default();
    }

    /// A coroutine's stack, in memory of its own and within the thread's stack.
    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn a_coroutine_is_unwound() {
        let has_frame_pointers = has_frame_pointers();
        let here = Found::here();
        assert_eq!(here.by_frame_pointers.is_some(), has_frame_pointers);
        let root = STACK.get().root;
        let mut heap = vec![0; 0x8000];
        let mut own = [0; 0x8000];
        for (is_own, stack) in [(false, &mut heap[..]), (true, &mut own[..])] {
            for _ in 0..3 {
                on_another_stack(stack, Found::look);
                let found = FOUND.take();
                // It has its own outermost frame, which on the thread's stack may be learnt like another.
                assert!(found.unwound.len() < here.unwound.len());
                if let Some(found) = found.by_frame_pointers {
                    assert!(is_own && root != STACK.get().root, "{found:x?}");
                }
                assert!(found.unwound.ends_with(&found.either[found.either.len() - 1..]));
            }
        }
        let again = Found::here();
        assert_eq!((again.unwound.len(), again.either.len()), (here.unwound.len(), here.either.len()));
        assert_eq!(again.by_frame_pointers.is_some(), has_frame_pointers);
        assert_eq!(STACK.get().root, root);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn a_probe_on_a_strange_stack_changes_nothing() {
        thread_local! {
            static PROBES: Cell<Option<(bool, Walk)>> = const { Cell::new(None) };
        }
        extern "C" fn probe() {
            PROBES.set(Some((agrees(PROBED), Walk::of_this_program())));
        }
        let walk = Walk::of_this_program();
        let has_frame_pointers = has_frame_pointers();
        // A thread that knows nothing of its stack, and one that does.
        for knows in [false, true] {
            let work = move || {
                if knows {
                    Found::here();
                }
                on_another_stack(&mut vec![0; 0x8000], probe);
                assert_eq!(PROBES.take(), Some((false, walk)), "what was found of the program stays");
                if knows {
                    Found::look();
                    assert_eq!(FOUND.take().by_frame_pointers.is_some(), has_frame_pointers);
                }
                assert_eq!(Found::here().by_frame_pointers.is_some(), has_frame_pointers);
            };
            std::thread::spawn(work).join().unwrap();
        }
    }

    /// Calls itself, each time with more than a page of its own.
    #[inline(never)]
    fn deeper(calls: usize, last: &mut dyn FnMut()) {
        let mut kept = [0_u8; 5000];
        black_box(&mut kept);
        if calls == 0 {
            last()
        } else {
            deeper(calls - 1, last)
        }
        black_box(&mut kept);
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn where_nothing_was_called_from_before_frame_pointers_are_enough() {
        if !has_frame_pointers() {
            return;
        }
        let work = || {
            // By the unwinder and by frame pointers the innermost are kept.
            let [few, all] = [3, 64].map(|room| {
                let mut into = [0; 64];
                let found = return_addresses(Walk::FramePointers, &mut into[..room]);
                into[..found].to_vec()
            });
            assert_eq!(few[..], all[..3]);
            let here = Found::here();
            assert_eq!(here.either[1..], here.unwound[1..here.either.len()]);
            for calls in [20, 30] {
                deeper(calls, &mut || {
                    Found::look();
                    let found = FOUND.take();
                    assert_eq!(found.by_frame_pointers, None, "nobody knows yet that there is memory");
                    Found::look();
                    let again = FOUND.take();
                    assert!(again.by_frame_pointers.is_some());
                    // Not the frames around the outermost, which the unwinder sees.
                    assert_eq!(found.either.len(), again.either.len());
                    // On 64-bit ARM these have frame pointers too.
                    assert!(found.unwound.len() > found.either.len() || cfg!(target_arch = "aarch64"));
                });
            }
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no stack")]
    fn nothing_is_learnt_of_a_stack_that_is_not_seen_to_its_end() {
        let work = || {
            deeper(DEEPEST + 10, &mut || {
                let mut into = [0; DEEPEST];
                assert_eq!(return_addresses(Walk::FramePointers, &mut into), DEEPEST);
                assert_eq!(STACK.get().root, Frame::default());
                assert_eq!(by_frame_pointers(&mut into), None);
            });
        };
        std::thread::Builder::new().stack_size(16 << 20).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[cfg_attr(miri, ignore = "miri sends no signals")]
    fn a_signal_handler_is_walked_wherever_it_runs() {
        let has_frame_pointers = has_frame_pointers();
        let here = Found::here();
        let mut stack = vec![0_u64; 0x10000];
        // SAFETY: a handler for a signal that this thread sends itself, on a stack that lives until the former is back.
        unsafe {
            let mut before = std::mem::zeroed::<libc::stack_t>();
            let own = libc::stack_t {
                ss_sp: stack.as_mut_ptr().cast(),
                ss_flags: 0,
                ss_size: size_of_val(&stack[..]),
            };
            assert_eq!(libc::sigaltstack(&own, &mut before), 0);
            for flags in [0, libc::SA_ONSTACK] {
                let mut action = std::mem::zeroed::<libc::sigaction>();
                action.sa_sigaction = Found::on_signal as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = flags;
                assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
                for _ in 0..3 {
                    assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2), 0);
                    let found = FOUND.take();
                    // The handler, what calls it, what it interrupted, and the test. By frame pointers some are hidden,
                    // but the test's callers are there.
                    assert!(found.unwound.len() > here.unwound.len(), "{found:x?} {here:x?}");
                    let callers = &here.either[here.either.len() - 6..];
                    let are_there = found.either.windows(callers.len()).any(|window| window == callers);
                    assert!(are_there, "{found:x?} {here:x?}");
                    assert!(
                        found.by_frame_pointers.is_none() || flags == 0,
                        "on a stack that is not the thread's"
                    );
                }
            }
            assert_eq!(libc::sigaltstack(&before, std::ptr::null_mut()), 0);
            libc::signal(libc::SIGUSR2, libc::SIG_DFL);
        }
        let again = Found::here();
        assert_eq!((again.unwound.len(), again.either.len()), (here.unwound.len(), here.either.len()));
        assert_eq!(again.by_frame_pointers.is_some(), has_frame_pointers);
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri gives a call another address each time")]
    fn what_was_found_is_what_the_unwinder_finds() {
        #[inline(never)]
        fn both(into: &mut [[usize; 64]; 2]) -> [usize; 2] {
            let found = [Walk::FramePointers, Walk::Unwinding].map(|by| {
                let into = &mut into[usize::from(by == Walk::Unwinding)];
                // Twice: the first time may be by the unwinder.
                return_addresses(by, into);
                return_addresses(by, into)
            });
            black_box(found)
        }
        let mut into = [[0; 64]; 2];
        let [pointers, unwound] = both(&mut into);
        assert!(
            pointers > 3 && unwound >= pointers && unwound - pointers <= frames::OUTER,
            "{pointers} of {unwound}"
        );
        // But for where they were called from.
        assert_eq!(into[0][1..pointers], into[1][1..pointers]);
    }
}

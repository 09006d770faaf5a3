use std::hint::black_box;

use super::frames::FRAME;
use super::*;

/// Makes this module find and store the bounds of the calling thread's stack, and returns the bounds.
fn known_stack() -> (usize, usize) {
    see(registers().stack);
    BOUNDS.get()
}

fn set_root(root: StackFrame) {
    STACK.set(KnownStack { root, ..STACK.get() });
}

/// Links the frames, with the return addresses 0x1000, 0x1001 and so on. Returns the address of the first frame, and
/// the last frame.
fn link<const N: usize>(frames: &mut [[usize; 2]; N]) -> (usize, StackFrame) {
    // A walk reads the frames through their addresses.
    let first = (&raw const frames[0]).expose_provenance();
    for (at, frame) in frames.iter_mut().enumerate() {
        *frame = [first + FRAME * (at + 1), 0x1000 + at];
    }
    black_box(frames);
    (first, StackFrame { at: first + FRAME * (N - 1), address: 0x1000 + N - 1 })
}

/// Returns whether this program has frame pointers, which some tests need.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn has_frame_pointers() -> bool {
    let has = Walk::default() == Walk::FramePointers;
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
    set_root(StackFrame { at: root.at + FRAME, ..root });
    assert_eq!(follow(from, &mut into), None);
}

#[test]
#[cfg_attr(miri, ignore = "miri has no stack")]
fn what_is_elsewhere_is_not() {
    let (low, high) = known_stack();
    let mut into = [0; 16];
    let here = registers();
    set_root(StackFrame { at: high - 16, address: 0 });
    // No frame may be read at any of these addresses. Most of these reads would be a fault.
    let top_bit = 1 << (usize::BITS - 1);
    for frame in [0, 1, 8, low - 8, low, here.stack - 8, high - 8, high, usize::MAX, usize::MAX - 7, top_bit]
    {
        assert_eq!(follow(Registers { frame, ..here }, &mut into), None, "{frame:x}");
    }
    // Valid frames, in memory that is not a stack and on another thread's stack.
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
    // Frames on this stack, with a stack pointer below or above it.
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
    assert_eq!(STACK.get(), KnownStack { low: pages, ..seen });
    assert!(!see(pages) && see(low) && !see(low) && !see(low - 1));
}

/// Uses a mapping of 4 pages of 64 KiB, the largest page size, whose second page is not mapped.
#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn a_hole_is_no_memory() {
    const PAGE: usize = 0x1_0000;
    // SAFETY: this maps new memory, and unmaps a part of it.
    let start = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // The address is far below the other mappings. Near them, the kernel might fill the unmapped page with memory
        // for another thread of the tests.
        let far = if cfg!(target_pointer_width = "64") { 1_usize << 38 } else { 1 << 28 };
        let far = std::ptr::without_provenance_mut(far);
        let start = libc::mmap(far, 5 * PAGE, protection, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        let hole = start.wrapping_byte_add(start.align_offset(PAGE)).wrapping_byte_add(PAGE);
        assert_eq!(libc::munmap(hole, PAGE), 0);
        hole.addr() - PAGE
    };
    let [hole, above, end] = [1, 2, 4].map(|page| start + page * PAGE);
    assert_eq!(thread::mapped_from(start, hole), Some(start));
    assert_eq!(thread::mapped_from(start + 9, hole - 3), Some(start));
    assert_eq!(thread::mapped_from(start, hole + 1), None);
    assert_eq!(thread::mapped_from(hole - 1, end), None);
    assert_eq!(thread::mapped_from(hole, end), None);
    assert_eq!(thread::mapped_from(above - 1, end), None);
    assert_eq!(thread::mapped_from(above, end), Some(above));
    assert_eq!(thread::mapped_from(above + 9, end - 9), Some(above));
    assert_eq!(thread::mapped_from(0, 1), None);
    // SAFETY: this unmaps the rest of that memory, which nothing uses any more.
    unsafe { libc::munmap(std::ptr::without_provenance_mut(start), 4 * PAGE) };
}

/// Simulates a coroutine's stack in the reported range of the main thread's stack: the test changes the stored bounds
/// of this thread's stack. For a main thread, the thread library reports a larger stack than is mapped, so there may be
/// unmapped memory between that stack and the coroutine's.
#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn nothing_is_read_between_another_stack_and_the_thread_s() {
    const SIZE: usize = 0x4_0000;
    let (_, high) = known_stack();
    let seen = STACK.get();
    // SAFETY: this maps new memory, and unmaps its upper half.
    let start = unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // An address below all stacks, if it is free.
        let wish = std::ptr::without_provenance_mut(0x2000_0000);
        let start = libc::mmap(wish, SIZE, protection, flags, -1, 0);
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!(libc::munmap(start.wrapping_byte_add(SIZE / 2), SIZE / 2), 0);
        start
    };
    let there = start.expose_provenance();
    assert!(there < seen.low, "new memory is below");
    BOUNDS.set((0x1000, high));
    set_root(StackFrame { at: high - 16, address: 0 });
    for stack in [there, there + SIZE / 2 - 16, there + SIZE / 2] {
        assert!(!see(stack));
        for frame in [stack, there + SIZE / 2] {
            // A read at the second address would be a fault.
            assert_eq!(follow(Registers { stack, frame }, &mut [0; 4]), None);
        }
    }
    assert_eq!(STACK.get().low, seen.low);
    // SAFETY: this unmaps the other half, which nothing uses any more.
    unsafe { libc::munmap(start, SIZE / 2) };
}

/// Runs `run` on this stack, which belongs to no thread.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn on_another_stack(stack: &mut [u64], run: extern "C" fn()) {
    // SAFETY: both contexts are written before they are read, and live until the function has returned here. No other
    // code uses the stack of `run`.
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

/// The results of walks by different methods from one position.
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

    /// Walks from the position of the caller.
    fn here() -> Self {
        // Walks twice, because the first walk may use the unwinder.
        Self::look();
        Self::look();
        FOUND.take()
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
thread_local! {
    static FOUND: Cell<Found> = Cell::default();
}

/// Walks on a coroutine's stack, which is first in separate memory and then within the thread's stack.
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
            // The coroutine has its own outermost frame. If the coroutine's stack is within the thread's stack, that
            // frame may be learnt as the outermost frame of the thread's stack.
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
        PROBES.set(Some((agrees(PROBED), Walk::default())));
    }
    let walk = Walk::default();
    let has_frame_pointers = has_frame_pointers();
    // A thread that has not walked its stack yet, and a thread that has walked it.
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

/// Calls itself, each time with a frame of more than a page.
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
        // If the buffer is too small, a walk stores the innermost frames, by either method.
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
                // Both walks lack the frames outside of the outermost frame, which only the unwinder sees.
                assert_eq!(found.either.len(), again.either.len());
                // On 64-bit ARM, the C library's outermost frames have frame pointers, too.
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
            assert_eq!(STACK.get().root, StackFrame::default());
            assert_eq!(by_frame_pointers(&mut into), None);
        });
    };
    std::thread::Builder::new().stack_size(16 << 20).spawn(work).unwrap().join().unwrap();
}

/// Returns memory for a stack, below this thread's stack and above it.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn stacks_around() -> [&'static mut [u8]; 2] {
    const SIZE: usize = 1 << 19;
    let (low, high) = known_stack();
    // Many places are tried, because the allocator reserves 64 MiB for each of many threads, and this memory may be
    // next to a stack.
    let below = (1..1_000_000).map(|away| low - away * SIZE);
    let above = (0..1_000_000).map(|away| high.next_multiple_of(SIZE) + away * SIZE);
    // SAFETY: this maps new memory, replaces no other mapping, and is never unmapped.
    let map = |at: usize| unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let place = std::ptr::without_provenance_mut(at);
        let new = libc::mmap(place, SIZE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
        if new != place && new != libc::MAP_FAILED {
            libc::munmap(new, SIZE); // A kernel before 4.17 maps elsewhere, maybe at the next place to be tried.
        }
        (new == place).then(|| std::slice::from_raw_parts_mut(new.cast(), SIZE))
    };
    [below.filter_map(map).next().unwrap(), above.filter_map(map).next().unwrap()]
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[cfg_attr(miri, ignore = "miri sends no signals")]
fn a_signal_handler_is_walked_wherever_it_runs() {
    // Runs on another thread, because there is no room above a main thread's stack.
    std::thread::spawn(|| stacks_around().into_iter().for_each(walk_in_handlers)).join().unwrap();
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn walk_in_handlers(stack: &mut [u8]) {
    let has_frame_pointers = has_frame_pointers();
    let here = Found::here();
    // SAFETY: this installs a handler for a signal that this thread sends to itself. The handler's stack lives until
    // the former alternate stack is restored.
    unsafe {
        let mut before = std::mem::zeroed::<libc::stack_t>();
        let own = libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: stack.len() };
        assert_eq!(libc::sigaltstack(&own, &mut before), 0);
        for flags in [0, libc::SA_ONSTACK] {
            let mut action = std::mem::zeroed::<libc::sigaction>();
            action.sa_sigaction = Found::on_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = flags;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
            for _ in 0..3 {
                assert_eq!(libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2), 0);
                let found = FOUND.take();
                // The unwinder finds the handler, its caller, the interrupted function, and the test. A walk by frame pointers
                // may miss some of these, but finds the test's callers.
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
        let mut found = [0; 2];
        // A loop makes the same calls for both methods. The compiler does not know how often the loop runs, so it can't
        // make separate calls for each method.
        for by in black_box(&[Walk::FramePointers, Walk::Unwinding][..]) {
            let at = usize::from(*by == Walk::Unwinding);
            // Walks twice, because the first walk may use the unwinder.
            return_addresses(*by, &mut into[at]);
            found[at] = return_addresses(*by, &mut into[at]);
        }
        found
    }
    let mut into = [[0; 64]; 2];
    let [pointers, unwound] = both(&mut into);
    assert!(
        pointers > 3 && unwound >= pointers && unwound - pointers <= frames::OUTER,
        "{pointers} of {unwound}"
    );
    assert_eq!(into[0][..pointers], into[1][..pointers]);
}

//! Tests backtraces of the main thread, whose stack grows at run time. The thread library reports the maximum size of
//! that stack. This test runs without the test harness, because the harness runs tests on other threads.

#![allow(unsafe_code, reason = "limits are set, and a stack is switched to")]

#[cfg(target_os = "linux")]
fn main() {
    on_linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
mod on_linux {
    use std::hint::black_box;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use atrace_subscriber::live::{Walk, return_addresses};

    /// The maximum number of outermost frames that belong to the C library and may have no frame pointers.
    const OUTER: usize = 4;

    pub(super) fn main() {
        const CHILD: &str = "LIVE_TEST_MAIN_THREAD";
        // With the option `--list`, this program reports that it has no tests.
        if std::env::args().any(|argument| argument == "--list") {
            return;
        }
        match std::env::var(CHILD).as_deref() {
            Ok("grows") => return grows(),
            Ok("unlimited") => return unlimited(),
            Ok(other) => panic!("{CHILD}={other}"),
            Err(_) => {}
        }
        for (test, limit) in [("grows", 8 << 20), ("unlimited", libc::RLIM_INFINITY)] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(CHILD, test);
            // SAFETY: the closure only reads and sets a limit.
            unsafe { command.pre_exec(move || limit_stack(limit)) };
            let status = command.status().unwrap();
            assert!(status.success(), "{test}: {status}");
            eprintln!("test {test} ... ok");
        }
    }

    fn limit_stack(bytes: libc::rlim_t) -> std::io::Result<()> {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is writable, and read afterwards.
        let done = unsafe {
            libc::getrlimit(libc::RLIMIT_STACK, &mut limit) == 0 && {
                limit.rlim_cur = bytes.min(limit.rlim_max);
                libc::setrlimit(libc::RLIMIT_STACK, &limit) == 0
            }
        };
        if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
    }

    /// Walks the stack by frame pointers and by the unwinder, from one call in a loop. The compiler can't split the
    /// call in two, because the number of rounds is not a constant. So both walks have the same return address, and are
    /// equal from the first frame to the last.
    #[inline(never)]
    fn both() -> [Vec<usize>; 2] {
        let (mut into, mut walks) = ([0; 64], Vec::new());
        for by in black_box(&[Walk::FramePointers, Walk::Unwinding][..]) {
            let found = return_addresses(*by, &mut into);
            walks.push(into[..found].to_vec());
        }
        walks.try_into().unwrap()
    }

    #[track_caller]
    fn check([pointers, unwound]: [Vec<usize>; 2]) {
        assert!(pointers.len() > 2 && unwound.len() - pointers.len() <= OUTER, "{pointers:x?} {unwound:x?}");
        assert_eq!(pointers, unwound[..pointers.len()]);
    }

    /// Tests that a walk finds the right addresses at each depth, even if the stack was never so deep before.
    fn grows() {
        #[inline(never)]
        fn deeper(calls: u32) {
            let mut kept = [0_u8; 5000];
            black_box(&mut kept);
            check(both());
            if calls > 0 {
                deeper(calls - 1);
            }
            black_box(&mut kept);
        }
        deeper(30);
        deeper(1000);
        check(both());
    }

    /// With an unlimited stack, the heap counts as memory into which the main thread's stack may grow. The test then
    /// walks in a coroutine whose stack is in the heap, and whose first frame pointer leads to an address between the
    /// heap and the main thread's stack.
    fn unlimited() {
        check(both());
        check(both());
        #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
        coroutine();
        check(both());
    }

    #[cfg(all(target_env = "gnu", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn coroutine() {
        extern "C" fn run() {
            let [pointers, unwound] = both();
            assert!(!unwound.is_empty());
            assert_eq!(pointers, unwound);
            // A second walk by frame pointers finds as many frames as the first one.
            assert_eq!(both()[0].len(), pointers.len());
        }
        // The allocator takes these 64 KiB from the end of the heap, not from a separate mapping.
        let mut stack = vec![0_u128; 0x1000];
        let [heap, main] = [stack.as_ptr().addr(), (&raw const stack).addr()];
        assert!(heap < main);
        let nowhere = (heap + (main - heap) / 2) & !15;
        // SAFETY: both contexts are written before they are read. They live until `run` has returned to here. No other
        // code uses the stack of `run`. The functions on that stack save the frame pointer that the context sets.
        unsafe {
            let mut back = std::mem::zeroed::<libc::ucontext_t>();
            let mut there = std::mem::zeroed::<libc::ucontext_t>();
            assert_eq!(libc::getcontext(&mut there), 0);
            there.uc_stack.ss_sp = stack.as_mut_ptr().cast();
            there.uc_stack.ss_size = size_of_val(&stack[..]);
            there.uc_link = &mut back;
            libc::makecontext(&mut there, run, 0);
            #[cfg(target_arch = "x86_64")]
            {
                there.uc_mcontext.gregs[libc::REG_RBP as usize] = nowhere as i64;
            }
            #[cfg(target_arch = "aarch64")]
            {
                there.uc_mcontext.regs[29] = nowhere as u64;
            }
            assert_eq!(libc::swapcontext(&mut back, &there), 0);
        }
        drop(stack);
    }
}

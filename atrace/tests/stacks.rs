//! Events on small stacks: those of signal handlers, and of threads with little stack.
#![cfg(target_os = "linux")]

mod common;

#[allow(unsafe_code, reason = "stacks and signals are set up as a C program would")]
mod cases {
    use atrace::*;

    use crate::common::{Place, case, control, skipped};

    const TAG: AtraceTag = AtraceTag::App;
    const PAGE: usize = 4096;

    /// Returns memory with a guard page below it.
    fn guarded(size: usize) -> *mut libc::c_void {
        // SAFETY: the mapping is new and never unmapped. The first page of it is protected.
        unsafe {
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::PROT_READ | libc::PROT_WRITE;
            let place = libc::mmap(std::ptr::null_mut(), PAGE + size, all, anonymous, -1, 0);
            assert_ne!(place, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(place, PAGE, libc::PROT_NONE), 0);
            place.byte_add(PAGE)
        }
    }

    fn events() {
        // Each event has its own stack frame.
        let all: [fn(); 6] = [
            || atrace_instant(TAG, "event"),
            || atrace_begin(TAG, "slice"),
            || atrace_end(TAG),
            || atrace_async_for_track_begin(TAG, "track", "a name of more than 32 bytes that is copied", 1),
            || atrace_int64(TAG, "counter", i64::MIN),
            || drop(begin_scoped_event(TAG, "scoped")),
        ];
        all.iter().for_each(|event| event());
    }

    extern "C" fn on_signal(_: libc::c_int) {
        events();
    }

    /// Calls `then` after each of these switches, whose events notice it: off, on, and on with all tags.
    fn switched(then: impl Fn()) {
        then();
        let on = control().enable("*").unwrap();
        then();
        let tags = control().enable_tags(AtraceTag::Camera).unwrap();
        then();
        drop((on, tags));
        then();
    }

    #[test]
    fn a_handler_on_8_kib_notices_a_switch() {
        const SIZE: usize = 8192;
        let name = case!({
            atrace_init();
            let stack = libc::stack_t { ss_sp: guarded(SIZE), ss_flags: 0, ss_size: SIZE };
            // SAFETY: a live stack, and a handler that returns.
            unsafe {
                if libc::sigaltstack(&stack, std::ptr::null_mut()) != 0 {
                    println!("REFUSED");
                    return;
                }
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
                action.sa_flags = libc::SA_ONSTACK;
                assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
            }
            // SAFETY: the handler was set above.
            switched(|| assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0));
        });
        let place = Place::file();
        let ran = place.run(&name);
        if ran.stdout.contains("REFUSED") {
            return skipped(&name, "what this processor keeps at a signal takes more than 8 KiB");
        }
        assert_eq!(place.text().matches("I|").count(), 2);
    }

    #[test]
    fn a_thread_of_16_kib_notices_a_switch() {
        const SIZE: usize = 16384;
        let name = case!({
            extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
                events();
                let args =
                    [Arg::Int("number", i64::MIN), Arg::Float("fraction", 0.1), Arg::Str("text", "text")];
                atrace_instant_args(TAG, "event", &args);
                std::ptr::null_mut()
            }
            atrace_init();
            switched(|| {
                // SAFETY: the stack is alive and has that size, and the thread is joined.
                unsafe {
                    let mut attributes = std::mem::zeroed();
                    let mut thread = std::mem::zeroed();
                    assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
                    assert_eq!(libc::pthread_attr_setstack(&mut attributes, guarded(SIZE), SIZE), 0);
                    assert_eq!(libc::pthread_create(&mut thread, &attributes, body, std::ptr::null_mut()), 0);
                    assert_eq!(libc::pthread_join(thread, std::ptr::null_mut()), 0);
                }
            });
        });
        let place = Place::file();
        place.run(&name);
        assert_eq!(place.text().matches("I|").count(), 4);
    }
}

//! Tests events on small stacks: on the stacks of signal handlers, and in threads with little stack.
#![cfg(target_os = "linux")]

mod common;

#[allow(unsafe_code, reason = "stacks and signals are set up as a C program would")]
mod cases {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use atrace::*;

    use crate::common::{Place, case, control};

    const TAG: AtraceTag = AtraceTag::App;

    /// The number of bytes that an event needs on a signal stack, even if the event notices a switch of tracing. The
    /// data that the kernel stores on the signal stack is not included. The crate's documentation promises this number.
    const NEED: usize = if cfg!(debug_assertions) { 16 << 10 } else { 8 << 10 };

    /// Returns memory of at least this size, with a guard page below it.
    fn guarded(size: usize) -> *mut libc::c_void {
        // SAFETY: the mapping is new and never unmapped. Its first page is the guard page.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let all = libc::PROT_READ | libc::PROT_WRITE;
            let place = libc::mmap(std::ptr::null_mut(), page + size, all, anonymous, -1, 0);
            assert_ne!(place, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(place, page, libc::PROT_NONE), 0);
            place.byte_add(page)
        }
    }

    /// The address of the stack frame from which the events are written.
    static FRAME: AtomicUsize = AtomicUsize::new(0);

    fn events() {
        let here = 0_u8;
        FRAME.store((&raw const here).addr(), Ordering::Relaxed);
        // Each event is written by a separate function, so that each event has its own stack frame.
        let all: [fn(); 7] = [
            || atrace_instant(TAG, "event"),
            || atrace_begin(TAG, "slice"),
            || atrace_end(TAG),
            || atrace_async_for_track_begin(TAG, "track", "a name of more than 32 bytes that is copied", 1),
            || atrace_int64(TAG, "counter", i64::MIN),
            || drop(begin_scoped_event(TAG, "scoped")),
            || {
                let args =
                    [Arg::Int("number", i64::MIN), Arg::Float("fraction", 0.1), Arg::Str("text", "text")];
                atrace_instant_args(TAG, "event", &args);
            },
        ];
        all.iter().for_each(|event| event());
    }

    /// Calls `then` four times: at first, after tracing was switched on, after one more tag was switched on, and after
    /// all of this was switched off again. The events of `then` notice each switch.
    fn switched(then: impl Fn()) {
        then();
        let on = control().enable("*").unwrap();
        then();
        let tags = control().enable(AtraceTag::Camera).unwrap();
        then();
        drop((on, tags));
        then();
    }

    /// Runs signal handlers on a stack of the promised size, and checks how much of the stack they use.
    ///
    /// The kernel reports the maximum size of the data that it stores on the signal stack. It stores less data while
    /// some registers of the processor are not in use, and the handler could then use more than the promised number of
    /// bytes. So the part of the stack that the handler uses is measured, too.
    fn handled() {
        extern "C" fn on_signal(_: libc::c_int) {
            events();
        }
        atrace_init();
        // SAFETY: no preconditions.
        let size = match unsafe { libc::getauxval(libc::AT_MINSIGSTKSZ) } as usize {
            0 => libc::MINSIGSTKSZ, // The kernel is older, and does not report the size.
            size => size,
        } + NEED;
        let low = guarded(size);
        let stack = libc::stack_t { ss_sp: low, ss_flags: 0, ss_size: size };
        // SAFETY: the stack is never unmapped, and the handler returns.
        unsafe {
            assert_eq!(libc::sigaltstack(&stack, std::ptr::null_mut()), 0);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
            action.sa_flags = libc::SA_ONSTACK;
            assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
        }
        // SAFETY: the handler was set above.
        switched(|| assert_eq!(unsafe { libc::raise(libc::SIGUSR1) }, 0));
        // SAFETY: the stack is still mapped, and nothing runs on it.
        let written = unsafe { std::slice::from_raw_parts(low.cast::<u8>(), size) };
        let lowest = low.addr() + written.iter().position(|byte| *byte != 0).unwrap();
        let needed = FRAME.load(Ordering::Relaxed) - lowest;
        println!("NEEDED {needed}");
        assert!(needed <= NEED, "{needed} bytes");
    }

    #[test]
    fn a_handler_notices_a_switch_on_the_promised_stack() {
        let name = case!({
            handled();
        });
        let place = Place::file();
        println!("{} bytes", place.run(&name).said("NEEDED")[0]);
        assert_eq!(place.text().matches("I|").count(), 4);
    }

    #[test]
    #[cfg(feature = "perfetto")]
    fn a_handler_writes_for_perfetto_on_the_promised_stack() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("trace");
            let recording = perfetto::record_to(&path).unwrap();
            handled();
            recording.finish().unwrap();
            let trace = std::fs::read(path).unwrap();
            assert!(trace.windows(6).any(|bytes| bytes == b"scoped"), "the handlers' events are missing");
        });
        println!("{} bytes", Place::file().run(&name).said("NEEDED")[0]);
    }

    /// Tests events in a thread with little stack, after each switch of tracing. The stack has 16 KiB, or more if the C
    /// library requires more: it needs a part of each stack itself, which depends on the sizes of pages and registers.
    #[test]
    fn a_thread_with_little_stack_notices_a_switch() {
        let name = case!({
            extern "C" fn body(_: *mut libc::c_void) -> *mut libc::c_void {
                events();
                std::ptr::null_mut()
            }
            atrace_init();
            // SAFETY: no preconditions.
            let least = unsafe { libc::sysconf(libc::_SC_THREAD_STACK_MIN) };
            let size = (16 << 10).max(usize::try_from(least).unwrap_or(0));
            switched(|| {
                // SAFETY: the new stack has the given size and is never unmapped. The thread is joined.
                unsafe {
                    let mut attributes = std::mem::zeroed();
                    let mut thread = std::mem::zeroed();
                    assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
                    assert_eq!(libc::pthread_attr_setstack(&mut attributes, guarded(size), size), 0);
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

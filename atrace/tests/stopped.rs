//! Tests a thread that is stopped in the middle of an event. No other thread waits for the stopped thread, and the
//! thread damages no trace when it continues.

#![cfg(not(no_tracing))]

mod common;
#[allow(dead_code, unreachable_pub, reason = "this module is shared with the tests in `crates/real-service`")]
#[path = "../../crates/real-service/src/trace.rs"]
mod trace;

#[allow(
    unsafe_code,
    reason = "a handler of a signal stops a thread, as a debugger or a long jump would leave it"
)]
mod cases {
    use std::fs::File;
    use std::os::unix::net::UnixListener;
    use std::os::unix::thread::JoinHandleExt as _;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use atrace::perfetto;
    use atrace::*;
    use atrace_cli::service::{Service, Storage};

    use crate::common::{self, case, until};
    use crate::trace::{Event, Trace};

    const TAG: AtraceTag = AtraceTag::App;

    static IS_STOPPED: AtomicBool = AtomicBool::new(false);
    static MAY_GO_ON: AtomicBool = AtomicBool::new(false);
    /// How many calls of event functions have returned in the thread that will be stopped.
    static RETURNED: AtomicU64 = AtomicU64::new(0);
    /// The number of events of the signal handler that were lost.
    static HANDLERS_LOST: AtomicU64 = AtomicU64::new(0);

    /// Handles a signal: stops the thread if it is in the middle of an event. The handler writes an event: if this
    /// event is lost, the thread is in the middle of an event. During the thread's first hundred events, the handler
    /// does not stop the thread.
    extern "C" fn stop(_: libc::c_int) {
        let lost = perfetto::status().lost();
        atrace_instant(TAG, "by the handler");
        let is_inside = perfetto::status().lost() > lost;
        HANDLERS_LOST.fetch_add(is_inside.into(), Ordering::SeqCst);
        if is_inside && RETURNED.load(Ordering::SeqCst) > 100 && !MAY_GO_ON.load(Ordering::SeqCst) {
            IS_STOPPED.store(true, Ordering::SeqCst);
            while !MAY_GO_ON.load(Ordering::SeqCst) {
                // SAFETY: no preconditions.
                unsafe { libc::usleep(1000) };
            }
        }
    }

    /// Starts a thread that writes events, and stops the thread in the middle of an event.
    fn stopped() -> JoinHandle<()> {
        // SAFETY: the handler makes only async-signal-safe calls.
        unsafe { libc::signal(libc::SIGUSR1, stop as extern "C" fn(libc::c_int) as libc::sighandler_t) };
        let thread = std::thread::spawn(|| {
            let name = "n".repeat(100);
            while !MAY_GO_ON.load(Ordering::SeqCst) {
                for _ in 0..20 {
                    atrace_instant(TAG, &name);
                    RETURNED.fetch_add(1, Ordering::SeqCst);
                }
                std::thread::sleep(Duration::from_micros(100)); // The pause makes the thread so slow that the memory is never full.
            }
            atrace_instant(TAG, "gone on");
        });
        until("it is stopped in the middle of an event", || {
            // SAFETY: the thread is not joined yet.
            unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGUSR1) };
            IS_STOPPED.load(Ordering::SeqCst)
        });
        thread
    }

    fn go_on(thread: JoinHandle<()>) {
        MAY_GO_ON.store(true, Ordering::SeqCst);
        thread.join().unwrap();
    }

    fn is_threads(event: &Event) -> bool {
        event.name.as_ref().is_some_and(|name| name.len() == 100)
    }

    fn has(trace: &Path, name: &str) -> bool {
        Trace::open(trace).events().iter().any(|event| event.name.as_deref() == Some(name.as_bytes()))
    }

    #[test]
    fn a_recording_ends() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let [first, second, third] = ["first", "second", "third"].map(|name| directory.path().join(name));
            let recording = perfetto::record_to(&first).unwrap();
            let thread = stopped();
            std::thread::spawn(|| atrace_instant(TAG, "another thread's")).join().unwrap();
            let said = recording.finish().unwrap_err();
            assert_eq!(said.kind(), std::io::ErrorKind::TimedOut, "{said}");
            assert!(has(&first, "another thread's"));
            // The recording contains each event whose function has returned, except lost events. It may also contain
            // the event in which the thread was stopped.
            let returned = RETURNED.load(Ordering::SeqCst);
            let lost = perfetto::status().lost() - HANDLERS_LOST.load(Ordering::SeqCst);
            let found = Trace::open(&first).events().iter().filter(|event| is_threads(event)).count() as u64;
            assert!((returned..=returned + 1).contains(&(found + lost)), "{found} + {lost} of {returned}");
            // A second recording is refused, because the stopped thread may still use the memory of the first
            // recording.
            assert_eq!(perfetto::record_to(&second).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
            go_on(thread);
            let recording = perfetto::record_to(&third).unwrap();
            atrace_instant(TAG, "the next");
            recording.finish().unwrap();
            assert!(has(&third, "the next") && !has(&third, "gone on"));
        });
        common::Place::file().run(&name);
    }

    #[test]
    fn a_process_connects_again() {
        let name = case!({
            let directory = tempfile::tempdir().unwrap();
            let socket = directory.path().join("socket");
            let begin = |trace: &str| {
                let _ = std::fs::remove_file(&socket);
                let file = File::create(directory.path().join(trace)).unwrap();
                let listener = UnixListener::bind(&socket).unwrap();
                // SAFETY: no preconditions.
                let user = unsafe { libc::geteuid() };
                Service::start(listener, user, Storage::File { file, max: None }).unwrap()
            };
            // SAFETY: no other thread reads the environment.
            unsafe { std::env::set_var("PERFETTO_PRODUCER_SOCK_NAME", &socket) };
            let service = begin("first");
            perfetto::connect();
            let thread = stopped();
            service.finish();
            until("it is gone", || !perfetto::status().is_connected());
            let service = begin("second");
            until("it is there again", || perfetto::status().sessions() == 1);
            std::thread::spawn(|| atrace_instant(TAG, "another thread's")).join().unwrap();
            go_on(thread);
            service.finish();
            assert!(has(&directory.path().join("second"), "another thread's"));
            assert!(has(&directory.path().join("second"), "gone on"));
        });
        common::Place::file().run(&name);
    }
}

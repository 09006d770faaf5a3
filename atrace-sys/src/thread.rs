//! A helper thread that the program it lives in does not notice: no signal lands on it, no descriptor is kept
//! open by it.

#[cfg(not(no_tracing))]
pub mod ending;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(no_tracing))]
use std::sync::atomic::AtomicU32;
#[cfg(not(no_tracing))]
use std::time::Duration;

use crate::system;

/// Starts a thread on which no signal of the process is delivered. Nobody waits for it. A panic in it ends it, once the
/// panic hook has reported it.
///
/// A program's signal handlers expect its own threads. It is none of std's, where each thread takes a lock as it starts: a
/// child forked meanwhile could start no more.
///
/// # Errors
///
/// When the system has no more threads.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A thread has the descriptors of its maker.
    let has_left = has_left_descriptors();
    let run = move || {
        OWN.with(|own| own.has_left_descriptors.set(has_left));
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(body)) {
            std::mem::forget(thrown); // It may panic as it is dropped.
        }
    };
    system::spawn(name, Box::new(run))
}

/// Starts a thread that the C library does not know, on which no signal is delivered; false where that can't be. For what must
/// be started by an event: it allocates nothing and takes no lock, also in a signal handler and in a forked child.
///
/// Only one at a time in a process, and only on x86_64 and aarch64. `body` runs without thread-locals: it must not allocate,
/// panic, or call what uses errno. The C library's `setuid()` does not reach it: it keeps the [rights](crate::process::rights)
/// that its maker had.
#[cfg(not(no_tracing))]
pub fn spawn_bare(body: extern "C" fn()) -> bool {
    system::spawn_bare(body)
}

/// Asks what [`leave_descriptors`] must know: a thread of [`spawn_bare`] can't.
#[cfg(not(no_tracing))]
pub fn prepare() {
    may_call_close_range();
}

/// Tells whether the calling thread is one of [`spawn_bare`].
#[cfg(not(no_tracing))]
pub fn is_bare() -> bool {
    system::is_bare()
}

#[cfg(no_tracing)]
const fn is_bare() -> bool {
    false
}

/// Calls `body` with every signal held back from the calling thread; a thread that it starts never has one. Signals of the
/// process are then its other threads', and one that the kernel has for a call, as SIGXFSZ, does nothing: the call's error says it.
#[cfg(not(no_tracing))]
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    let _blocked = system::signals::Blocked::new(&system::signals::Signals::all());
    body()
}

/// Gives the calling thread a descriptor table of its own, and empties it; tells whether that was done.
///
/// While threads share their table, the kernel counts references at each `write(2)`, also for a second thread that only
/// sleeps. After this call no descriptor of the process is open in the calling thread, and it keeps none of them open.
/// Nothing that reads, writes, opens or closes may run in it from then on.
///
/// Needs `close_range(2)` of Linux 5.9 and, as the system call filter of an app kills it for calls that its
/// Android does not know, Android 13; before that nothing is changed.
#[doc(alias = "close_range")]
pub fn leave_descriptors() -> bool {
    let left = may_call_close_range() && system::leave_descriptors();
    if left && !is_bare() {
        OWN.with(|own| own.has_left_descriptors.set(true));
    }
    left
}

/// As [`leave_descriptors`], and has `/dev/null` stand at 0, 1 and 2: nothing that the calling thread opens gets a number
/// that libraries believe to be a terminal's.
#[cfg(not(no_tracing))]
pub fn have_descriptors_of_its_own() -> bool {
    let is_left = leave_descriptors();
    if is_left {
        for _ in 0..3 {
            // It stays open: it is nobody's but this thread's.
            let _ = system::file::open(c"/dev/null", libc::O_RDWR).map(std::os::fd::IntoRawFd::into_raw_fd);
        }
    }
    is_left
}

/// Android's filter lets apps make the call since Android 13; who makes an unknown one gets a SIGSYS. A thread that may not
/// read properties is answered as the first that asked was.
#[cfg(target_os = "android")]
pub(crate) fn may_call_close_range() -> bool {
    use std::sync::atomic::{AtomicU8, Ordering};

    use crate::properties::Properties;
    const ANDROID_13: u32 = 33;
    /// 0: not asked, 1: no, 2: yes.
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    if ANSWER.load(Ordering::Relaxed) == 0 {
        let level = Properties::open().ok().and_then(Properties::api_level);
        let may = level.is_some_and(|level| level >= ANDROID_13);
        ANSWER.store(1 + u8::from(may), Ordering::Relaxed);
    }
    ANSWER.load(Ordering::Relaxed) == 2
}

#[cfg(not(target_os = "android"))]
pub(crate) const fn may_call_close_range() -> bool {
    true
}

/// What each thread knows of itself. It is all in one: on Android each thread-local has a key of the C library, and code.
#[derive(Debug)]
struct Own {
    has_left_descriptors: Cell<bool>,
    /// The word of [`with_slot`].
    #[cfg(not(no_tracing))]
    slot: AtomicU32,
}

thread_local! {
    static OWN: Own = const {
        Own {
            has_left_descriptors: Cell::new(false),
            #[cfg(not(no_tracing))]
            slot: AtomicU32::new(0),
        }
    };
}

/// Calls `then` with a word of the calling thread, which is 0 at first. There is one such word: that of Perfetto's producer.
#[cfg(not(no_tracing))]
#[inline(always)]
pub fn with_slot<R>(then: impl FnOnce(&AtomicU32) -> R) -> R {
    OWN.with(|own| then(&own.slot))
}

/// Tells whether the calling thread has [left](leave_descriptors) the descriptors of the process.
pub(crate) fn has_left_descriptors() -> bool {
    is_bare() || OWN.with(|own| own.has_left_descriptors.get())
}

/// Waits so long, whatever signals come meanwhile.
#[cfg(not(no_tracing))]
pub fn pause(time: Duration) {
    use crate::clock::asked;
    let end = asked() + time.as_nanos() as u64;
    while let Some(left @ 1..) = end.checked_sub(asked()) {
        let _ = system::file::poll(&mut [], Some(Duration::from_nanos(left)));
    }
}

/// The system's number of the calling thread, where it is known.
#[inline]
pub fn number() -> Option<u32> {
    system::thread_number()
}

/// Whether this process has a thread with this number of the system's.
#[cfg(not(no_tracing))]
pub fn is_there(number: u32) -> bool {
    system::is_thread(number)
}

/// Where the calling thread's stack is: its lowest address and the one behind its highest.
pub fn stack() -> Option<(usize, usize)> {
    system::stack_bounds()
}

/// Where the page of the address `from` begins, if there is memory from it to `to`.
pub fn mapped_from(from: usize, to: usize) -> Option<usize> {
    system::mapped_from(from, to)
}

/// Calls `then` with the name of the calling thread, as the kernel knows it.
#[cfg(not(no_tracing))]
pub fn with_name<R>(then: impl FnOnce(&[u8]) -> R) -> R {
    let mut name = [0_u8; 16];
    system::thread_name(&mut name);
    then(name.split(|byte| *byte == 0).next().unwrap_or_default())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    #[test]
    #[cfg_attr(miri, ignore = "sends signals")]
    fn a_pause_is_no_shorter_for_signals() {
        static HANDLED: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handle(_: libc::c_int) {
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
        let pause_of = Duration::from_millis(50);
        let is_over = AtomicBool::new(false);
        // SAFETY: a handler that may run anywhere, for a signal that no other test here uses; the thread lives until the scope
        // ends.
        let took = unsafe {
            assert_ne!(
                libc::signal(libc::SIGWINCH, handle as *const () as libc::sighandler_t),
                libc::SIG_ERR
            );
            let own = libc::pthread_self();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        libc::pthread_kill(own, libc::SIGWINCH);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                let start = Instant::now();
                while HANDLED.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
                let spun = start.elapsed();
                pause(pause_of);
                let took = start.elapsed() - spun;
                is_over.store(true, Ordering::Relaxed);
                took
            })
        };
        assert!(took >= pause_of, "{took:?} after {} signals", HANDLED.load(Ordering::Relaxed));
    }
}

//! Helper threads that do not disturb the program, and facts about the calling thread.
//!
//! # Two kinds of threads
//!
//! A *quiet* thread ([`spawn_quiet`]) is a thread of the C library, on which no signal of the process is delivered. A
//! *bare* thread ([`spawn_bare`]) is made by the system call `clone` alone. Code that writes an event may start a bare
//! thread, even in a signal handler or in a forked child, because the start allocates nothing and takes no lock. But a
//! bare thread has no thread-locals, so its code may not allocate, panic or use errno. A process has at most one bare
//! thread, which is recognised by the generation of the process and the id of the thread ([`is_bare`]).
//!
//! # Signals and descriptors
//!
//! A program's signal handlers expect to run on the program's own threads, so helper threads block all signals. If a
//! helper thread shares the descriptor table of a program with a single thread, each `write(2)` of the program costs
//! more. Besides, the program may close the descriptors of the helper thread and reuse their numbers. So a helper
//! thread can get a descriptor table of its own ([`leave_descriptors`]). Threads that it starts share the new table.
//!
//! # Data of a thread
//!
//! All thread-local data of this crate, except a counter of the marker, are in one value: whether the thread has given
//! up the process's descriptors, the thread's slot in Perfetto's producer ([`with_slot`]), and the thread's name. The
//! kernel cuts a thread's name at 15 bytes, but [`note_name`] keeps the name that std has. The module [`ending`] calls
//! a function at the end of a thread.

#[cfg(not(no_tracing))]
mod bare;
#[cfg(not(no_tracing))]
pub mod confinement;
#[cfg(not(no_tracing))]
pub mod ending;

use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU32;
#[cfg(not(no_tracing))]
use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};
#[cfg(not(no_tracing))]
use std::time::Duration;

#[cfg(not(no_tracing))]
pub use self::bare::{is_bare, spawn_bare};
use crate::system;
#[cfg(no_tracing)]
use crate::system::is_bare;
pub use crate::system::{is_thread as is_there, mapped_from, stack_bounds as stack, thread_number as number};

/// Starts a thread that the caller can't join and on which no signal of the process is delivered. A panic of `body`
/// ends the thread after the panic hook has reported the panic. If the caller is in a shared library, the library stays
/// loaded.
///
/// Signals are blocked, because a program's signal handlers expect to run on the program's own threads. The thread is
/// not started by `std::thread`, because each thread of std takes a lock at its start: a child that is forked while the
/// lock is held could never start a thread.
///
/// # Errors
///
/// Returns an error if the system can't start another thread.
pub fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // A new thread shares the descriptor table of the thread that starts it.
    let has_left = has_left_descriptors();
    let run = move || {
        OWN.with(|own| own.has_left_descriptors.set(has_left));
        if let Err(thrown) = catch_unwind(AssertUnwindSafe(body)) {
            std::mem::forget(thrown); // Dropping the payload may panic.
        }
    };
    system::spawn(name, Box::new(run))
}

/// Prepares for a thread of [`spawn_bare`]. Reads the data that [`leave_descriptors`] needs, because a bare thread
/// can't read these data. Records the present seccomp mode for [`is_confined`]. If the caller is in a shared library,
/// the library stays loaded. Allocates.
#[cfg(not(no_tracing))]
pub fn prepare() {
    system::stay_loaded();
    may_call_close_range();
    CONFINED.store(system::seccomp_mode(), Ordering::Relaxed);
}

/// The seccomp mode of the thread that called [`prepare`], at the time of that call.
#[cfg(not(no_tracing))]
static CONFINED: AtomicU32 = AtomicU32::new(0);

/// Returns whether the calling thread has a stricter seccomp mode than the thread that called [`prepare`] had at the
/// time of that call. If so, a system call that the seccomp filter does not allow may end the process. Makes one system
/// call (`prctl`).
#[cfg(not(no_tracing))]
pub fn is_confined() -> bool {
    system::seccomp_mode() > CONFINED.load(Ordering::Relaxed)
}

/// Blocks all signals for the calling thread while `body` runs. In a thread that `body` starts, the signals stay
/// blocked.
///
/// Signals of the process are then delivered to its other threads. In a thread that `body` starts, a signal that the
/// kernel raises because of a system call, such as SIGXFSZ, is never delivered; the system call returns an error. If
/// `body` itself makes such a system call, the signal is delivered when `body` has returned.
#[cfg(not(no_tracing))]
pub fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    let _blocked = system::signals::Blocked::new(&system::signals::Signals::all());
    body()
}

/// Gives the calling thread an empty descriptor table of its own. Returns whether this succeeded.
///
/// While threads share a descriptor table, the kernel counts references to the file at each `write(2)`, even if the
/// other threads only sleep. After this call the thread has no descriptor of the process, and keeps none of the
/// process's files open. From then on, the thread must not run code that reads, writes, opens or closes descriptors of
/// the process.
///
/// Needs `close_range(2)` of Linux 5.9. On Android this needs Android 13: in older versions, the system call filter
/// kills an app that calls `close_range(2)`. If the call is not available, the function changes nothing.
#[doc(alias = "close_range")]
pub fn leave_descriptors() -> bool {
    let left = may_call_close_range() && system::leave_descriptors();
    if left && !is_bare() {
        OWN.with(|own| own.has_left_descriptors.set(true));
    }
    left
}

/// Does the same as [`leave_descriptors`], and opens `/dev/null` as the descriptors 0, 1 and 2. Otherwise, files that
/// this thread opens would get these numbers, which libraries take for stdin, stdout and stderr.
#[cfg(not(no_tracing))]
pub fn have_descriptors_of_its_own() -> bool {
    let is_left = leave_descriptors();
    if is_left {
        for _ in 0..3 {
            // The descriptor stays open; it exists only in this thread's table.
            let _ = system::file::open(c"/dev/null", libc::O_RDWR).map(std::os::fd::IntoRawFd::into_raw_fd);
        }
    }
    is_left
}

/// Returns whether the process may call `close_range(2)`. Android's system call filter allows apps this call since
/// Android 13; a call that the filter does not allow raises SIGSYS. The first result is cached, because some threads
/// may not read properties.
#[cfg(target_os = "android")]
pub(crate) fn may_call_close_range() -> bool {
    use crate::properties::Properties;
    const ANDROID_13: u32 = 33;
    static ANSWER: crate::OnceRef<bool> = crate::OnceRef::new();
    *ANSWER.get_or(|| {
        let level = Properties::open().ok().and_then(Properties::api_level);
        if level.is_some_and(|level| level >= ANDROID_13) { &true } else { &false }
    })
}

#[cfg(not(target_os = "android"))]
pub(crate) const fn may_call_close_range() -> bool {
    true
}

/// All thread-local data of this crate, except a counter in `marker/write.rs` that exists only on hosts. The data are a
/// single value, because on Android each thread-local takes a thread key of the C library and additional code.
#[derive(Debug)]
struct ThreadData {
    has_left_descriptors: Cell<bool>,
    /// The thread's word for Perfetto's producer: see [`with_slot`].
    slot: AtomicU32,
    /// The name that [`note_name`] has stored, and the length of the name.
    #[cfg(not(no_tracing))]
    name: (Cell<[u8; NAME_MAX]>, AtomicU8),
}

thread_local! {
    static OWN: ThreadData = const {
        ThreadData {
            has_left_descriptors: Cell::new(false),
            slot: AtomicU32::new(0),
            #[cfg(not(no_tracing))]
            name: (Cell::new([0; NAME_MAX]), AtomicU8::new(0)),
        }
    };
}

/// Calls `then` with a word of the calling thread, initially 0. Only Perfetto's producer (`atrace-perfetto`)
/// may use the word.
#[inline(always)]
pub fn with_slot<R>(then: impl FnOnce(&AtomicU32) -> R) -> R {
    OWN.with(|own| then(&own.slot))
}

/// Returns whether the calling thread has given up the process's descriptors by [`leave_descriptors`], or was started
/// by a thread that had given them up. Returns true for every bare thread, because it has no thread-locals.
pub(crate) fn has_left_descriptors() -> bool {
    is_bare() || OWN.with(|own| own.has_left_descriptors.get())
}

/// Sleeps for `time`, even if signals interrupt the sleep.
#[cfg(not(no_tracing))]
pub fn pause(time: Duration) {
    use crate::clock::asked;
    let end = asked() + time.as_nanos() as u64;
    while let Some(left @ 1..) = end.checked_sub(asked()) {
        let _ = system::file::poll(&mut [], Some(Duration::from_nanos(left)));
    }
}

/// The maximum length of a name that [`note_name`] stores, in bytes. A longer name is cut.
#[cfg(not(no_tracing))]
pub const NAME_MAX: usize = 64;
/// The length at which the kernel cuts the name of a thread, in bytes.
#[cfg(not(no_tracing))]
const KERNEL_NAME_MAX: usize = 15;

/// Stores the name that std has for the calling thread, so that [`with_name`] finds it.
///
/// Must not be called in a signal handler, because std may allocate.
///
/// # Panics
///
/// Panics, as [`std::thread::current`] does, in a thread whose thread-local data has been destroyed.
#[cfg(not(no_tracing))]
pub fn note_name() {
    let thread = std::thread::current();
    let noted = crate::text::cut(thread.name().unwrap_or_default(), NAME_MAX).as_bytes();
    let mut name = [0; NAME_MAX];
    name[..noted.len()].copy_from_slice(noted);
    OWN.with(|own| {
        let (text, len) = &own.name;
        // A signal handler that interrupts the change of the name finds no stored name.
        len.store(0, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        text.set(name);
        compiler_fence(Ordering::SeqCst);
        len.store(noted.len() as u8, Ordering::Relaxed);
    });
}

/// Calls `then` with the name of the calling thread: the kernel's name for the thread or, if the kernel has cut the
/// name that [`note_name`] has stored, the stored name.
///
/// Async-signal-safe.
#[cfg(not(no_tracing))]
pub fn with_name<R>(then: impl FnOnce(&[u8]) -> R) -> R {
    let mut name = [0_u8; KERNEL_NAME_MAX + 1];
    system::thread_name(&mut name);
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    let (noted, len) = OWN.with(|own| (own.name.0.get(), own.name.1.load(Ordering::Relaxed)));
    let noted = noted.get(..len.into()).unwrap_or_default();
    then(if name.len() == KERNEL_NAME_MAX && noted.starts_with(name) { noted } else { name })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no names of threads")]
    fn a_noted_name_is_whole() {
        let name = || with_name(|name| String::from_utf8(name.to_vec()).unwrap());
        let in_thread = |named: &str, body: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name(named.to_owned());
                thread.spawn_scoped(scope, body).unwrap().join().unwrap();
            });
        };
        in_thread("a name that has a length of forty bytes.", &|| {
            assert_eq!(name(), "a name that has");
            note_name();
            assert_eq!(name(), "a name that has a length of forty bytes.");
            // The program gives the thread another name: first a name of the kernel's maximum length, then a shorter
            // name.
            for other in [c"a name that was", c"a name"] {
                // SAFETY: the text ends with a NUL.
                unsafe { libc::prctl(libc::PR_SET_NAME, other.as_ptr()) };
                assert_eq!(name().as_bytes(), other.to_bytes());
            }
        });
        in_thread(&format!("{}é", "x".repeat(63)), &|| {
            note_name();
            assert_eq!(name(), "x".repeat(63));
        });
        in_thread("short", &|| {
            note_name();
            assert_eq!(name(), "short");
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "sends signals")]
    fn a_pause_is_no_shorter_for_signals() {
        static HANDLED: AtomicU32 = AtomicU32::new(0);
        extern "C" fn handle(_: libc::c_int) {
            HANDLED.fetch_add(1, Ordering::Relaxed);
        }
        let pause_of = Duration::from_millis(50);
        let is_over = AtomicBool::new(false);
        // SAFETY: the handler may run anywhere, and no other test here uses the signal. The thread lives until the
        // scope ends.
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

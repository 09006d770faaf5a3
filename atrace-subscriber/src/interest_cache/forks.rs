//! Prevents rebuilds of `tracing`'s interest cache during forks, and forks during rebuilds.
//!
//! During a rebuild, `tracing` holds a lock if the program has several dispatchers. In a child that is forked
//! meanwhile, the lock would be held by a thread that does not exist there, and the child's first new dispatcher would
//! wait forever. So a fork waits until the rebuild has ended, and a rebuild does not begin during a fork. A thread that
//! forks raises the count of forks and then checks whether a rebuild is running; a thread that rebuilds sets a flag and
//! then checks the count of forks (Dekker's algorithm). Neither thread waits for longer than [`LOOKS`] pauses: a
//! subscriber that the rebuild queries may wait for the thread that forks, and then each would wait for the other
//! forever.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use atrace_sys::fork::{self, PerProcess};
use atrace_sys::process::Undisturbed;

use super::REBUILDING;

/// The maximum number of pauses in a wait. Together they last for a second.
const LOOKS: u32 = 5000;
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Default)]
struct Running {
    /// The number of threads that are in a fork. A thread may be counted twice.
    forks: AtomicU32,
    /// Whether a thread rebuilds the interest cache. Only one thread does so at a time.
    rebuilds: AtomicBool,
}

/// The forks and rebuilds of this process. A child does not inherit its parent's value, even after a bare `clone`.
static HERE: PerProcess<Running> = PerProcess::new();

/// Registers the functions that run at each fork. Registering them twice is harmless.
pub(super) fn prepare() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    HERE.get_or_make(Running::default);
    if !IS_REGISTERED.load(Ordering::Acquire) {
        IS_REGISTERED.store(fork::around(begin, end_in_parent, end_in_child), Ordering::Release);
    }
}

/// Waits until no other thread is in a fork, but for [`LOOKS`] pauses at most, and then calls `rebuild`.
pub(super) fn apart(rebuild: impl FnOnce()) {
    let here = HERE.get_or_make(Running::default);
    wait_while(|| {
        here.rebuilds.store(true, Ordering::SeqCst);
        let has_forks = here.forks.load(Ordering::SeqCst) > 0;
        here.rebuilds.store(!has_forks, Ordering::SeqCst);
        has_forks
    });
    here.rebuilds.store(true, Ordering::SeqCst);
    let _end = End(here);
    rebuild();
}

/// A guard that reports the end of a rebuild when the guard is dropped, even if the rebuild has panicked.
struct End(&'static Running);

impl Drop for End {
    fn drop(&mut self) {
        self.0.rebuilds.store(false, Ordering::SeqCst);
    }
}

fn wait_while(is_busy: impl Fn() -> bool) {
    let _undisturbed = Undisturbed::new(); // Because a sleep is a cancellation point.
    let mut looks = 0..LOOKS;
    while is_busy() && looks.next().is_some() {
        std::thread::sleep(PAUSE);
    }
}

extern "C" fn begin() {
    let Some(here) = HERE.get() else { return };
    here.forks.fetch_add(1, Ordering::SeqCst);
    // If a subscriber forks while this thread's own rebuild queries it, the thread must not wait for that rebuild.
    let is_own = REBUILDING.get();
    wait_while(|| !is_own && here.rebuilds.load(Ordering::SeqCst));
}

extern "C" fn end_in_parent() {
    if let Some(here) = HERE.get() {
        // If another thread has made the value since the fork began, the fork was not counted.
        let less = |forks: u32| forks.checked_sub(1);
        let _ = here.forks.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
    }
}

/// Does nothing, because the child does not have a value in [`HERE`] yet.
extern "C" fn end_in_child() {}

//! Keeps rebuilds of the interest cache and forks apart.
//!
//! During a rebuild, `tracing` holds a lock if the program has several dispatchers. A child that is forked meanwhile
//! would find the lock held by a thread that it does not have, and its first new dispatcher would wait forever. So a
//! fork waits until the rebuild has ended, and a rebuild does not begin during a fork. A fork counts itself and then
//! looks for a rebuild; a rebuild reports itself and then looks for forks (Dekker's algorithm). Neither waits for longer
//! than [`LOOKS`] pauses, because a subscriber that is queried may wait for the thread that forks.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use atrace_sys::fork::{self, PerProcess};
use atrace_sys::process::Undisturbed;

use super::REBUILDING;

/// The maximum number of pauses: together a second.
const LOOKS: u32 = 5000;
const PAUSE: Duration = Duration::from_micros(200);

#[derive(Default)]
struct Running {
    /// The number of threads that are in a fork. A thread may count twice.
    forks: AtomicU32,
    /// Whether a thread rebuilds. Only one thread does so at a time.
    rebuilds: AtomicBool,
}

/// The forks and rebuilds of this process. A child, even of a bare `clone`, has none of its parent's.
static HERE: PerProcess<Running> = PerProcess::new();

/// Registers the functions that run at each fork. Registering them twice is harmless.
pub(super) fn prepare() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    HERE.get_or_make(Running::default);
    if !IS_REGISTERED.load(Ordering::Acquire) {
        IS_REGISTERED.store(fork::around(begin, end_in_parent, end_in_child), Ordering::Release);
    }
}

/// Calls `rebuild` while no other thread is in a fork.
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

/// Reports the end of a rebuild when it is dropped, also if the rebuild has panicked.
struct End(&'static Running);

impl Drop for End {
    fn drop(&mut self) {
        self.0.rebuilds.store(false, Ordering::SeqCst);
    }
}

fn wait_while(is_busy: impl Fn() -> bool) {
    let _undisturbed = Undisturbed::new(); // A sleep is a cancellation point.
    let mut looks = 0..LOOKS;
    while is_busy() && looks.next().is_some() {
        std::thread::sleep(PAUSE);
    }
}

extern "C" fn begin() {
    let Some(here) = HERE.get() else { return };
    here.forks.fetch_add(1, Ordering::SeqCst);
    // A subscriber that is queried may fork.
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

/// There is nothing to do: the child has no value yet.
extern "C" fn end_in_child() {}

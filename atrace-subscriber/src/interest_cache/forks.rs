//! Keeps rebuilds of the interest cache and forks apart.
//!
//! During a rebuild, `tracing` holds a lock if the program has several dispatchers. A child that is forked meanwhile
//! would find the lock held by a thread that it does not have, and its first new dispatcher would wait forever. So a
//! fork waits until the rebuild has ended, and a rebuild does not begin during a fork. A fork counts itself and then
//! looks for a rebuild; a rebuild reports itself and then looks for forks (Dekker's algorithm). Neither waits for longer
//! than [`LOOKS`] pauses, because a subscriber that is queried may wait for the thread that forks.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::REBUILDING;

/// The maximum number of pauses: together a second.
const LOOKS: u32 = 5000;
const PAUSE: Duration = Duration::from_micros(200);

/// The number of threads that are in a fork.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// Whether a thread rebuilds. Only one thread does so at a time.
static REBUILDS: AtomicBool = AtomicBool::new(false);

/// Registers the functions that run at each fork.
pub(super) fn prepare() {
    static IS_REGISTERED: Once = Once::new();
    IS_REGISTERED.call_once(|| _ = atrace_sys::fork::around(begin, end_in_parent, end_in_child));
}

/// Calls `rebuild` while no other thread is in a fork.
pub(super) fn apart(rebuild: impl FnOnce()) {
    for _ in 0..LOOKS {
        REBUILDS.store(true, Ordering::SeqCst);
        if FORKS.load(Ordering::SeqCst) == 0 {
            break;
        }
        REBUILDS.store(false, Ordering::SeqCst);
        std::thread::sleep(PAUSE);
    }
    REBUILDS.store(true, Ordering::SeqCst);
    let _rebuilding = Rebuilding;
    rebuild();
}

/// Reports the end of a rebuild when it is dropped, also if the rebuild has panicked.
struct Rebuilding;

impl Drop for Rebuilding {
    fn drop(&mut self) {
        REBUILDS.store(false, Ordering::SeqCst);
    }
}

extern "C" fn begin() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    // A subscriber that is queried may fork.
    let is_own = REBUILDING.get();
    let mut looks = 0..LOOKS;
    while !is_own && REBUILDS.load(Ordering::SeqCst) && looks.next().is_some() {
        std::thread::sleep(PAUSE);
    }
}

extern "C" fn end_in_parent() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn end_in_child() {
    FORKS.store(0, Ordering::SeqCst);
    REBUILDS.store(REBUILDING.get(), Ordering::SeqCst);
}

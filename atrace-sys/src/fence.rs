//! Asymmetric fences: a light fence, which costs almost nothing if the kernel has `membarrier(2)`, and a heavy fence,
//! which is paired with the light fence. Asymmetric forms of Dekker's algorithm need both fences.
//!
//! In Dekker's algorithm (E. W. Dijkstra, "Cooperating sequential processes", 1965), each of two threads stores a word
//! of its own and then loads the other thread's word; at least one of the two threads must see the other thread's
//! store. Each thread needs a store-load fence between its store and its load. If the first thread runs this code often
//! and the second thread runs it rarely, the second thread can make the kernel run a full fence on all CPUs that run
//! threads of this process (`membarrier(2)`, Linux 4.14). The first thread then needs only a compiler barrier. See WG21
//! paper P1202, "Asymmetric Fences".
//!
//! Without `membarrier(2)`, both the light and the heavy fence are full fences. On Android, `membarrier(2)` is called
//! only since Android 10: in older versions, the system call filter of an app may kill the caller.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::time::Duration;

use crate::system::{c, file};

static IS_HELPED: AtomicBool = AtomicBool::new(false);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

/// Runs the light fence, for the thread that runs Dekker's algorithm often. If the other thread runs [`heavy_fence`]
/// later, the other thread's loads after that fence see the stores before the light fence. Otherwise, the loads after
/// the light fence see the stores that the other thread made before its heavy fence.
#[inline(always)]
pub fn light_fence() {
    if IS_HELPED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// Runs the heavy fence, for the thread that runs Dekker's algorithm rarely: see [`light_fence`].
pub fn heavy_fence() {
    fence(Ordering::SeqCst);
    if IS_HELPED.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
        // The process has installed a system call filter since `prepare`, and the filter denies `membarrier`. From now
        // on, light fences are full fences. Stores before earlier light fences become visible when they leave their
        // CPU's store buffer, which takes far less than the 10 ms of the sleep below.
        IS_HELPED.store(false, Ordering::SeqCst);
        let _ = file::poll(&mut [], Some(Duration::from_millis(10)));
        fence(Ordering::SeqCst);
    }
}

/// Registers the process with the kernel for `membarrier(2)`. Each process must call this before its threads use a
/// light fence.
pub fn prepare() {
    IS_HELPED.store(may_ask() && membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
}

fn membarrier(command: libc::c_int) -> bool {
    !cfg!(miri) && c::membarrier(command).is_ok()
}

#[cfg(target_os = "android")]
fn may_ask() -> bool {
    use crate::properties::Properties;
    const ANDROID_10: u32 = 29;
    Properties::open().ok().and_then(Properties::api_level).is_some_and(|level| level >= ANDROID_10)
}

#[cfg(not(target_os = "android"))]
fn may_ask() -> bool {
    true
}

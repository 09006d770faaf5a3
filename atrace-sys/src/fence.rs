//! Asymmetric fences: a light fence, which costs almost nothing if the kernel helps, and a heavy fence, which is paired
//! with the light one. Both are needed for asymmetric forms of Dekker's algorithm.
//!
//! In Dekker's algorithm (E. W. Dijkstra, "Cooperating sequential processes", 1965), each of two threads stores a word of its own and then loads the other thread's word; at least
//! one of the two must see the other's store. Both threads need a store-load fence between their store and their load.
//! If one thread runs this code often and the other thread runs it rarely, the latter can make the kernel run a full
//! fence on all CPUs that run threads of this process (`membarrier(2)`, Linux 4.14). The former then needs only a
//! compiler barrier. See WG21 paper P1202, "Asymmetric Fences".
//!
//! Without `membarrier(2)`, both the light and the heavy fence are full fences. On Android the call is made only since
//! Android 10; before that, the system call filter of an app may kill the caller.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::time::Duration;

use crate::system::{c, file};

static IS_HELPED: AtomicBool = AtomicBool::new(false);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

/// The fence of the thread that runs the code often. If another thread passes [`heavy_fence`] later, that thread sees
/// the stores before this fence. Otherwise, the loads after this fence see the stores that the other thread made before
/// its fence.
#[inline(always)]
pub fn light_fence() {
    if IS_HELPED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The fence of the thread that runs the code rarely: see [`light_fence`].
pub fn heavy_fence() {
    fence(Ordering::SeqCst);
    if IS_HELPED.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
        // A system call filter was installed since `prepare`. From now on light fences are full ones. Stores before
        // earlier light fences become visible when they leave their CPU's store buffer, which takes far less than
        // this.
        IS_HELPED.store(false, Ordering::SeqCst);
        let _ = file::poll(&mut [], Some(Duration::from_millis(10)));
        fence(Ordering::SeqCst);
    }
}

/// Registers the process with the kernel. Each process must call this before its threads use a light fence.
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

//! Asymmetric fences: a pair of a light fence, which costs nothing, and a heavy one, for asymmetric Dekker protocols.
//!
//! In Dekker's protocol each side stores its own word and then loads the other's; at least one side must see the
//! other's store. Both sides need a store-load fence between the two. If one side runs often and the other rarely,
//! the rare side can make the kernel run a full fence on all CPUs that run threads of this process (`membarrier(2)`,
//! Linux 4.14). Then a compiler barrier suffices on the frequent side. See WG21 paper P1202, "Asymmetric Fences".
//!
//! Without `membarrier` both fences are full ones. On Android it is used since Android 10; before that, an app's
//! system call filter may kill the caller.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::time::Duration;

use crate::system::{c, file};

static IS_HELPED: AtomicBool = AtomicBool::new(false);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

/// The fence of the frequent side. If another thread passes [`heavy_fence`] later, that thread sees the stores
/// before this fence; otherwise the loads after this fence see that thread's stores.
#[inline(always)]
pub fn light_fence() {
    if IS_HELPED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// The fence of the rare side: see [`light_fence`].
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

/// Registers the process with the kernel. Must be called in each process before its threads use a light fence
/// that matters.
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

//! Two fences of which the often used one costs nothing: the kernel has all threads of the process make up for it while
//! the rare one is passed (`membarrier(2)`, Linux 4.14).
//!
//! Where it can't do that, both are full ones. On Android it can be asked since 10: before that, an app's system call
//! filter may end who asks.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use std::time::Duration;

use crate::system::c::Call;
use crate::system::file;

static IS_HELPED: AtomicBool = AtomicBool::new(false);

const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;

/// What is stored before it is seen by who passes the [`heavy_fence`] later, or what they stored before is loaded
/// after it.
#[inline(always)]
pub fn light_fence() {
    if IS_HELPED.load(Ordering::Relaxed) {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

/// See [`light_fence`].
pub fn heavy_fence() {
    fence(Ordering::SeqCst);
    if IS_HELPED.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
        // A filter of system calls came since then. From now on the other side's fence is a full one; what it stored without
        // one is seen once it has left its processor's store buffer, which takes far less than this.
        IS_HELPED.store(false, Ordering::SeqCst);
        let _ = file::poll(&mut [], Some(Duration::from_millis(10)));
        fence(Ordering::SeqCst);
    }
}

/// Asks the kernel for help: in each process, before its threads pass a fence that matters.
pub fn prepare() {
    IS_HELPED.store(may_ask() && membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::Relaxed);
}

fn membarrier(command: libc::c_int) -> bool {
    !cfg!(miri) && Call::MEMBARRIER.call([command as isize, 0, 0]).is_ok()
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

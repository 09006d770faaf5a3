//! The bare thread, which the C library did not create.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fork::generation;
use crate::system::{Result, bare, c};
use crate::word::OnceRef;

/// The word that identifies the process's bare thread: the process's generation and the thread's kernel id. The word is
/// 0 if there is no bare thread.
static BARE: AtomicU64 = AtomicU64::new(0);

/// Returns whether the calling thread was started by [`spawn_bare`], and therefore has no thread-locals.
pub fn is_bare() -> bool {
    let bare = BARE.load(Ordering::Relaxed);
    bare != 0 && bare == bare_here()
}

/// Returns the word that identifies the calling thread.
fn bare_here() -> u64 {
    // The C library's `gettid` may keep the id in a thread-local, so the system call is made directly.
    let number = c::gettid_of_kernel().unwrap_or_default();
    generation().number() << 32 | number as u32 as u64
}

/// Starts a *bare* thread: a thread that the C library did not create, and on which no signal is delivered.
///
/// Code that writes an event uses this function if it must start a thread. The function allocates nothing and takes no
/// lock, so it may be called in a signal handler and in a forked child. A process has at most one bare thread. Bare
/// threads exist only on x86_64 and aarch64. [`thread::prepare`](crate::thread::prepare) must have been called before,
/// in this process or an ancestor.
///
/// `body` runs without thread-locals: it must not allocate, panic, or call anything that uses errno. The C library's
/// `setuid()` does not change the ids of a bare thread, so the thread keeps the [rights](crate::process::rights) of the
/// thread that started it.
///
/// The thread runs the `body` of the first call in this process or an ancestor, so later calls should pass the same
/// `body`.
///
/// # Errors
///
/// Returns ENOSYS on architectures without bare threads, otherwise the error of the system.
pub fn spawn_bare(body: &'static fn()) -> Result<()> {
    static BODY: OnceRef<fn()> = OnceRef::new();
    extern "C" fn run(_: usize) {
        BARE.store(bare_here(), Ordering::Relaxed);
        let _ = c::name_thread(b"atrace-perfetto\0");
        if let Some(body) = BODY.get() {
            body();
        }
        // Clears the word, unless another bare thread was started meanwhile.
        let _ = BARE.compare_exchange(bare_here(), 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    let blocked = change_mask(libc::SIG_BLOCK, u64::MAX);
    let _ = BODY.set(body);
    let started = bare::start(run, 0);
    change_mask(libc::SIG_SETMASK, blocked);
    started
}

/// Changes the signal mask of the calling thread, even for the signals that the C library uses itself. Returns the
/// former mask.
fn change_mask(how: libc::c_int, mask: u64) -> u64 {
    let mut before = 0;
    let _ = c::rt_sigprocmask(how, &mask, &mut before);
    before
}

//! Signals and signal masks of the calling thread.

use super::{Plain, c, zeros};

/// A set of signals.
pub(crate) struct Signals(libc::sigset_t);

// SAFETY: all fields are numbers.
unsafe impl Plain for libc::sigset_t {}

impl Signals {
    pub(crate) fn of(signals: impl IntoIterator<Item = libc::c_int>) -> Self {
        let mut set = zeros();
        c::sigemptyset(&mut set);
        for signal in signals {
            c::sigaddset(&mut set, signal);
        }
        Self(set)
    }

    /// Returns all signals, except those that the C library uses itself.
    pub(crate) fn all() -> Self {
        Self::of(1..=64)
    }
}

/// Returns whether a signal is pending for the calling thread.
pub(crate) fn is_pending(signal: libc::c_int) -> bool {
    let mut set = zeros();
    c::sigpending(&mut set) == 0 && c::sigismember(&set, signal) == 1
}

// SAFETY: zeroes are the default action, and an empty stack.
unsafe impl Plain for libc::sigaction {}
// SAFETY: as above.
unsafe impl Plain for libc::stack_t {}

/// Returns whether the calling thread seems to be in a signal handler: it is on the alternate signal stack, or blocks
/// a signal that has a handler.
///
/// This is a guess: a program may block a signal for other reasons, and a handler may leave its signal unblocked.
pub(crate) fn seem_to_be_handled() -> bool {
    let mut stack: libc::stack_t = zeros();
    if c::sigaltstack(None, &mut stack) == 0 && stack.ss_flags & libc::SS_ONSTACK != 0 {
        return true;
    }
    let blocked = mask(libc::SIG_BLOCK, &Signals::of([])).0;
    (1..=64).any(|signal| {
        let mut action: libc::sigaction = zeros();
        c::sigismember(&blocked, signal) == 1
            && c::sigaction(signal, None, &mut action) == 0
            && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
    })
}

fn mask(how: libc::c_int, signals: &Signals) -> Signals {
    let mut before = zeros();
    c::pthread_sigmask(how, &signals.0, &mut before);
    Signals(before)
}

/// Blocks signals for the calling thread until it is dropped.
pub(crate) struct Blocked(Signals);

impl Blocked {
    pub(crate) fn new(signals: &Signals) -> Self {
        Self(mask(libc::SIG_BLOCK, signals))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        mask(libc::SIG_SETMASK, &self.0);
    }
}

/// Unblocks all signals for the calling thread.
pub(crate) fn unblock_all() {
    mask(libc::SIG_SETMASK, &Signals::of([]));
}

/// Removes a pending signal of the calling thread, if there is one.
///
/// Made as a system call, because bionic has `sigtimedwait` only since Android 6.
pub(crate) fn take(signal: libc::c_int) {
    // The kernel's set has 64 bits everywhere. Zeroes are a time of 0 in both widths.
    let (set, now) = (1_u64 << (signal - 1), [0_u64; 2]);
    let taken = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads a set of eight bytes and a time, and returns at once.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, taken, &raw const now, 8_usize) };
}

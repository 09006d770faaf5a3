//! Signals of the calling thread.

use super::{Plain, c, zeros};

/// A set of signals.
pub(crate) struct Signals(libc::sigset_t);

// SAFETY: zeros are numbers.
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

    /// All but those that the C library has for itself.
    pub(crate) fn all() -> Self {
        Self::of(1..=64)
    }
}

/// Tells whether a signal waits for the calling thread.
pub(crate) fn is_pending(signal: libc::c_int) -> bool {
    let mut set = zeros();
    c::sigpending(&mut set) == 0 && c::sigismember(&set, signal) == 1
}

// SAFETY: zeros are the default action, and a stack that is none.
unsafe impl Plain for libc::sigaction {}
// SAFETY: as above.
unsafe impl Plain for libc::stack_t {}

/// Tells whether the calling thread seems to be in a signal's handler: on the stack for such, or with a signal blocked that
/// has a handler. A program may block one of its own accord, and a handler may leave its signal unblocked.
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

/// Holds signals back from the calling thread until dropped.
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

/// Lets every signal through to the calling thread.
pub(crate) fn unblock_all() {
    mask(libc::SIG_SETMASK, &Signals::of([]));
}

/// Takes a signal that waits for the calling thread, if one does.
///
/// By the system call itself: Android's bionic has `sigtimedwait` since 6 only.
pub(crate) fn take(signal: libc::c_int) {
    // The set has 64 bits everywhere, and no time, of either width, is zeros.
    let (set, now) = (1_u64 << (signal - 1), [0_u64; 2]);
    let taken = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel reads eight bytes of the set and a time, and returns at once.
    unsafe { libc::syscall(libc::SYS_rt_sigtimedwait, &raw const set, taken, &raw const now, 8_usize) };
}

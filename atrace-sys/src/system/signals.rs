//! Signals and signal masks of the calling thread; and writing to stderr without raising a signal.

use std::time::Duration;

use super::{Errno, c, file, zeros};

/// A set of signals.
pub(crate) struct Signals(libc::sigset_t);

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

/// Returns whether the calling thread seems to be in a signal handler, that is, whether it is on the alternate signal
/// stack or blocks a signal that has a handler.
///
/// This is a guess: a program may block a signal for other reasons, and a handler may leave its signal unblocked.
pub fn seem_to_be_handled() -> bool {
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

pub(crate) fn mask(how: libc::c_int, signals: &Signals) -> Signals {
    let mut before = zeros();
    c::pthread_sigmask(how, &signals.0, &mut before);
    Signals(before)
}

/// A guard that blocks signals for the calling thread until the guard is dropped.
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

/// Removes the signal `signal` from the pending signals of the calling thread, if it is pending.
///
/// This makes a system call directly, because bionic has `sigtimedwait` only since Android 6.
pub(crate) fn take(signal: libc::c_int) {
    let _ = c::rt_sigtimedwait(&(1 << (signal - 1)), &[0; 2]);
}

/// Writes a line, cut to 1023 bytes, to stderr. If stderr is not ready for writing, or has no reader, the line is
/// dropped. Allocates.
pub(crate) fn complain(line: &str) {
    // A pipe that is ready for writing has room for at least 1024 bytes.
    let mut bytes = line.as_bytes()[..line.len().min(1023)].to_vec();
    for byte in bytes.iter_mut().filter(|byte| byte.is_ascii_control()) {
        *byte = b'?';
    }
    bytes.push(b'\n');
    let mut place = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    if !file::poll(std::slice::from_mut(&mut place), Some(Duration::ZERO)).is_ok_and(|ready| ready == 1)
        || place.revents != libc::POLLOUT
    {
        return; // Stderr is closed or full, or is a pipe or socket without a reader.
    }
    // If the reader has gone away meanwhile, the kernel sends SIGPIPE to this thread. A program in the background may
    // be stopped by SIGTTOU when it writes to its terminal, but not if this thread blocks SIGTTOU.
    let was_pending = is_pending(libc::SIGPIPE);
    let _blocked = Blocked::new(&Signals::of([libc::SIGPIPE, libc::SIGTTOU]));
    let written = file::write(libc::STDERR_FILENO, &bytes);
    if written == Err(Errno(libc::EPIPE)) && !was_pending {
        take(libc::SIGPIPE);
    }
}

//! Writing a line to stderr so that it can neither block nor raise a signal.

use super::signals::{Blocked, Signals, is_pending, take};
use super::{Errno, file};
use std::time::Duration;

pub(crate) fn complain(line: &str) {
    // A pipe that is ready for writing has room for at least this much.
    let mut bytes = line.as_bytes()[..line.len().min(1023)].to_vec();
    for byte in bytes.iter_mut().filter(|byte| byte.is_ascii_control()) {
        *byte = b'?';
    }
    bytes.push(b'\n');
    let mut place = libc::pollfd { fd: libc::STDERR_FILENO, events: libc::POLLOUT, revents: 0 };
    if !file::poll(std::slice::from_mut(&mut place), Some(Duration::ZERO)).is_ok_and(|ready| ready == 1)
        || place.revents != libc::POLLOUT
    {
        return; // Closed, full, or a pipe or socket without a reader.
    }
    // The reader may go away at any moment, and a program in the background is stopped when it writes to its
    // terminal. Both signals are directed at this thread, so they can be blocked here.
    let was_pending = is_pending(libc::SIGPIPE);
    let _blocked = Blocked::new(&Signals::of([libc::SIGPIPE, libc::SIGTTOU]));
    let written = file::write(libc::STDERR_FILENO, &bytes);
    if written == Err(Errno(libc::EPIPE)) && !was_pending {
        take(libc::SIGPIPE);
    }
}

//! Detects, on a helper thread, that the process has given up system calls (seccomp) since the thread
//! started.
//!
//! A process may install a seccomp filter for all of its threads at once (`SECCOMP_FILTER_FLAG_TSYNC`), including the
//! helper thread, and the kernel may end the process for a system call that the filter does not allow. So the check
//! begins with a single `read`, a call that nearly every filter allows. It reads the main thread's status file, which
//! was opened before. A filter for all threads is also a filter of the main thread, and a program that installs a
//! filter for a single thread usually installs it for the main thread.
//!
//! The helper thread reads its own status file only if the main thread had ended before the first check, because this
//! has a cost: once a process has opened a file in a thread's directory in `/proc`, its parent waits some 4 ms longer
//! for its end (Linux 6.18, two processors).

use std::ffi::CStr;
use std::os::fd::AsRawFd as _;

use crate::system::{Descriptor, c, file};

const MAIN: &CStr = c"/proc/self/status";
const OWN: &CStr = c"/proc/thread-self/status";
/// The maximum size of a thread's status file, in bytes.
const STATUS_MAX: usize = 8192;

/// The status file that is examined, and its number of seccomp filters at the first check.
#[derive(Debug)]
pub struct Confinement {
    /// The status file that is examined: the main thread's or this thread's own.
    path: &'static CStr,
    filters: u32,
    /// The open status file. No byte was read from it yet.
    unread: Option<Descriptor>,
    is_new: bool,
}

impl Confinement {
    /// Examines the main thread or, if the main thread has ended, the calling thread. Only the calling thread may use
    /// the result. The calling thread must have a descriptor table of its own, because the status file stays open. If
    /// `/proc` is not mounted, no filter will be noticed.
    pub fn now() -> Self {
        let path = if Status::of(MAIN).has_ended() { OWN } else { MAIN };
        Self { path, filters: Status::of(path).filters(), unread: open(path), is_new: false }
    }

    /// Returns whether the examined thread has got a new filter since [`now`](Self::now) was called. Also returns true
    /// if the main thread was examined and has ended since, because its status file does not show later filters.
    pub fn is_new(&mut self) -> bool {
        // A filter can't be removed. So once a new filter was found, no file is opened or read any more.
        if !self.is_new {
            let status = Status::read(self.unread.as_ref());
            self.is_new = status.filters() > self.filters || self.path == MAIN && status.has_ended();
            if !self.is_new {
                self.unread = open(self.path);
            }
        }
        self.is_new
    }
}

fn open(path: &CStr) -> Option<Descriptor> {
    file::open_number(libc::AT_FDCWD, path, libc::O_RDONLY).ok()
}

/// The text of a status file. Empty if the file can't be read.
struct Status([u8; STATUS_MAX]);

impl Status {
    fn of(path: &CStr) -> Self {
        Self::read(open(path).as_ref())
    }

    fn read(status: Option<&Descriptor>) -> Self {
        let mut text = [0; STATUS_MAX];
        let _ = status.map(|status| c::read(status.as_raw_fd(), &mut text));
        Self(text)
    }

    fn value(&self, key: &[u8]) -> &[u8] {
        self.0.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key)).unwrap_or_default()
    }

    /// Returns whether the thread has ended.
    fn has_ended(&self) -> bool {
        self.value(b"State:").trim_ascii_start().starts_with(b"Z")
    }

    /// Returns the number of filters. Before Linux 5.9, the file does not show this number, and the seccomp mode is
    /// returned instead: 2 if there are filters, 0 if there are none.
    fn filters(&self) -> u32 {
        let number = self.value(b"Seccomp_filters:");
        let digits = if number.is_empty() { self.value(b"Seccomp:") } else { number };
        let digits = digits.iter().filter(|byte| byte.is_ascii_digit());
        digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
    }
}

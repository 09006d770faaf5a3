//! Detects, on a helper thread, that the process has given up system calls (seccomp) since the thread
//! started.
//!
//! A process may confine all of its threads at once (`SECCOMP_FILTER_FLAG_TSYNC`), including the helper thread, and the
//! kernel may end the process for a system call that the filter does not allow. So the check begins with a single
//! `read`, a call that nearly every filter allows, of the helper thread's status file, which was opened before. If this
//! file shows no new filter, the status file of the main thread is opened and read, because a filter usually applies to
//! one thread only.

use std::ffi::CStr;
use std::os::fd::AsRawFd as _;

use crate::system::{Descriptor, c, file};

const OWN: &CStr = c"/proc/thread-self/status";
const MAIN: &CStr = c"/proc/self/status";
/// The maximum size of a thread's status file, in bytes.
const STATUS_MAX: usize = 8192;

/// The number of seccomp filters of this thread and of the main thread, at the first check.
#[derive(Debug)]
pub struct Confinement {
    own: u32,
    main: u32,
    /// The open status file of this thread. No byte was read from it yet.
    unread: Option<Descriptor>,
    is_new: bool,
}

impl Confinement {
    /// Examines the calling thread and the main thread. Only the calling thread may use the result. That thread must
    /// have a descriptor table of its own, because the status file stays open. If `/proc` is not mounted, no filter
    /// will be noticed.
    pub fn now() -> Self {
        let (own, main) = (open(OWN), open(MAIN));
        Self { own: filters(own.as_ref()), main: filters(main.as_ref()), unread: open(OWN), is_new: false }
    }

    /// Returns whether one of the two threads has a new filter since [`now`](Self::now) was called.
    pub fn is_new(&mut self) -> bool {
        // A filter stays. So once a new one was found, nothing is opened or read any more.
        self.is_new = self.is_new || filters(self.unread.as_ref()) > self.own;
        if !self.is_new {
            self.unread = open(OWN);
            self.is_new = filters(open(MAIN).as_ref()) > self.main;
        }
        self.is_new
    }
}

fn open(path: &CStr) -> Option<Descriptor> {
    file::open_number(libc::AT_FDCWD, path, libc::O_RDONLY).ok()
}

/// Returns the number of filters that a status file shows. Before Linux 5.9, the number is not shown; this then returns
/// the seccomp mode: 2 if there are filters, 0 if there are none.
fn filters(status: Option<&Descriptor>) -> u32 {
    let mut text = [0; STATUS_MAX];
    let read = status.and_then(|status| c::read(status.as_raw_fd(), &mut text).ok());
    let text = text.get(..read.map_or(0, |len| len as usize)).unwrap_or_default();
    let value = |key: &[u8]| text.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(key));
    let digits = value(b"Seccomp_filters:").or_else(|| value(b"Seccomp:")).unwrap_or_default();
    let digits = digits.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u32::from(digit - b'0'))
}

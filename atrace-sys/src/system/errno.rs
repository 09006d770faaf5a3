//! Errors of the system; and the calling thread's errno, which a tracer must not change.

use std::cell::Cell;
use std::{fmt, io};

/// An error of the system: an errno. Unlike an [`io::Error`] it never owns memory, so code that must not allocate or
/// free can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The result of an operation of the system.
pub type Result<T> = std::result::Result<T, Errno>;

impl Errno {
    /// Returns the calling thread's errno, which the C library has just set.
    pub(crate) fn last() -> Self {
        Self(errno())
    }
}

impl From<Errno> for io::Error {
    fn from(Errno(code): Errno) -> Self {
        Self::from_raw_os_error(code)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        io::Error::from(*self).fmt(f)
    }
}

unsafe extern "C" {
    // SAFETY: the signature is that of the C library. A reference to a cell can't be sent to another thread, and in
    // this thread it is valid as long as the thread runs.
    #[cfg_attr(target_os = "android", link_name = "__errno")]
    safe fn __errno_location() -> &'static Cell<i32>;
}

/// Returns the calling thread's errno.
pub(crate) fn errno() -> i32 {
    __errno_location().get()
}

/// Sets the calling thread's errno.
pub(super) fn set_errno(errno: i32) {
    __errno_location().set(errno);
}

/// A guard that saves the calling thread's errno, and restores it when the guard is dropped.
#[derive(Debug)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard {
    // The reference to a cell makes this type neither Send nor Sync, as is necessary, because each thread has its own
    // errno.
    place: &'static Cell<i32>,
    saved: i32,
}

impl ErrnoGuard {
    /// Saves the calling thread's errno.
    #[inline]
    pub fn new() -> Self {
        let place = __errno_location();
        Self { place, saved: place.get() }
    }
}

impl Default for ErrnoGuard {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for ErrnoGuard {
    #[inline]
    fn drop(&mut self) {
        self.place.set(self.saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_put_back() {
        set_errno(77);
        let guard = ErrnoGuard::new();
        set_errno(libc::EBADF);
        drop(guard);
        assert_eq!(errno(), 77);
    }
}

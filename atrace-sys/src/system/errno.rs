//! The calling thread's errno, which a tracer must leave unchanged.

use std::cell::Cell;

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

/// Saves the calling thread's errno, and restores it when dropped.
#[derive(Debug)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard {
    // The cell makes this type neither Send nor Sync: each thread has its own errno.
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

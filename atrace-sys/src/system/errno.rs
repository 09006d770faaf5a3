//! The calling thread's errno, which a tracer leaves as it was.

use std::cell::Cell;

unsafe extern "C" {
    // SAFETY: the signature is that of the C library. A cell can't be given to another thread, and to this one it belongs for as long
    // as it runs.
    #[cfg_attr(target_os = "android", link_name = "__errno")]
    safe fn __errno_location() -> &'static Cell<i32>;
}

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    __errno_location().get()
}

/// Sets the calling thread's errno.
pub(super) fn set_errno(errno: i32) {
    __errno_location().set(errno);
}

/// Keeps the calling thread's errno as it is now: puts it back when dropped.
#[derive(Debug)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard {
    // A cell, so this is neither Send nor Sync: another thread has another errno.
    place: &'static Cell<i32>,
    saved: i32,
}

impl ErrnoGuard {
    /// Notes the calling thread's errno.
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

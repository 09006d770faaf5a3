//! The calling thread's errno, which a tracer leaves as it was.

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    ErrnoGuard::new().saved
}

/// Sets the calling thread's errno.
pub(super) fn set_errno(errno: i32) {
    ErrnoGuard::new().saved = errno;
}

/// Keeps the calling thread's errno as it is now: puts it back when dropped.
#[derive(Debug)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard {
    // A raw pointer, so this is neither Send nor Sync: another thread has another errno.
    location: *mut i32,
    saved: i32,
}

impl ErrnoGuard {
    /// Notes the calling thread's errno.
    #[inline]
    pub fn new() -> Self {
        // SAFETY: no preconditions.
        let location = unsafe { errno_location() };
        // SAFETY: valid for the calling thread while it lives.
        Self { location, saved: unsafe { *location } }
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
        // SAFETY: the location is valid for the calling thread, which is the one that made this (it is not
        // Send).
        unsafe { *self.location = self.saved };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no descriptors")]
    fn errno_is_put_back() {
        // SAFETY: the calling thread's errno.
        unsafe { *errno_location() = 77 };
        let guard = ErrnoGuard::new();
        // SAFETY: no preconditions.
        unsafe { libc::close(-1) };
        assert_eq!(errno(), libc::EBADF);
        drop(guard);
        assert_eq!(errno(), 77);
    }
}

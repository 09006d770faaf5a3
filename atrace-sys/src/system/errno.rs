//! The calling thread's errno, which a tracer leaves as it was.

use std::cell::Cell;
use std::marker::PhantomData;

#[cfg(target_os = "android")]
use libc::__errno as errno_location;
#[cfg(not(target_os = "android"))]
use libc::__errno_location as errno_location;

#[inline]
fn with<R>(then: impl FnOnce(&Cell<i32>) -> R) -> R {
    // SAFETY: the C library's, of the calling thread, which is the only one that reads and writes it. A cell can't be given to
    // another one.
    then(unsafe { &*errno_location().cast() })
}

/// The calling thread's errno.
pub(crate) fn errno() -> i32 {
    with(Cell::get)
}

/// Sets the calling thread's errno.
pub(super) fn set_errno(errno: i32) {
    with(|place| place.set(errno));
}

/// Keeps the calling thread's errno as it is now: puts it back when dropped.
#[derive(Debug)]
#[must_use = "errno is put back when this is dropped"]
pub struct ErrnoGuard {
    saved: i32,
    // Neither Send nor Sync: another thread has another errno.
    _thread: PhantomData<*mut i32>,
}

impl ErrnoGuard {
    /// Notes the calling thread's errno.
    #[inline]
    pub fn new() -> Self {
        Self { saved: errno(), _thread: PhantomData }
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
        set_errno(self.saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no descriptors")]
    fn errno_is_put_back() {
        set_errno(77);
        let guard = ErrnoGuard::new();
        crate::system::c::close(-1);
        assert_eq!(errno(), libc::EBADF);
        drop(guard);
        assert_eq!(errno(), 77);
    }
}

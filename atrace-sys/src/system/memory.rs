//! Memory that the kernel maps.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd as _;
use std::ptr::NonNull;

use crate::word::Leak;

/// Types of atomics only.
///
/// # Safety
///
/// Any bytes must be a value, and others may change them at any time.
pub(crate) unsafe trait Shared: Sync {}

/// A `T` in a mapping of its own, which is taken back when this is dropped.
pub(crate) struct Mapped<T>(NonNull<T>);

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl<T: Send> Send for Mapped<T> {}
// SAFETY: as above; only shared references are given out.
unsafe impl<T: Sync> Sync for Mapped<T> {}

impl<T> Mapped<T> {
    /// Maps zeros, for `fill` to change before anybody else sees them; gives the mapping back where it says no.
    ///
    /// For where the stack may be a small one and the heap locked.
    pub(crate) fn filled(fill: impl FnOnce(&mut T) -> bool) -> Option<Self>
    where
        T: super::Plain,
    {
        if cfg!(miri) {
            return None;
        }
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        let mut new = Self::map(writable, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).ok()?;
        // SAFETY: the mapping holds a T of zeros, which this alone refers to.
        fill(unsafe { new.0.as_mut() }).then_some(new)
    }

    /// Maps the start of a file, which must be long enough. To store to what was not mapped `writable` would end the
    /// process.
    pub(crate) fn of_file(file: &File, writable: bool) -> io::Result<Self>
    where
        T: Shared,
    {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Self::map(protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        // SAFETY: the kernel chooses an address that nobody uses.
        let place = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<T>(), protection, flags, fd, 0) };
        match NonNull::new(place.cast()) {
            Some(mapped) if place != libc::MAP_FAILED => Ok(Self(mapped)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping has the size of a T, the alignment of a page, and lives as long as `self`; what it holds is
        // a T, by `Plain` or `Shared`.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `map`; references to it are bound to `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<T>()) };
    }
}

impl<T> Leak<T> for Mapped<T> {
    fn into_raw(self) -> NonNull<T> {
        std::mem::ManuallyDrop::new(self).0
    }

    unsafe fn from_raw(raw: NonNull<T>) -> Self {
        Self(raw)
    }
}

/// Maps zeros that read as zeros in every forked child, if the kernel knows how.
pub(crate) fn wiped_on_fork<T: super::Plain>() -> Option<Mapped<T>> {
    let page = Mapped::<T>::filled(|_| true)?;
    let start = page.0.as_ptr().cast();
    // SAFETY: the range is the mapping just made.
    let is_wiped = unsafe { libc::madvise(start, size_of::<T>(), libc::MADV_WIPEONFORK) } == 0;
    is_wiped.then_some(page)
}

pub(crate) fn page_size() -> usize {
    super::auxiliary(libc::AT_PAGESZ) as usize
}

/// Where the page of the address `from` begins, if there is memory from it to `to`.
pub(crate) fn mapped_from(from: usize, to: usize) -> Option<usize> {
    if cfg!(miri) {
        return None;
    }
    let page = page_size();
    let low = from - from % page;
    // A byte for each page: of what is in memory now, which does not matter.
    let mut pages = [0_u8; 1024];
    let most = page * pages.len();
    let mut is_mapped = |part| {
        let start = std::ptr::without_provenance_mut(part);
        // SAFETY: it writes a byte for each begun page, of which there are no more than there is room for; of the memory
        // that it is asked about it touches nothing.
        unsafe { libc::mincore(start, (to - part).min(most), pages.as_mut_ptr().cast()) == 0 }
    };
    (low..to).step_by(most).all(&mut is_mapped).then_some(low)
}

//! Memory that the kernel maps.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32};

use super::{bare, c};
use crate::word::Place;

/// Types of atomics only.
///
/// # Safety
///
/// Any bytes must be a value, and others may change them at any time.
pub unsafe trait Shared: Sync {}

// SAFETY: atomics.
unsafe impl Shared for AtomicU16 {}
// SAFETY: as above.
unsafe impl Shared for AtomicU32 {}

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
/// Memory that is nobody else's: zeros, of which there is what is touched.
const OWN: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Pages, as many as the running program says, which others may change at any time. They are given back when this is
/// dropped.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and what it lends is atomic.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps memory that is nobody else's.
    pub fn own(size: usize) -> io::Result<Self> {
        Ok(Self { base: map(None, size, WRITABLE, OWN, -1)?, size })
    }

    /// Maps the start of a file, which must be long enough.
    pub fn of_file(file: RawFd, size: usize) -> io::Result<Self> {
        Ok(Self { base: map(None, size, WRITABLE, libc::MAP_SHARED, file)?, size })
    }

    /// Lays the start of a file over the first bytes, or memory that is nobody else's over all. Async-signal-safe.
    pub fn lay(&self, file: Option<(RawFd, usize)>) -> io::Result<()> {
        let (fd, size, flags) = match file {
            Some((fd, size)) => (fd, size.min(self.size), libc::MAP_SHARED),
            None => (-1, self.size, OWN),
        };
        map(Some(self), size, WRITABLE, flags, fd).map(drop)
    }

    /// Lets go of the pages of a shared file, which stay the file's: they are found again when they are used.
    pub fn forget(&self) {
        // SAFETY: a shared mapping has the file's bytes before and after.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.size, libc::MADV_DONTNEED) };
    }

    /// How many bytes there are.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The address of a byte: of one that is there, if it is to be used.
    pub const fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    /// What lies at an offset; None where it is not all there, or not aligned.
    pub fn get<T: Shared>(&self, offset: usize) -> Option<&T> {
        let is_there = offset.is_multiple_of(align_of::<T>())
            && offset < self.size
            && self.size - offset >= size_of::<T>();
        // SAFETY: within the mapping, which this borrows, and aligned, as a page is; by `Shared` it is a T.
        is_there.then(|| unsafe { &*self.at(offset).cast::<T>() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let numbers = [self.base.as_ptr().expose_provenance() as isize, self.size as isize, 0, 0, 0, 0];
        // SAFETY: mapped when this was made, and what it lends borrows this.
        unsafe { bare::call(libc::SYS_munmap, numbers) };
    }
}

/// Maps memory where the kernel likes, or over the first bytes of a region.
#[inline(never)]
fn map(
    over: Option<&Region>,
    size: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    fd: RawFd,
) -> io::Result<NonNull<u8>> {
    let (place, size, flags) = match over {
        Some(region) => (region.at(0), size.min(region.size), flags | libc::MAP_FIXED),
        None => (ptr::null_mut(), size, flags),
    };
    // Which of the two there is, is the architecture's. They differ in the unit of the last number.
    #[cfg(target_pointer_width = "64")]
    const MMAP: libc::c_long = libc::SYS_mmap;
    #[cfg(not(target_pointer_width = "64"))]
    const MMAP: libc::c_long = libc::SYS_mmap2;
    let numbers = [place.addr() as isize, size as isize, protection as isize, flags as isize, fd as isize, 0];
    // SAFETY: the kernel chooses an address that nobody uses; or it is within a region, whose users have been told that it may
    // change at any time.
    let mapped = c::answer(unsafe { bare::call(MMAP, numbers) })?;
    // The kernel's addresses end far below the errors.
    let base = NonNull::new(ptr::with_exposed_provenance_mut(mapped as usize));
    base.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// A `T` in a mapping of its own, which is taken back when this is dropped.
#[derive(Debug)]
pub struct Mapped<T>(NonNull<T>);

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
        let mut new = Self::map(WRITABLE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).ok()?;
        // SAFETY: the mapping holds a T of zeros, which this alone refers to.
        fill(unsafe { new.0.as_mut() }).then_some(new)
    }

    /// Maps a page or more, and moves a value there.
    ///
    /// # Errors
    ///
    /// Returns what failed; the value is dropped.
    pub fn of(value: T) -> io::Result<Self> {
        let new = Self::map(WRITABLE, OWN, -1)?;
        // SAFETY: the mapping has room for a T, is aligned as a page is, and nobody else's.
        unsafe { new.0.write(value) };
        Ok(new)
    }

    /// Maps zeros, of which there is what is touched. The first bytes, whole pages, read as zeros in every forked child, where
    /// the kernel knows how.
    pub fn large(wiped: usize) -> io::Result<Self>
    where
        T: super::Plain,
    {
        let new = Self::map(WRITABLE, OWN, -1)?;
        wipe_on_fork(new.0, wiped);
        Ok(new)
    }

    /// Lays zeros over the first bytes, whole pages, of what was made by [`large`](Self::large) and given up.
    /// Async-signal-safe.
    ///
    /// # Safety
    ///
    /// Who looks at it meanwhile, takes zeros for values.
    pub unsafe fn wipe(place: &'static T, wiped: usize)
    where
        T: super::Plain,
    {
        let place = NonNull::from(place);
        let region = Region { size: wiped.min(size_of::<T>()), base: place.cast() };
        let _ = ManuallyDrop::new(region).lay(None);
        wipe_on_fork(place, wiped);
    }

    /// Maps the start of a file, which must be long enough. To store to what was not mapped `writable` would end the
    /// process.
    pub(crate) fn of_file(file: &impl AsRawFd, writable: bool) -> io::Result<Self>
    where
        T: Shared,
    {
        let protection = if writable { WRITABLE } else { libc::PROT_READ };
        Self::map(protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> io::Result<Self> {
        Ok(Self(map(None, size_of::<T>(), protection, flags, fd)?.cast()))
    }
}

/// The region that this is all of, which somebody else drops.
fn region_of<T>(place: NonNull<T>) -> ManuallyDrop<Region> {
    ManuallyDrop::new(Region { base: place.cast(), size: size_of::<T>() })
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
        drop(ManuallyDrop::into_inner(region_of(self.0)));
    }
}

// SAFETY: the value is in the mapping, and only its address is moved.
unsafe impl<T> Place for Mapped<T> {}

/// Maps zeros that read as zeros in every forked child, if the kernel knows how.
pub(crate) fn wiped_on_fork<T: super::Plain>() -> Option<Mapped<T>> {
    Mapped::<T>::filled(|_| true).filter(|page| wipe_on_fork(page.0, size_of::<T>()))
}

/// Has the first bytes of a mapping of zeros read as zeros in every forked child; false where the kernel does not know how. Who takes an
/// advice that does not exist, as qemu's user mode does, takes any and heeds none.
fn wipe_on_fork<T>(place: NonNull<T>, size: usize) -> bool {
    let takes = |advice: libc::c_int| {
        let numbers = [place.as_ptr().expose_provenance() as isize, size as isize, advice as isize, 0, 0, 0];
        // SAFETY: in this process nothing changes.
        unsafe { bare::call(libc::SYS_madvise, numbers) == 0 }
    };
    !takes(-1) && takes(libc::MADV_WIPEONFORK)
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
        let start = ptr::without_provenance_mut(part);
        // SAFETY: it writes a byte for each begun page, of which there are no more than there is room for; of the memory
        // that it is asked about it touches nothing.
        unsafe { libc::mincore(start, (to - part).min(most), pages.as_mut_ptr().cast()) == 0 }
    };
    (low..to).step_by(most).all(&mut is_mapped).then_some(low)
}

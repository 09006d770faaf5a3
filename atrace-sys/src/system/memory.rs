//! Mappings of memory.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32};

use super::{Errno, Result, bare, c};
use crate::word::Place;

/// Types that consist of atomics only.
///
/// # Safety
///
/// Any bytes must be a valid value of the type, and the type must allow other processes to change the bytes at any
/// time.
pub unsafe trait Shared: Sync {}

// SAFETY: an `AtomicU8` is an atomic.
unsafe impl Shared for AtomicU8 {}
// SAFETY: an `AtomicU16` is an atomic.
unsafe impl Shared for AtomicU16 {}
// SAFETY: an `AtomicU32` is an atomic.
unsafe impl Shared for AtomicU32 {}
// SAFETY: an array of atomics consists of atomics only.
unsafe impl<T: Shared, const N: usize> Shared for [T; N] {}

const WRITABLE: libc::c_int = libc::PROT_READ | libc::PROT_WRITE;
/// The flags for private memory. Such memory consists of zeroes. A page takes physical memory only after it was touched
/// or, if the kernel uses huge pages, after a neighbouring page was touched.
const OWN: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Mapped pages. Other threads or processes may change the bytes at any time. Dropping the `Region` unmaps the pages.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    size: usize,
}

// SAFETY: the mapping belongs to the process and not to a thread. References into the mapping are to atomics.
unsafe impl Send for Region {}
// SAFETY: references into the mapping are to atomics, which any thread may use.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `size` bytes of private memory.
    pub fn own(size: usize) -> Result<Self> {
        Ok(Self { base: map(None, size, WRITABLE, OWN, -1)?, size })
    }

    /// Maps the first `size` bytes of a file. The file must have at least this size.
    pub fn of_file(file: RawFd, size: usize) -> Result<Self> {
        Ok(Self { base: map(None, size, WRITABLE, libc::MAP_SHARED, file)?, size })
    }

    /// If `file` is given (a descriptor and a size), replaces the first bytes of the region by the start of the file.
    /// Otherwise replaces the whole region by private memory.
    ///
    /// Async-signal-safe.
    pub fn lay(&self, file: Option<(RawFd, usize)>) -> Result<()> {
        let (fd, size, flags) = match file {
            Some((fd, size)) => (fd, size.min(self.size), libc::MAP_SHARED),
            None => (-1, self.size, OWN),
        };
        map(Some(self), size, WRITABLE, flags, fd).map(drop)
    }

    /// Drops the pages of a shared file from the memory of this process. The content of the pages stays in the file,
    /// and the pages are mapped again when they are used.
    pub fn forget(&self) {
        self.advise(self.size, libc::MADV_DONTNEED);
    }

    /// Makes sure that the first `size` bytes of a zeroed region are zeroes in every forked child. Returns false if the
    /// kernel does not support this.
    ///
    /// An emulator, such as qemu's user mode, may accept any advice (`madvise`) and follow none. So this function first
    /// tries an advice that does not exist: if the kernel accepts it, the real advice can't be trusted.
    fn wipe_on_fork(&self, size: usize) -> bool {
        !self.advise(size, -1) && self.advise(size, libc::MADV_WIPEONFORK)
    }

    /// Gives the kernel an advice (`madvise`) for the first `size` bytes. Returns whether the kernel accepted the
    /// advice.
    fn advise(&self, size: usize, advice: libc::c_int) -> bool {
        let numbers = [self.at(0).expose_provenance() as isize, size as isize, advice as isize, 0, 0, 0];
        // SAFETY: no advice changes the content of memory in this process. `forget` is for shared mappings, whose bytes
        // are those of the file before and after the call. The other advice has an effect only on children, or on the
        // size of pages.
        unsafe { bare::call(libc::SYS_madvise, numbers) == 0 }
    }

    /// Returns the size in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the address of a byte. The pointer is only valid if the offset is within the region.
    pub const fn at(&self, offset: usize) -> *mut u8 {
        self.base.as_ptr().wrapping_add(offset)
    }

    /// Returns a reference to the value at an offset, or `None` if the offset is not aligned or not within
    /// the region.
    pub fn get<T: Shared>(&self, offset: usize) -> Option<&T> {
        let is_there = offset.is_multiple_of(align_of::<T>())
            && offset < self.size
            && self.size - offset >= size_of::<T>();
        // SAFETY: the value is within the mapping, which `self` borrows, and aligned, because the mapping is aligned
        // to a page. By `Shared`, any bytes are a valid `T`.
        is_there.then(|| unsafe { &*self.at(offset).cast::<T>() })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let numbers = [self.base.as_ptr().expose_provenance() as isize, self.size as isize, 0, 0, 0, 0];
        // SAFETY: the region was mapped when this value was created, and all references into the region borrow this
        // value.
        unsafe { bare::call(libc::SYS_munmap, numbers) };
    }
}

/// Maps memory at an address that the kernel chooses, or over the first bytes of a region.
#[inline(never)]
fn map(
    over: Option<&Region>,
    size: usize,
    protection: libc::c_int,
    flags: libc::c_int,
    fd: RawFd,
) -> Result<NonNull<u8>> {
    let (place, size, flags) = match over {
        Some(region) => (region.at(0), size.min(region.size), flags | libc::MAP_FIXED),
        None => (ptr::null_mut(), size, flags),
    };
    // 64-bit architectures have `mmap`; 32-bit ones have `mmap2`, which counts the offset in pages. Here the offset is
    // 0.
    #[cfg(target_pointer_width = "64")]
    const MMAP: libc::c_long = libc::SYS_mmap;
    #[cfg(not(target_pointer_width = "64"))]
    const MMAP: libc::c_long = libc::SYS_mmap2;
    let numbers = [place.addr() as isize, size as isize, protection as isize, flags as isize, fd as isize, 0];
    // SAFETY: the kernel chooses an unused address, or the address is within a region, whose users know that it may
    // change at any time.
    let mapped = c::answer(unsafe { bare::call(MMAP, numbers) })?;
    // The highest address of a mapping is far below the numbers that stand for errors.
    let base = NonNull::new(ptr::with_exposed_provenance_mut(mapped as usize));
    base.ok_or(Errno(libc::ENOMEM))
}

/// A `T` in a mapping of its own. Dropping the `Mapped` unmaps the memory.
#[derive(Debug)]
pub struct Mapped<T>(Region, PhantomData<T>);

impl<T> Mapped<T> {
    /// Maps memory of zeroes, and calls `fill` before any other code sees the memory. Returns `None` if the mapping
    /// fails or `fill` returns false.
    ///
    /// Use this in code that may run on a small stack, or while the heap is locked.
    pub(crate) fn filled(fill: impl FnOnce(&mut T) -> bool) -> Option<Self>
    where
        T: super::Plain,
    {
        if cfg!(miri) {
            return None;
        }
        let new = Self::map(WRITABLE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).ok()?;
        // SAFETY: the mapping holds a `T` of zeroes, and this is the only reference to it.
        fill(unsafe { &mut *new.0.at(0).cast() }).then_some(new)
    }

    /// Maps memory and moves a value there.
    ///
    /// # Errors
    ///
    /// Returns the error of the system. The value is then dropped.
    pub fn of(value: T) -> Result<Self> {
        let new = Self::map(WRITABLE, OWN, -1)?;
        // SAFETY: the mapping has room for a `T`, is aligned to a page, and nobody else uses it.
        unsafe { new.0.at(0).cast::<T>().write(value) };
        Ok(new)
    }

    /// Maps a value of zeroes. A page of the value takes physical memory only after it was touched. If the kernel can
    /// wipe pages in children, the first `wiped` bytes, which must be whole pages, read as zeroes in every forked
    /// child.
    pub fn large(wiped: usize) -> Result<Self>
    where
        T: super::Plain,
    {
        let new = Self::map(WRITABLE, OWN, -1)?;
        // With huge pages, the first touch of a page could take 2 MiB. Kernels without huge pages refuse the advice.
        new.0.advise(new.0.size, libc::MADV_NOHUGEPAGE);
        new.0.wipe_on_fork(wiped.min(size_of::<T>()));
        Ok(new)
    }

    /// Maps zeroes over the first `wiped` bytes of a value that was made by [`large`](Self::large) and leaked. These
    /// bytes must be whole pages.
    ///
    /// Async-signal-safe.
    ///
    /// # Safety
    ///
    /// Code that uses the value at the same time must accept zeroes.
    pub unsafe fn wipe(place: &'static T, wiped: usize)
    where
        T: super::Plain,
    {
        let size = wiped.min(size_of::<T>());
        let region = ManuallyDrop::new(Region { base: NonNull::from(place).cast(), size });
        let _ = region.lay(None);
        region.wipe_on_fork(size);
    }

    /// Maps the start of a file, which must be at least as long as a `T`. If `writable` is false, a write to the
    /// mapping kills the process.
    pub(crate) fn of_file(file: &impl AsRawFd, writable: bool) -> Result<Self>
    where
        T: Shared,
    {
        let protection = if writable { WRITABLE } else { libc::PROT_READ };
        Self::map(protection, libc::MAP_SHARED, file.as_raw_fd())
    }

    fn map(protection: libc::c_int, flags: libc::c_int, fd: libc::c_int) -> Result<Self> {
        let size = size_of::<T>();
        Ok(Self(Region { base: map(None, size, protection, flags, fd)?, size }, PhantomData))
    }
}

impl<T> Deref for Mapped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the mapping has the size of a `T`, is aligned to a page, and lives as long as `self`. By `Plain` or
        // `Shared`, or because a `T` was moved there, the mapping holds a valid `T`.
        unsafe { &*self.0.at(0).cast() }
    }
}

// SAFETY: the value is in the mapping; moving a `Mapped` moves only the address of the mapping.
unsafe impl<T> Place for Mapped<T> {}

/// Maps a value of zeroes. The kernel fills it with zeroes again in every forked child. Returns `None` if the kernel
/// does not support this.
pub(crate) fn wiped_on_fork<T: super::Plain>() -> Option<Mapped<T>> {
    Mapped::<T>::filled(|_| true).filter(|page| page.0.wipe_on_fork(size_of::<T>()))
}

/// Returns the size of the running kernel's pages in bytes: 4096 to 65536, a power of two.
pub fn page_size() -> usize {
    super::auxiliary(libc::AT_PAGESZ) as usize
}

/// Returns the start of the page that contains the address `from`, if all memory from that start to `to` is
/// mapped.
pub fn mapped_from(from: usize, to: usize) -> Option<usize> {
    if cfg!(miri) {
        return None;
    }
    let page = page_size();
    let low = from - from % page;
    // `mincore` writes for each page whether it is in physical memory; this result is not used. The call fails if a
    // page is not mapped.
    let mut pages = [0; 1024];
    let most = page * pages.len();
    let mut is_mapped = |part: usize| {
        let count = (to - part).div_ceil(page).min(pages.len());
        c::mincore(part, &mut pages[..count]).is_ok()
    };
    (low..to).step_by(most).all(&mut is_mapped).then_some(low)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    struct Zeroes(#[allow(dead_code, reason = "only its size matters")] [u8; 8 << 20]);
    // SAFETY: `Zeroes` consists of numbers.
    unsafe impl super::super::Plain for Zeroes {}

    /// Tests that an access to a page of a large mapping allocates only this page, whatever the system's setting of
    /// huge pages: the mapping has the flag that forbids huge pages.
    #[test]
    #[cfg_attr(miri, ignore = "no advice")]
    fn a_large_mapping_has_no_huge_pages() {
        let place = Mapped::<Zeroes>::large(page_size()).unwrap();
        let address = place.0.at(4 << 20).addr();
        let all = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let is_it = |line: &str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            range
                .and_then(|(low, high)| Some(number(low)?..number(high)?))
                .is_some_and(|range| range.contains(&address))
        };
        let mut lines = all.lines().skip_while(|line| !is_it(line));
        let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        let has_huge_pages = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        assert_eq!(flags.split(' ').any(|flag| flag == "nh"), has_huge_pages, "{flags}");
    }
}

//! Code that causes known numbers of page faults, for the tests of the counter of page faults.

use std::io;

use rustix::thread::{disable_transparent_huge_pages, transparent_huge_pages_are_disabled};

/// Touches `pages` new pages. Each page causes a minor fault if there are no [huge pages](without_huge_pages).
pub(crate) fn touch(pages: usize) {
    let page = rustix::param::page_size();
    // The allocation is so large that glibc's allocator always gets it from the kernel. The allocation of zeroed memory
    // does not touch the pages.
    let mut memory = vec![0_u8; (pages * page).max(48 << 20)];
    memory.iter_mut().step_by(page).take(pages).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
}

/// Runs `f` while the kernel gives this process no huge pages. A huge page would cause a single fault for
/// many pages.
pub(crate) fn without_huge_pages<R>(f: impl FnOnce() -> R) -> io::Result<R> {
    let before = transparent_huge_pages_are_disabled()?;
    disable_transparent_huge_pages(true)?;
    let result = f();
    disable_transparent_huge_pages(before)?;
    Ok(result)
}

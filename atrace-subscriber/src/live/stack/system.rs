//! What the system says of the calling thread: where its stack is, whether there is memory, its number.
#![allow(unsafe_code, reason = "asks the C library")]

/// Where the calling thread's stack is: its lowest address and the one behind its highest.
pub(super) fn bounds() -> Option<(usize, usize)> {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut low, mut size) = (std::ptr::null_mut(), 0);
    // SAFETY: the attributes are read and given back only where pthread_getattr_np has made them; both results are
    // written to variables that live here.
    unsafe {
        if libc::pthread_getattr_np(libc::pthread_self(), attributes.as_mut_ptr()) != 0 {
            return None;
        }
        let told = libc::pthread_attr_getstack(attributes.as_ptr(), &raw mut low, &raw mut size) == 0;
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        if !told {
            return None;
        }
    }
    let low = low as usize;
    let high = low.checked_add(size)?;
    // Less than this is no stack.
    (low != 0 && size > 1024).then_some((low, high))
}

/// Where the page of the address `from` begins, if there is memory from it to `to`.
pub(super) fn mapped(from: usize, to: usize) -> Option<usize> {
    // SAFETY: takes a number and returns one.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
    let low = from - from % page;
    // A byte for each page: of what is in memory now, which does not matter.
    let mut pages = [0_u8; 1024];
    for part in (low..to).step_by(page * pages.len()) {
        let size = (to - part).min(page * pages.len());
        // SAFETY: it writes a byte for each begun page, of which there are no more than there is room for; of the memory
        // that it is asked about it touches nothing.
        let said =
            unsafe { libc::mincore(std::ptr::without_provenance_mut(part), size, pages.as_mut_ptr().cast()) };
        if said != 0 {
            return None;
        }
    }
    Some(low)
}

/// The kernel's number of the calling thread.
pub(in crate::live) fn thread_number() -> Option<u32> {
    // SAFETY: takes nothing, and returns a number.
    let number = unsafe { libc::gettid() };
    u32::try_from(number).ok()
}

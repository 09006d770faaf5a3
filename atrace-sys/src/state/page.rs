//! The memory file of this process, and its mapping.

use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::{SIZE, TEXT_MAX, Text};
use crate::fork::{Turn, generation};
use crate::{marker, process, thread};

pub(super) fn publish(compose: &dyn Fn(&mut Text)) {
    static TURN: Turn = Turn::new();
    let _errno = process::ErrnoGuard::new();
    let this = generation().number();
    if OWNER.load(Ordering::Acquire) != this && thread::has_left_descriptors() {
        return; // What this thread opens, nobody could see; nor may others leave their turn to it.
    }
    TURN.run(|| {
        if let Some(page) = page_of(this) {
            let mut text = Text::new();
            compose(&mut text);
            page.write(&text.bytes);
        }
    });
}

/// The process, by its generation, whose page this is, if it could have one.
static OWNER: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// The page of this process, made if need be. Called by who has the turn.
fn page_of(this: u64) -> Option<&'static Page> {
    if OWNER.load(Ordering::Acquire) != this {
        let page = if is_wanted() { Page::make() } else { None };
        PAGE.store(page.unwrap_or(std::ptr::null_mut()), Ordering::Release);
        // Also where it could not be had: it is not tried at every event.
        OWNER.store(this, Ordering::Release);
    }
    // SAFETY: null, or a page that `make` mapped, which is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Asks the environment once: a forked child must not wait for its lock, which another thread may have held.
fn is_wanted() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static WANTED: AtomicU8 = AtomicU8::new(UNKNOWN);
    if WANTED.load(Ordering::Relaxed) == UNKNOWN {
        let wanted = process::variable("ATRACE_STATE").is_none_or(|value| value != "none");
        WANTED.store(if wanted { YES } else { NO }, Ordering::Relaxed);
    }
    WANTED.load(Ordering::Relaxed) == YES
}

/// The mapped file.
type Page = super::words::Words<{ TEXT_MAX / 8 }>;

impl Page {
    fn make() -> Option<*mut Self> {
        const NAME_OF_FILE: &std::ffi::CStr = c"atrace-state";
        // SAFETY: a C string and flags. By number: not every libc has the function.
        let made = unsafe {
            libc::syscall(
                libc::SYS_memfd_create,
                NAME_OF_FILE.as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        let fd = i32::try_from(made).ok().filter(|fd| *fd >= 0)?;
        let page = Self::map(fd);
        // To a number that programs don't reuse.
        // SAFETY: the descriptor was made above and is nobody else's.
        unsafe {
            if page.is_none() || libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, marker::LOWEST_FD) >= 0 {
                libc::close(fd);
            }
        }
        page
    }

    fn map(fd: i32) -> Option<*mut Self> {
        let zeros = [0_u8; SIZE];
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // Written, so that there is memory for it now and not when a store would end the process.
        // SAFETY: a descriptor of ours; readable memory of that length.
        let ready = unsafe {
            libc::write(fd, zeros.as_ptr().cast(), SIZE) == SIZE as isize
                && libc::fcntl(fd, libc::F_ADD_SEALS, seals) == 0
        };
        if !ready {
            return None;
        }
        // SAFETY: a new mapping of a file that has this size and, sealed, keeps it.
        let place = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                SIZE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        (place != libc::MAP_FAILED).then_some(place.cast())
    }
}

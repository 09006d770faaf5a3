//! The memory file of this process, and its mapping.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU64, Ordering};

use super::{SIZE, TEXT_MAX, Text};
use crate::fork::{Turn, generation};
use crate::{marker, process, thread};

pub(super) fn publish(compose: &dyn Fn(&mut Text<'_>)) {
    static TURN: Turn = Turn::new();
    let _errno = process::ErrnoGuard::new();
    let this = generation().number();
    if OWNER.load(Ordering::Acquire) != this && thread::has_left_descriptors() {
        return; // What this thread opens, nobody could see; nor may others leave their turn to it.
    }
    TURN.run(|| {
        // SAFETY: who has the turn is alone with it: a signal handler in between does not get the turn, and what a
        // parent's thread was writing at a fork, the child has a copy of.
        let scratch = unsafe { &mut *SCRATCH.0.get() };
        if let Some(page) = page_of(this, scratch) {
            scratch.fill(0);
            compose(&mut Text::new(&mut scratch[..TEXT_MAX]));
            page.write(&scratch[..TEXT_MAX]);
        }
    });
}

/// The process, by its generation, whose page this is, if it could have one.
static OWNER: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicPtr<Page> = AtomicPtr::new(std::ptr::null_mut());

/// Where a text is composed: the stack may be a small one.
struct Scratch(UnsafeCell<[u8; SIZE]>);

// SAFETY: used by who has the turn only.
unsafe impl Sync for Scratch {}

static SCRATCH: Scratch = Scratch(UnsafeCell::new([0; SIZE]));

/// The page of this process, made if need be. Called by who has the turn.
fn page_of(this: u64, scratch: &mut [u8; SIZE]) -> Option<&'static Page> {
    if OWNER.load(Ordering::Acquire) != this {
        let page = if is_wanted() { Page::make(scratch) } else { Ok(std::ptr::null_mut()) };
        PAGE.store(page.unwrap_or(std::ptr::null_mut()), Ordering::Release);
        // Also where it can't be had, unless that may pass: it is not tried for ever.
        if !page.is_err_and(process::may_pass) {
            OWNER.store(this, Ordering::Release);
        }
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
    /// Makes the file and maps it; else returns the errno.
    fn make(scratch: &mut [u8; SIZE]) -> Result<*mut Self, i32> {
        const NAME_OF_FILE: &std::ffi::CStr = c"atrace-state";
        // To write to it would signal.
        if marker::soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < SIZE as libc::rlim_t) {
            return Err(libc::EFBIG);
        }
        // SAFETY: a C string and flags. By number: not every libc has the function.
        let made = unsafe {
            libc::syscall(
                libc::SYS_memfd_create,
                NAME_OF_FILE.as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            )
        };
        let fd = i32::try_from(made).ok().filter(|fd| *fd >= 0).ok_or_else(process::errno)?;
        let page = Self::map(fd, scratch).ok_or_else(process::errno);
        // To a number that programs don't reuse.
        if page.is_err() || marker::duplicate_high(fd, None).is_some() {
            // SAFETY: the descriptor was made above and is nobody else's.
            unsafe { libc::close(fd) };
        }
        page
    }

    fn map(fd: i32, scratch: &mut [u8; SIZE]) -> Option<*mut Self> {
        scratch.fill(0);
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // Written, so that there is memory for it now and not when a store would end the process.
        // SAFETY: a descriptor of ours; readable memory of that length.
        let ready = unsafe {
            libc::write(fd, scratch.as_ptr().cast(), SIZE) == SIZE as isize
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

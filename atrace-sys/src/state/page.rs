//! The memory file (`memfd_create`) in which this process publishes its state, and the mapping of that file.

use std::cell::UnsafeCell;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{SIZE, TEXT_MAX, Text};
use crate::fork::{Turn, generation};
use crate::marker::open::duplicate_high;
use crate::system::{Errno, Mapped, Result, Shared, file, soft_limit};
use crate::word::OnceRef;
use crate::{process, thread};

pub(super) fn publish(compose: &dyn Fn(&mut Text<'_>)) {
    static TURN: Turn = Turn::new();
    let _errno = process::ErrnoGuard::new();
    if OWNER.load(Ordering::Acquire) != generation().number() && thread::has_left_descriptors() {
        // No other process can see what this thread opens. So it must not take a turn, which would do the work of
        // others.
        return;
    }
    TURN.run(|| {
        let this = generation().number();
        // SAFETY: only the thread that has the turn uses it; a signal handler in between does not get the turn. A
        // forked child has a copy of what its parent's thread was writing.
        let scratch = unsafe { &mut *SCRATCH.0.get() };
        if let Some(page) = page_of(this, scratch) {
            scratch.fill(0);
            compose(&mut Text::new(&mut scratch[..TEXT_MAX]));
            // A signal handler may have forked meanwhile; the child does not write to its parent's page.
            if generation().number() == this {
                page.write(&scratch[..TEXT_MAX]);
            }
        }
    });
}

/// The generation of the process that has created `PAGE`, or for which there will certainly be no page.
static OWNER: AtomicU64 = AtomicU64::new(0);
static PAGE: OnceRef<Page> = OnceRef::new();

/// The buffer for composing a text. The buffer is not on the stack, because the stack may be small.
struct Scratch(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the thread that has the turn uses it.
unsafe impl Sync for Scratch {}

static SCRATCH: Scratch = Scratch(UnsafeCell::new([0; SIZE]));

/// Returns the page of this process, and creates the page first if necessary. Only the thread that is publishing at the
/// moment may call this.
fn page_of(this: u64, scratch: &mut [u8; SIZE]) -> Option<&'static Page> {
    if OWNER.load(Ordering::Acquire) != this {
        let made = if is_wanted() { Page::make(scratch).map(Some) } else { Ok(None) };
        let code = made.as_ref().err().map(|error| error.0);
        PAGE.put(None);
        if let Ok(Some(page)) = made {
            PAGE.keep(page);
        }
        // Also set if there is no page, unless the error is temporary, so that this is not tried forever.
        if !code.is_some_and(process::may_pass) {
            OWNER.store(this, Ordering::Release);
        }
    }
    PAGE.get()
}

/// Returns whether a state is to be published. The environment is read only once: in a forked child, a thread that does
/// not exist any more may hold the environment's lock.
pub(super) fn is_wanted() -> bool {
    static WANTED: OnceRef<bool> = OnceRef::new();
    *WANTED.get_or(|| {
        if process::variable("ATRACE_STATE").is_none_or(|value| value != "none") { &true } else { &false }
    })
}

/// The mapped page: a sequence number and the text of the state.
type Page = super::words::Words<{ TEXT_MAX / 8 }>;

// SAFETY: it consists of atomics.
unsafe impl Shared for Page {}

impl Page {
    /// Creates the memory file of the page and maps it.
    fn make(scratch: &mut [u8; SIZE]) -> Result<Mapped<Self>> {
        // Otherwise writing to it would raise SIGXFSZ.
        if soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < SIZE as u64) {
            return Err(Errno(libc::EFBIG));
        }
        let file = file::memory_file(c"atrace-state")?;
        let fd = file.as_raw_fd();
        scratch.fill(0);
        // The zeroes are written, so that a lack of memory is an error here. Later it would kill the process at a
        // store.
        if file::write(fd, scratch)? != SIZE {
            return Err(Errno(libc::ENOSPC));
        }
        file::seal(&file)?;
        let page = Mapped::of_file(&file, true)?;
        // A high number, which programs do not reuse.
        if duplicate_high(fd, None).is_err() {
            std::mem::forget(file); // Stays open at its present number.
        }
        Ok(page)
    }
}

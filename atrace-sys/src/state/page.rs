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
        // No other process can see a file that this thread opens, so this thread must not create the page. It must not
        // take the turn either, because other threads that publish meanwhile would leave their work to it.
        return;
    }
    TURN.run(|| {
        let this = generation().number();
        // SAFETY: only the thread that has the turn uses the buffer, and a signal handler that interrupts the thread
        // does not get the turn. A forked child has its own copy of the buffer, which a thread of the parent may have
        // been writing.
        let scratch = unsafe { &mut *SCRATCH.0.get() };
        if let Some(page) = page_of(this, scratch) {
            scratch.fill(0);
            compose(&mut Text::new(&mut scratch[..TEXT_MAX]));
            // A signal handler may have forked meanwhile. In the child, this code must not write to the parent's page.
            if generation().number() == this {
                page.write(&scratch[..TEXT_MAX]);
            }
        }
    });
}

/// The generation of the process that has created `PAGE`, or that will certainly have no page.
static OWNER: AtomicU64 = AtomicU64::new(0);
static PAGE: OnceRef<Page> = OnceRef::new();

/// The buffer for composing a text. The buffer is not on the stack, because the stack may be small.
struct Scratch(UnsafeCell<[u8; SIZE]>);

// SAFETY: only the thread that has the turn uses the buffer.
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
        // The owner is stored even if there is no page, so that its creation is not tried forever. After a temporary
        // error, the owner is not stored, and the next call tries again.
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

// SAFETY: `Page` consists of atomics.
unsafe impl Shared for Page {}

impl Page {
    /// Creates the memory file of the page and maps it.
    fn make(scratch: &mut [u8; SIZE]) -> Result<Mapped<Self>> {
        // If the process has a file size limit that is smaller than the page, writing to the file would raise SIGXFSZ.
        if soft_limit(libc::RLIMIT_FSIZE).is_some_and(|limit| limit < SIZE as u64) {
            return Err(Errno(libc::EFBIG));
        }
        let file = file::memory_file(c"atrace-state")?;
        let fd = file.as_raw_fd();
        scratch.fill(0);
        // Zeroes are written, so that a lack of memory is an error here. Otherwise, a later store to the mapping would
        // kill the process.
        if file::write(fd, scratch)? != SIZE {
            return Err(Errno(libc::ENOSPC));
        }
        file::seal(&file)?;
        let page = Mapped::of_file(&file, true)?;
        // The descriptor gets a high number, which programs do not reuse.
        if duplicate_high(fd, None).is_err() {
            std::mem::forget(file); // The file stays open with its present number.
        }
        Ok(page)
    }
}

//! Detects forks, so that a process can distinguish its own data from data that it has inherited from its parent.
//!
//! # The problem
//!
//! A forked child has a copy of its parent's memory. The copy includes locks that a thread of the parent held, slices
//! that the parent began, values that a thread of the parent was changing, and ids of the parent.
//!
//! # Types
//!
//! - [`ProcessId`]: the id of the process, cached as text.
//! - [`Generation`]: a number that identifies a process among its ancestors. Data that belongs to one process is stored
//!   together with this number.
//! - [`PerProcess`]: a value that each process creates for itself.
//! - [`Turn`]: work that only one thread does at a time, without a lock. If a thread of the parent was doing the work
//!   during a fork, a thread of the child can do the work nevertheless.
//!
//! # How it works
//!
//! The generation is in a page that the kernel *wipes* (fills with zeroes) in each child (`MADV_WIPEONFORK`, Linux
//! 4.14). The kernel does this no matter how the child was made, even by a *bare* `clone`, a system call without the C
//! library. A process that finds 0 in the page takes the next number. No function of this module waits for another
//! thread or takes a lock, except inside the C library and the allocator.
//!
//! If the kernel can't wipe pages, the generation is stored together with the process id (`BY_ID`), and each call asks
//! the kernel for the process id. A child finds its parent's id there, and takes a new generation. A child in another
//! PID namespace may have the same id as its parent, so a `pthread_atfork` handler clears the stored id and generation.
//! A bare `clone` does not call this handler: if the child has its parent's id, it keeps its parent's generation.
//!
//! A child of `vfork` shares its parent's memory, so it has the same generation as its parent, on every kernel. Such a
//! child must not trace before it executes a program.
//!
//! Sources: `madvise(2)`, `clone(2)`.

mod turn;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use self::turn::Turn;
use crate::system::{self, ErrnoGuard, Plain};
pub use crate::system::{around_fork as around, at_fork as in_children};
use crate::word::{AtomicRef, OnceRef, offer};

/// Identifies a process among its ancestors. A child's generation differs from each generation that an ancestor had
/// asked for before the fork, even if the child and the ancestor have the same process id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// Returns the generation as a number. The number is never 0, and is greater than the number of each generation
    /// that an ancestor had asked for before the fork.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// A process id in the form in which messages contain it: its decimal digits and a `|`, padded with zeroes. The text
/// consists of the bytes of a number, in the order in which they are in memory.
///
/// The largest id on Linux is 4194304 (`PID_MAX_LIMIT`): seven digits and the `|` fill the eight bytes.
///
/// # Examples
///
/// ```
/// let id = atrace_sys::process::id();
/// assert_eq!(id.text(), std::process::id().to_string().as_bytes());
/// assert_eq!(id.bytes()[id.text().len()], b'|');
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessId(NonZeroU64);

impl ProcessId {
    /// Creates the text of `pid` from its last seven digits. An id on Linux has no more digits.
    pub fn new(pid: u32) -> Self {
        let (mut rest, mut bytes) = (pid, *b"\0\0\0\0\0\0\0|");
        let mut start = 7;
        while start > 0 && (start == 7 || rest > 0) {
            start -= 1;
            bytes[start] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // Moves the digits and the `|` to the front. (`rotate_left` would add two KiB of code.)
        let bytes = (u64::from_be_bytes(bytes) << (8 * start)).to_be_bytes();
        // The number contains the digits and the `|`, so it is never 0, and `MIN` is never used.
        Self(NonZeroU64::new(u64::from_ne_bytes(bytes)).unwrap_or(NonZeroU64::MIN))
    }

    /// Returns the eight bytes: digits, `|`, zeroes.
    #[inline(always)]
    pub fn bytes(&self) -> [u8; 8] {
        self.0.get().to_ne_bytes()
    }

    /// Returns the number of bytes of the digits and the `|`.
    #[inline(always)]
    pub fn len_with_bar(&self) -> usize {
        // In the little-endian number, the unused bytes after the `|` are the most significant ones.
        8 - (u64::from_le(self.0.get()).leading_zeros() / 8) as usize
    }

    /// Returns the digits without the `|`.
    pub fn text(&self) -> Vec<u8> {
        self.bytes()[..self.len_with_bar() - 1].to_vec()
    }
}

/// The words that the kernel wipes, so that they are 0 in a new child.
struct WipedWords {
    /// The [`ProcessId`] as a number.
    id: AtomicU64,
    generation: AtomicU64,
}

// SAFETY: zeroes are valid numbers.
unsafe impl Plain for WipedWords {}

/// Words that are always 0. They take the place of the wiped page until [`page`] has created it, and also if it can't
/// be created.
static NOTHING: WipedWords = WipedWords { id: AtomicU64::new(0), generation: AtomicU64::new(0) };
static OWN: AtomicRef<WipedWords> = AtomicRef::new(&NOTHING);
/// A process id in the upper half, and the generation of that process in the lower half. The word is used if there is
/// no page that the kernel wipes.
static BY_ID: AtomicU64 = AtomicU64::new(0);
/// The highest generation that this process or an ancestor has taken.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the generation of the calling process, even right after a fork. This costs two loads, or a system call
/// before Linux 4.14.
#[inline(always)]
pub fn generation() -> Generation {
    NonZeroU64::new(OWN.get().generation.load(Ordering::Relaxed)).map_or_else(learn_generation, Generation)
}

/// Returns the id of the calling process, even right after a fork. Every event needs the id, and glibc's `getpid()` is a
/// system call, so the id is cached.
///
/// This costs two loads, or a system call before Linux 4.14. In a child of `vfork` it returns the parent's id, because
/// the child shares the parent's memory. Such a child must not trace before it executes a program.
#[inline(always)]
pub fn id() -> ProcessId {
    NonZeroU64::new(OWN.get().id.load(Ordering::Relaxed)).map_or_else(learn_id, ProcessId)
}

#[cold]
#[inline(never)]
fn learn_id() -> ProcessId {
    let _errno = ErrnoGuard::new();
    let id = ProcessId::new(system::process_id());
    if let Some(own) = page() {
        own.id.store(id.0.get(), Ordering::Relaxed);
    } // Without the page, the id is not stored: a child would find its parent's id.
    id
}

/// Returns whether the kernel wipes pages in each child (Linux 4.14). If the kernel does not, a child that was made by
/// the system call `clone` alone can be told from its parent only by its [`generation`].
pub fn wipes() -> bool {
    page().is_some()
}

/// Takes a generation for this process, unless another thread of the process has already taken one.
#[cold]
#[inline(never)]
fn learn_generation() -> Generation {
    let _errno = ErrnoGuard::new();
    let Some(own) = page() else { return generation_by_id() };
    let new = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    // The number is never 0: numbers start at 1, and no process lives long enough for 2^64 forks.
    let new = NonZeroU64::new(new).unwrap_or(NonZeroU64::MIN);
    match own.generation.compare_exchange(0, new.get(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Generation(new),
        Err(present) => Generation(NonZeroU64::new(present).unwrap_or(new)),
    }
}

/// Returns the generation that is stored with the id of this process. If no generation is stored with this id, takes a
/// new generation first.
#[cold]
#[inline(never)]
fn generation_by_id() -> Generation {
    let id = u64::from(system::process_id()) << 32;
    loop {
        let present = BY_ID.load(Ordering::Relaxed);
        if present >> 32 == id >> 32
            && let Some(number) = NonZeroU64::new(present & u64::from(u32::MAX))
        {
            return Generation(number);
        }
        clear_at_fork();
        // 32 bits suffice: no process has 2^32 ancestors.
        let new = (LAST.fetch_add(1, Ordering::Relaxed) + 1) & u64::from(u32::MAX);
        // If another thread of this process has stored a number meanwhile, that number is the generation.
        let _ = BY_ID.compare_exchange(present, id | new, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Returns the page that the kernel wipes in children, or `None` if the kernel wipes none.
fn page() -> Option<&'static WipedWords> {
    let is_missing = || std::ptr::eq(OWN.get(), &NOTHING);
    // If this process has already taken a generation without a page, no page is created: the page would give the
    // process a second generation.
    if is_missing()
        && BY_ID.load(Ordering::Relaxed) == 0
        && let Some(page) = system::wiped_on_fork()
    {
        let _ = offer(page, |page| OWN.replace(&NOTHING, page));
    }
    (!is_missing()).then(|| OWN.get())
}

/// Registers a fork handler that clears `BY_ID` in children. Registering the handler twice is harmless.
fn clear_at_fork() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn clear() {
        BY_ID.store(0, Ordering::Relaxed);
    }
    if !IS_REGISTERED.load(Ordering::Acquire) {
        IS_REGISTERED.store(system::at_fork(clear), Ordering::Release);
    }
}

/// A value that each process creates for itself. A forked child does not get its parent's value.
///
/// Use this for values that a thread of the parent may have been changing during the fork, in particular locks. A value
/// exists until its process ends. In a child, the values of its ancestors stay in memory, too.
///
/// # Examples
///
/// ```
/// use std::sync::Mutex;
/// use atrace_sys::fork::PerProcess;
///
/// static NAMES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
///
/// NAMES.get_or_make(Default::default).lock().unwrap().push("one".to_owned());
/// assert_eq!(NAMES.get().unwrap().lock().unwrap().len(), 1); // In a child: None.
/// ```
pub struct PerProcess<T: Sync + 'static>(OnceRef<OfGeneration<T>>);

struct OfGeneration<T> {
    by: Generation,
    value: T,
}

impl<T: Sync + 'static> PerProcess<T> {
    /// Creates an instance that has no value in any process.
    pub const fn new() -> Self {
        Self(OnceRef::new())
    }

    /// Returns this process's value, or `None` if the process has none yet.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        self.0.get().filter(|made| made.by == generation()).map(|made| &made.value)
    }

    /// Returns the value of this process or, if this process has no value, the value of its nearest ancestor that has
    /// one.
    ///
    /// A thread of the ancestor may have been changing the value during the fork.
    pub fn inherited(&self) -> Option<&'static T> {
        self.0.get().map(|made| &made.value)
    }

    /// Returns this process's value. If the process has no value, first calls `make` to create it.
    ///
    /// If several threads call this function at once, each may create a value; the first value is stored and the
    /// others are dropped. No thread waits for another.
    #[inline]
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &'static T {
        match self.get() {
            Some(value) => value,
            None => self.make(make),
        }
    }

    #[cold]
    fn make(&self, make: impl FnOnce() -> T) -> &'static T {
        let new = Box::new(OfGeneration { by: generation(), value: make() });
        let made = offer(new, |new| {
            let mut present = self.0.get();
            loop {
                if let Some(made) = present
                    && made.by == generation()
                {
                    return Err(made);
                }
                match self.0.replace(present, new) {
                    Ok(()) => return Ok(()),
                    Err(faster) => present = faster,
                }
            }
        });
        let (Ok(made) | Err(made)) = made;
        &made.value
    }
}

impl<T: Sync + 'static> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Sync + fmt::Debug + 'static> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PerProcess").field(&self.get()).finish()
    }
}

impl Turn {
    /// Creates a turn that no thread has.
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// Does the work. If the work is already being done in this process, this function returns at once, and the thread
    /// that is doing the work does it once more.
    pub fn run(&self, mut work: impl FnMut()) {
        self.run_as(generation().number(), &mut work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_process_agree() {
        static PLACE: PerProcess<u32> = PerProcess::new();
        assert_eq!(PLACE.get(), None);
        let found: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| scope.spawn(move || (generation(), *PLACE.get_or_make(|| number))))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(found.iter().all(|one| *one == found[0]), "{found:?}");
    }

    #[test]
    fn work_that_panics_gives_the_turn_back() {
        static TURN: Turn = Turn::new();
        assert!(std::panic::catch_unwind(|| TURN.run(|| std::panic::resume_unwind(Box::new(())))).is_err());
        let mut times = 0;
        TURN.run(|| times += 1);
        assert_eq!(times, 1);
    }
}

//! Which process is this? The one answer of the workspace, for everything that a fork must not inherit.
//!
//! A forked child has a copy of its parent's memory: locks that a thread of the parent held, slices that the
//! parent began, a number that is not its own. What matters carries the [`Generation`] of the process it belongs
//! to, [`PerProcess`] makes a value anew in each process, and a [`Turn`] is not left to a thread of the parent.
//!
//! - A generation comes from a page that the kernel wipes in a child (`MADV_WIPEONFORK`, Linux 4.14), however the
//!   child was made, also by a bare `clone`. Where the kernel can't do that, `pthread_atfork` clears the word,
//!   which covers `fork()` only.
//! - Nothing here waits or locks: a child finds nothing locked.
//! - A `vfork` child shares its parent's memory and so its generation: it must not trace before it executes a
//!   program.
//!
//! Source: `madvise(2)`.

mod turn;
mod value;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub use self::turn::Turn;
pub use self::value::PerProcess;
use crate::system::{self, ErrnoGuard, Plain};
use crate::word::{AtomicRef, offer};

/// A process among those that come from each other by forking: a child's generation differs from that of every
/// ancestor, also where it has the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Generation(NonZeroU64);

impl Generation {
    /// A number that no ancestor has: never zero, and it grows from parent to child.
    #[inline(always)]
    pub const fn number(self) -> u64 {
        self.0.get()
    }
}

/// What a process knows of itself; zeros in a child that was not asked yet.
struct Own {
    /// A word of somebody else's: see [`kept`].
    kept: AtomicU64,
    generation: AtomicU64,
}

// SAFETY: zeros are numbers.
unsafe impl Plain for Own {}

/// Used until [`place`] has a page, and where there can be none.
static UNWIPED: Own = Own { kept: AtomicU64::new(0), generation: AtomicU64::new(0) };
static OWN: AtomicRef<Own> = AtomicRef::new(&UNWIPED);
/// The last generation that this process or an ancestor of it had.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Returns the generation of the calling process, also right after a fork. Costs two loads.
#[inline(always)]
pub fn generation() -> Generation {
    NonZeroU64::new(OWN.get().generation.load(Ordering::Relaxed)).map_or_else(learn_generation, Generation)
}

/// Returns what `make` makes, made once in each process; it always makes the same. Costs two loads.
///
/// There is room for one such word: that of [`process::id`](crate::process::id).
#[inline(always)]
pub(crate) fn kept(make: fn() -> NonZeroU64) -> NonZeroU64 {
    NonZeroU64::new(OWN.get().kept.load(Ordering::Relaxed)).unwrap_or_else(|| keep(make))
}

#[cold]
#[inline(never)]
fn keep(make: fn() -> NonZeroU64) -> NonZeroU64 {
    let _errno = ErrnoGuard::new();
    let made = make();
    let (own, is_cleared) = place();
    if is_cleared {
        own.kept.store(made.get(), Ordering::Relaxed);
    } // Else nothing would clear it in a child: it is made each time.
    made
}

/// Takes a generation, unless another thread of this process did.
#[cold]
#[inline(never)]
fn learn_generation() -> Generation {
    let _errno = ErrnoGuard::new();
    let (own, _) = place();
    let new = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    // It is counted from 1, and 2^64 forks take longer than any process lives.
    let new = NonZeroU64::new(new).unwrap_or(NonZeroU64::MIN);
    match own.generation.compare_exchange(0, new.get(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => Generation(new),
        Err(present) => Generation(NonZeroU64::new(present).unwrap_or(new)),
    }
}

/// Where words are kept, in a page if that can be had; and whether they are zeros in a child.
fn place() -> (&'static Own, bool) {
    if std::ptr::eq(OWN.get(), &UNWIPED)
        && let Some(page) = system::wiped_on_fork()
    {
        let _ = offer(page, |page| OWN.replace(&UNWIPED, page));
    }
    let own = OWN.get();
    (own, !std::ptr::eq(own, &UNWIPED) || clear_at_fork())
}

/// Has UNWIPED cleared in forked children; false where that can't be arranged. Done twice, it does no harm.
fn clear_at_fork() -> bool {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn clear() {
        UNWIPED.kept.store(0, Ordering::Relaxed);
        UNWIPED.generation.store(0, Ordering::Relaxed);
    }
    if !REGISTERED.load(Ordering::Acquire) {
        REGISTERED.store(system::at_fork(clear), Ordering::Release);
    }
    REGISTERED.load(Ordering::Acquire)
}

/// Has `body` called in every child of `fork()`, before anything else runs there. It may do what a signal handler may.
/// Not called in a child of a bare `clone`.
pub fn in_children(body: extern "C" fn()) -> bool {
    system::at_fork(body)
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

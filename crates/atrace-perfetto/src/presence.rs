//! Who may write where: threads that come and go, sessions that begin and end.
//!
//! A writer belongs to a thread and a session. The thread writes while it is *inside* and the session's *epoch* is odd;
//! the socket's thread takes a writer's chunk away once the session has ended and the thread is not inside. Nobody
//! waits: where the thread is inside, it is looked at again later.
//!
//! Each side stores its own word and then loads the other's, so one of both sees the other. The order of a store and a
//! later load needs a fence. An event has the *light* one, which costs nothing where the
//! kernel makes up for it: the rare other side has the *heavy* one.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{heavy_fence, light_fence};

const NOBODY: u32 = 0;
const AWAY: u32 = 1;
const INSIDE: u32 = 2;

/// Whether a place for a thread is taken, and whether that thread is writing. Zero is an empty place.
#[derive(Debug, Default)]
pub struct Presence(pub(crate) AtomicU32);

/// What a thread that wants to write finds at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is inside from now on.
    Entered,
    /// It is inside already: a signal handler in the middle of an event.
    Nested,
    /// The place is nobody's: this is a child of fork, whose pages were wiped.
    Lost,
}

impl Presence {
    /// Takes the place, if it is nobody's.
    pub fn claim(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NOBODY
            && self.0.compare_exchange(NOBODY, AWAY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The thread goes inside.
    #[inline(always)]
    pub fn enter(&self) -> Found {
        match self.0.load(Ordering::Relaxed) {
            AWAY => {
                self.0.store(INSIDE, Ordering::Relaxed);
                light_fence();
                Found::Entered
            }
            INSIDE => Found::Nested,
            _ => Found::Lost,
        }
    }

    /// The thread has written.
    #[inline(always)]
    pub fn leave(&self) {
        self.0.store(AWAY, Ordering::Release);
    }

    /// The thread, inside, ends: the place is free.
    #[inline]
    pub fn give_back(&self) {
        self.0.store(NOBODY, Ordering::Release);
    }

    /// Whether a thread is inside; if not, what it wrote is seen.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.0.load(Ordering::Acquire) == INSIDE
    }
}

/// Whether a session is open, and which it is of those that were at its place: odd while it is. Zero at first.
#[derive(Debug, Default)]
pub struct Epoch(pub(crate) AtomicU32);

impl Epoch {
    /// The number now.
    #[inline(always)]
    pub fn now(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether this is the number of an open session.
    #[inline(always)]
    pub const fn is_open(number: u32) -> bool {
        number & 1 == 1
    }

    /// Opens the session: what was stored for it before is seen by who writes. Only once no thread has a chunk of the
    /// last one. In a forked child, whose epochs were wiped, its number is none that a session of its parent's had: those of
    /// each generation are 65,536 apart.
    pub fn open(&self, generation: u64) {
        let now = match self.0.load(Ordering::Relaxed) {
            0 => (generation as u32) << 16,
            now => now,
        };
        self.0.store(now.wrapping_add(1) | 1, Ordering::Release);
    }

    /// The number of the session that has ended.
    pub fn last(&self) -> u32 {
        self.now().wrapping_sub(1)
    }

    /// Ends the session. Threads that are not inside after this don't write for it any more.
    pub fn close(&self) {
        let now = self.0.load(Ordering::Relaxed);
        self.0.store(now.wrapping_add(1) & !1, Ordering::Release);
        heavy_fence();
    }
}

//! Has libcutils reload its tags after a switch, and tells when its mask is *current*.
//!
//! Its function that reads the flags stores them in a mask that all threads share, and holds no lock in between: of
//! two threads that reload, the slower may store what held before. So the threads that reload are counted, and the
//! mask is current only after one that was alone. Of several, the last to end leaves it stale, and each reloads once
//! more. Until the mask is current, every event asks.

use crate::sync::atomic::{AtomicU64, Ordering};

/// `serial, 32 bits | process, 16 | current, 1 | overlapped, 1 | reading, 14 bits`
///
/// The process, by its generation: a child has none of its parent's threads, which may have been reading.
#[derive(Debug)]
pub(crate) struct Reload(pub(crate) AtomicU64);

const SERIAL_SHIFT: u32 = 32;
const PROCESS_SHIFT: u32 = 16;
const PROCESS: u64 = 0xffff << PROCESS_SHIFT;
const CURRENT: u64 = 1 << 15;
const OVERLAPPED: u64 = 1 << 14;
const READING: u64 = OVERLAPPED - 1;

impl Reload {
    pub(crate) fn is_current(&self) -> bool {
        self.0.load(Ordering::Acquire) & CURRENT != 0
    }

    /// Has the library `read` until its mask is of the serial of `now`; returns what came with that serial, or
    /// None where other threads reload, or somebody switches, without pause.
    pub(crate) fn follow<T>(&self, process: u64, now: impl Fn() -> (u32, T), read: impl Fn()) -> Option<T> {
        let process = process << PROCESS_SHIFT & PROCESS;
        for _ in 0..16 {
            let (serial, found) = now();
            let current = u64::from(serial) << SERIAL_SHIFT | process | CURRENT;
            if self.0.load(Ordering::Acquire) == current {
                return Some(found);
            }
            self.reading(process, current, &read);
        }
        None
    }

    /// Has the library `read`, or set, what no serial tells: the mask is stale after it.
    pub(crate) fn force(&self, process: u64, read: impl Fn()) {
        let process = process << PROCESS_SHIFT & PROCESS;
        self.reading(process, process, &read);
    }

    /// Calls `read`; the word is `after` then if no other thread read meanwhile.
    fn reading(&self, process: u64, after: u64, read: &impl Fn()) {
        self.change(|word| match word & READING {
            _ if word & PROCESS != process => process | 1,
            0 => process | 1,
            others => process | OVERLAPPED | (others + 1),
        });
        read();
        self.change(|word| match word & READING {
            // This thread has forked meanwhile.
            _ if word & PROCESS != process => word,
            1 if word & OVERLAPPED == 0 => after,
            1 => process,
            _ => word - 1,
        });
    }

    fn change(&self, to: impl Fn(u64) -> u64) {
        let mut present = self.0.load(Ordering::Relaxed);
        while let Err(other) =
            self.0.compare_exchange(present, to(present), Ordering::AcqRel, Ordering::Relaxed)
        {
            present = other;
        }
    }
}

//! Makes libcutils read its tags again after a switch of tracing, and determines when its mask of tags is up to date
//! (*current*).
//!
//! # The problem
//!
//! libcutils' function that reloads the tags reads the properties, then stores the tags in a mask that all threads
//! share. The function holds no lock between these two steps. So if two threads reload at once, the slower one may
//! overwrite the mask with older tags.
//!
//! # The solution
//!
//! One word counts the threads that are reloading. The mask becomes current only by a reload during which no other
//! thread reloaded. If several reloads overlapped, the mask is still marked as out of date when the last of them ends,
//! and each of these threads reloads once more. While the mask is out of date, every event reloads. No thread waits.
//!
//! The count is valid only in one process. A forked child does not have the threads of its parent that were reloading,
//! so its count starts at zero.

use crate::sync::atomic::{AtomicU64, Ordering};

/// One word, from the highest bit: the serial of the last reload (32 bits); the process (16 bits); whether
/// the mask is current (1 bit); whether reloads overlapped (1 bit); and how many threads are reloading (14
/// bits).
///
/// The process is identified by the low 16 bits of its generation, a number that differs from the generation of each of
/// its ancestors.
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

    /// Calls `read`, which makes the library reload its mask, until the mask is current (was read without a
    /// simultaneous reload) for the serial that `now` returns.
    ///
    /// Returns the value that `now` returned with that serial. Returns `None` after 16 attempts, if other threads keep
    /// reloading or other processes keep switching tracing.
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

    /// Calls `read`, which changes the library's mask without changing a serial. After this call, the mask counts as
    /// out of date.
    pub(crate) fn force(&self, process: u64, read: impl Fn()) {
        let process = process << PROCESS_SHIFT & PROCESS;
        self.reading(process, process, &read);
    }

    /// Calls `read`. If no other thread reloaded the tags during the call, stores `after` as the new state.
    fn reading(&self, process: u64, after: u64, read: &impl Fn()) {
        self.change(|word| match word & READING {
            _ if word & PROCESS != process => process | 1,
            0 => process | 1,
            others => process | OVERLAPPED | (others + 1),
        });
        read();
        self.change(|word| match word & READING {
            // This thread has forked during `read` and is now in the child, whose count has started anew.
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

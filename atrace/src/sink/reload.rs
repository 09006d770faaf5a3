//! Whether libcutils has read the flags of a serial.
//!
//! Its function that reads them stores what it read in a mask that all threads share, and holds no lock from the
//! one to the other: of two threads that have it read, the slower may store what held before. So the threads
//! that have it read are counted, and it is taken for *told* only after one that was alone; of several, the last
//! to end leaves it untold, and so each does it once more. Until it is told, every event asks.

use crate::sync::atomic::{AtomicU64, Ordering};

/// `serial, 32 bits | process, 16 | told, 1 | overlapped, 1 | reading, 14 bits`
///
/// The process, by its generation: a child has none of its parent's threads, which may have been reading.
#[derive(Debug)]
pub(crate) struct Told(pub(crate) AtomicU64);

const SERIAL_SHIFT: u32 = 32;
const PROCESS_SHIFT: u32 = 16;
const PROCESS: u64 = 0xffff << PROCESS_SHIFT;
const TOLD: u64 = 1 << 15;
const OVERLAPPED: u64 = 1 << 14;
const READING: u64 = OVERLAPPED - 1;

impl Told {
    pub(crate) fn is_told(&self) -> bool {
        self.0.load(Ordering::Acquire) & TOLD != 0
    }

    /// Has the library `read` until it is told of the serial of `now`; returns what came with that serial, or
    /// None where other threads have it read without pause, or somebody switches so.
    pub(crate) fn follow<W>(&self, process: u64, now: impl Fn() -> (u32, W), read: impl Fn()) -> Option<W> {
        let process = process << PROCESS_SHIFT & PROCESS;
        for _ in 0..16 {
            let (serial, watched) = now();
            let told = u64::from(serial) << SERIAL_SHIFT | process | TOLD;
            if self.0.load(Ordering::Acquire) == told {
                return Some(watched);
            }
            self.reading(process, told, &read);
        }
        None
    }

    /// Has the library read, or set, what no serial tells.
    pub(crate) fn forget(&self, process: u64, read: impl Fn()) {
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

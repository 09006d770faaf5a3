//! Tracks how much of an arena was written since its reader looked last, and lets the reader sleep until that is
//! half of the arena.
//!
//! A reader that looks on a timer is too late for a burst after silence. So the thread whose chunk makes half of the
//! arena used wakes the reader: once for each crossing, and without a system call if the reader is awake.
//!
//! Each side stores its own word and then loads the other's, so at least one of them sees the other (Dekker): the writer
//! adds to `taken` and then takes `sleeper`; the reader sets `sleeper` and then reads `taken`. The reader sleeps for a
//! limited time in any case, because a writer that has given up system calls does not wake it.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering};
use atrace_sys::{futex, thread};

/// The amount that was written since the last look. All zeroes is nothing.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// The sum of the parts that were taken.
    taken: AtomicU32,
    /// 1 while the reader sleeps, or is about to.
    sleeper: AtomicU32,
}

impl Filling {
    /// Adds a part. Wakes the reader if this makes the sum reach `half`. Async-signal-safe.
    pub(crate) fn add(&self, part: u32, half: u32) {
        let before = self.taken.fetch_add(part, Ordering::SeqCst);
        if before < half && before + part >= half {
            self.wake();
        }
    }

    /// Wakes the reader, unless it is awake or the calling thread has given up system calls. Async-signal-safe.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake(&self) {
        if self.sleeper.load(Ordering::SeqCst) != 0
            && !thread::is_confined()
            && self.sleeper.swap(0, Ordering::SeqCst) != 0
        {
            futex::wake(&self.sleeper);
        }
    }

    /// Resets the sum: the reader now looks at what was written.
    pub(crate) fn clear(&self) {
        self.taken.store(0, Ordering::SeqCst);
    }

    /// Sleeps until the sum is `half`, for at most `time`. It may also return earlier. Returns false if the system denies
    /// the sleep.
    pub(crate) fn sleep(&self, half: u32, time: Duration) -> bool {
        self.sleeper.store(1, Ordering::SeqCst);
        let has_time = self.taken.load(Ordering::SeqCst) < half;
        let slept = !has_time || futex::wait(&self.sleeper, 1, time).is_ok();
        self.sleeper.store(0, Ordering::SeqCst);
        slept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// The reader's sleeps would take a minute each.
    #[test]
    #[cfg_attr(miri, ignore = "sleeps in the kernel")]
    fn a_reader_wakes_when_half_is_written() {
        let (filling, looks, is_over) = (Filling::default(), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::SeqCst) {
                    assert!(filling.sleep(10, Duration::from_secs(60)));
                    filling.clear();
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            });
            for round in 0..2000 {
                let before = looks.load(Ordering::SeqCst);
                (0..10).for_each(|_| filling.add(1, 10));
                while looks.load(Ordering::SeqCst) == before {
                    std::thread::yield_now();
                }
                if round % 64 == 0 {
                    std::thread::sleep(Duration::from_millis(1)); // The reader is asleep.
                }
            }
            is_over.store(true, Ordering::SeqCst);
            (0..20).for_each(|_| filling.add(1, 10));
        });
    }
}

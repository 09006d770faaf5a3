//! Counts how much of an arena (the shared memory) threads have taken since the arena's reader (the socket thread, or
//! the thread of a recording) last read it. The reader can sleep until the threads have taken half of the arena.
//!
//! A reader that checks at fixed intervals is too late if a burst of events follows a silence. So the sizes of the
//! taken chunks are added up, and the thread whose new chunk raises the sum to half of the arena wakes the reader. If
//! the reader is already awake, no system call is made.
//!
//! The writer (a thread that takes a chunk) and the reader each store to one word and then load the other word. So at
//! least one of the two sees the other's store (Dekker's algorithm, here with sequentially consistent accesses on both
//! sides; see `atrace_sys::fence`): the writer adds to `taken` and then loads `sleeper`; the reader sets `sleeper` and
//! then loads `taken`. The reader always sleeps for a limited time, because a writer that has given up system calls
//! can't wake the reader.

use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering};
use atrace_sys::{futex, thread};

/// The amount of memory that threads have taken since the reader last read the completed chunks. Zeroes are a valid
/// value, and mean that no chunk was taken.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// The sum of the sizes of the chunks that were taken since the reader last read the completed chunks.
    taken: AtomicU32,
    /// 1 while the reader sleeps or is about to sleep; otherwise 0.
    sleeper: AtomicU32,
}

impl Filling {
    /// Adds `part`, the size of a chunk that a thread has taken, to the sum. Wakes the reader if the sum thereby
    /// reaches `half`. Async-signal-safe.
    pub(crate) fn add(&self, part: u32, half: u32) {
        let before = self.taken.fetch_add(part, Ordering::SeqCst);
        if before < half && before + part >= half {
            self.wake();
        }
    }

    /// Wakes the thread that reads the completed chunks, unless it is awake or the calling thread has given up system
    /// calls. Async-signal-safe.
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

    /// Sets the sum to 0. The reader calls this when it begins to read all chunks that were completed.
    pub(crate) fn clear(&self) {
        self.taken.store(0, Ordering::SeqCst);
    }

    /// Sleeps until the sum reaches `half`, for at most `time`. The function may also return earlier. Returns false if
    /// the system refuses the sleep.
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

    /// Tests that the reader is woken. Without being woken, the reader would sleep for a minute each time.
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

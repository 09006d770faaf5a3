//! Chunks that were completed, in the order that each thread did, for the socket's thread to name to the service.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The last chunk that was handed over; zero: none. The others hang on it, each by a word of its own.
#[derive(Debug, Default)]
pub struct Handed(pub(crate) AtomicU32);

impl Handed {
    /// Hands over the chunk with this index, whose word is `next`.
    pub fn push(&self, index: u32, next: &AtomicU32) {
        let mut last = self.0.load(Ordering::Relaxed);
        loop {
            next.store(last, Ordering::Relaxed);
            // Release: what is known of the chunk, too.
            match self.0.compare_exchange_weak(last, index + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(present) => last = present,
            }
        }
    }

    /// Takes all that was handed over, the last first. At most so many as there are chunks: a service that frees what
    /// it was not given would have a chunk come twice.
    pub fn take<'a>(
        &self,
        chunks: u32,
        next: impl Fn(u32) -> Option<&'a AtomicU32>,
        mut each: impl FnMut(u32),
    ) {
        let mut last = self.0.swap(0, Ordering::Acquire);
        for _ in 0..chunks {
            let Some(index) = last.checked_sub(1) else { return };
            let Some(word) = next(index) else { return };
            last = word.load(Ordering::Relaxed);
            each(index);
        }
    }
}

//! Chunks that were completed, in the order that each thread did, for the socket's thread to name to the service.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The last chunk that was handed over, above zero: its index and one. The others hang on it, each by a word of its own.
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

    /// Takes all that was handed over, and hangs it the other way round: returns the first as `push` has it, and each chunk's
    /// word then has the one after it. At most so many as there are chunks: a service that frees what it was not given would
    /// have a chunk come twice.
    pub fn take<'a>(&self, chunks: u32, next: impl Fn(u32) -> Option<&'a AtomicU32>) -> u32 {
        let (mut last, mut first) = (self.0.swap(0, Ordering::Acquire), 0);
        for _ in 0..chunks {
            let Some(word) = last.checked_sub(1).and_then(&next) else { break };
            let before = word.load(Ordering::Relaxed);
            word.store(first, Ordering::Relaxed);
            (first, last) = (last, before);
        }
        first
    }
}

//! The list of completed chunks: threads push chunks, and the socket thread (for a recording, the recording's thread)
//! takes the whole list.
//!
//! This is a Treiber stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", 1986). It is intrusive, and
//! has indices in place of pointers: each chunk of an arena (the shared memory) has a word `next` of its own. A push is
//! a compare-and-swap on the head. The socket thread takes all chunks at once, by swapping the head for an empty list.
//! No element is popped alone, so the ABA problem does not arise. The socket thread then reverses the list, so that the
//! chunks of each thread come in the order in which the thread completed them, as the service requires.
//!
//! The links are in memory of this process alone, but the service decides when a chunk is free. A faulty service may
//! free a chunk that is still in the list and was not reported to it. A thread can then take this chunk, and push it a
//! second time, so that the list has a cycle. So the socket thread takes at most as many elements as there are chunks.

use crate::sync::atomic::{AtomicU32, Ordering};

/// The head of the stack: the index of the chunk that was pushed last, plus one; or 0 if the list is empty.
#[derive(Debug, Default)]
pub(crate) struct CompletedStack(pub(crate) AtomicU32);

impl CompletedStack {
    /// Pushes the chunk with this index. `next` is the word that links this chunk to the next chunk.
    pub(crate) fn push(&self, index: u32, next: &AtomicU32) {
        let mut last = self.0.load(Ordering::Relaxed);
        loop {
            next.store(last, Ordering::Relaxed);
            // Release: the thread that takes the list also sees the chunk's other data.
            match self.0.compare_exchange_weak(last, index + 1, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(present) => last = present,
            }
        }
    }

    /// Takes all chunks and reverses the list. Returns the index of the first chunk plus one, or 0 if the list is
    /// empty. The link of each chunk then holds the index of the next chunk plus one, or 0 at the end.
    ///
    /// Takes at most `chunks` chunks, because the list may have a cycle (see the module's documentation).
    pub(crate) fn take<'a>(&self, chunks: u32, next: impl Fn(u32) -> Option<&'a AtomicU32>) -> u32 {
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

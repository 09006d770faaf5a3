//! A text that one process writes and another process can read at the same time: a seqlock. The text has one writer at
//! a time. See H. Boehm, "Can Seqlocks Get Along With Programming Language Memory Models?", 2012, for the fences.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// The sequence number, which is odd during a write and changes with each write; and the text.
#[repr(C, align(8))]
pub(super) struct Words<const N: usize> {
    pub(super) sequence: AtomicU64,
    pub(super) words: [AtomicU64; N],
}

impl<const N: usize> Words<N> {
    /// Writes the text. Only one thread may call this at a time.
    pub(super) fn write(&self, text: &[u8]) {
        let sequence = self.sequence.load(Ordering::Relaxed) | 1;
        self.sequence.store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, bytes) in self.words.iter().zip(text.chunks_exact(8)) {
            let mut copy = [0; 8];
            copy.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(copy), Ordering::Relaxed);
        }
        self.sequence.store(sequence.wrapping_add(1), Ordering::Release);
    }
}

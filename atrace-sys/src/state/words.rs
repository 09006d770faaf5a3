//! A text in words that another process reads while it is written.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// First a word that is odd while the text is being written and another one after each writing; then the text.
#[repr(C, align(8))]
pub(super) struct Words<const N: usize> {
    pub(super) sequence: AtomicU64,
    pub(super) words: [AtomicU64; N],
}

impl<const N: usize> Words<N> {
    /// Writes the text, for one thread at a time.
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

//! Answers and counts the queries of `tracing`, so that a switch knows whether an old answer may still reach a cache.
//!
//! A query increments the count, then reads the tags. A switch stores the tags, then reads the count. Both have a fence in
//! between (Dekker's pattern, "store buffering"), so at least one sees the other: either the answer is new, or the switch
//! knows of the query.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

pub(super) struct Questions {
    /// The tags that answers are made from.
    pub(super) tags: AtomicU64,
    /// How many questions there were.
    pub(super) asked: AtomicU64,
    /// How many of them are taken for answered, answers stored.
    pub(super) settled: AtomicU64,
}

impl Questions {
    /// Counts a question, if it is one, and returns the tags for its answer.
    pub(super) fn ask(&self, is_counted: bool) -> u64 {
        if is_counted {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        self.tags.load(Ordering::SeqCst)
    }

    /// The tags were switched to these.
    pub(super) fn switch(&self, tags: u64) {
        self.tags.store(tags, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The number of questions, if some were asked of which it is not known that their answers are stored. All
    /// that were answered with the tags before the last switch are among them.
    pub(super) fn open(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::SeqCst);
        (asked != self.settled.load(Ordering::SeqCst)).then_some(asked)
    }

    /// The answers of the first `asked` questions are taken for stored.
    pub(super) fn settle(&self, asked: u64) {
        self.settled.fetch_max(asked, Ordering::SeqCst);
    }
}

//! Answers and counts the queries by which `tracing` asks a filter about a callsite. After a switch of tracing, the
//! count shows whether `tracing` may yet cache an answer that was given before the switch.
//!
//! A query increments the count and then reads the tags. A switch of tracing stores the tags and then reads the count.
//! The query and the switch each have a fence between their two steps (Dekker's algorithm, the "store buffering"
//! pattern), so at least one of the two sees the store of the other: either the query is answered by the new tags, or
//! the switch sees that the query was counted.

use crate::sync::atomic::{AtomicU64, Ordering, fence};

pub(super) struct Queries {
    /// The enabled tags, by which queries are answered.
    pub(super) tags: AtomicU64,
    /// The number of queries that were counted so far.
    pub(super) asked: AtomicU64,
    /// The number of queries whose answers are assumed to be in the caches.
    pub(super) settled: AtomicU64,
}

impl Queries {
    /// Returns the tags for the answer to a query. The query is counted only if `is_counted` is true. Queries of a
    /// rebuild by this crate are not counted.
    pub(super) fn ask(&self, is_counted: bool) -> u64 {
        if is_counted {
            self.asked.fetch_add(1, Ordering::SeqCst);
        }
        fence(Ordering::SeqCst);
        self.tags.load(Ordering::SeqCst)
    }

    /// Stores the enabled tags after a switch of tracing.
    pub(super) fn switch(&self, tags: u64) {
        self.tags.store(tags, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns `None` if the answers to all queries are assumed to be cached. Otherwise returns the number of queries
    /// so far, which includes all queries that were answered before the last switch.
    pub(super) fn open(&self) -> Option<u64> {
        let asked = self.asked.load(Ordering::SeqCst);
        (asked != self.settled.load(Ordering::SeqCst)).then_some(asked)
    }

    /// Records that the answers to the first `asked` queries are assumed to be cached.
    pub(super) fn settle(&self, asked: u64) {
        self.settled.fetch_max(asked, Ordering::SeqCst);
    }
}

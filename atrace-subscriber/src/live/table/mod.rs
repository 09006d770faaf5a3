//! The table of the spans that are alive, by their ids.
//!
//! - The table has [`SHARDS`] shards. A hash of a span's id selects the span's shard. The lock of a shard is held for a
//!   single operation on one span, or while a dump copies the shard. While the lock is held, no code of the traced
//!   program except its allocator may run.
//! - A shard keeps its memory: it allocates only when it has more live spans than ever before, or when a span is
//!   entered again before it is left.
//! - Each span has room for the maximum number of return addresses. A walk by frame pointers writes the addresses to
//!   the table directly.
//! - A forked child has its own shards, because a thread of its parent may hold the locks of the parent's
//!   shards.

mod shard;
#[cfg(test)]
mod tests;

use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use atrace_sys::fork::{Generation, PerProcess, generation};
use tracing_core::Metadata;

use self::shard::Shard;
use super::symbols::Frames;
use super::thread::{self, Busy, Thread};

const SHARDS: usize = 32;

/// The data of a span at its creation. Fields that are recorded later are added to `fields`.
#[derive(Clone, Debug)]
pub(super) struct Description {
    pub(super) id: u64,
    pub(super) parent: Option<u64>,
    pub(super) metadata: &'static Metadata<'static>,
    pub(super) at: Instant,
    pub(super) fields: Option<Arc<str>>,
    /// The frames of the backtrace, if the symbols were looked up when the span was created.
    pub(super) frames: Option<Frames>,
}

/// A shard on cache lines of its own. It is aligned to two lines, because processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Locked(Mutex<Shard>);

impl Locked {
    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Shards = Box<[Locked]>;

fn shards() -> Shards {
    (0..SHARDS).map(|_| Locked::default()).collect()
}

/// Returns the index of the shard for an id: the highest bits of the product of the id and the golden ratio (as a
/// 64-bit fraction). These bits depend on the whole id. The map within the shard uses another hash.
#[inline]
fn shard_of(id: u64) -> usize {
    (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SHARDS.trailing_zeros())) as usize
}

pub(super) struct SpanTable {
    made_by: Generation,
    /// The shards of the process that made the table.
    first: Shards,
    of_child: PerProcess<Shards>,
    /// The maximum number of return addresses that are stored for a span.
    pub(super) depth: usize,
    /// The number of spans and the number of return addresses in the last dump, as an estimate for the next dump.
    expected: [AtomicUsize; 2],
}

/// The copy of a span in a dump.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) description: Description,
    pub(super) threads: Vec<Arc<Thread>>,
    /// The range of this span's return addresses among all addresses of the dump.
    pub(super) addresses: std::ops::Range<usize>,
}

impl SpanTable {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            made_by: generation(),
            first: shards(),
            of_child: PerProcess::new(),
            depth,
            expected: Default::default(),
        }
    }

    /// Returns the shards of this process.
    #[inline]
    fn shards(&self) -> &Shards {
        if generation() == self.made_by { &self.first } else { self.of_child.get_or_make(shards) }
    }

    #[inline]
    fn shard(&self, id: u64) -> MutexGuard<'_, Shard> {
        self.shards()[shard_of(id)].lock()
    }

    /// Adds a span. `walk` writes the return addresses of the span's creation into the table, and returns their number.
    /// If `walk` returns `None`, the span is not added but returned.
    pub(super) fn insert(
        &self,
        span: Description,
        walk: impl FnOnce(&mut [usize]) -> Option<usize>,
    ) -> Option<Description> {
        let _busy = Busy::new()?;
        let mut shard = self.shard(span.id);
        let inserted = shard.insert(span, self.depth, walk);
        drop(shard);
        inserted.err()
    }

    /// Returns the fields of the span with this id.
    pub(super) fn fields(&self, id: u64) -> Option<Arc<str>> {
        let _busy = Busy::new()?;
        self.shard(id).find(id)?.description.fields.clone()
    }

    /// Replaces the fields of a span if they are still the text `before` (the same allocation, not an equal text). If
    /// they are another text, returns false, and the caller should try again.
    pub(super) fn set_fields(&self, id: u64, before: Option<&Arc<str>>, fields: Arc<str>) -> bool {
        let Some(_busy) = Busy::new() else { return true };
        let mut shard = self.shard(id);
        let Some(slot) = shard.find(id) else { return true };
        let now = &mut slot.description.fields;
        let same = before.map(Arc::as_ptr) == now.as_ref().map(Arc::as_ptr);
        let _gone = if same { now.replace(fields) } else { None };
        drop(shard);
        same
    }

    pub(super) fn enter(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let thread = thread::this();
        if let Some(slot) = self.shard(id).find(id) {
            slot.threads.enter(thread);
        }
    }

    pub(super) fn exit(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let thread = thread::this();
        let mut shard = self.shard(id);
        let _gone = shard.find(id).map(|slot| slot.threads.exit(&thread));
        drop(shard);
    }

    pub(super) fn remove(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let mut shard = self.shard(id);
        let _gone = shard.remove(id);
        drop(shard);
    }

    /// Appends copies of all spans to `records`, and their return addresses to `addresses`. Appends nothing if the
    /// calling code has interrupted a use of the table by its own thread.
    pub(super) fn copy(&self, records: &mut Vec<Record>, addresses: &mut Vec<usize>) {
        let Some(_busy) = Busy::new() else { return };
        let [spans, frames] = [0, 1].map(|at| self.expected[at].load(Ordering::Relaxed));
        let before = [records.len(), addresses.len()];
        records.reserve(spans + spans / 8);
        addresses.reserve(frames + frames / 8);
        for shard in self.shards() {
            for (slot, its_addresses) in shard.lock().iter(self.depth) {
                let first = addresses.len();
                addresses.extend_from_slice(its_addresses);
                records.push(Record {
                    description: slot.description.clone(),
                    threads: slot.threads.distinct(),
                    addresses: first..addresses.len(),
                });
            }
        }
        self.expected[0].store(records.len() - before[0], Ordering::Relaxed);
        self.expected[1].store(addresses.len() - before[1], Ordering::Relaxed);
    }
}

/// Does not drop the parent's shards in a forked child, because a thread of the parent may have been changing them
/// during the fork.
impl Drop for SpanTable {
    fn drop(&mut self) {
        if generation() != self.made_by {
            mem::forget(mem::take(&mut self.first));
        }
    }
}

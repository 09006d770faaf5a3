//! A shard of the table. The table keeps each shard behind a lock. The slots of a shard are reused, and are found by
//! the ids of their spans.

use std::mem;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;

use super::Description;
use crate::live::thread::Thread;

/// A slot of the shard, with the data of a span that is alive.
pub(super) struct Slot {
    pub(super) description: Description,
    pub(super) threads: ThreadsInside,
    /// The number of return addresses of the span.
    addresses: usize,
}

/// The threads inside a span. A thread has one entry for each time that it has entered the span and not left it. There
/// is rarely more than one entry.
#[derive(Default)]
pub(super) struct ThreadsInside {
    one: Option<Arc<Thread>>,
    others: Vec<Arc<Thread>>,
}

impl ThreadsInside {
    pub(super) fn enter(&mut self, thread: Arc<Thread>) {
        match &self.one {
            None => self.one = Some(thread),
            Some(_) => self.others.push(thread),
        }
    }

    /// Removes one entry of the thread and returns the entry. The caller must first release the lock of the shard and
    /// then drop the entry.
    pub(super) fn exit(&mut self, thread: &Arc<Thread>) -> Option<Arc<Thread>> {
        if let Some(at) = self.others.iter().rposition(|other| Arc::ptr_eq(other, thread)) {
            return Some(self.others.swap_remove(at));
        }
        let is_first = self.one.as_ref().is_some_and(|one| Arc::ptr_eq(one, thread));
        if is_first { mem::replace(&mut self.one, self.others.pop()) } else { None }
    }

    /// Returns the threads inside the span, each of them once.
    pub(super) fn distinct(&self) -> Vec<Arc<Thread>> {
        let mut threads: Vec<Arc<Thread>> = Vec::new();
        for thread in self.one.iter().chain(&self.others) {
            if !threads.iter().any(|other| Arc::ptr_eq(other, thread)) {
                threads.push(Arc::clone(thread));
            }
        }
        threads
    }
}

#[derive(Default)]
pub(super) struct Shard {
    indices: FxHashMap<u64, usize>,
    slots: Slab<Slot>,
    /// The return addresses of all slots. Each slot has room for the maximum number of addresses of a span (`depth`).
    addresses: Vec<usize>,
}

impl Shard {
    /// Adds a span with the return addresses that `walk` writes.
    ///
    /// Returns the older span that had the same id, if there was one. The caller must first release the lock of the
    /// shard and then drop that span.
    ///
    /// # Errors
    ///
    /// Returns the description if `walk` returns `None`.
    pub(super) fn insert(
        &mut self,
        description: Description,
        depth: usize,
        walk: impl FnOnce(&mut [usize]) -> Option<usize>,
    ) -> Result<Option<Slot>, Description> {
        let slot = self.slots.vacant_entry();
        let (id, index) = (description.id, slot.key());
        let (start, end) = (index * depth, index * depth + depth);
        if self.addresses.len() < end {
            self.addresses.resize(end, 0);
        }
        let Some(addresses) = walk(&mut self.addresses[start..end]) else { return Err(description) };
        slot.insert(Slot { description, threads: ThreadsInside::default(), addresses });
        // Two spans never have the same id at the same time. So an older span with this id has closed without a
        // notification to this layer.
        let before = self.indices.insert(id, index);
        Ok(before.map(|index| self.slots.remove(index)))
    }

    pub(super) fn find(&mut self, id: u64) -> Option<&mut Slot> {
        self.slots.get_mut(*self.indices.get(&id)?)
    }

    /// Removes a span and returns it. The caller must first release the lock of the shard and then drop the span.
    pub(super) fn remove(&mut self, id: u64) -> Option<Slot> {
        self.indices.remove(&id).map(|index| self.slots.remove(index))
    }

    /// Returns all spans with their return addresses.
    pub(super) fn iter(&self, depth: usize) -> impl Iterator<Item = (&Slot, &[usize])> {
        self.slots.iter().map(move |(index, slot)| (slot, &self.addresses[index * depth..][..slot.addresses]))
    }

    /// Returns the number of spans for which memory is allocated.
    #[cfg(test)]
    pub(super) fn room(&self) -> usize {
        self.slots.capacity()
    }
}

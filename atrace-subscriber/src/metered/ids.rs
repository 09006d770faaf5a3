//! Finds the callsite of a span's id: a set-associative table of fixed size.
//!
//! An id selects a set of eight entries, whose ids fit in a cache line. An entry is taken by a compare-and-swap, and its
//! id is stored last. The thread that closes a span removes the entry that it had found before: another thread may already use
//! the id again, and have another entry for it. If a set is full, the span's callsite is unknown.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

const WAYS: usize = 8;
const SETS: usize = if cfg!(miri) { 4 } else { 4096 };
/// The id of an entry that is being filled.
const TAKEN: u64 = u64::MAX;

#[repr(align(64))]
struct Set {
    /// 0: the entry is free.
    ids: [AtomicU64; WAYS],
    callsites: [AtomicU32; WAYS],
}

/// An entry of the table.
#[derive(Clone, Copy)]
pub(super) struct Place(usize, usize);

pub(super) struct Ids(Box<[Set]>);

impl Ids {
    pub(super) fn new() -> Self {
        let set = || Set {
            ids: [const { AtomicU64::new(0) }; WAYS],
            callsites: [const { AtomicU32::new(0) }; WAYS],
        };
        Self((0..SETS).map(|_| set()).collect())
    }

    /// Returns the set of an id. A registry's id consists of, from the lowest bit, the slot (38 bits), its thread (13 bits) and its
    /// generation. The generation must not select the set: a slot that is used again has its entry in memory that is cached.
    #[inline]
    fn set(&self, id: u64) -> usize {
        let of_thread = (id >> 32).wrapping_mul(0x9e37_79b9);
        id.wrapping_add(of_thread) as usize % SETS
    }

    /// Finds an id: its entry, and the number of its callsite.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<(Place, u32)> {
        let at = self.set(id);
        let set = &self.0[at];
        let way = set.ids.iter().position(|present| present.load(Ordering::Acquire) == id)?;
        Some((Place(at, way), set.callsites[way].load(Ordering::Relaxed)))
    }

    /// Adds an id. A subscriber may give one id to all spans of a callsite: then it is added once.
    pub(super) fn add(&self, id: u64, callsite: u32) {
        if id == TAKEN || self.find(id).is_some_and(|(_, present)| present == callsite) {
            return;
        }
        let set = &self.0[self.set(id)];
        let taken = set.ids.iter().position(|present| {
            present.load(Ordering::Relaxed) == 0
                && present.compare_exchange(0, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        if let Some(way) = taken {
            set.callsites[way].store(callsite, Ordering::Relaxed);
            set.ids[way].store(id, Ordering::Release);
        }
    }

    /// Removes an entry whose span has been closed.
    pub(super) fn remove(&self, Place(at, way): Place) {
        self.0[at].ids[way].store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_until_it_is_removed_and_may_be_used_again() {
        let ids = Ids::new();
        assert!(ids.find(7).is_none());
        ids.add(7, 1);
        let (old, callsite) = ids.find(7).unwrap();
        assert_eq!(callsite, 1);
        ids.add(7, 1); // The same span again has no second entry.
        // The id is used again before the old span's entry has been removed.
        ids.add(7, 2);
        ids.remove(old);
        let (new, callsite) = ids.find(7).unwrap();
        assert_eq!(callsite, 2);
        ids.remove(new);
        assert!(ids.find(7).is_none());
    }

    #[test]
    fn a_full_table_leaves_ids_unknown_and_keeps_the_others() {
        let ids = Ids::new();
        let all = 1..=(2 * WAYS * SETS) as u64;
        all.clone().for_each(|id| ids.add(id, id as u32));
        let known: Vec<_> = all.clone().filter_map(|id| Some((id, ids.find(id)?.1))).collect();
        assert!(known.len() <= WAYS * SETS && known.len() > WAYS * SETS / 2, "{}", known.len());
        assert!(known.iter().all(|(id, callsite)| *id == u64::from(*callsite)));
        for (id, _) in &known {
            ids.remove(ids.find(*id).unwrap().0);
        }
        assert!(all.clone().all(|id| ids.find(id).is_none()));
    }

    #[test]
    fn threads_add_and_remove_at_once() {
        let ids = Ids::new();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let ids = &ids;
                scope.spawn(move || {
                    for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
                        let id = 1 + thread + 4 * (round % 5);
                        ids.add(id, id as u32);
                        let (place, callsite) = ids.find(id).unwrap();
                        assert_eq!(u64::from(callsite), id);
                        ids.remove(place);
                    }
                });
            }
        });
        assert!((1..=20).all(|id| ids.find(id).is_none()));
    }
}

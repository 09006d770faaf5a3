//! Finds the callsite of a span by the span's id, in set-associative tables of fixed size.
//!
//! An id selects a set of eight words, which fill one cache line. A word holds the number of the callsite, and those
//! bits of the id that did not select the set.
//!
//! The id of a registry's span contains the number of the thread that has created the span, and this number selects one
//! of [`TABLES`] small tables. A small table belongs to the first thread that adds an id to it. Only this thread, the
//! owner of the table, adds words to the table, so it takes a free word by a plain store. All other ids are in one
//! large table: the ids that other threads add, and the ids whose set in the small table is full. In the large table, a
//! thread takes a free word by a compare-and-swap.
//!
//! The thread that closes a span looks up the span's word before the close, and frees this word after the close. A
//! lookup after the close could find another word, because another thread may already use the same id again. If the
//! sets of an id are full in both tables, the callsite of the span counts as unknown.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use atrace_sys::{Line, zeroed_lines};

use super::thread::NONE;
use crate::callsites::FIRST_NUMBERS;

/// The number of small tables.
const TABLES: usize = 64;
/// The number of bits of an id that select its set in a small table.
const SMALL_BITS: u32 = if cfg!(miri) { 2 } else { 6 };
/// The number of sets of a small table.
const SMALL: usize = 1 << SMALL_BITS;
/// The number of sets of the large table.
const LARGE: usize = if cfg!(miri) { 4 } else { 4096 };
/// The number of bits of a word that hold the callsite's number plus 1, so that no used word is 0. The other bits are
/// bits of the id. Two groups of bits of the id are left out: the bits that select the set in a small table, and the
/// highest bits, which count how often a registry has reused the slot of a span.
const NUMBER_BITS: u32 = 14;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const _: () = assert!((FIRST_NUMBERS as u64) < NUMBER);

/// The word that was found for an id, and the number of the callsite that it holds.
pub(super) type Found<'a> = (&'a AtomicU64, usize);

pub(super) struct Ids {
    /// The sets (groups of entries among which an id is looked up) of all small tables, followed by the sets of the
    /// large table.
    sets: &'static [Line; TABLES * SMALL + LARGE],
    /// The lane (the position of the counters) of each small table's owner, plus 1, or 0 if the table has no owner.
    owners: [AtomicUsize; TABLES],
}

impl std::fmt::Debug for Ids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ids")
    }
}

impl Ids {
    pub(super) fn new() -> Self {
        let owners = [const { AtomicUsize::new(0) }; TABLES];
        Self { sets: zeroed_lines(), owners }
    }

    /// Returns the number of the small table of an id, and the id's sets in that table and in the large table. The id
    /// of a registry consists of, from the lowest bit, the slot (38 bits), the slot's thread (13 bits) and the slot's
    /// generation. The generation must not select the set, so that a slot that is reused has its word in the same cache
    /// line again.
    #[inline(always)]
    fn sets(id: u64) -> (usize, [usize; 2]) {
        let thread = (id >> 38 & 0x1fff) as usize;
        let table = thread % TABLES;
        let large = (id as usize).wrapping_add(thread.wrapping_mul(0x9e5)) % LARGE;
        (table, [table * SMALL + id as usize % SMALL, TABLES * SMALL + large])
    }

    /// Finds the word of an id, if it is the first word of its set in the small table, which is the usual case.
    #[inline(always)]
    pub(super) fn find_first(&self, id: u64) -> Option<Found<'_>> {
        found(&self.sets[Self::sets(id).1[0]].0[0], id)
    }

    /// Finds the word of an id.
    pub(super) fn find(&self, id: u64) -> Option<Found<'_>> {
        Self::sets(id).1.into_iter().flat_map(|at| &self.sets[at].0).find_map(|word| found(word, id))
    }

    /// Adds an id. `lane` is the lane (the position of the counters) of the calling thread. A subscriber may give the
    /// same id to all spans of a callsite; that id is added only once.
    #[inline(always)]
    pub(super) fn add(&self, id: u64, callsite: usize, lane: usize) {
        let (table, [small, _]) = Self::sets(id);
        let (new, first) = (rest(id) | (callsite as u64 + 1), &self.sets[small].0[0]);
        let owns = self.owners[table].load(Ordering::Relaxed) == lane + 1;
        match first.load(Ordering::Relaxed) {
            present if owns && present == new => {}
            0 if owns => first.store(new, Ordering::Relaxed),
            _ => self.add_further(id, new, lane),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_further(&self, id: u64, new: u64, lane: usize) {
        let (table, [small, large]) = Self::sets(id);
        let takes = |word: &AtomicU64| word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed);
        let put = |set: usize| {
            self.sets[set].0.iter().any(|word| takes(word).map_or_else(|it| it == new, |_| true))
        };
        let owner = &self.owners[table];
        let becomes_owner =
            || owner.compare_exchange(0, lane + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let owns = owner.load(Ordering::Relaxed) == lane + 1 || lane < NONE && becomes_owner();
        let _ = owns && put(small) || put(large);
    }

    /// Frees the word of a span that has been closed.
    #[inline(always)]
    pub(super) fn remove(word: &AtomicU64) {
        word.store(0, Ordering::Relaxed);
    }
}

/// Returns the bits of an id that the id's word contains, at their position in the word.
#[inline(always)]
fn rest(id: u64) -> u64 {
    id >> SMALL_BITS << NUMBER_BITS
}

/// Returns the word and the number of the callsite in it, if the word has this id.
#[inline(always)]
fn found(word: &AtomicU64, id: u64) -> Option<Found<'_>> {
    // A free word (0) matches no id: for an id whose bits in the word are all 0, the subtraction wraps around.
    let number = (word.load(Ordering::Relaxed) ^ rest(id)).wrapping_sub(1);
    (number < NUMBER).then_some((word, number as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_until_it_is_removed_and_may_be_used_again() {
        let ids = Ids::new();
        assert!(ids.find(7).is_none());
        ids.add(7, 1, 0);
        let (old, callsite) = ids.find(7).unwrap();
        assert_eq!(callsite, 1);
        ids.add(7, 1, 0); // The same span gets no second entry.
        // The id is used again before the old span's entry has been removed.
        ids.add(7, 2, 0);
        Ids::remove(old);
        let (new, callsite) = ids.find(7).unwrap();
        assert_eq!(callsite, 2);
        Ids::remove(new);
        assert!(ids.find(7).is_none());
    }

    #[test]
    fn a_full_table_leaves_ids_unknown_and_keeps_the_others() {
        let ids = Ids::new();
        const ALL: usize = 8 * (SMALL + LARGE);
        let all = 1..=2 * ALL as u64;
        let number = |id: u64| (id % 9000) as usize;
        all.clone().for_each(|id| ids.add(id, number(id), 3));
        let known: Vec<_> = all.clone().filter_map(|id| Some((id, ids.find(id)?.1))).collect();
        assert!(known.len() <= ALL && known.len() > ALL / 2, "{}", known.len());
        assert!(known.iter().all(|(id, callsite)| number(*id) == *callsite));
        for (id, _) in &known {
            Ids::remove(ids.find(*id).unwrap().0);
        }
        assert!(all.clone().all(|id| ids.find(id).is_none()));
    }

    #[test]
    fn a_table_belongs_to_one_thread() {
        let ids = Ids::new();
        let id = |thread: u64, slot: u64| thread << 38 | slot;
        for lane in 0..4 {
            for slot in 1..5 {
                ids.add(id(lane, slot), 10 * lane as usize + slot as usize, lane as usize);
                // The ids of threads other than the owner are in the large table.
                ids.add(id(lane, 100 + slot), 7, lane as usize + 1);
                ids.add(id(9, slot), 8, NONE);
            }
        }
        let small = ids.sets[..TABLES * SMALL].as_ptr_range();
        let find = |id| {
            ids.find(id).map(|(word, number)| (small.contains(&std::ptr::from_ref(word).cast()), number))
        };
        for lane in 0..4 {
            for slot in 1..5 {
                assert_eq!(find(id(lane, slot)), Some((true, 10 * lane as usize + slot as usize)));
                assert_eq!(find(id(lane, 100 + slot)), Some((false, 7)));
                assert_eq!(find(id(9, slot)), Some((false, 8)));
            }
        }
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
                        // Some threads share their counters, and own no table.
                        ids.add(id, id as usize, if thread < 2 { thread as usize } else { NONE });
                        let (place, callsite) = ids.find(id).unwrap();
                        assert_eq!(callsite as u64, id);
                        Ids::remove(place);
                    }
                });
            }
        });
        assert!((1..=20).all(|id| ids.find(id).is_none()));
    }
}

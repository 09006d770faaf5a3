//! Finds the callsite of a span by the span's id, in a set-associative table of fixed size.
//!
//! An id selects a set of eight words, which are a cache line. A word has the number of the callsite, and those bits
//! of the id that do not follow from the set. A thread takes a free word by a compare-and-swap. The thread that
//! closes a span frees the word that it had found before it closed the span: another thread may already use the same
//! id again, with another word. If a set is full, the callsite of the span is unknown.

use std::sync::atomic::Ordering;

use atrace_sys::{Line, zeroed_lines};

/// The number of bits of an id that select its set.
const SET_BITS: u32 = if cfg!(miri) { 2 } else { 12 };
const SETS: usize = 1 << SET_BITS;
/// The number of bits of a word that hold the callsite's number plus 1, so that no word is 0. The other bits are bits
/// of the id, but not those that select the set, nor the highest bits, which count how often a registry has used a
/// slot again.
const NUMBER_BITS: u32 = 14;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// The position of a word of the table: its set, and its index there.
#[derive(Clone, Copy)]
pub(super) struct Place(usize, usize);

pub(super) struct Ids(&'static [Line]);

impl Ids {
    pub(super) fn new() -> Self {
        Self(zeroed_lines(SETS))
    }

    /// Returns the set of an id, and the bits of the id that a word has. The id of a registry consists of, from the
    /// lowest bit, the slot (38 bits), the slot's thread (13 bits) and the slot's generation. The generation must not
    /// select the set: the word of a slot that is used again should be in memory that is cached.
    #[inline(always)]
    fn set(id: u64) -> (usize, u64) {
        let thread = (id >> 38 & 0x1fff).wrapping_mul(0x9e5);
        (id.wrapping_add(thread) as usize % SETS, id >> SET_BITS << NUMBER_BITS)
    }

    /// Finds the word of an id. Returns its place, and the number of the callsite.
    #[inline]
    pub(super) fn find(&self, id: u64) -> Option<(Place, usize)> {
        let (at, rest) = Self::set(id);
        let words = self.0.get(at)?.0.iter().map(|word| word.load(Ordering::Relaxed));
        let (way, word) = words.enumerate().find(|(_, word)| word & !NUMBER == rest && *word != 0)?;
        // An id of which nothing remains can't be told from a free word, but no number is 0.
        Some((Place(at, way), (word & NUMBER).checked_sub(1)? as usize))
    }

    /// Adds an id. A subscriber may give the same id to all spans of a callsite; that id is added only once.
    pub(super) fn add(&self, id: u64, callsite: usize) {
        let (at, rest) = Self::set(id);
        let (Some(set), number @ 1..=NUMBER) = (self.0.get(at), callsite as u64 + 1) else { return };
        let new = rest | number;
        for word in &set.0 {
            let present = word.load(Ordering::Relaxed);
            let takes = || word.compare_exchange(0, new, Ordering::Relaxed, Ordering::Relaxed).is_ok();
            if present == new || present == 0 && takes() {
                return;
            }
        }
    }

    /// Frees the word of a span that has been closed.
    pub(super) fn remove(&self, Place(at, way): Place) {
        self.0[at].0[way].store(0, Ordering::Relaxed);
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
        const WAYS: usize = 8;
        let all = 1..=(2 * WAYS * SETS) as u64;
        let number = |id: u64| (id % 9000) as usize;
        all.clone().for_each(|id| ids.add(id, number(id)));
        let known: Vec<_> = all.clone().filter_map(|id| Some((id, ids.find(id)?.1))).collect();
        assert!(known.len() <= WAYS * SETS && known.len() > WAYS * SETS / 2, "{}", known.len());
        assert!(known.iter().all(|(id, callsite)| number(*id) == *callsite));
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
                        ids.add(id, id as usize);
                        let (place, callsite) = ids.find(id).unwrap();
                        assert_eq!(callsite as u64, id);
                        ids.remove(place);
                    }
                });
            }
        });
        assert!((1..=20).all(|id| ids.find(id).is_none()));
    }
}

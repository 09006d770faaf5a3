//! The spans alive now, by their ids.
//!
//! A table in some dozen parts, each behind a lock of its own that is held for some nanoseconds, or for as long
//! as a dump takes to copy that part. An id's hash says which part. Nothing of the program runs below a lock.
//!
//! A part has slots, in pages that never move and stay: nothing is allocated once there are as many as spans
//! are alive at a time. A slot's return addresses lie beside it, in room for the most that are kept, so that a
//! walk writes them where they belong and a dump copies them in one go.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use atrace_sys::fork::{Generation, PerProcess, generation};
use tracing_core::Metadata;

use super::symbols::Frames;
use super::thread::{self, Busy, Thread};

const PARTS: usize = 32;
/// Slots of a page.
const PAGE: usize = 32;
const NO_SLOT: u32 = u32::MAX;

/// What is known of a span when it is made.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) id: u64,
    pub(super) parent: Option<u64>,
    pub(super) metadata: &'static Metadata<'static>,
    pub(super) at: Instant,
    pub(super) fields: Option<Arc<str>>,
    /// Of the backtrace, if its symbols were looked up already.
    pub(super) frames: Option<Frames>,
}

struct Slot {
    /// None in a slot that is free.
    made: Option<Made>,
    inside: Inside,
    /// How many return addresses it has.
    addresses: u32,
    next_free: u32,
}

/// The threads inside, as often as each has entered: hardly ever more than one.
#[derive(Default)]
struct Inside {
    one: Option<Arc<Thread>>,
    others: Vec<Arc<Thread>>,
}

impl Inside {
    fn enter(&mut self, thread: Arc<Thread>) {
        match &self.one {
            None => self.one = Some(thread),
            Some(_) => self.others.push(thread),
        }
    }

    fn exit(&mut self, thread: &Arc<Thread>) -> Option<Arc<Thread>> {
        if let Some(at) = self.others.iter().rposition(|other| Arc::ptr_eq(other, thread)) {
            return Some(self.others.swap_remove(at));
        }
        if self.one.as_ref().is_some_and(|one| Arc::ptr_eq(one, thread)) {
            return mem::replace(&mut self.one, self.others.pop());
        }
        None
    }

    /// Each of them once.
    fn threads(&self) -> Vec<Arc<Thread>> {
        let mut threads: Vec<Arc<Thread>> = Vec::new();
        for thread in self.one.iter().chain(&self.others) {
            if !threads.iter().any(|other| Arc::ptr_eq(other, thread)) {
                threads.push(Arc::clone(thread));
            }
        }
        threads
    }
}

struct Page {
    slots: Box<[Slot]>,
    addresses: Box<[usize]>,
}

#[derive(Default)]
struct Part {
    by_id: HashMap<u64, u32, BuildHasherDefault<IdHasher>>,
    pages: Vec<Page>,
    /// The slot that was freed last, plus one; 0 if all are in use.
    free: u32,
}

impl Part {
    fn take_slot(&mut self, depth: usize) -> Option<u32> {
        if self.free == 0 {
            let first = u32::try_from(self.pages.len() * PAGE).ok().filter(|first| *first < NO_SLOT - 64)?;
            let slot = |at: usize| Slot {
                made: None,
                inside: Inside::default(),
                addresses: 0,
                // The next one of this page; behind the last there is none.
                next_free: if at + 1 < PAGE { first + at as u32 + 2 } else { 0 },
            };
            self.pages.push(Page {
                slots: (0..PAGE).map(slot).collect(),
                addresses: vec![0; PAGE * depth].into_boxed_slice(),
            });
            self.free = first + 1;
        }
        let index = self.free - 1;
        self.free = self.slot(index).next_free;
        Some(index)
    }

    fn slot(&mut self, index: u32) -> &mut Slot {
        &mut self.pages[index as usize / PAGE].slots[index as usize % PAGE]
    }

    fn slot_and_addresses(&mut self, index: u32, depth: usize) -> (&mut Slot, &mut [usize]) {
        let page = &mut self.pages[index as usize / PAGE];
        let at = index as usize % PAGE;
        (&mut page.slots[at], &mut page.addresses[at * depth..][..depth])
    }

    fn find(&mut self, id: u64) -> Option<&mut Slot> {
        let index = *self.by_id.get(&id)?;
        Some(self.slot(index))
    }

    /// Frees the slot; what was in it is to be dropped once the lock is not held.
    fn release(&mut self, index: u32) -> (Option<Made>, Inside) {
        let next = mem::replace(&mut self.free, index + 1);
        let slot = self.slot(index);
        slot.next_free = next;
        slot.addresses = 0;
        (slot.made.take(), mem::take(&mut slot.inside))
    }
}

/// Spreads ids, which are small numbers in the one half and generations in the other.
#[derive(Default)]
struct IdHasher(u64);

fn hash(id: u64) -> u64 {
    let product = u128::from(id) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ (product >> 64) as u64
}

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = hash(id);
    }
}

/// A part on cache lines of its own (processors fetch pairs of them).
#[repr(align(128))]
#[derive(Default)]
struct Locked(Mutex<Part>);

impl Locked {
    fn lock(&self) -> MutexGuard<'_, Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

type Parts = Box<[Locked]>;

fn parts() -> Parts {
    (0..PARTS).map(|_| Locked::default()).collect()
}

pub(super) struct Store {
    made_by: Generation,
    /// Of the process that made the store.
    first: Parts,
    /// Of a forked child, in which a lock of its parent's may be held by a thread that does not exist there.
    of_child: PerProcess<Parts>,
    /// The most return addresses that are kept of a span.
    depth: usize,
    /// How many spans, and how many return addresses, the last dump had: the next will not have many more.
    expected: [AtomicUsize; 2],
}

/// What a dump takes from the store.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) made: Made,
    pub(super) threads: Vec<Arc<Thread>>,
    /// Which of the addresses are its own.
    pub(super) addresses: std::ops::Range<usize>,
}

impl Store {
    pub(super) fn new(depth: usize) -> Self {
        Self {
            made_by: generation(),
            first: parts(),
            of_child: PerProcess::new(),
            depth,
            expected: Default::default(),
        }
    }

    /// The parts of this process.
    #[inline]
    fn parts(&self) -> &Parts {
        if generation() == self.made_by { &self.first } else { self.of_child.get_or_make(parts) }
    }

    #[inline]
    fn part(&self, id: u64) -> &Locked {
        &self.parts()[(hash(id) >> 32) as usize % PARTS]
    }

    /// Adds a span. `walk` writes its return addresses to where they are kept, and says how many; or None if it
    /// can't: then the span is not added, and returned.
    pub(super) fn insert(
        &self,
        made: Made,
        walk: impl FnOnce(&mut [usize]) -> Option<usize>,
    ) -> Option<Made> {
        let _busy = Busy::new()?;
        let id = made.id;
        let mut part = self.part(id).lock();
        let index = part.take_slot(self.depth)?;
        let (slot, room) = part.slot_and_addresses(index, self.depth);
        let Some(found) = walk(room) else {
            part.release(index);
            return Some(made);
        };
        slot.made = Some(made);
        slot.addresses = found as u32;
        let before = part.by_id.insert(id, index);
        // One that was closed without our hearing of it, as an id is not given twice.
        let gone = before.map(|index| part.release(index));
        drop(part);
        drop(gone);
        None
    }

    /// Returns the fields of a span.
    pub(super) fn fields(&self, id: u64) -> Option<Arc<str>> {
        let _busy = Busy::new()?;
        self.part(id).lock().find(id)?.made.as_ref()?.fields.clone()
    }

    /// Replaces the fields of a span, if they are still `before`; tells whether they were.
    pub(super) fn set_fields(&self, id: u64, before: Option<&Arc<str>>, fields: Arc<str>) -> bool {
        let Some(_busy) = Busy::new() else { return true };
        let mut part = self.part(id).lock();
        let Some(made) = part.find(id).and_then(|slot| slot.made.as_mut()) else { return true };
        let same = match (before, &made.fields) {
            (None, None) => true,
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            _ => false,
        };
        if same {
            let gone = made.fields.replace(fields);
            drop(part);
            drop(gone);
        }
        same
    }

    pub(super) fn enter(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let thread = thread::this();
        if let Some(slot) = self.part(id).lock().find(id) {
            slot.inside.enter(thread);
        }
    }

    pub(super) fn exit(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let thread = thread::this();
        let mut part = self.part(id).lock();
        let gone = part.find(id).map(|slot| slot.inside.exit(&thread));
        drop(part);
        drop(gone);
    }

    pub(super) fn remove(&self, id: u64) {
        let Some(_busy) = Busy::new() else { return };
        let mut part = self.part(id).lock();
        let gone = part.by_id.remove(&id).map(|index| part.release(index));
        drop(part);
        drop(gone);
    }

    /// Copies what is alive to the end of both.
    pub(super) fn copy(&self, records: &mut Vec<Record>, addresses: &mut Vec<usize>) {
        let Some(_busy) = Busy::new() else { return };
        let [spans, frames] = [0, 1].map(|at| self.expected[at].load(Ordering::Relaxed));
        let before = [records.len(), addresses.len()];
        records.reserve(spans + spans / 8);
        addresses.reserve(frames + frames / 8);
        for part in self.parts() {
            let part = part.lock();
            let mut left = part.by_id.len();
            for page in &part.pages {
                if left == 0 {
                    break;
                }
                for (at, slot) in page.slots.iter().enumerate() {
                    let Some(made) = &slot.made else { continue };
                    left -= 1;
                    let first = addresses.len();
                    addresses
                        .extend_from_slice(&page.addresses[at * self.depth..][..slot.addresses as usize]);
                    let threads = if slot.inside.one.is_none() { Vec::new() } else { slot.inside.threads() };
                    records.push(Record { made: made.clone(), threads, addresses: first..addresses.len() });
                }
            }
        }
        self.expected[0].store(records.len() - before[0], Ordering::Relaxed);
        self.expected[1].store(addresses.len() - before[1], Ordering::Relaxed);
    }
}

/// A thread of the parent's may have been changing its parts at the fork: a child leaves them as they are.
impl Drop for Store {
    fn drop(&mut self) {
        if generation() != self.made_by {
            mem::forget(mem::take(&mut self.first));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::super::metadata_of_a_test;
    use super::*;

    /// Ids that are in one part.
    fn ids() -> impl Iterator<Item = u64> {
        (1..).filter(|id| (hash(*id) >> 32) as usize % PARTS == 5)
    }

    fn made(id: u64) -> Made {
        let metadata = metadata_of_a_test();
        Made { id, parent: None, metadata, at: Instant::now(), fields: None, frames: None }
    }

    fn add(store: &Store, id: u64) {
        assert!(store.insert(made(id), |_| Some(0)).is_none());
    }

    fn all(store: &Store) -> (Vec<Record>, Vec<usize>) {
        let (mut records, mut addresses) = Default::default();
        store.copy(&mut records, &mut addresses);
        records.sort_by_key(|record| record.made.id);
        (records, addresses)
    }

    fn pages(store: &Store) -> usize {
        store.parts().iter().map(|part| part.lock().pages.len()).sum()
    }

    #[test]
    fn slots_are_used_again() {
        let store = Store::new(2);
        let ids: Vec<u64> = ids().take(3 * PAGE).collect();
        for round in 0..if cfg!(miri) { 2 } else { 3 } {
            for (at, id) in ids.iter().enumerate() {
                let again = store.insert(made(*id), |room| {
                    room.fill(at + 1);
                    Some(at % 3)
                });
                assert!(again.is_none());
                if at % PAGE == PAGE - 1 {
                    assert_eq!(pages(&store), if round == 0 { at / PAGE + 1 } else { 3 });
                }
            }
            let (records, addresses) = all(&store);
            assert_eq!(records.len(), ids.len());
            for (at, record) in records.iter().enumerate() {
                assert_eq!(record.made.id, ids[at]);
                assert_eq!(addresses[record.addresses.clone()], [at + 1, at + 1][..at % 3]);
            }
            // In another order each time, and some twice.
            for id in ids.iter().rev().step_by(round + 1).chain(&ids) {
                store.remove(*id);
            }
            assert_eq!(all(&store).0.len(), 0);
        }
    }

    #[test]
    fn an_id_that_is_given_twice_is_there_once() {
        let store = Store::new(0);
        for _ in 0..2 * PAGE {
            add(&store, 7);
        }
        assert_eq!(all(&store).0.len(), 1);
        assert_eq!(pages(&store), 1);
        store.remove(7);
        assert_eq!(all(&store).0.len(), 0);
    }

    #[test]
    fn nothing_of_a_closed_span_is_left_to_the_next() {
        let store = Store::new(4);
        let [first, second] = [0, 1].map(|at| ids().nth(at).expect("there are more"));
        store.insert(made(first), |room| {
            room.fill(1);
            Some(4)
        });
        store.set_fields(first, None, "a = 1".into());
        store.enter(first);
        store.enter(first);
        assert_eq!(all(&store).0[0].threads.len(), 1);
        store.remove(first);
        // By frame pointers none were found: then it is not there without.
        let second_made = store.insert(made(second), |_| None).expect("it is returned");
        assert_eq!((second_made.id, all(&store).0.len()), (second, 0));
        assert!(store.insert(second_made, |_| Some(0)).is_none());
        let (records, addresses) = all(&store);
        assert_eq!((pages(&store), records.len(), addresses.len()), (1, 1, 0));
        assert_eq!((records[0].made.id, records[0].threads.len()), (second, 0));
        assert_eq!(store.fields(second), None);
        // Of one that is not there nothing is to be had.
        store.enter(first);
        store.exit(first);
        assert!(store.set_fields(first, None, "b = 2".into()), "it is not tried again");
        assert_eq!((store.fields(first), all(&store).0.len()), (None, 1));
    }

    #[test]
    fn fields_are_replaced_as_they_were_seen() {
        let store = Store::new(0);
        add(&store, 1);
        let [one, other]: [Arc<str>; 2] = ["a = 1".into(), "a = 1".into()];
        assert!(!store.set_fields(1, Some(&one), Arc::clone(&one)));
        assert!(store.set_fields(1, None, Arc::clone(&one)));
        assert!(!store.set_fields(1, None, Arc::clone(&other)));
        assert!(!store.set_fields(1, Some(&other), Arc::clone(&other)), "the same text, but another");
        assert!(store.fields(1).is_some_and(|now| Arc::ptr_eq(&now, &one)));
        assert!(store.set_fields(1, Some(&one), other));
    }

    #[test]
    fn threads_leave_as_often_as_they_entered() {
        let store = Store::new(0);
        add(&store, 1);
        let inside = || all(&store).0[0].threads.clone();
        let here = thread::this();
        store.exit(1);
        assert_eq!(inside().len(), 0);
        for times in 1..4 {
            store.enter(1);
            assert_eq!(inside(), [Arc::clone(&here)], "{times}");
        }
        std::thread::scope(|scope| {
            scope.spawn(|| {
                store.enter(1);
                assert_eq!(inside().len(), 2);
                store.exit(1);
                store.exit(1);
                assert_eq!(inside(), [Arc::clone(&here)], "the other's are its own");
            });
        });
        for left in (0..3).rev() {
            store.exit(1);
            assert_eq!(inside().len(), usize::from(left > 0));
        }
    }

    /// A signal handler, or an allocator that traces, comes here while its thread is here.
    #[test]
    fn who_comes_again_goes_away_again() {
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let store = Store::new(3);
            let [first, second] = [0, 1].map(|at| ids().nth(at).expect("there are more"));
            let found = store.insert(made(first), |room| {
                let again = store.insert(made(second), |_| panic!("it walks"));
                assert!(again.is_none(), "nobody is to try again");
                store.enter(first);
                store.exit(first);
                store.remove(first);
                assert!(store.fields(first).is_none());
                assert!(store.set_fields(first, None, "a = 1".into()), "it would be tried again");
                assert!(all(&store).0.is_empty());
                room[0] = 7;
                Some(1)
            });
            assert!(found.is_none());
            let (records, addresses) = all(&store);
            assert_eq!((records.len(), records[0].made.id, &addresses[..]), (1, first, &[7][..]));
            assert_eq!((records[0].threads.len(), &records[0].made.fields), (0, &None));
            // And it is not kept out any more.
            store.remove(first);
            send.send(all(&store).0.len()).expect("somebody waits");
        });
        assert_eq!(receive.recv_timeout(Duration::from_secs(30)), Ok(0), "it waits for itself, or failed");
    }
}

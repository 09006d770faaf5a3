//! Model of claims (the thread that takes the claim of a span begins the span's life) and of the
//! slots of spans: `atrace-subscriber/src/span_store/claim.rs` and
//! `atrace-subscriber/src/slots.rs`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

#[path = "../../../atrace-subscriber/src/span_store/claim.rs"]
mod claim;
#[allow(dead_code, reason = "the free slots have a model of their own")]
#[path = "../../../atrace-subscriber/src/slots.rs"]
mod slots;

mod sync {
    pub(crate) use loom::sync::atomic;
}

use claim::{Claim, LifeLane};

const BEGUN: LifeLane = LifeLane { lane: 3, is_nested: true };

/// A slot: its holders, the claim of the life, and the data that the begin of the life writes.
struct Slot {
    life: slots::Life,
    claim: Claim,
    begun: AtomicU32,
    begin: UnsafeCell<()>,
}

impl Slot {
    fn new() -> (Arc<Self>, u32) {
        let slot = Self {
            life: slots::Life::new(),
            claim: Claim::new(),
            begun: AtomicU32::new(0),
            begin: UnsafeCell::new(()),
        };
        let generation = slot.life.begin();
        slot.claim.reset(generation, false);
        (Arc::new(slot), generation)
    }

    /// Returns how many times the life was begun. Loom reports a fault if another thread begins the life at the same
    /// time.
    fn begins(&self) -> u32 {
        self.begin.with(|_| self.begun.load(Ordering::Relaxed))
    }

    fn write(&self, begins: u32) {
        self.begin.with_mut(|_| self.begun.store(begins, Ordering::Relaxed));
    }

    /// Begins the life, if the span is alive and no other thread has begun its life.
    fn begin(&self, generation: u32) {
        if self.life.hold(generation) {
            if self.claim.take(generation) {
                self.write(self.begins() + 1);
                self.claim.set(generation, Some(BEGUN));
            }
            self.release(generation);
        }
    }

    /// Removes one holder of the slot. If it was the last holder, ends the life, and creates another span in the slot.
    fn release(&self, generation: u32) {
        if self.life.release(generation) {
            let begun = self.claim.begun(generation);
            assert_eq!(begun.is_some(), self.begins() > 0);
            assert!(begun.is_none_or(|begun| begun == BEGUN) && self.begins() <= 1);
            self.write(0);
            let next = self.life.begin();
            self.claim.reset(next, false);
        }
    }
}

#[test]
fn a_life_is_begun_by_one_thread_and_ended_by_the_last_one() {
    let mut builder = loom::model::Builder::new();
    // Three threads can run in too many orders to try them all.
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let (slot, generation) = Slot::new();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let slot = Arc::clone(&slot);
                thread::spawn(move || slot.begin(generation))
            })
            .collect();
        slot.release(generation);
        others.into_iter().for_each(|other| other.join().unwrap());
        // The slot's next span has no life yet.
        assert_eq!(slot.claim.unbegun(), Some(generation + 1));
        assert!(slot.claim.is_unbegun(generation + 1) && slot.begins() == 0);
    });
}

/// Tests a life that begins with its span: a thread that looks for spans that hang does not begin the same life again.
#[test]
fn a_life_that_begins_with_its_span_is_begun_by_the_creator() {
    loom::model(|| {
        let (slot, generation) = Slot::new();
        slot.claim.reset(generation, true);
        let other = Arc::clone(&slot);
        let other = thread::spawn(move || other.begin(generation));
        slot.write(1);
        slot.claim.set(generation, Some(BEGUN));
        other.join().unwrap();
        assert_eq!(slot.begins(), 1);
        slot.release(generation);
    });
}

#[test]
fn who_finds_a_life_sees_its_begin() {
    loom::model(|| {
        let (slot, generation) = Slot::new();
        let other = Arc::clone(&slot);
        let other = thread::spawn(move || other.begin(generation));
        if slot.claim.begun(generation).is_some() {
            assert_eq!(slot.begins(), 1);
        }
        other.join().unwrap();
        slot.release(generation);
    });
}

#[test]
fn a_begin_that_fails_leaves_the_life_to_others() {
    loom::model(|| {
        let (slot, generation) = Slot::new();
        let other = Arc::clone(&slot);
        let other = thread::spawn(move || {
            if other.life.hold(generation) {
                if other.claim.take(generation) {
                    other.claim.set(generation, None);
                }
                other.release(generation);
            }
        });
        slot.begin(generation);
        other.join().unwrap();
        slot.begin(generation);
        assert_eq!((slot.claim.begun(generation), slot.begins()), (Some(BEGUN), 1));
        slot.release(generation);
    });
}

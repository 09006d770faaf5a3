//! Model of the marks of a span: `atrace-subscriber/src/span_store/marks.rs`.

use loom::sync::Arc;
use loom::thread;

#[allow(dead_code, reason = "not every mark is part of a model")]
#[path = "../../../atrace-subscriber/src/span_store/marks.rs"]
mod marks;
#[allow(dead_code, reason = "only its numbers are used")]
#[path = "../../../atrace-subscriber/src/slots.rs"]
mod slots;

mod sync {
    pub(crate) mod atomic {
        pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};

        /// An atomic number whose loads and stores are exchanges. The marks are one word, and all threads see the
        /// changes of one word in the same order. Loom keeps this order only for exchanges: after an exchange by one
        /// thread and a later store by another thread, loom would let a load return the exchanged value.
        pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

        impl AtomicU64 {
            pub(crate) fn new(value: u64) -> Self {
                Self(loom::sync::atomic::AtomicU64::new(value))
            }

            pub(crate) fn load(&self, order: Ordering) -> u64 {
                self.0.fetch_add(0, order)
            }

            pub(crate) fn store(&self, value: u64, order: Ordering) {
                self.0.swap(value, order);
            }

            pub(crate) fn compare_exchange(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.0.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                current: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.compare_exchange(current, new, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut update: impl FnMut(u64) -> Option<u64>,
            ) -> Result<u64, u64> {
                let mut present = self.load(failure);
                while let Some(new) = update(present) {
                    match self.compare_exchange(present, new, success, failure) {
                        Ok(present) => return Ok(present),
                        Err(other) => present = other,
                    }
                }
                Err(present)
            }
        }
    }
}

use marks::{Entered, Marks};

/// Tests a tick (a periodic look for spans that hang) that has seen a span, and still runs while the slot gets its next
/// span.
#[test]
fn a_tick_marks_no_other_span_than_the_one_it_has_seen() {
    for enters in [false, true] {
        loom::model(move || {
            let marks = Arc::new(Marks::new());
            marks.reset(7, true);
            assert_eq!(marks.enter(7), Entered::FirstOfPresumed);
            let other = Arc::clone(&marks);
            let ticks = thread::spawn(move || other.tick(7));
            marks.reset(8, true);
            if enters {
                assert_eq!(marks.enter(8), Entered::FirstOfPresumed);
            }
            assert!(!ticks.join().unwrap());
            assert_eq!((marks.has_entered(), marks.has_entered_once()), (enters, enters));
            assert!(!marks.tick(8), "this is the first tick that has seen the span");
            assert!(marks.identify(8), "the span's arguments do not contain its number yet");
        });
    }
}

/// Tests a tick (a periodic look for spans that hang) while the span is entered: the enter is noted, even if the tick
/// marks the span at the same time.
#[test]
fn a_tick_hides_no_enter() {
    for is_presumed_sync in [false, true] {
        loom::model(move || {
            let marks = Arc::new(Marks::new());
            marks.reset(7, is_presumed_sync);
            let other = Arc::clone(&marks);
            let ticks = thread::spawn(move || other.tick(7));
            marks.enter(7);
            assert!(!ticks.join().unwrap() && marks.has_entered_once());
        });
    }
}

#[test]
fn of_two_threads_that_enter_at_once_one_enters_again() {
    loom::model(|| {
        let marks = Arc::new(Marks::new());
        marks.reset(7, false);
        let enter = |marks: &Marks| {
            let entered = marks.enter(7);
            marks.leave(7);
            entered
        };
        let other = Arc::clone(&marks);
        let other = thread::spawn(move || enter(&other));
        let entered = [enter(&marks), other.join().unwrap()];
        assert!(entered.contains(&Entered::First) && entered.contains(&Entered::Again));
        assert!(!marks.has_entered_once());
    });
}

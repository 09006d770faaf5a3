//! The slots of spans: `atrace-subscriber/src/slots.rs`.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

/// Two threads take two free slots, and one of them gives the first back in between: nobody has another's.
macro_rules! exchange {
    ($slots:ident, $atomic:ty) => {
        struct Stack {
            free: $slots::Free,
            links: [$slots::Link; 3],
            /// What only a holder may touch.
            held: [(AtomicBool, UnsafeCell<()>); 3],
        }

        impl Stack {
            fn take(&self) -> Option<u32> {
                let index = self.free.take(|index| self.links.get(index as usize))?;
                let (is_held, inside) = &self.held[index as usize];
                assert!(!is_held.swap(true, Ordering::Relaxed), "slot {index} has two holders");
                inside.with_mut(|_| ());
                Some(index)
            }

            fn put_back(&self, index: u32) {
                let (is_held, inside) = &self.held[index as usize];
                inside.with_mut(|_| ());
                is_held.store(false, Ordering::Relaxed);
                self.free.put_back(index, &self.links[index as usize]);
            }
        }

        pub(crate) fn exchange() {
            let stack = Arc::new(Stack {
                free: $slots::Free::new(<$atomic>::new($slots::NONE_FREE)),
                links: std::array::from_fn(|_| $slots::Link::new()),
                held: std::array::from_fn(|_| (AtomicBool::new(true), UnsafeCell::new(()))),
            });
            (0..3).for_each(|index| stack.put_back(index));
            let other = Arc::clone(&stack);
            let other = thread::spawn(move || {
                let [first, second] = [other.take(), other.take()];
                first.into_iter().for_each(|first| other.put_back(first));
                second
            });
            let mine = [stack.take(), stack.take()];
            let others = other.join().unwrap();
            let mut all: Vec<u32> = mine.into_iter().chain([others, stack.take()]).flatten().collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2]);
        }
    };
}

/// As it is.
#[path = "."]
mod counted {
    use super::*;

    mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    }
    #[path = "../../atrace-subscriber/src/slots.rs"]
    pub(crate) mod slots;

    exchange!(slots, sync::AtomicU64);
}

/// With a head whose count of changes is always the same.
#[allow(dead_code, reason = "only the free slots are run")]
#[path = "."]
mod uncounted {
    use super::*;

    mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, Ordering, fence};

        const INDEX: u64 = u32::MAX as u64;

        pub(crate) struct AtomicU64(loom::sync::atomic::AtomicU64);

        impl AtomicU64 {
            pub(crate) fn new(value: u64) -> Self {
                Self(loom::sync::atomic::AtomicU64::new(value & INDEX))
            }

            pub(crate) fn load(&self, order: Ordering) -> u64 {
                self.0.load(order)
            }

            pub(crate) fn store(&self, value: u64, order: Ordering) {
                self.0.store(value, order);
            }

            pub(crate) fn compare_exchange_weak(
                &self,
                present: u64,
                new: u64,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u64, u64> {
                self.0.compare_exchange_weak(present & INDEX, new & INDEX, success, failure)
            }

            pub(crate) fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                update: impl FnMut(u64) -> Option<u64>,
            ) -> Result<u64, u64> {
                self.0.fetch_update(success, failure, update)
            }
        }
    }
    #[path = "../../atrace-subscriber/src/slots.rs"]
    pub(crate) mod slots;

    exchange!(slots, sync::AtomicU64);
}

/// A swap is late for at most so many of the other's steps.
fn bounded(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_slot_has_one_holder_who_sees_it_as_the_last_one_left_it() {
    bounded(counted::exchange);
}

#[test]
#[should_panic(expected = "has two holders")]
fn without_the_count_a_late_swap_gives_a_slot_to_two() {
    bounded(uncounted::exchange);
}

#[test]
fn the_last_holder_alone_closes_a_span_after_all_others() {
    bounded(|| {
        let span = Arc::new((counted::slots::Life::new(), UnsafeCell::new(())));
        let gone = span.0.begin();
        assert!(span.0.release(gone));
        let generation = span.0.begin();
        span.0.hold(generation);
        let release = move |span: &(counted::slots::Life, UnsafeCell<()>)| {
            span.1.with(|_| ());
            let is_over = span.0.release(generation);
            if is_over {
                span.1.with_mut(|_| ());
                // The slot is used again.
                let next = span.0.begin();
                assert_ne!(next, generation);
                assert!(span.0.is_of(next) && span.0.release(next));
            }
            is_over
        };
        let other = Arc::clone(&span);
        let other = thread::spawn(move || release(&other));
        // Somebody with the id of the span before.
        let stale = Arc::clone(&span);
        let stale = thread::spawn(move || {
            stale.0.hold(gone);
            stale.0.is_of(gone) || stale.0.release(gone)
        });
        let mine = release(&span);
        assert_ne!(mine, other.join().unwrap());
        assert!(!stale.join().unwrap());
        span.0.hold(generation);
        assert!(!span.0.release(generation));
    });
}

#[test]
fn a_span_that_is_alive_is_seen_as_it_was_made() {
    bounded(|| {
        let span = Arc::new((counted::slots::Life::new(), AtomicU32::new(0)));
        let other = Arc::clone(&span);
        let other = thread::spawn(move || {
            if other.0.is_of(0) {
                assert_eq!(other.1.load(Ordering::Relaxed), 7);
            }
        });
        span.1.store(7, Ordering::Relaxed);
        assert_eq!(span.0.begin(), 0);
        other.join().unwrap();
    });
}

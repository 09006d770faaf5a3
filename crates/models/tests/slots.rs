//! Model of the slots of spans: `atrace-subscriber/src/slots.rs`.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

#[path = "slots/exchange.rs"]
mod exchange;
#[path = "../../../atrace-subscriber/src/slots.rs"]
mod slots;

mod sync {
    pub(crate) use loom::sync::atomic;
}

#[test]
fn a_slot_has_one_holder_who_sees_it_as_the_last_one_left_it() {
    exchange::check();
}

#[test]
fn the_last_holder_alone_closes_a_span_after_all_others() {
    exchange::bounded(|| {
        let span = Arc::new((slots::Life::new(), UnsafeCell::new(())));
        let gone = span.0.begin();
        assert!(span.0.release(gone));
        let generation = span.0.begin();
        span.0.hold(generation);
        let release = move |span: &(slots::Life, UnsafeCell<()>)| {
            span.1.with(|_| ());
            let is_over = span.0.release(generation);
            if is_over {
                span.1.with_mut(|_| ());
                // Another span gets the slot.
                let next = span.0.begin();
                assert_ne!(next, generation);
                assert!(span.0.is_of(next) && span.0.release(next));
            }
            is_over
        };
        let other = Arc::clone(&span);
        let other = thread::spawn(move || release(&other));
        // A thread that still has the id of the slot's previous span.
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
    exchange::bounded(|| {
        let span = Arc::new((slots::Life::new(), AtomicU32::new(0)));
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

//! Model of the numbers of callsites, which several threads assign at once:
//! crates/atrace-perfetto/src/callsite/number.rs.

mod common;
use common::{leak, model};

#[allow(dead_code, unreachable_pub, reason = "public in its library; a model uses a part of it")]
#[path = "../../atrace-perfetto/src/callsite/number.rs"]
mod number;

mod sync {
    pub(crate) use super::common::sync::atomic;
}

use loom::thread;
use number::{BEYOND, FIRST, Number};
use sync::atomic::AtomicU32;

/// Tests that threads that reach a callsite at the same time get the same number for the callsite, and that another
/// callsite gets another number.
#[test]
fn a_place_has_one_number() {
    model(3, || {
        let next = leak(AtomicU32::new(FIRST));
        let places = leak([Number(AtomicU32::new(0)), Number(AtomicU32::new(0))]);
        let threads: Vec<_> =
            (0..2).map(|_| thread::spawn(|| [places[0].of(next), places[1].of(next)])).collect();
        let here = places[0].of(next);
        let found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(found.iter().all(|numbers| *numbers == found[0] && numbers[0] == here));
        assert!(found[0].iter().all(|number| (FIRST..BEYOND).contains(number)));
        assert_ne!(found[0][0], found[0][1]);
    });
}

/// Tests that all further callsites get the number [`BEYOND`] when the unique numbers are used up.
#[test]
fn numbers_end() {
    model(3, || {
        let next = leak(AtomicU32::new(BEYOND - 1));
        let places = leak([Number(AtomicU32::new(0)), Number(AtomicU32::new(0))]);
        let other = thread::spawn(|| places[1].of(next));
        let mut numbers = [places[0].of(next), other.join().unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [BEYOND - 1, BEYOND]);
        assert_eq!(Number(AtomicU32::new(0)).of(next), BEYOND);
    });
}

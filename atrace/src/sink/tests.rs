//! Tests of overlapping reloads of libcutils' tags, in orders that threads and forks can cause.

use std::cell::Cell;

use super::reload::Reload;
use crate::sync::atomic::AtomicU64;

fn unread() {
    unreachable!("the mask is current");
}

#[test]
fn who_reloaded_while_another_did_reloads_once_more() {
    let reload = Reload(AtomicU64::new(0));
    let (reads, others) = (Cell::new(0), Cell::new(0));
    let read = || {
        reads.set(reads.get() + 1);
        if reads.get() == 1 {
            let other = reload.follow(1, || (7, ()), || others.set(others.get() + 1));
            assert_eq!((other, others.get()), (None, 16), "it is never alone");
        }
        assert!(!reload.is_current());
    };
    assert_eq!(reload.follow(1, || (7, "found"), read), Some("found"));
    assert_eq!(reads.get(), 2);
    assert!(reload.is_current());
    assert_eq!(reload.follow(1, || (7, ()), unread), Some(()));
    // The serial has changed, and changes once more during the first reload.
    let serial = Cell::new(8);
    assert_eq!(reload.follow(1, || (serial.get(), serial.get()), || serial.set(9)), Some(9));
}

#[test]
fn what_is_forced_leaves_the_mask_stale() {
    let reload = Reload(AtomicU64::new(0));
    let reads = Cell::new(0);
    let read = || reads.set(reads.get() + 1);
    assert_eq!(reload.follow(1, || (7, ()), read), Some(()));
    reload.force(1, || assert_eq!(reload.follow(1, || (8, ()), || ()), None, "it is not alone"));
    assert!(!reload.is_current());
    reload.force(1, || ());
    assert!(!reload.is_current());
    assert_eq!(reload.follow(1, || (7, ()), read), Some(()));
    assert_eq!(reads.get(), 2);
}

#[test]
fn a_child_has_none_of_its_parents_readers() {
    let reload = Reload(AtomicU64::new(0));
    // The thread forks during a reload, and continues in the child (generation 2).
    reload.force(1, || {
        let reads = Cell::new(0);
        assert_eq!(reload.follow(2, || (7, ()), || reads.set(reads.get() + 1)), Some(()));
        assert_eq!(reads.get(), 1);
    });
    assert!(reload.is_current());
    assert_eq!(reload.follow(2, || (7, ()), unread), Some(()));
}

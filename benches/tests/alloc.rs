//! Tests that allocations and page faults are counted exactly. This test does not use libtest, whose threads allocate
//! at any time.

use std::hint::black_box;

use atrace_benches::instruments::alloc::{Counting, Counts, count, per_op};
use atrace_benches::instruments::profile::minor_faults;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[path = "common/pages.rs"]
mod pages;

use self::pages::{touch, without_huge_pages};

fn main() {
    let nothing = per_op(1000, |n| {
        for i in 0..n {
            black_box(i);
        }
    });
    assert_eq!(nothing.unwrap().total, Counts::default());

    let boxes = per_op(1000, |n| {
        for i in 0..n {
            black_box(Box::new([i; 3]));
        }
    });
    let boxes = boxes.unwrap();
    assert_eq!(boxes.total, Counts { allocs: 1000, bytes: 24_000, frees: 1000, freed: 24_000, peak: 24 });
    assert_eq!((boxes.allocs, boxes.bytes), (1.0, 24.0));

    // An allocation that only the first operation makes is not counted as an allocation of each operation.
    let mut once = None;
    let lazy = per_op(10, |n| {
        for _ in 0..n {
            black_box(once.get_or_insert_with(|| Box::new(1)));
        }
    });
    assert_eq!(lazy.unwrap().allocs, 0.0);

    let (grown, v) = count(|| {
        let mut v: Vec<u8> = Vec::with_capacity(black_box(10));
        v.reserve_exact(black_box(20));
        v
    });
    assert_eq!(grown.unwrap(), Counts { allocs: 2, bytes: 30, frees: 1, freed: 10, peak: 30 });

    // Allocations that were made before the counting began are not part of the peak, even if they are freed first.
    let (above, later) = count(|| {
        drop(v);
        let first = black_box(vec![0_u8; black_box(50)]);
        drop(black_box(vec![0_u8; black_box(100)]));
        first
    });
    assert_eq!(above.unwrap(), Counts { allocs: 2, bytes: 150, frees: 2, freed: 120, peak: 130 });
    drop(later);

    let (zeroed, _) = count(|| black_box(vec![0_u8; black_box(64)]).len());
    assert_eq!(zeroed.unwrap(), Counts { allocs: 1, bytes: 64, frees: 1, freed: 64, peak: 64 });

    // `count` counts the allocations of all threads.
    let (sent, received) = std::sync::mpsc::sync_channel::<()>(1);
    let worker = std::thread::spawn(move || {
        received.recv().unwrap();
        black_box(Box::new([0_u8; 4096]));
    });
    let (threads, ()) = count(|| {
        sent.send(()).unwrap();
        worker.join().unwrap();
    });
    let threads = threads.unwrap();
    assert!(threads.allocs >= 1 && threads.bytes >= 4096, "{threads:?}");

    // The counting ends with the counted closure, even if the closure unwinds.
    std::panic::set_hook(Box::new(|_| ()));
    assert!(std::panic::catch_unwind(|| count(|| panic!("on purpose"))).is_err());
    let (quiet, ()) = count(|| ());
    assert_eq!(quiet.unwrap(), Counts::default());

    without_huge_pages(faults).unwrap();

    println!("alloc: all counts are exact");
}

/// Tests that the number of page faults equals the number of touched pages, including the pages of a thread that has
/// ended.
fn faults() {
    let of = |f: &dyn Fn()| {
        let once = || {
            let before = minor_faults().unwrap();
            f();
            minor_faults().unwrap() - before
        };
        // Takes the minimum, because other activity of the kernel and the first execution of code can only add faults.
        (0..5).map(|_| once()).min().unwrap()
    };
    assert_eq!([1, 100, 3000].map(|pages| of(&|| touch(pages))), [1, 100, 3000]);
    let beside = |pages| move || std::thread::spawn(move || touch(pages)).join().unwrap();
    let (some, more) = (of(&beside(1000)), of(&beside(3000)));
    // A thread also touches the pages of its stack.
    assert!((1000..1100).contains(&some) && more - some == 2000, "{some} {more}");
}

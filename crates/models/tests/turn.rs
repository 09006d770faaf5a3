//! Model of `Turn` (the right to do work that only one thread does at a time) and of the state page, which the thread
//! with that right writes: atrace-sys/src/fork/turn.rs, atrace-sys/src/state/words.rs.

mod common;
use common::{leak, model, sync};

#[allow(unreachable_pub, reason = "public in its library")]
#[path = "../../../atrace-sys/src/fork/turn.rs"]
mod turn;
#[path = "../../../atrace-sys/src/state/words.rs"]
mod words;

use loom::thread;
use sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use turn::Turn;
use words::Words;

struct Work {
    turn: Turn,
    is_working: AtomicBool,
    wanted: [AtomicU64; 3],
    done: [AtomicU64; 3],
}

impl Work {
    fn new() -> &'static Self {
        let zeros = || [0; 3].map(AtomicU64::new);
        leak(Self {
            turn: Turn(AtomicU64::new(0)),
            is_working: AtomicBool::new(false),
            wanted: zeros(),
            done: zeros(),
        })
    }

    fn work(&self) {
        assert!(!self.is_working.swap(true, Ordering::Relaxed), "two at once");
        for (wanted, done) in self.wanted.iter().zip(&self.done) {
            done.store(wanted.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.is_working.store(false, Ordering::Relaxed);
    }
}

fn nobodys_work_is_left(threads: usize, come: fn(&Work)) {
    model(3, move || {
        let work = Work::new();
        let come_for = move |number: usize| {
            work.wanted[number].store(1, Ordering::Relaxed);
            come(work);
        };
        let others: Vec<_> = (1..threads).map(|number| thread::spawn(move || come_for(number))).collect();
        come_for(0);
        others.into_iter().for_each(|other| other.join().unwrap());
        for done in &work.done[..threads] {
            assert_eq!(done.load(Ordering::Relaxed), 1, "left undone");
        }
    });
}

#[test]
fn who_comes_meanwhile_has_it_done_once_more() {
    nobodys_work_is_left(2, |work| work.turn.run_as(1, &mut || work.work()));
    nobodys_work_is_left(3, |work| work.turn.run_as(1, &mut || work.work()));
}

#[test]
#[should_panic(expected = "left undone")]
fn who_only_leaves_is_forgotten() {
    nobodys_work_is_left(2, |work| {
        if work.turn.0.compare_exchange(0, 2, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            work.work();
            work.turn.0.store(0, Ordering::Release);
        }
    });
}

/// In a forked child, the turn (the right to do the work) belongs to a thread of the parent. The child's threads do the
/// work nevertheless.
#[test]
fn a_child_does_not_wait_for_its_parent() {
    model(3, || {
        let work = Work::new();
        work.turn.0.store(1 << 1 | 1, Ordering::Relaxed);
        let come = move |number: usize| {
            work.wanted[number].store(1, Ordering::Relaxed);
            work.turn.run_as(2, &mut || work.work());
        };
        let other = thread::spawn(move || come(1));
        come(0);
        other.join().unwrap();
        assert!(work.done[..2].iter().all(|done| done.load(Ordering::Relaxed) == 1));
    });
}

type Page = Words<2>;

fn page() -> &'static Page {
    leak(Words { sequence: AtomicU64::new(0), words: [0; 2].map(AtomicU64::new) })
}

fn text(byte: u8) -> [u8; 16] {
    [byte; 16]
}

/// Reads the page as the doctor does: first the whole page, and then the sequence number at its beginning again.
fn read(page: &Page) -> Option<[u64; 2]> {
    let sequence = page.sequence.load(Ordering::Acquire);
    let words = [0, 1].map(|at| page.words[at].load(Ordering::Relaxed));
    fence(Ordering::Acquire);
    let again = page.sequence.load(Ordering::Relaxed);
    (sequence == again && sequence != 0 && sequence.is_multiple_of(2)).then_some(words)
}

fn what_is_read_is_whole(write: fn(&Page, u8)) {
    model(3, move || {
        let page = page();
        let reader = thread::spawn(move || {
            if let Some([first, second]) = read(page) {
                assert_eq!(first, second, "torn");
            }
        });
        write(page, 1);
        write(page, 2);
        reader.join().unwrap();
        assert_eq!(read(page), Some([0x0202_0202_0202_0202; 2]));
    });
}

#[test]
fn a_page_is_read_whole_or_not_at_all() {
    what_is_read_is_whole(|page, byte| page.write(&text(byte)));
}

#[test]
#[should_panic(expected = "torn")]
fn a_page_that_is_not_marked_while_written_is_torn() {
    what_is_read_is_whole(|page, byte| {
        let word = u64::from_ne_bytes([byte; 8]);
        page.words.iter().for_each(|place| place.store(word, Ordering::Relaxed));
        page.sequence.fetch_add(2, Ordering::Release);
    });
}

//! Model of Perfetto's backend: which thread may write into a chunk, and how a chunk gets to the service and back.
//! The files are pin.rs, completed.rs and abi.rs in crates/atrace-perfetto/src.

#![allow(unsafe_code, reason = "the models access cells that only one thread at a time may access")]

mod common;
use common::{leak, model};

#[allow(dead_code, unreachable_pub, reason = "public in its library; a model uses a part of it")]
#[path = "../../atrace-perfetto/src/abi.rs"]
mod abi;
#[allow(unreachable_pub, reason = "public in its library")]
#[path = "../../atrace-perfetto/src/completed.rs"]
mod completed;
#[allow(unreachable_pub, reason = "public in its library")]
#[path = "../../atrace-perfetto/src/pin.rs"]
mod pin;

mod sync {
    pub(crate) use super::common::sync::atomic;
    use atomic::{Ordering, fence};

    /// In the library this is a compiler barrier, which the kernel turns into a full fence while another thread
    /// executes the heavy fence.
    pub(crate) fn light_fence() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy_fence() {
        fence(Ordering::SeqCst);
    }
}

use loom::cell::UnsafeCell;
use loom::thread;
use pin::{Epoch, Pin, PinResult};
use sync::atomic::{AtomicU32, Ordering};

/// A thread slot, a session slot, and the writer of this pair. The writer consists of the number of the session for
/// which it wrote last, and the number of its events.
struct Place {
    pin: Pin,
    epoch: Epoch,
    writer: UnsafeCell<(u32, u32)>,
}

impl Place {
    fn new() -> &'static Self {
        let place = Self {
            pin: Pin(AtomicU32::new(0)),
            epoch: Epoch(AtomicU32::new(0), AtomicU32::new(0)),
            writer: UnsafeCell::new((0, 0)),
        };
        assert!(place.pin.claim());
        place.epoch.open(0);
        leak(place)
    }

    /// Writes an event. Returns the number of the session for which it was written, or `None` if it was not
    /// written.
    fn write(&self) -> Option<u32> {
        assert_eq!(self.pin.pin(), PinResult::Pinned);
        let epoch = self.epoch.now();
        let is_open = Epoch::is_open(epoch);
        if is_open {
            self.writer.with_mut(|writer| {
                // SAFETY: exclusive access is the claim under test. loom reports a second access.
                let writer = unsafe { &mut *writer };
                if writer.0 != epoch {
                    *writer = (epoch, 0);
                }
                writer.1 += 1;
            });
        }
        self.pin.unpin();
        is_open.then_some(epoch)
    }

    /// Takes the written events, as the socket thread does after the session was closed. Returns `None` if the
    /// thread is pinned.
    fn reclaim(&self) -> Option<(u32, u32)> {
        // SAFETY: exclusive access is the claim under test. loom reports a second access.
        (!self.pin.is_pinned())
            .then(|| self.writer.with_mut(|writer| std::mem::take(unsafe { &mut *writer })))
    }
}

#[test]
fn a_session_that_has_ended_is_written_for_by_nobody() {
    model(3, || {
        let place = Place::new();
        let thread = thread::spawn(move || (0..2).filter_map(|_| place.write()).count());
        place.epoch.close();
        let mut taken = place.reclaim();
        let written = thread.join().unwrap();
        if taken.is_none() {
            taken = place.reclaim();
        }
        let taken = taken.unwrap();
        assert_eq!(taken.1 as usize, written, "an event came after its chunk was taken");
        assert_eq!(place.reclaim(), Some((0, 0)));
    });
}

#[test]
fn the_next_session_at_a_place_begins_with_an_empty_writer() {
    model(3, || {
        let place = Place::new();
        let thread = thread::spawn(move || (0..2).filter_map(|_| place.write()).collect::<Vec<_>>());
        place.epoch.close();
        if let Some((epoch, events)) = place.reclaim() {
            assert!(events == 0 || epoch == place.epoch.first());
            place.epoch.open(0);
        }
        let written = thread.join().unwrap();
        let left = place.reclaim().unwrap();
        assert!(written.is_sorted() && written.iter().all(|epoch| [1, 3].contains(epoch)));
        assert!(left.1 == 0 || left.0 == *written.last().unwrap());
    });
}

/// Models a thread slot that changes its owner while the session ends. The socket thread sees all data that the first
/// owner has written.
#[test]
fn a_place_that_was_given_back_is_seen_as_it_was_left() {
    model(3, || {
        let place = Place::new();
        let first = thread::spawn(move || {
            let written = place.write();
            assert_eq!(place.pin.pin(), PinResult::Pinned);
            place.pin.free();
            written
        });
        let second = thread::spawn(move || place.pin.claim().then(|| place.write()));
        place.epoch.close();
        let taken = place.reclaim();
        let written = usize::from(first.join().unwrap().is_some())
            + usize::from(second.join().unwrap().is_some_and(|written| written.is_some()));
        let taken = taken.or_else(|| place.reclaim()).unwrap();
        assert_eq!(taken.1 as usize, written);
    });
}

/// Models a request of the service to clear the state of a session. A thread that sees the new epoch also sees the data
/// that was stored before, and sees that the session is the same.
#[test]
fn a_session_whose_state_is_cleared_is_the_same_session() {
    model(3, || {
        let place = Place::new();
        let clears: &'static AtomicU32 = leak(AtomicU32::new(0));
        let thread = thread::spawn(move || {
            let look = |_| {
                assert_eq!(place.pin.pin(), PinResult::Pinned);
                let epoch = place.epoch.now();
                let seen = (epoch, place.epoch.first(), clears.load(Ordering::Relaxed));
                place.pin.unpin();
                Epoch::is_open(epoch).then_some(seen)
            };
            (0..2).filter_map(look).collect::<Vec<_>>()
        });
        clears.store(1, Ordering::Relaxed);
        place.epoch.advance();
        place.epoch.close();
        place.epoch.advance();
        assert!(!Epoch::is_open(place.epoch.now()), "a closed session stays closed");
        for (epoch, first, clears) in thread.join().unwrap() {
            assert_eq!(first, 1);
            assert!(epoch == 1 || (epoch, clears) == (3, 1), "{epoch} {clears}");
        }
    });
}

/// A page of chunks, which two threads share. The threads take, write and complete chunks, and the service reads and
/// frees the chunks.
struct Page {
    header: AtomicU32,
    completed: completed::CompletedStack,
    next: [AtomicU32; 14],
    bytes: [UnsafeCell<u32>; 14],
}

impl Page {
    fn new() -> &'static Self {
        leak(Self {
            header: AtomicU32::new(0),
            completed: completed::CompletedStack(AtomicU32::new(0)),
            next: std::array::from_fn(|_| AtomicU32::new(0)),
            bytes: std::array::from_fn(|_| UnsafeCell::new(0)),
        })
    }

    fn produce(&self, value: u32) {
        let chunk = abi::take(&self.header, abi::Layout::Small).unwrap();
        // SAFETY: exclusive access is the claim under test.
        self.bytes[chunk as usize].with_mut(|bytes| unsafe { *bytes = value });
        abi::complete(&self.header, chunk);
        self.completed.push(chunk, &self.next[chunk as usize]);
    }

    fn consume(&self) -> Vec<u32> {
        let mut next = self.completed.take(14, |chunk| self.next.get(chunk as usize));
        let chunks = std::iter::from_fn(|| {
            let chunk = next.checked_sub(1)?;
            next = self.next[chunk as usize].load(Ordering::Relaxed);
            Some(chunk)
        });
        let read = |chunk: u32| {
            assert!(abi::begin_reading(&self.header, chunk), "a chunk was taken that is not complete");
            // SAFETY: exclusive access is the claim under test. loom reports a second access.
            let value = self.bytes[chunk as usize].with_mut(|bytes| std::mem::take(unsafe { &mut *bytes }));
            abi::free(&self.header, chunk);
            value
        };
        chunks.map(read).collect()
    }
}

#[test]
fn chunks_are_taken_whole_once_and_in_order() {
    model(2, || {
        let page = Page::new();
        let producers = [10, 20].map(|value| {
            thread::spawn(move || {
                page.produce(value);
                page.produce(value + 1);
            })
        });
        let mut consumed = page.consume();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        consumed.extend(page.consume());
        for value in [10, 20] {
            let of_one: Vec<_> =
                consumed.iter().filter(|found| **found / 10 == value / 10).copied().collect();
            assert_eq!(of_one, [value, value + 1]);
        }
        assert_eq!((consumed.len(), page.header.load(Ordering::Relaxed)), (4, 0));
    });
}

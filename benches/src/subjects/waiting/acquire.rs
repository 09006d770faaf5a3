//! An acquire of a semaphore: a future that registers a cancellation handler while it waits for a permit.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::{Cancel, HANDLER, Handler, Waits};

/// A fixed number of slots, each of which can hold a waiting future.
pub struct Slots<F> {
    all: Mutex<Vec<Slot<F>>>,
}

struct Slot<F> {
    /// The number of times that the slot was taken. The number identifies the current use of the slot.
    ticket: u64,
    waiter: Pin<Box<Option<F>>>,
}

impl<F: Future> Slots<F> {
    /// Makes `places` free slots.
    pub fn new(places: usize) -> Self {
        let slot = |_| Slot { ticket: 0, waiter: Box::pin(None) };
        Self { all: Mutex::new((0..places).map(slot).collect()) }
    }

    /// Returns how many slots hold a future.
    pub fn taken(&self) -> usize {
        self.lock().iter().filter(|slot| slot.waiter.is_some()).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot<F>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a future into a free slot and returns the slot's index and ticket.
    fn take(&self, future: F) -> (usize, u64) {
        let mut all = self.lock();
        let index =
            all.iter().position(|slot| slot.waiter.is_none()).expect("there is a slot for every waiter");
        let slot = &mut all[index];
        slot.ticket += 1;
        slot.waiter.set(Some(future));
        (index, slot.ticket)
    }

    fn poll(&self, index: usize, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut all = self.lock();
        let waiter = &mut all[index].waiter;
        let polled =
            waiter.as_mut().as_pin_mut().expect("a slot is taken until it is given back").poll(context);
        if polled.is_ready() {
            waiter.set(None);
        }
        polled
    }
}

/// The cancellation handler of an acquire: drops the semaphore's future in the slot. This frees the slot, and the
/// future's place in the semaphore's queue.
struct Unregister<F: 'static> {
    slots: &'static Slots<F>,
    index: usize,
    ticket: u64,
}

const _: () = assert!(size_of::<Unregister<()>>() as u64 == HANDLER, "what the boxed handler allocates");

impl<F: Future + Send + 'static> Cancel for Unregister<F> {
    fn cancel(self) {
        let slot = &mut self.slots.lock()[self.index];
        // If the tickets differ, the slot already belongs to another acquire.
        if slot.ticket == self.ticket {
            slot.waiter.set(None);
        }
    }
}

/// Makes an acquire from the semaphore's `future`. The acquire takes one of the slots at its first poll. It frees the
/// slot when it is ready or dropped.
pub fn acquire<H: Handler, F: Future + Send + 'static>(
    future: F,
    slots: &'static Slots<F>,
) -> impl Future<Output = F::Output> + Send {
    // The semaphore's future moves into a slot at the first poll.
    let (mut start, mut place) = (Some(future), 0);
    let mut waits = Waits::<H, _>(None);
    poll_fn(move |context| {
        let Some(start) = start.take() else {
            let polled = slots.poll(place, context);
            if polled.is_ready() {
                waits.set(None);
            }
            return polled;
        };
        let (index, ticket) = slots.take(start);
        let polled = slots.poll(index, context);
        if polled.is_pending() {
            place = index;
            waits.set(Some(H::keep(Unregister { slots, index, ticket })));
        }
        polled
    })
}

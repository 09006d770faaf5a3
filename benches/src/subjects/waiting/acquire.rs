//! An acquire of a semaphore that says, while it waits, what is to be done if it is cancelled.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Cancel, HANDLER, Handler};

/// A few places for futures that wait, made once.
pub struct Slots<F> {
    all: Mutex<Vec<Slot<F>>>,
}

struct Slot<F> {
    /// Whose it is: counted up each time that it is taken.
    ticket: u64,
    waiter: Pin<Box<Option<F>>>,
}

impl<F: Future> Slots<F> {
    /// Makes so many.
    pub fn new(places: usize) -> Self {
        let slot = |_| Slot { ticket: 0, waiter: Box::pin(None) };
        Self { all: Mutex::new((0..places).map(slot).collect()) }
    }

    /// Returns how many wait.
    pub fn taken(&self) -> usize {
        self.lock().iter().filter(|slot| slot.waiter.is_some()).count()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot<F>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a future into a free place and returns which that is, and its ticket.
    fn take(&self, future: F) -> (usize, u64) {
        let mut all = self.lock();
        let index =
            all.iter().position(|slot| slot.waiter.is_none()).expect("a place for everyone who waits");
        let slot = &mut all[index];
        slot.ticket += 1;
        slot.waiter.set(Some(future));
        (index, slot.ticket)
    }

    fn poll(&self, index: usize, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut all = self.lock();
        let waiter = &mut all[index].waiter;
        let polled =
            waiter.as_mut().as_pin_mut().expect("a place is taken until it is given back").poll(context);
        if polled.is_ready() {
            waiter.set(None);
        }
        polled
    }
}

/// What gives a place back, and with it the one in the semaphore's queue.
struct Unregister<F: 'static> {
    slots: &'static Slots<F>,
    index: usize,
    ticket: u64,
}

const _: () = assert!(size_of::<Unregister<()>>() as u64 == HANDLER, "what the boxed handler allocates");

impl<F: Future + Send + 'static> Cancel for Unregister<F> {
    fn cancel(self) {
        let slot = &mut self.slots.lock()[self.index];
        // Somebody else's by now, if this is called too late.
        if slot.ticket == self.ticket {
            slot.waiter.set(None);
        }
    }
}

/// An acquire that waits in a slot, and is unregistered when it is dropped there.
pub struct Acquire<H: Handler, F: Future + Send + 'static> {
    slots: &'static Slots<F>,
    /// The semaphore's own future, until it is polled.
    start: Option<F>,
    waits: Option<(usize, Kept<H, F>)>,
}

type Kept<H, F> = <H as Handler>::Kept<Unregister<F>>;

/// What is pinned is in the slots.
impl<H: Handler, F: Future + Send + 'static> Unpin for Acquire<H, F> {}

impl<H: Handler, F: Future + Send + 'static> Acquire<H, F> {
    /// Makes one that waits in one of the slots if it has to.
    pub fn new(acquire: F, slots: &'static Slots<F>) -> Self {
        Self { slots, start: Some(acquire), waits: None }
    }
}

impl<H: Handler, F: Future + Send + 'static> Future for Acquire<H, F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let slots = self.slots;
        let Some(start) = self.start.take() else {
            let index = self.waits.as_ref().expect("not polled after it was ready").0;
            let polled = slots.poll(index, context);
            if polled.is_ready() {
                self.waits = None;
            }
            return polled;
        };
        let (index, ticket) = slots.take(start);
        let polled = slots.poll(index, context);
        if polled.is_pending() {
            self.waits = Some((index, H::keep(Unregister { slots, index, ticket })));
        }
        polled
    }
}

impl<H: Handler, F: Future + Send + 'static> Drop for Acquire<H, F> {
    fn drop(&mut self) {
        if let Some((_, kept)) = self.waits.take() {
            H::cancel(kept);
        }
    }
}

/// Proves that a handler unregisters: of two that wait for the permit `held`, the one that is dropped gets none, and the other
/// does.
///
/// # Errors
///
/// What happened instead.
pub fn prove_acquire<H: Handler, F: Future + Send + 'static>(
    held: impl Sized,
    slots: &'static Slots<F>,
    acquire: &impl Fn() -> F,
) -> Result<(), String> {
    let mut context = Context::from_waker(Waker::noop());
    let mut first = Acquire::<H, F>::new(acquire(), slots);
    let mut second = Acquire::<H, F>::new(acquire(), slots);
    let mut poll = |waiter: &mut Acquire<H, F>| Pin::new(waiter).poll(&mut context);
    if poll(&mut first).is_ready() || poll(&mut second).is_ready() {
        return Err("there were more permits than one".to_owned());
    }
    if slots.taken() != 2 {
        return Err(format!("{} waiters instead of two", slots.taken()));
    }
    drop(first);
    let left = slots.taken();
    drop(held);
    match poll(&mut second) {
        Poll::Ready(permit) => drop(permit),
        Poll::Pending => return Err(format!("a waiter that was cancelled ({}) got the permit", H::NAME)),
    }
    if left != 1 || slots.taken() != 0 {
        return Err(format!("the {} handler left {left} waiters", H::NAME));
    }
    Ok(())
}

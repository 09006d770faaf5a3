//! An acquire of a semaphore that says, while it waits, what is to be done if it is cancelled.
//!
//! Who waits is kept in [`Slots`], as Kotlin's semaphore keeps its continuations in segments. The future only
//! knows its slot; what it needs to give that back, its cancellation handler, is the same three words whether
//! they are kept [`Inline`] or [`Boxed`].

use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

/// What an acquire ends with.
pub(crate) type Permit = Result<SemaphorePermit<'static>, AcquireError>;

/// A few places for futures that wait, made once.
pub(crate) struct Slots<F> {
    all: Mutex<Vec<Slot<F>>>,
}

struct Slot<F> {
    /// Whose it is: counted up each time that it is taken.
    ticket: u64,
    waiter: Pin<Box<Option<F>>>,
}

impl<F: Future> Slots<F> {
    pub(crate) fn new(places: usize) -> Self {
        let slot = |_| Slot { ticket: 0, waiter: Box::pin(None) };
        Self { all: Mutex::new((0..places).map(slot).collect()) }
    }

    /// How many wait.
    pub(crate) fn taken(&self) -> usize {
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

/// What gives a place back, and with it the one in the semaphore's queue: 24 bytes.
pub(crate) struct Unregister<F: 'static> {
    slots: &'static Slots<F>,
    index: usize,
    ticket: u64,
}

const _: () = assert!(size_of::<Unregister<()>>() == 24, "what the boxed handler allocates");

impl<F: Future> Unregister<F> {
    fn call(self) {
        let slot = &mut self.slots.lock()[self.index];
        // Somebody else's by now, if this is called too late.
        if slot.ticket == self.ticket {
            slot.waiter.set(None);
        }
    }
}

/// Where a cancellation handler is kept.
pub(crate) trait Handler: 'static {
    const NAME: &'static str;
    type Kept<F: Future + Send + 'static>: Send + 'static;

    fn keep<F: Future + Send + 'static>(unregister: Unregister<F>) -> Self::Kept<F>;

    fn cancel<F: Future + Send + 'static>(kept: Self::Kept<F>);
}

/// In the future that waits.
pub(crate) enum Inline {}

impl Handler for Inline {
    const NAME: &'static str = "inline";
    type Kept<F: Future + Send + 'static> = Unregister<F>;

    fn keep<F: Future + Send + 'static>(unregister: Unregister<F>) -> Unregister<F> {
        unregister
    }

    fn cancel<F: Future + Send + 'static>(kept: Unregister<F>) {
        kept.call();
    }
}

/// On the heap.
pub(crate) enum Boxed {}

impl Handler for Boxed {
    const NAME: &'static str = "boxed";
    type Kept<F: Future + Send + 'static> = Box<dyn FnOnce() + Send>;

    fn keep<F: Future + Send + 'static>(unregister: Unregister<F>) -> Self::Kept<F> {
        Box::new(move || unregister.call())
    }

    fn cancel<F: Future + Send + 'static>(kept: Self::Kept<F>) {
        kept();
    }
}

/// An acquire that waits in a slot, and is unregistered when it is dropped there.
pub(crate) struct Acquire<H: Handler, F: Future + Send + 'static> {
    slots: &'static Slots<F>,
    /// The semaphore's own future, until it is polled.
    start: Option<F>,
    waits: Option<(usize, H::Kept<F>)>,
}

/// What is pinned is in the slots.
impl<H: Handler, F: Future + Send + 'static> Unpin for Acquire<H, F> {}

impl<H: Handler, F: Future + Send + 'static> Acquire<H, F> {
    pub(crate) fn new(acquire: F, slots: &'static Slots<F>) -> Self {
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

/// Proves that a handler unregisters: a waiter that is dropped gets no permit, and the one behind it does.
///
/// # Errors
///
/// What happened instead.
pub(crate) fn cancel<H: Handler, F: Future<Output = Permit> + Send + 'static>(
    semaphore: &'static Semaphore,
    slots: &'static Slots<F>,
    acquire: &impl Fn() -> F,
) -> Result<(), String> {
    let mut context = Context::from_waker(Waker::noop());
    let held = semaphore.try_acquire().map_err(|e| format!("the permit is not there: {e}"))?;
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
    if left != 1 || slots.taken() != 0 || semaphore.available_permits() != 1 {
        return Err(format!("the {} handler left {left} waiters", H::NAME));
    }
    Ok(())
}

//! Futures that register a cancellation handler while they wait: an [acquire](acquire()) of a semaphore, and both ends of
//! a [channel](channel()).
//!
//! The state of a waiting future is in [`Slots`] beside the semaphore, or in the channel. (Kotlin similarly stores
//! continuations in segments.) The future itself has only a reference to this state, and its cancellation handler. The
//! handler has a size of three words, whether it is stored [`Inline`] or [`Boxed`].

mod acquire;
mod channel;

pub use self::acquire::{Slots, acquire};
pub use self::channel::{Receiver, Sender, channel};

/// The action of a cancellation handler, which runs when a waiting future is dropped.
pub trait Cancel: Send + 'static {
    /// Runs the action.
    fn cancel(self);
}

/// A way to store a cancellation handler: [`Inline`] or [`Boxed`].
pub trait Handler: 'static {
    /// The name of this way of storage in the ids of rows (results).
    const NAME: &'static str;
    /// The type of the stored handler, which a waiting future holds.
    type Kept<C: Cancel>: Send + 'static;

    /// Stores a handler in the form in which a waiting future holds it.
    fn keep<C: Cancel>(cancel: C) -> Self::Kept<C>;

    /// Runs a stored handler.
    fn cancel<C: Cancel>(kept: Self::Kept<C>);
}

/// The cancellation handler of a waiting future, or `None` while the future does not wait. The handler runs if this
/// value is dropped while the future waits. When the wait ends, the handler is removed without running.
struct Waits<H: Handler, C: Cancel>(Option<H::Kept<C>>);

impl<H: Handler, C: Cancel> Waits<H, C> {
    /// Registers a handler, or for `None` removes the handler without running it.
    fn set(&mut self, kept: Option<H::Kept<C>>) {
        self.0 = kept;
    }
}

impl<H: Handler, C: Cancel> Drop for Waits<H, C> {
    fn drop(&mut self) {
        if let Some(kept) = self.0.take() {
            H::cancel(kept);
        }
    }
}

/// The way of storage in which the waiting future itself contains the handler.
#[derive(Debug)]
pub enum Inline {}

impl Handler for Inline {
    const NAME: &'static str = "inline";
    type Kept<C: Cancel> = C;

    fn keep<C: Cancel>(cancel: C) -> C {
        cancel
    }

    fn cancel<C: Cancel>(kept: C) {
        kept.cancel();
    }
}

/// The way of storage in which the handler is a boxed closure on the heap.
#[derive(Debug)]
pub enum Boxed {}

impl Handler for Boxed {
    const NAME: &'static str = "boxed";
    type Kept<C: Cancel> = Box<dyn FnOnce() + Send>;

    fn keep<C: Cancel>(cancel: C) -> Self::Kept<C> {
        Box::new(move || cancel.cancel())
    }

    fn cancel<C: Cancel>(kept: Self::Kept<C>) {
        kept();
    }
}

/// The size of a handler in bytes. [`Boxed`] allocates this number of bytes for each handler.
pub const HANDLER: u64 = 24;

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use tokio::sync::Semaphore;

    use super::*;

    /// A handler that does nothing.
    enum Forgets {}

    impl Handler for Forgets {
        const NAME: &'static str = "forgetful";
        type Kept<C: Cancel> = ();

        fn keep<C: Cancel>(_: C) {}

        fn cancel<C: Cancel>((): ()) {}
    }

    /// Checks that the handler unregisters a dropped future of `acquire`. Two such futures wait for the permit `held`:
    /// one of them is dropped, and the other gets the permit.
    fn prove_acquire<H: Handler, F: Future + Send + 'static>(
        held: impl Sized,
        slots: &'static Slots<F>,
        acquire: &impl Fn() -> F,
    ) -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        let mut first = Box::pin(super::acquire::<H, F>(acquire(), slots));
        let mut second = Box::pin(super::acquire::<H, F>(acquire(), slots));
        if first.as_mut().poll(&mut context).is_ready() || second.as_mut().poll(&mut context).is_ready() {
            return Err("there were more permits than one".to_owned());
        }
        if slots.taken() != 2 {
            return Err(format!("{} waiters instead of two", slots.taken()));
        }
        drop(first);
        let left = slots.taken();
        drop(held);
        match second.as_mut().poll(&mut context) {
            Poll::Ready(permit) => drop(permit),
            Poll::Pending => return Err(format!("a waiter that was cancelled ({}) got the permit", H::NAME)),
        }
        if left != 1 || slots.taken() != 0 {
            return Err(format!("the {} handler left {left} waiters", H::NAME));
        }
        Ok(())
    }

    /// Checks that a handler removes the state of a dropped future: the element of a dropped sender is never received,
    /// and an element that was handed to a dropped receiver goes to the next receiver.
    fn prove_channel<H: Handler>() -> Result<(), String> {
        let mut context = Context::from_waker(Waker::noop());
        let (mut sender, mut receiver) = channel::<u64, H>(0);
        let mut sending = Box::pin(sender.send(1));
        if sending.as_mut().poll(&mut context).is_ready() {
            return Err("nobody receives, and a sender did not wait".to_owned());
        }
        drop(sending);
        let mut receiving = Box::pin(receiver.receive());
        if receiving.as_mut().poll(&mut context).is_ready() {
            return Err(format!("the element of a sender that was cancelled ({}) was received", H::NAME));
        }
        if pin!(sender.send(2)).poll(&mut context) != Poll::Ready(Ok(())) {
            return Err("somebody receives, and a sender waits".to_owned());
        }
        drop(receiving);
        if pin!(receiver.receive()).poll(&mut context) != Poll::Ready(Some(2)) {
            return Err(format!("the element that was handed to a cancelled receiver ({}) is lost", H::NAME));
        }
        Ok(())
    }

    fn acquire<H: Handler>() -> Result<(), String> {
        fn of<H: Handler, F: Future<Output: Send> + Send + 'static>(
            held: impl Sized,
            acquire: impl Fn() -> F,
        ) -> Result<(), String> {
            prove_acquire::<H, F>(held, Box::leak(Box::new(Slots::new(2))), &acquire)
        }
        let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
        let held = semaphore.try_acquire().map_err(|e| e.to_string())?;
        of::<H, _>(held, || semaphore.acquire())
    }

    #[test]
    fn both_handlers_take_back_what_was_left() {
        assert_eq!((acquire::<Inline>(), prove_channel::<Inline>()), (Ok(()), Ok(())));
        assert_eq!((acquire::<Boxed>(), prove_channel::<Boxed>()), (Ok(()), Ok(())));
    }

    #[test]
    fn one_that_does_not_is_found_out() {
        let waiter = "a waiter that was cancelled (forgetful) got the permit";
        assert_eq!(acquire::<Forgets>(), Err(waiter.to_owned()));
        let sender = "the element of a sender that was cancelled (forgetful) was received";
        assert_eq!(prove_channel::<Forgets>(), Err(sender.to_owned()));
    }
}

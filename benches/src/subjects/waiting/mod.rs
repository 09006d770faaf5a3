//! What waits, and says meanwhile what is to be done if it is cancelled: an [acquire](Acquire) of a semaphore, and both ends of a
//! [channel](channel()).
//!
//! What is left behind by whoever waits is in the semaphore's [`Slots`], or in the channel, as Kotlin keeps its continuations
//! in segments. The future only knows its place; what it needs to take that back, its cancellation handler, is the same
//! three words whether they are kept [`Inline`] or [`Boxed`].

mod acquire;
mod channel;

pub use self::acquire::{Acquire, Slots, prove_acquire};
pub use self::channel::{Receiver, Receiving, Sender, Sending, channel, prove_channel};

/// What is to be done when whoever waits is cancelled.
pub trait Cancel: Send + 'static {
    /// Does it.
    fn cancel(self);
}

/// Where a cancellation handler is kept.
pub trait Handler: 'static {
    /// What it is called in ids.
    const NAME: &'static str;
    /// What is kept in the future that waits.
    type Kept<C: Cancel>: Send + 'static;

    /// Keeps it.
    fn keep<C: Cancel>(cancel: C) -> Self::Kept<C>;

    /// Does what it says.
    fn cancel<C: Cancel>(kept: Self::Kept<C>);
}

/// In the future that waits.
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

/// On the heap.
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

/// The bytes of a handler, which [`Boxed`] allocates.
pub const HANDLER: u64 = 24;

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    /// Does nothing when it is cancelled.
    enum Forgets {}

    impl Handler for Forgets {
        const NAME: &'static str = "forgetful";
        type Kept<C: Cancel> = ();

        fn keep<C: Cancel>(_: C) {}

        fn cancel<C: Cancel>((): ()) {}
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

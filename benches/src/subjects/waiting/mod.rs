//! Futures that register a cancellation handler while they wait: an [acquire](Acquire) of a semaphore, and both ends of
//! a [channel](channel()).
//!
//! The state of a waiting future is in the semaphore's [`Slots`] or in the channel, as Kotlin stores continuations in
//! segments. The future itself has only an index. The cancellation handler of a future takes three words, whether it is
//! stored [`Inline`] or [`Boxed`].

mod acquire;
mod channel;

pub use self::acquire::{Acquire, Slots, prove_acquire};
pub use self::channel::{Receiver, Receiving, Sender, Sending, channel, prove_channel};

/// The action of a cancellation handler, which runs when a waiting future is dropped.
pub trait Cancel: Send + 'static {
    /// Runs the action.
    fn cancel(self);
}

/// The place where a cancellation handler is stored.
pub trait Handler: 'static {
    /// The name of this kind of storage in ids.
    const NAME: &'static str;
    /// The form in which a waiting future stores the handler.
    type Kept<C: Cancel>: Send + 'static;

    /// Stores the handler.
    fn keep<C: Cancel>(cancel: C) -> Self::Kept<C>;

    /// Runs the handler.
    fn cancel<C: Cancel>(kept: Self::Kept<C>);
}

/// The cancellation handler of a waiting future. The handler runs if this value is dropped while the future waits. When
/// the wait ends, the handler is removed.
struct Waits<H: Handler, C: Cancel>(Option<H::Kept<C>>);

impl<H: Handler, C: Cancel> Drop for Waits<H, C> {
    fn drop(&mut self) {
        if let Some(kept) = self.0.take() {
            H::cancel(kept);
        }
    }
}

/// Stores the handler in the waiting future.
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

/// Stores the handler on the heap.
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

/// The size of a handler in bytes, which [`Boxed`] allocates.
pub const HANDLER: u64 = 24;

#[cfg(test)]
mod tests {
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

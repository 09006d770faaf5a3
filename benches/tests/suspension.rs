//! The cancellation handlers of the bench `suspension` unregister their waiters, and one that does not is found
//! out.

use std::future::Future;

use tokio::sync::Semaphore;

#[path = "../benches/suspension/acquire.rs"]
#[allow(unreachable_pub, reason = "the module of another program")]
mod acquire;

use self::acquire::{Boxed, Handler, Inline, Permit, Slots, Unregister};

/// Does nothing when it is cancelled.
enum Forgets {}

impl Handler for Forgets {
    const NAME: &'static str = "forgetful";
    type Kept<F: Future + Send + 'static> = Unregister<F>;

    fn keep<F: Future + Send + 'static>(unregister: Unregister<F>) -> Unregister<F> {
        unregister
    }

    fn cancel<F: Future + Send + 'static>(_: Unregister<F>) {}
}

fn cancel<H: Handler>() -> Result<(), String> {
    fn of<H: Handler, F: Future<Output = Permit> + Send + 'static>(
        semaphore: &'static Semaphore,
        acquire: impl Fn() -> F,
    ) -> Result<(), String> {
        let slots: &'static Slots<F> = Box::leak(Box::new(Slots::new(2)));
        acquire::cancel::<H, F>(semaphore, slots, &acquire)
    }
    let semaphore: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
    of::<H, _>(semaphore, || semaphore.acquire())
}

#[test]
fn both_handlers_unregister() {
    assert_eq!(cancel::<Inline>(), Ok(()));
    assert_eq!(cancel::<Boxed>(), Ok(()));
}

#[test]
fn one_that_does_not_is_found_out() {
    assert_eq!(cancel::<Forgets>(), Err("a waiter that was cancelled (forgetful) got the permit".to_owned()));
}

//! A channel with one sender and one receiver, which say, while they wait, what is to be done if they are cancelled.
//!
//! - A sender waits while the channel is full, and leaves its element there. Of capacity 0 a channel is always full, and only a
//!   receiver that waits already is handed an element at once (a rendezvous).
//! - A receiver waits while there is no element. What it was handed and did not take is the next one's.
//! - Elements arrive in their order.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Cancel, HANDLER, Handler};

/// Makes a channel that holds so many elements, its handlers kept as `H` says.
pub fn channel<V: Send + 'static, H: Handler>(capacity: usize) -> (Sender<V, H>, Receiver<V, H>) {
    let end = || End { ticket: 0, element: None, waker: None, is_gone: false };
    // One more: what a receiver was handed and gives back.
    let elements = VecDeque::with_capacity(capacity + 1);
    let shared = Shared(Mutex::new(State { elements, capacity, ends: [end(), end()] }));
    let shared = Arc::new(shared);
    (Sender { shared: Arc::clone(&shared), handler: PhantomData }, Receiver { shared, handler: PhantomData })
}

struct Shared<V>(Mutex<State<V>>);

impl<V> Shared<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the other end know that this one has gone.
    fn leave(&self, side: Side) {
        let mut state = self.lock();
        state.ends[side as usize].is_gone = true;
        let waker = state.ends[1 - side as usize].waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

struct State<V> {
    elements: VecDeque<V>,
    capacity: usize,
    ends: [End<V>; 2],
}

#[derive(Clone, Copy)]
enum Side {
    Sender,
    Receiver,
}

/// What the sender or the receiver has left.
struct End<V> {
    /// How often it has waited.
    ticket: u64,
    /// What it waits with, or was handed while it waited.
    element: Option<V>,
    /// Wakes it, while it waits for something.
    waker: Option<Waker>,
    is_gone: bool,
}

impl<V> End<V> {
    /// Waits, once more.
    fn wait(&mut self, context: &Context<'_>) -> u64 {
        self.ticket += 1;
        self.waker = Some(context.waker().clone());
        self.ticket
    }
}

/// What takes back what an end has left.
struct Unregister<V> {
    shared: Arc<Shared<V>>,
    side: Side,
    ticket: u64,
}

const _: () = assert!(size_of::<Unregister<()>>() as u64 == HANDLER, "what the boxed handler allocates");

impl<V: Send + 'static> Cancel for Unregister<V> {
    fn cancel(self) {
        let mut state = self.shared.lock();
        let end = &mut state.ends[self.side as usize];
        if end.ticket != self.ticket {
            return;
        }
        end.waker = None;
        let element = end.element.take();
        if let Side::Receiver = self.side {
            element.into_iter().for_each(|element| state.elements.push_front(element));
        }
    }
}

type Kept<V, H> = <H as Handler>::Kept<Unregister<V>>;

/// The end that elements are put in at.
pub struct Sender<V: Send + 'static, H: Handler> {
    shared: Arc<Shared<V>>,
    handler: PhantomData<fn() -> H>,
}

/// The end that they are taken out at.
pub struct Receiver<V: Send + 'static, H: Handler> {
    shared: Arc<Shared<V>>,
    handler: PhantomData<fn() -> H>,
}

impl<V: Send + 'static, H: Handler> Sender<V, H> {
    /// Sends an element. The result is that element where nobody receives any more.
    pub fn send(&mut self, element: V) -> Sending<'_, V, H> {
        Sending { sender: self, element: Some(element), waits: None }
    }
}

impl<V: Send + 'static, H: Handler> Receiver<V, H> {
    /// Takes an element out; none when the sender has gone and all were taken.
    pub fn receive(&mut self) -> Receiving<'_, V, H> {
        Receiving { receiver: self, waits: None }
    }

    /// Returns how often either end has waited.
    pub fn waits(&self) -> u64 {
        self.shared.lock().ends.iter().map(|end| end.ticket).sum()
    }
}

impl<V: Send + 'static, H: Handler> Drop for Sender<V, H> {
    fn drop(&mut self) {
        self.shared.leave(Side::Sender);
    }
}

impl<V: Send + 'static, H: Handler> Drop for Receiver<V, H> {
    fn drop(&mut self) {
        self.shared.leave(Side::Receiver);
    }
}

/// The future of [`Sender::send`].
pub struct Sending<'a, V: Send + 'static, H: Handler> {
    sender: &'a Sender<V, H>,
    /// Until it is polled.
    element: Option<V>,
    waits: Option<Kept<V, H>>,
}

/// Nothing is pinned.
impl<V: Send + 'static, H: Handler> Unpin for Sending<'_, V, H> {}

impl<V: Send + 'static, H: Handler> Future for Sending<'_, V, H> {
    type Output = Result<(), V>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), V>> {
        let shared = &self.sender.shared;
        let mut guard = shared.lock();
        let State { elements, capacity, ends: [sender, receiver] } = &mut *guard;
        let Some(element) = self.element.take() else {
            let left = match sender.element.take() {
                Some(element) if !receiver.is_gone => {
                    sender.element = Some(element);
                    sender.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                left => left,
            };
            drop(guard);
            self.waits = None;
            return Poll::Ready(left.map_or(Ok(()), Err));
        };
        if receiver.is_gone {
            return Poll::Ready(Err(element));
        }
        if let Some(waker) = receiver.waker.take() {
            receiver.element = Some(element);
            drop(guard);
            waker.wake();
            return Poll::Ready(Ok(()));
        }
        if elements.len() < *capacity {
            elements.push_back(element);
            return Poll::Ready(Ok(()));
        }
        sender.element = Some(element);
        let ticket = sender.wait(context);
        drop(guard);
        self.waits = Some(H::keep(Unregister { shared: Arc::clone(shared), side: Side::Sender, ticket }));
        Poll::Pending
    }
}

impl<V: Send + 'static, H: Handler> Drop for Sending<'_, V, H> {
    fn drop(&mut self) {
        if let Some(kept) = self.waits.take() {
            H::cancel(kept);
        }
    }
}

/// The future of [`Receiver::receive`].
pub struct Receiving<'a, V: Send + 'static, H: Handler> {
    receiver: &'a Receiver<V, H>,
    waits: Option<Kept<V, H>>,
}

/// Nothing is pinned.
impl<V: Send + 'static, H: Handler> Unpin for Receiving<'_, V, H> {}

impl<V: Send + 'static, H: Handler> Future for Receiving<'_, V, H> {
    type Output = Option<V>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<V>> {
        let shared = &self.receiver.shared;
        let mut guard = shared.lock();
        let State { elements, capacity, ends: [sender, receiver] } = &mut *guard;
        let handed = receiver.element.take();
        if self.waits.is_some() {
            if handed.is_none() && !sender.is_gone {
                receiver.waker = Some(context.waker().clone());
                return Poll::Pending;
            }
            receiver.waker = None;
            drop(guard);
            self.waits = None;
            return Poll::Ready(handed);
        }
        let taken = elements.pop_front();
        let mut next = None;
        if taken.is_none() || elements.len() < *capacity {
            next = sender.element.take();
        }
        let waker = if next.is_some() { sender.waker.take() } else { None };
        let taken = match taken {
            Some(taken) => {
                elements.extend(next);
                Some(taken)
            }
            None => next,
        };
        if taken.is_some() || sender.is_gone {
            drop(guard);
            if let Some(waker) = waker {
                waker.wake();
            }
            return Poll::Ready(taken);
        }
        let ticket = receiver.wait(context);
        drop(guard);
        self.waits = Some(H::keep(Unregister { shared: Arc::clone(shared), side: Side::Receiver, ticket }));
        Poll::Pending
    }
}

impl<V: Send + 'static, H: Handler> Drop for Receiving<'_, V, H> {
    fn drop(&mut self) {
        if let Some(kept) = self.waits.take() {
            H::cancel(kept);
        }
    }
}

/// Proves that a handler takes back what was left: what a sender has that is dropped is received by nobody, and what a receiver
/// was handed that is dropped, by the next.
///
/// # Errors
///
/// What happened instead.
pub fn prove_channel<H: Handler>() -> Result<(), String> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut sender, mut receiver) = channel::<u64, H>(0);
    let mut sending = sender.send(1);
    if Pin::new(&mut sending).poll(&mut context).is_ready() {
        return Err("nobody receives, and a sender did not wait".to_owned());
    }
    drop(sending);
    let mut receiving = receiver.receive();
    if Pin::new(&mut receiving).poll(&mut context).is_ready() {
        return Err(format!("the element of a sender that was cancelled ({}) was received", H::NAME));
    }
    if Pin::new(&mut sender.send(2)).poll(&mut context) != Poll::Ready(Ok(())) {
        return Err("somebody receives, and a sender waits".to_owned());
    }
    drop(receiving);
    if Pin::new(&mut receiver.receive()).poll(&mut context) != Poll::Ready(Some(2)) {
        return Err(format!("what a receiver was handed that was cancelled ({}) is lost", H::NAME));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::super::{Boxed, Inline};
    use super::*;

    /// Counts a future that is not ready when it is first polled.
    async fn counted<F: Future + Unpin>(waited: &AtomicU64, mut future: F) -> F::Output {
        let mut is_first = true;
        poll_fn(|context| {
            let polled = Pin::new(&mut future).poll(context);
            waited.fetch_add(u64::from(std::mem::take(&mut is_first) && polled.is_pending()), Relaxed);
            polled
        })
        .await
    }

    /// Sends numbers from one task to another, and returns what arrived and how often either has waited.
    fn through<H: Handler>(capacity: usize, sender_first: bool) -> (Vec<u64>, u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (mut sender, mut receiver) = channel::<u64, H>(capacity);
            let waited = Arc::new(AtomicU64::new(0));
            let of_sender = Arc::clone(&waited);
            let send = async move {
                for n in 0..100 {
                    counted(&of_sender, sender.send(n)).await.unwrap();
                }
            };
            let receive = async move {
                let mut all = Vec::new();
                while let Some(n) = counted(&waited, receiver.receive()).await {
                    all.push(n);
                }
                assert_eq!(receiver.waits(), waited.load(Relaxed));
                (all, receiver.waits())
            };
            if sender_first {
                tokio::spawn(send);
                tokio::spawn(receive).await.unwrap()
            } else {
                let receive = tokio::spawn(receive);
                tokio::spawn(send);
                receive.await.unwrap()
            }
        })
    }

    #[test]
    fn elements_arrive_in_their_order() {
        for sender_first in [true, false] {
            for capacity in [0, 1, 8, 200] {
                let (inline, waits) = through::<Inline>(capacity, sender_first);
                assert_eq!(inline, (0..100).collect::<Vec<_>>());
                assert_eq!(through::<Boxed>(capacity, sender_first), (inline, waits));
                // A full channel is a wait, and an empty one; at most one of them for each element.
                let least = 100 / (capacity as u64 + 1);
                assert!(waits <= 101 && (capacity == 200 || waits >= least), "{capacity}: {waits}");
            }
        }
    }

    #[test]
    fn who_is_left_alone_is_told() {
        let mut context = Context::from_waker(Waker::noop());
        let (mut sender, receiver) = channel::<u64, Inline>(0);
        let mut sending = sender.send(7);
        assert!(Pin::new(&mut sending).poll(&mut context).is_pending());
        drop(receiver);
        assert_eq!(Pin::new(&mut sending).poll(&mut context), Poll::Ready(Err(7)));
        drop(sending);
        assert_eq!(Pin::new(&mut sender.send(8)).poll(&mut context), Poll::Ready(Err(8)));

        let (mut sender, mut receiver) = channel::<u64, Inline>(1);
        assert_eq!(Pin::new(&mut sender.send(7)).poll(&mut context), Poll::Ready(Ok(())));
        drop(sender);
        assert_eq!(Pin::new(&mut receiver.receive()).poll(&mut context), Poll::Ready(Some(7)));
        assert_eq!(Pin::new(&mut receiver.receive()).poll(&mut context), Poll::Ready(None));

        let (sender, mut receiver) = channel::<u64, Inline>(1);
        let mut receiving = receiver.receive();
        assert!(Pin::new(&mut receiving).poll(&mut context).is_pending());
        drop(sender);
        assert_eq!(Pin::new(&mut receiving).poll(&mut context), Poll::Ready(None));
    }
}

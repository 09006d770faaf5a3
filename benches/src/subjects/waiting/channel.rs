//! A channel with one sender and one receiver, each of which registers a cancellation handler while it waits.
//!
//! - A sender waits while the channel is full. Its element is stored in the channel meanwhile. A channel of capacity 0
//!   is always full (a rendezvous channel), so a sender waits unless a receiver is already waiting.
//! - A receiver waits while there is no element. If the future of a receive operation is dropped after an element was
//!   handed to it and before it has returned the element, the next receive operation gets the element.
//! - Elements arrive in the order in which they were sent.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::{Cancel, HANDLER, Handler, Waits};

/// Makes a channel with the capacity `capacity`. `H` determines how the cancellation handlers of its two ends are
/// stored.
pub fn channel<V: Send + 'static, H: Handler>(capacity: usize) -> (Sender<V, H>, Receiver<V, H>) {
    let end = || End { ticket: 0, element: None, waker: None, is_gone: false };
    // There is room for one more element, which a dropped receive operation may give back.
    let elements = VecDeque::with_capacity(capacity + 1);
    let shared = Shared(Mutex::new(State { elements, capacity, ends: [end(), end()] }));
    let shared = Arc::new(shared);
    let sender = Sender { end: Handle(Arc::clone(&shared), Side::Sender), handler: PhantomData };
    (sender, Receiver { end: Handle(shared, Side::Receiver), handler: PhantomData })
}

struct Shared<V>(Mutex<State<V>>);

impl<V> Shared<V> {
    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

/// The state of the sender or of the receiver, which is stored in the channel.
struct End<V> {
    /// The number of times that this end of the channel has waited. The number identifies the current wait.
    ticket: u64,
    /// For a sender, the element that it waits to send. For a receiver, the element that was handed to it while it
    /// waited.
    element: Option<V>,
    /// The waker of this end while it waits.
    waker: Option<Waker>,
    is_gone: bool,
}

impl<V> End<V> {
    /// Records that this end of the channel begins to wait, and returns the ticket of this wait.
    fn wait(&mut self, context: &Context<'_>) -> u64 {
        self.ticket += 1;
        self.waker = Some(context.waker().clone());
        self.ticket
    }
}

/// The handler that runs if a wait of the channel's sender or receiver is cancelled. It removes the state of the wait
/// from the channel.
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

/// The handle of one end of the channel. Dropping the handle wakes the other end if that end waits.
struct Handle<V>(Arc<Shared<V>>, Side);

impl<V> Drop for Handle<V> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ends[self.1 as usize].is_gone = true;
        let waker = state.ends[1 - self.1 as usize].waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The end of a channel that sends elements.
pub struct Sender<V: Send + 'static, H: Handler> {
    end: Handle<V>,
    handler: PhantomData<fn() -> H>,
}

/// The end of a channel that receives elements.
pub struct Receiver<V: Send + 'static, H: Handler> {
    end: Handle<V>,
    handler: PhantomData<fn() -> H>,
}

impl<V: Send + 'static, H: Handler> Sender<V, H> {
    /// Sends an element. The future returns the element if the receiver was dropped.
    pub fn send(&mut self, element: V) -> impl Future<Output = Result<(), V>> + Send {
        let (shared, mut element) = (&self.end.0, Some(element));
        let mut waits = Waits::<H, _>(None);
        poll_fn(move |context| {
            let mut guard = shared.lock();
            let State { elements, capacity, ends: [sender, receiver] } = &mut *guard;
            let Some(element) = element.take() else {
                let left = match sender.element.take() {
                    Some(element) if !receiver.is_gone => {
                        sender.element = Some(element);
                        sender.waker = Some(context.waker().clone());
                        return Poll::Pending;
                    }
                    left => left,
                };
                drop(guard);
                waits.set(None);
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
            waits.set(Some(H::keep(Unregister { shared: Arc::clone(shared), side: Side::Sender, ticket })));
            Poll::Pending
        })
    }
}

impl<V: Send + 'static, H: Handler> Receiver<V, H> {
    /// Receives an element. The future returns `None` if the sender was dropped and all elements were taken.
    pub fn receive(&mut self) -> impl Future<Output = Option<V>> + Send {
        let shared = &self.end.0;
        let mut waits = Waits::<H, _>(None);
        poll_fn(move |context| {
            let mut guard = shared.lock();
            let State { elements, capacity, ends: [sender, receiver] } = &mut *guard;
            let handed = receiver.element.take();
            if waits.0.is_some() {
                if handed.is_none() && !sender.is_gone {
                    receiver.waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                receiver.waker = None;
                drop(guard);
                waits.set(None);
                return Poll::Ready(handed);
            }
            let taken = elements.pop_front();
            let has_room = taken.is_none() || elements.len() < *capacity;
            let mut next = if has_room { sender.element.take() } else { None };
            let waker = if next.is_some() { sender.waker.take() } else { None };
            let taken = taken.or_else(|| next.take());
            elements.extend(next);
            if taken.is_some() || sender.is_gone {
                drop(guard);
                waker.into_iter().for_each(Waker::wake);
                return Poll::Ready(taken);
            }
            let ticket = receiver.wait(context);
            drop(guard);
            waits.set(Some(H::keep(Unregister { shared: Arc::clone(shared), side: Side::Receiver, ticket })));
            Poll::Pending
        })
    }

    /// Returns how many times the two ends of the channel have waited, in total.
    pub fn waits(&self) -> u64 {
        self.end.0.lock().ends.iter().map(|end| end.ticket).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::super::{Boxed, Inline};
    use super::*;

    /// Awaits the future. Adds 1 to `waited` if the future is not ready at its first poll.
    async fn counted<F: Future>(waited: &AtomicU64, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut is_first = true;
        poll_fn(|context| {
            let polled = future.as_mut().poll(context);
            waited.fetch_add(u64::from(std::mem::take(&mut is_first) && polled.is_pending()), Relaxed);
            polled
        })
        .await
    }

    /// Sends numbers through a channel from one task to another. Returns the received numbers, and how many times the
    /// sender and the receiver have waited.
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
                // The sender waits when the channel is full, and the receiver when it is empty, together at most about
                // once for each element.
                let least = 100 / (capacity as u64 + 1);
                assert!(waits <= 101 && (capacity == 200 || waits >= least), "{capacity}: {waits}");
            }
        }
    }

    #[test]
    fn who_is_left_alone_is_told() {
        let mut context = Context::from_waker(Waker::noop());
        let (mut sender, receiver) = channel::<u64, Inline>(0);
        let mut sending = Box::pin(sender.send(7));
        assert!(sending.as_mut().poll(&mut context).is_pending());
        drop(receiver);
        assert_eq!(sending.as_mut().poll(&mut context), Poll::Ready(Err(7)));
        drop(sending);
        assert_eq!(pin!(sender.send(8)).poll(&mut context), Poll::Ready(Err(8)));

        let (mut sender, mut receiver) = channel::<u64, Inline>(1);
        assert_eq!(pin!(sender.send(7)).poll(&mut context), Poll::Ready(Ok(())));
        drop(sender);
        assert_eq!(pin!(receiver.receive()).poll(&mut context), Poll::Ready(Some(7)));
        assert_eq!(pin!(receiver.receive()).poll(&mut context), Poll::Ready(None));

        let (sender, mut receiver) = channel::<u64, Inline>(1);
        let mut receiving = Box::pin(receiver.receive());
        assert!(receiving.as_mut().poll(&mut context).is_pending());
        drop(sender);
        assert_eq!(receiving.as_mut().poll(&mut context), Poll::Ready(None));
    }
}

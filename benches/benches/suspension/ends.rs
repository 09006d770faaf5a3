//! The two ends of a channel, whosever it is.

use std::marker::PhantomData;

use atrace_benches::subjects::waiting::{Handler, Receiver, Sender, channel};

/// Makes channels with one sender and one receiver.
pub(crate) trait Ends: 'static {
    type Sender<V: Send + 'static>: Send + 'static;
    type Receiver<V: Send + 'static>: Send + 'static;

    /// Makes one that holds so many elements.
    fn bounded<V: Send + 'static>(capacity: usize) -> (Self::Sender<V>, Self::Receiver<V>);

    /// Sends an element, and tells whether anybody listens.
    fn send<V: Send + 'static>(sender: &mut Self::Sender<V>, element: V)
    -> impl Future<Output = bool> + Send;

    /// Takes one; none when there are no more.
    fn receive<V: Send + 'static>(receiver: &mut Self::Receiver<V>)
    -> impl Future<Output = Option<V>> + Send;

    /// Returns how often either end has waited; none where nobody can tell.
    fn waits<V: Send + 'static>(receiver: &Self::Receiver<V>) -> Option<u64>;
}

/// The crate's: it allocates for whoever waits.
pub(crate) enum Flume {}

impl Ends for Flume {
    type Sender<V: Send + 'static> = flume::Sender<V>;
    type Receiver<V: Send + 'static> = flume::Receiver<V>;

    fn bounded<V: Send + 'static>(capacity: usize) -> (flume::Sender<V>, flume::Receiver<V>) {
        flume::bounded(capacity)
    }

    async fn send<V: Send + 'static>(sender: &mut flume::Sender<V>, element: V) -> bool {
        sender.send_async(element).await.is_ok()
    }

    async fn receive<V: Send + 'static>(receiver: &mut flume::Receiver<V>) -> Option<V> {
        receiver.recv_async().await.ok()
    }

    fn waits<V: Send + 'static>(_: &flume::Receiver<V>) -> Option<u64> {
        None
    }
}

/// Ours, its cancellation handlers kept as `H` says.
pub(crate) struct Own<H>(PhantomData<H>);

impl<H: Handler> Ends for Own<H> {
    type Sender<V: Send + 'static> = Sender<V, H>;
    type Receiver<V: Send + 'static> = Receiver<V, H>;

    fn bounded<V: Send + 'static>(capacity: usize) -> (Sender<V, H>, Receiver<V, H>) {
        channel(capacity)
    }

    async fn send<V: Send + 'static>(sender: &mut Sender<V, H>, element: V) -> bool {
        sender.send(element).await.is_ok()
    }

    async fn receive<V: Send + 'static>(receiver: &mut Receiver<V, H>) -> Option<V> {
        receiver.receive().await
    }

    fn waits<V: Send + 'static>(receiver: &Receiver<V, H>) -> Option<u64> {
        Some(receiver.waits())
    }
}

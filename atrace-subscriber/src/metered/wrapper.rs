//! The type that meters any subscriber by wrapping it.

use std::any::TypeId;

use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};

use super::ids::{Found, Ids};
use super::meter::{UNKNOWN, number_of};
use super::thread;
use super::{Call, Meter};

/// Wraps a subscriber, and makes the [bill](super) of its calls.
///
/// All calls are passed on to the subscriber, and the subscriber's results are returned. `Dispatch::downcast_ref` finds
/// this type, the [`Meter`], and all types that it would find without the wrapper.
///
/// A stack of layers is wrapped as a whole. The cost of a callsite is then the cost of all layers and of the registry
/// together.
#[derive(Debug)]
pub struct Metered<S> {
    subscriber: S,
    meter: Meter,
    /// The callsites of the spans, by the spans' ids.
    ids: Ids,
}

impl<S: Subscriber> Metered<S> {
    /// Wraps a subscriber, and begins its bill. This takes about a millisecond, because the cost of metering itself is
    /// measured.
    pub fn new(subscriber: S) -> Self {
        Self { subscriber, meter: Meter::new("the subscriber"), ids: Ids::new() }
    }

    /// Times one of `one_in` calls on average. The default is 128, or up to 8,192 if the clock is slow. A timed call
    /// takes some hundred nanoseconds longer than other calls.
    ///
    /// Call this before the subscriber is used. 0 means 1: all calls are timed. The maximum is 32,768.
    #[must_use]
    pub fn with_sampling(self, one_in: u32) -> Self {
        self.meter.0.set_one_in(one_in);
        self
    }

    /// Returns a handle that makes the bill, also after the subscriber was installed.
    pub fn meter(&self) -> Meter {
        self.meter
    }

    /// Calls `body`, and meters it as a call of the kind `call` for this callsite. Returns the result of `body` and the
    /// number of the callsite. Most calls are not timed; so that they are fast, their path saves no registers.
    #[inline(always)]
    fn call<R>(
        &self,
        metadata: &'static Metadata<'static>,
        call: Call,
        body: impl Fn(&S) -> R,
    ) -> (R, usize) {
        let state = self.meter.0;
        match state.passes(metadata, call) {
            Some(number) => (body(&self.subscriber), number),
            None => slowly(move || {
                let timing = state.time(metadata, call);
                let result = body(&self.subscriber);
                drop(timing);
                (result, number_of(metadata))
            }),
        }
    }

    /// Stores the number of the callsite of a new span.
    #[inline(always)]
    fn note(&self, id: &Id, number: usize) {
        self.ids.add(id.into_u64(), number, thread::with(|thread| thread.lane.get()));
    }

    /// Does the same as [`call`](Self::call) for a span that already has an id. Instead of the callsite's number,
    /// returns the entry that the id had before the call.
    #[inline(always)]
    fn span_call<R>(&self, id: &Id, call: Call, body: impl Fn(&S) -> R) -> (R, Option<Found<'_>>) {
        let (state, id) = (self.meter.0, id.into_u64());
        match self.ids.find_first(id) {
            Some(found) if state.number_passes(found.1, call) => (body(&self.subscriber), Some(found)),
            _ => slowly(move || {
                let found = self.ids.find(id);
                let _timing = state.time_number(found.map_or(UNKNOWN, |(_, number)| number), call);
                (body(&self.subscriber), found)
            }),
        }
    }
}

#[cold]
#[inline(never)]
fn slowly<R>(call: impl FnOnce() -> R) -> R {
    call()
}

impl<S: Subscriber> Subscriber for Metered<S> {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.subscriber.on_register_dispatch(dispatch);
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let interest = self.subscriber.register_callsite(metadata);
        self.meter.register(metadata, &interest);
        interest
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let (state, number) = (self.meter.0, number_of(metadata));
        if state.number_passes(number, Call::Check) {
            return self.subscriber.enabled(metadata);
        }
        slowly(move || {
            let _timing = state.time_number(number, Call::Check);
            self.subscriber.enabled(metadata)
        })
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.subscriber.max_level_hint()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let (id, number) = self.call(metadata, Call::New, |subscriber| subscriber.new_span(attributes));
        self.note(&id, number);
        id
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.span_call(id, Call::Record, |subscriber| subscriber.record(id, values));
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        self.span_call(id, Call::Record, |subscriber| subscriber.record_follows_from(id, follows));
    }

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        self.call(event.metadata(), Call::Check, |subscriber| subscriber.event_enabled(event)).0
    }

    fn event(&self, event: &Event<'_>) {
        self.call(event.metadata(), Call::Event, |subscriber| subscriber.event(event));
    }

    fn enter(&self, id: &Id) {
        self.span_call(id, Call::Enter, |subscriber| subscriber.enter(id));
    }

    fn exit(&self, id: &Id) {
        self.span_call(id, Call::Exit, |subscriber| subscriber.exit(id));
    }

    fn clone_span(&self, id: &Id) -> Id {
        let (clone, found) = self.span_call(id, Call::Clone, |subscriber| subscriber.clone_span(id));
        // A subscriber may give another id to a clone of a span.
        if let Some((_, number)) = found.filter(|_| clone != *id) {
            self.note(&clone, number);
        }
        clone
    }

    #[allow(deprecated, reason = "it is passed on as well")]
    fn drop_span(&self, id: Id) {
        self.try_close(id);
    }

    fn try_close(&self, id: Id) -> bool {
        let (is_closed, found) =
            self.span_call(&id, Call::Close, |subscriber| subscriber.try_close(id.clone()));
        // Removes the entry that the id had before the call. The id's present entry may belong to another span, to
        // which the subscriber has already given the id.
        if is_closed && let Some((place, _)) = found {
            Ids::remove(place);
        }
        is_closed
    }

    fn current_span(&self) -> Current {
        self.subscriber.current_span()
    }

    #[allow(unsafe_code, reason = "the trait declares the function so")]
    // SAFETY: the pointer is to a value of the type with this id, which lives as long as `self`, as the trait requires.
    unsafe fn downcast_raw(&self, id: TypeId) -> Option<*const ()> {
        if id == TypeId::of::<Self>() {
            Some(std::ptr::from_ref(self).cast())
        } else if id == TypeId::of::<Meter>() {
            Some(std::ptr::from_ref(&self.meter).cast())
        } else {
            // SAFETY: the wrapped subscriber is a field of `self`, so it lives as long, and keeps the same promise.
            unsafe { self.subscriber.downcast_raw(id) }
        }
    }
}

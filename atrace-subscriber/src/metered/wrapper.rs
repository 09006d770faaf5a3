//! The type that meters any subscriber by wrapping it.

use std::any::TypeId;

use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};

use super::ids::{Ids, Place};
use super::meter::{Timing, UNKNOWN, number_of};
use super::thread;
use super::{Bill, Call, Meter};

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
    ids: &'static Ids,
}

impl<S: Subscriber> Metered<S> {
    /// Wraps a subscriber, and begins its bill. This takes about a millisecond, because the cost of metering itself is
    /// measured.
    pub fn new(subscriber: S) -> Self {
        Self { subscriber, meter: Meter::new("the subscriber"), ids: Box::leak(Box::new(Ids::new())) }
    }

    /// Times one of `one_in` calls. The default is 128. A timed call takes some hundred nanoseconds longer than other
    /// calls.
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

    /// Returns the bill: the cost of each callsite so far.
    pub fn bill(&self) -> Bill {
        self.meter.bill()
    }

    /// Calls `body` and meters it as a call for this callsite. Most calls are not timed; the path for them saves no
    /// registers.
    #[inline(always)]
    fn call<R>(&self, metadata: &'static Metadata<'static>, call: Call, body: impl Fn(&S) -> R) -> R {
        let state = self.meter.0;
        if state.passes(metadata, call) {
            return body(&self.subscriber);
        }
        timed(move || state.time(metadata, call), move || body(&self.subscriber))
    }

    /// Stores the number of the callsite of a new span.
    #[inline(always)]
    fn note(&self, id: &Id, number: usize) {
        self.ids.add(id.into_u64(), number, thread::with(|thread| thread.lane.get()));
    }

    /// Returns the number of a span's callsite, and the place where the number is stored.
    #[inline(always)]
    fn span(&self, id: &Id) -> (usize, Option<Place>) {
        self.ids.find(id.into_u64()).map_or((UNKNOWN, None), |(place, number)| (number, Some(place)))
    }

    /// Does the same as [`call`](Self::call), for a span that has an id.
    #[inline(always)]
    fn span_call<R>(&self, id: &Id, call: Call, body: impl Fn(&S) -> R) -> R {
        self.number_call(self.span(id).0, call, body)
    }

    #[inline(always)]
    fn number_call<R>(&self, number: usize, call: Call, body: impl Fn(&S) -> R) -> R {
        let state = self.meter.0;
        if state.number_passes(number, call) {
            return body(&self.subscriber);
        }
        timed(move || state.time_number(number, call), move || body(&self.subscriber))
    }
}

#[cold]
#[inline(never)]
fn timed<R>(begin: impl FnOnce() -> Option<Timing>, body: impl FnOnce() -> R) -> R {
    let _timing = begin();
    body()
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
        self.number_call(number_of(metadata), Call::Check, |subscriber| subscriber.enabled(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.subscriber.max_level_hint()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let id = self.call(metadata, Call::New, |subscriber| subscriber.new_span(attributes));
        self.note(&id, number_of(metadata));
        id
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.span_call(id, Call::Record, |subscriber| subscriber.record(id, values));
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        self.span_call(id, Call::Record, |subscriber| subscriber.record_follows_from(id, follows));
    }

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        self.call(event.metadata(), Call::Check, |subscriber| subscriber.event_enabled(event))
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
        let (callsite, place) = self.span(id);
        let clone = self.number_call(callsite, Call::Clone, |subscriber| subscriber.clone_span(id));
        // A subscriber may give a clone an id of its own.
        if place.is_some() && clone != *id {
            self.note(&clone, callsite);
        }
        clone
    }

    #[allow(deprecated, reason = "it is passed on as well")]
    fn drop_span(&self, id: Id) {
        self.try_close(id);
    }

    fn try_close(&self, id: Id) -> bool {
        // Once the subscriber has closed the span, it may give its id to another one.
        let (callsite, place) = self.span(&id);
        let is_closed =
            self.number_call(callsite, Call::Close, |subscriber| subscriber.try_close(id.clone()));
        if let Some(place) = place.filter(|_| is_closed) {
            self.ids.remove(place);
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
            // SAFETY: the subscriber is a part of this one, and keeps the same promise.
            unsafe { self.subscriber.downcast_raw(id) }
        }
    }
}

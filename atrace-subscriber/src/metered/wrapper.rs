//! Wraps any subscriber.

use std::any::TypeId;

use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};

use super::meter::{Timing, Which};
use super::{Bill, Call, Meter};

/// Wraps a subscriber, and makes the [bill](super) of its calls.
///
/// Everything is passed on to the subscriber, and its answers are returned. `Dispatch::downcast_ref` finds this type, the [`Meter`], and
/// all that it finds in the subscriber.
///
/// A stack of layers is wrapped as a whole. Then a callsite's cost is that of all layers and of the registry.
#[derive(Debug)]
pub struct Metered<S> {
    subscriber: S,
    meter: Meter,
}

impl<S: Subscriber> Metered<S> {
    /// Wraps a subscriber, and begins its bill. Takes about a millisecond, to measure what metering itself costs.
    pub fn new(subscriber: S) -> Self {
        Self { subscriber, meter: Meter::new("the subscriber", true) }
    }

    /// Times one of so many calls; without this, one of 128. A timed call costs some hundred nanoseconds more.
    ///
    /// Call this before the subscriber is used. 0 means 1: all calls are timed.
    #[must_use]
    pub fn with_sampling(self, one_in: u32) -> Self {
        self.meter.0.set_one_in(one_in);
        self
    }

    /// Returns a handle that makes the bill while the subscriber is in use elsewhere.
    pub fn meter(&self) -> Meter {
        self.meter
    }

    /// Returns what each callsite has cost so far.
    pub fn bill(&self) -> Bill {
        self.meter.bill()
    }

    #[inline]
    fn span(&self, id: &Id, call: Call) -> Timing {
        let state = self.meter.0;
        state.time(state.span(id.into_u64()).0, call)
    }
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
        let _timing = self.meter.0.time(Which::Passing(metadata), Call::Check);
        self.subscriber.enabled(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.subscriber.max_level_hint()
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let timing = self.meter.0.time(Which::Callsite(attributes.metadata()), Call::New);
        let id = self.subscriber.new_span(attributes);
        drop(timing);
        self.meter.0.note(id.into_u64(), attributes.metadata());
        id
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let _timing = self.span(id, Call::Record);
        self.subscriber.record(id, values);
    }

    fn record_follows_from(&self, id: &Id, follows: &Id) {
        let _timing = self.span(id, Call::Record);
        self.subscriber.record_follows_from(id, follows);
    }

    fn event_enabled(&self, event: &Event<'_>) -> bool {
        let _timing = self.meter.0.time(Which::Callsite(event.metadata()), Call::Check);
        self.subscriber.event_enabled(event)
    }

    fn event(&self, event: &Event<'_>) {
        let _timing = self.meter.0.time(Which::Callsite(event.metadata()), Call::Event);
        self.subscriber.event(event);
    }

    fn enter(&self, id: &Id) {
        let _timing = self.span(id, Call::Enter);
        self.subscriber.enter(id);
    }

    fn exit(&self, id: &Id) {
        let _timing = self.span(id, Call::Exit);
        self.subscriber.exit(id);
    }

    fn clone_span(&self, id: &Id) -> Id {
        let (which, _) = self.meter.0.span(id.into_u64());
        let timing = self.meter.0.time(which, Call::Clone);
        let clone = self.subscriber.clone_span(id);
        drop(timing);
        // A subscriber may give a clone an id of its own.
        if let Which::Number(callsite) = which
            && clone != *id
        {
            self.meter.0.note_number(clone.into_u64(), callsite);
        }
        clone
    }

    #[allow(deprecated, reason = "it is passed on as well")]
    fn drop_span(&self, id: Id) {
        self.try_close(id);
    }

    fn try_close(&self, id: Id) -> bool {
        // Once the subscriber has closed the span, it may give its id to another one.
        let (which, place) = self.meter.0.span(id.into_u64());
        let timing = self.meter.0.time(which, Call::Close);
        let is_closed = self.subscriber.try_close(id);
        drop(timing);
        if let Some(place) = place.filter(|_| is_closed) {
            self.meter.0.forget(place);
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

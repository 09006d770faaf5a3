//! The use of [`Atrace`] without other layers: it writes spans and events without a `Registry`.

use std::num::NonZeroU64;

use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};

use crate::callsites::Callsite;
use crate::interest_cache::{DETACHED, Follower};
use crate::layer::Atrace;
use crate::metered::Call;
use crate::span::Span;
use crate::span_stack;

/// Writes spans and events to ATrace or to Perfetto, as a subscriber without other layers or as a layer.
///
/// This type, used as a subscriber, is the fastest way to trace. It needs no `Registry`, and seldom stores a
/// [synchronous](crate#lives) span without fields. Once its buffers exist, it seldom allocates: for a span with a field
/// `atrace.track` or a field that names the span, and when more spans or [lives](crate#lives) are open than ever
/// before.
///
/// ```
/// use atrace_subscriber::AtraceSubscriber;
///
/// # let _ = || {
/// tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter()).expect("none was set before");
/// # };
/// ```
///
/// Together with other layers it can be used as a layer, like AOSP's type of the same name. In such a stack
/// prefer [`AtraceLayer`](crate::AtraceLayer), whose filter affects only the layer itself.
///
/// ```
/// use atrace_subscriber::AtraceSubscriber;
/// use tracing_subscriber::prelude::*;
///
/// # let _ = || {
/// tracing_subscriber::registry().with(AtraceSubscriber::default()).init();
/// # };
/// ```
///
/// Two spans of one callsite may have the same [`Id`] if they have no fields or were created while the tag was off,
/// because a trace does not distinguish such spans.
pub type AtraceSubscriber = Atrace<false>;

impl AtraceSubscriber {
    /// Makes callsites cost nothing while the tag is off: the caches of `tracing` are rebuilt at each switch
    /// of tracing.
    ///
    /// While the tag is off, callsites behave as if there were no subscriber. A switch of tracing usually takes effect
    /// within 10 ms, because a thread has to notice the switch first. A span that is created while the tag is off does
    /// not exist for the subscriber, so it does not appear in the trace when it is entered later. (Without a filter it
    /// would appear.)
    ///
    /// If this type is used as a layer, it filters for the whole stack, as AOSP's type does: while the tag is off,
    /// *no layer sees anything*. If other layers must continue to work, use an [`AtraceLayer`](crate::AtraceLayer)
    /// with an [`AtraceFilter`](crate::AtraceFilter).
    ///
    /// A thread, which sleeps in the kernel, notices the switches of tracing. The process has one such thread for
    /// all filters of the same kind:
    ///
    /// - If this type is the subscriber, with or without layers above it, the thread has no file descriptors (where the
    ///   system allows this), so that the program's system calls stay fast: they are slower if threads share a
    ///   descriptor table. If the program has other dispatchers, code of their subscribers may run on this thread:
    ///   `register_callsite`, or the drop of a subscriber.
    /// - If this type is a layer, the thread is an ordinary thread.
    ///
    /// See [`atrace::watch`](mod@atrace::watch) for the cost of the thread,
    /// [`AtraceFilter::without_watch`](crate::AtraceFilter::without_watch) for a filter without a thread, and
    /// [`after_fork`](crate::after_fork) for forked children.
    #[must_use]
    pub fn with_filter(mut self) -> Self {
        self.filter.get_or_insert_with(Follower::new);
        self
    }
}

/// The less frequent parts of the methods of [`Subscriber`]. The functions for a subscriber with a meter are not
/// inlined, so that the code for a subscriber without a meter saves no registers for them.
impl AtraceSubscriber {
    /// Makes a span that may have to be stored or metered. This function is not inlined, because the code is
    /// large compared to the path while the tag is off.
    #[inline(never)]
    fn new_seldom(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        if metadata.fields().is_empty()
            && !self.recorder.is_special()
            && let Some(callsite) = Callsite::known(metadata)
        {
            return if callsite.has_to_be_watched() {
                self.new_watched(attributes)
            } else {
                id(Span::plain(callsite))
            };
        }
        self.new_special(attributes)
    }

    #[inline(never)]
    fn new_special(&self, attributes: &Attributes<'_>) -> Id {
        if self.recorder.meter.is_some() {
            self.new_billed(attributes)
        } else {
            self.new_unbilled(attributes)
        }
    }

    /// Makes a span without fields that must be watched, to find out whether it is synchronous. The subscriber must have no
    /// special options.
    #[inline(never)]
    fn new_watched(&self, attributes: &Attributes<'_>) -> Id {
        self.new_stored_if(self.recorder.may_watch_now(), attributes)
    }

    #[inline(always)]
    fn new_unbilled(&self, attributes: &Attributes<'_>) -> Id {
        self.new_stored_if(self.recorder.may_store_now(attributes.metadata()), attributes)
    }

    #[inline(always)]
    fn new_stored_if(&self, may_store: bool, attributes: &Attributes<'_>) -> Id {
        let explicit = |parent: &Id| Some(span(parent));
        let stored = if may_store { self.recorder.store(attributes, 0, &explicit) } else { None };
        let span = stored.or_else(|| Callsite::of(attributes.metadata()).map(Span::plain));
        id(span.unwrap_or(Span::NONE))
    }

    #[cold]
    #[inline(never)]
    fn new_billed(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = || Some(attributes.metadata());
        self.recorder.billed(metadata, Call::New, || self.new_unbilled(attributes))
    }

    #[cold]
    #[inline(never)]
    fn event_billed(&self, event: &Event<'_>) {
        self.recorder.billed(|| Some(event.metadata()), Call::Event, || self.recorder.event(event));
    }

    #[inline(always)]
    fn enter_unbilled(&self, id: &Id) {
        match self.recorder.check() {
            Some(check) => self.recorder.enter(id.into_u64(), span(id), check),
            None => self.recorder.enter_unseen(id.into_u64()),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_billed(&self, id: &Id) {
        self.recorder.billed(|| span(id).metadata(), Call::Enter, || self.enter_unbilled(id));
    }

    #[cold]
    #[inline(never)]
    fn exit_other(&self, id: &Id) {
        if self.recorder.meter.is_some() {
            self.exit_billed(id);
        } else {
            self.recorder.exit_other(id.into_u64());
        }
    }

    #[cold]
    #[inline(never)]
    fn exit_billed(&self, id: &Id) {
        self.recorder.billed(|| span(id).metadata(), Call::Exit, || self.recorder.exit_other(id.into_u64()));
    }

    #[inline(never)]
    fn close_stored(&self, id: Id) -> bool {
        let span = span(&id);
        if self.recorder.meter.is_some() { self.close_billed(span) } else { span_stack::release(span) }
    }

    #[cold]
    #[inline(never)]
    fn close_billed(&self, span: Span) -> bool {
        self.recorder.billed(|| span.metadata(), Call::Close, || span_stack::release(span))
    }
}

/// Returns the `tracing` id of a span. (`Id::from_non_zero_u64` is inlined; `Id::from_u64` is not.)
#[inline(always)]
fn id(span: Span) -> Id {
    const NO_SPANS: NonZeroU64 = NonZeroU64::new(u64::MAX >> 1).unwrap();
    Id::from_non_zero_u64(NonZeroU64::new(span.number()).unwrap_or(NO_SPANS))
}

/// Returns the span for an id that the function [`id`](fn@id) has made.
#[inline(always)]
fn span(id: &Id) -> Span {
    Span::from_number(id.into_u64())
}

impl Subscriber for Atrace<false> {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.recorder.prepare();
        self.recorder.attach();
        if let Some(filter) = &self.filter {
            DETACHED.add_dispatch(dispatch);
            filter.follow(&DETACHED);
        }
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        let is_wanted = self.recorder.directives.pass(metadata);
        let interest = if is_wanted { self.interest() } else { Interest::never() };
        self.recorder.registered(metadata, interest)
    }

    #[inline]
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        self.lets_through() && self.recorder.directives.pass(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.recorder.directives.limit(self.level())
    }

    #[inline]
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        if !self.recorder.may_be_stored(metadata)
            && let Some(callsite) = Callsite::known(metadata)
        {
            return id(Span::plain(callsite));
        }
        self.new_seldom(attributes)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        let span = span(id);
        self.recorder.billed(
            || span.metadata(),
            Call::Record,
            || {
                self.recorder.record(id.into_u64(), span, values);
            },
        );
    }

    /// Records that a span follows from another span. Spans that are not stored share one id per callsite, so no flow
    /// can lead to or from such a span.
    fn record_follows_from(&self, id: &Id, follows: &Id) {
        if span(follows).is_one() && self.recorder.wants_flows() {
            self.recorder.follows_from(span(id), follows.into_u64());
        }
    }

    /// Returns whether the event is passed on to `event`. `tracing` calls this before each event; the answer is false
    /// while the tag is off.
    #[inline]
    fn event_enabled(&self, _: &Event<'_>) -> bool {
        self.recorder.may_be_enabled()
    }

    #[inline]
    fn event(&self, event: &Event<'_>) {
        if self.recorder.meter.is_some() { self.event_billed(event) } else { self.recorder.event(event) }
    }

    #[inline]
    fn enter(&self, id: &Id) {
        if self.recorder.meter.is_some() { self.enter_billed(id) } else { self.enter_unbilled(id) }
    }

    #[inline]
    fn exit(&self, id: &Id) {
        if !self.recorder.exit(id.into_u64()) {
            self.exit_other(id);
        }
    }

    #[inline]
    fn clone_span(&self, id: &Id) -> Id {
        if let Some(stored) = span(id).in_slot() {
            stored.hold();
        }
        id.clone()
    }

    /// Returns whether this call closes the span. If the span is not stored, the result is always false, because the
    /// references to such a span are not counted.
    #[inline]
    fn try_close(&self, id: Id) -> bool {
        // The close of a span that is not stored needs no work, so it is not billed.
        span(&id).in_slot().is_some() && self.close_stored(id)
    }

    fn current_span(&self) -> Current {
        span_stack::current(self.recorder.owner)
            .and_then(|id| Some(Current::new(Id::from_u64(id), Span::from_number(id).metadata()?)))
            .unwrap_or_else(Current::none)
    }
}

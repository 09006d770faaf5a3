//! The subscriber for use without other layers, which is also a layer under AOSP's name.

use std::num::NonZeroU64;

use atrace::AtraceTag;
use tracing_core::span::{Attributes, Current, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::callsites::Callsite;
use crate::entered;
use crate::follow::{DETACHED, Follower, ORDINARY};
use crate::kept;
use crate::layer::{options, record_as_layer};
use crate::recorder::Recorder;
use crate::span::Span;

/// Writes spans and events to ATrace: alone as a subscriber, or as a layer, as AOSP's of the same name.
///
/// Alone is the fastest way: no `Registry` behind it, nothing stored of a span without fields, nothing
/// allocated.
///
/// ```
/// use atrace_subscriber::AtraceSubscriber;
///
/// # let _ = || {
/// tracing::subscriber::set_global_default(AtraceSubscriber::default().with_filter()).expect("none was set before");
/// # };
/// ```
///
/// Where others listen too, it is a layer. There prefer [`AtraceLayer`](crate::AtraceLayer), whose
/// `with_filter` is the one of all layers:
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
/// Two spans of one callsite without fields have the same [`Id`]: in a trace nothing tells them apart.
#[derive(Debug)]
pub struct AtraceSubscriber {
    recorder: Recorder,
    filter: Option<Follower>,
}

impl Default for AtraceSubscriber {
    /// With the tag [`AtraceTag::App`].
    fn default() -> Self {
        Self::new(AtraceTag::App)
    }
}

impl AtraceSubscriber {
    /// Makes a subscriber whose spans and events are written while `tag` is enabled.
    pub fn new(tag: AtraceTag) -> Self {
        Self { recorder: Recorder::new(tag), filter: None }
    }

    /// Has callsites cost nothing while the tag is off: what `tracing` keeps about them follows the switch.
    ///
    /// While off they are as if there were no subscriber, within 10 ms of a switch they are as the switch
    /// says. A span that is made while off does not exist for the subscriber: unlike without filter, it
    /// doesn't appear when it is entered later.
    ///
    /// As a layer it filters for the whole stack, as AOSP's does: while off, *no layer sees anything*. Where
    /// others are to go on listening, use an [`AtraceLayer`](crate::AtraceLayer) with an
    /// [`AtraceFilter`](crate::AtraceFilter).
    ///
    /// The switch is noticed by a thread, one for the process, that sleeps in the kernel. Alone it is one
    /// without file descriptors, which costs the program's system calls the least; but if the program has
    /// other dispatchers, code of their subscribers may run on it (`register_callsite`, or their drop). In a
    /// stack it is an ordinary one. See [`atrace::watch`](mod@atrace::watch) for what a thread costs,
    /// [`without_watch`](Self::without_watch) to have none, and [`after_fork`](crate::after_fork).
    #[must_use]
    pub fn with_filter(mut self) -> Self {
        self.filter.get_or_insert_with(Follower::new);
        self
    }

    /// As [`with_filter`](Self::with_filter), without a thread that watches.
    ///
    /// Nothing tells then when tracing is switched on, so nothing can be kept: every event and every new span
    /// asks whether the tag is enabled, and is dropped if it is not. That costs some nanoseconds while off.
    #[must_use]
    pub fn without_watch(mut self) -> Self {
        self.filter = Some(Follower::without_watch());
        self
    }

    options!();

    /// Apart, as it is much code beside what a span costs while off.
    #[inline(never)]
    fn keep_or_number(&self, attributes: &Attributes<'_>, may_keep: bool) -> Id {
        let span = if may_keep { self.recorder.keep(attributes) } else { None };
        let span = span.or_else(|| Callsite::of(attributes.metadata()).map(Span::plain));
        id(span.unwrap_or(Span::NONE))
    }

    fn interest(&self) -> Interest {
        self.filter.as_ref().map_or_else(Interest::always, |filter| filter.interest(self.recorder.tag))
    }

    fn level(&self) -> Option<LevelFilter> {
        self.filter.as_ref().and_then(|filter| filter.max_level_hint(self.recorder.tag))
    }

    #[inline]
    fn lets_through(&self) -> bool {
        self.filter.is_none() || self.recorder.is_enabled()
    }
}

/// What the program knows a span by. Made of what can't be 0: the other way is a call.
#[inline(always)]
fn id(span: Span) -> Id {
    const NO_SPANS: NonZeroU64 = NonZeroU64::new(u64::MAX >> 1).unwrap();
    Id::from_non_zero_u64(NonZeroU64::new(span.number()).unwrap_or(NO_SPANS))
}

/// The span that an id of ours stands for.
#[inline(always)]
fn span(id: &Id) -> Span {
    Span::from_number(id.into_u64())
}

impl Subscriber for AtraceSubscriber {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        kept::prepare();
        if let Some(filter) = &self.filter {
            DETACHED.add_dispatch(dispatch);
            filter.follow(&DETACHED);
        }
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        self.interest()
    }

    #[inline]
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        self.lets_through()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.level()
    }

    #[inline]
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let may_keep = self.recorder.may_keep_now(metadata);
        if !may_keep && let Some(callsite) = Callsite::known(metadata) {
            return id(Span::plain(callsite));
        }
        self.keep_or_number(attributes, may_keep)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.recorder.record(id.into_u64(), span(id), values);
    }

    /// Of spans that nothing is kept of, all of a callsite have one id: these follow from nothing, and nothing from them.
    fn record_follows_from(&self, id: &Id, follows: &Id) {
        if span(follows).is_one() && self.recorder.wants_flows() {
            self.recorder.follows_from(span(id), follows.into_u64());
        }
    }

    /// Asked before each event: what is off is not even handed over.
    #[inline]
    fn event_enabled(&self, _: &Event<'_>) -> bool {
        self.recorder.may_be_enabled()
    }

    #[inline]
    fn event(&self, event: &Event<'_>) {
        self.recorder.event(event);
    }

    #[inline]
    fn enter(&self, id: &Id) {
        self.recorder.enter(id.into_u64(), span(id));
    }

    #[inline]
    fn exit(&self, id: &Id) {
        self.recorder.exit(id.into_u64());
    }

    #[inline]
    fn clone_span(&self, id: &Id) -> Id {
        if let Some(kept) = span(id).in_slot() {
            kept.hold();
        }
        id.clone()
    }

    /// Tells whether the span is closed by that; of a span that nothing is kept of nobody knows.
    #[inline]
    fn try_close(&self, id: Id) -> bool {
        span(&id).release()
    }

    fn current_span(&self) -> Current {
        entered::current(self.recorder.owner)
            .and_then(|id| Some(Current::new(Id::from_u64(id), Span::from_number(id).metadata()?)))
            .unwrap_or_else(Current::none)
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for AtraceSubscriber {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        kept::prepare();
        ORDINARY.add_dispatch(dispatch);
        if let Some(filter) = &self.filter {
            filter.follow(&ORDINARY);
        }
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        self.interest()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.lets_through()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.level()
    }

    record_as_layer!();
}

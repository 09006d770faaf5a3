//! The layer, for stacks.

use atrace::{AtraceTag, Glance, Slice, glance};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use crate::callsites::Callsite;
use crate::entered::{self, Owner};
use crate::follow::ORDINARY;
use crate::kept;
use crate::recorder::Recorder;
use crate::span::Span;

/// Defines the options that subscriber and layer have alike.
macro_rules! options {
    () => {
        /// Leaves the fields out: an event is its message, or `LEVEL event` without one; a span is its name.
        #[must_use]
        pub fn without_fields(mut self) -> Self {
            self.recorder.fields = false;
            self
        }

        /// Keeps the fields of spans also while the tag is off, for spans that are entered once it is on.
        ///
        /// Otherwise a span that was made while off appears with its name alone. It costs the formatting of all
        /// fields of all spans while off. In filter mode no spans are made while off, and this does nothing.
        #[must_use]
        pub fn with_fields_while_off(mut self) -> Self {
            self.recorder.fields_while_off = true;
            self
        }

        /// Shows each span as an async slice too, or instead: from when it is made to when it closes, on the
        /// track that its target names.
        ///
        /// A future's span is entered at each poll, which the slices on the threads show; the async slice
        /// shows how long the whole took. A span with a field `atrace.track = "name"` has an async slice on
        /// the track of that name, whatever is set here. A span that is made while the tag is off has none.
        #[must_use]
        pub fn with_async_spans(mut self, spans: $crate::AsyncSpans) -> Self {
            self.recorder.async_spans = Some(spans);
            self
        }

        /// [`with_async_spans`](Self::with_async_spans) for the spans whose target is `target` or below it
        /// (`target::…`).
        ///
        /// Of several that match, the longest counts.
        #[must_use]
        pub fn with_async_target(
            mut self,
            target: impl Into<std::borrow::Cow<'static, str>>,
            spans: $crate::AsyncSpans,
        ) -> Self {
            self.recorder.async_targets.push((target.into(), spans));
            self
        }
    };
}
pub(crate) use options;

/// How a span that is shown as an async slice is shown on the threads that enter it.
///
/// See [`AtraceLayer::with_async_spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncSpans {
    /// Also by slices on the threads.
    Beside,
    /// Not at all.
    Instead,
}

/// Writes spans and events to ATrace, as a layer of a stack over a `Registry`.
///
/// ```
/// use atrace_subscriber::{AtraceFilter, AtraceLayer};
/// use tracing_subscriber::prelude::*;
///
/// # let _ = || {
/// tracing_subscriber::registry()
///     .with(AtraceLayer::default().with_filter(AtraceFilter::default()))
///     .init();
/// # };
/// ```
///
/// Where nobody else listens, [`AtraceSubscriber`](crate::AtraceSubscriber) alone is faster.
#[derive(Debug)]
pub struct AtraceLayer {
    recorder: Recorder,
}

impl Default for AtraceLayer {
    /// With the tag [`AtraceTag::App`].
    fn default() -> Self {
        Self::new(AtraceTag::App)
    }
}

impl AtraceLayer {
    /// Makes a layer whose spans and events are written while `tag` is enabled.
    pub fn new(tag: AtraceTag) -> Self {
        Self { recorder: Recorder::new(tag) }
    }

    options!();
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for AtraceLayer {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        kept::prepare();
        ORDINARY.add_dispatch(dispatch);
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.recorder.layer_new_span(attributes, id, &context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.recorder.layer_record(id, values, &context);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.recorder.event(event);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        self.recorder.layer_enter(id, &context);
    }

    fn on_exit(&self, id: &Id, _: Context<'_, S>) {
        self.recorder.exit(id.into_u64());
    }
}

/// What the registry keeps for us with a span: slots, by the layers that they are for. They go when the span
/// does.
struct Held {
    first: (Owner, Span),
    others: Vec<(Owner, Span)>,
}

impl Held {
    fn of(&self, owner: Owner) -> Option<Span> {
        std::iter::once(&self.first)
            .chain(&self.others)
            .find(|(other, _)| *other == owner)
            .map(|(_, span)| *span)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (_, span) in std::iter::once(&self.first).chain(&self.others) {
            if let Some(kept) = span.in_slot() {
                kept.release();
            }
        }
    }
}

/// The part of a recorder that looks spans up in a registry.
pub(crate) trait LayerSpans {
    fn layer_new_span<S>(&self, attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>;

    fn layer_record<S>(&self, id: &Id, values: &Record<'_>, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>;

    fn layer_enter<S>(&self, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>;
}

impl LayerSpans for Recorder {
    fn layer_new_span<S>(&self, attributes: &Attributes<'_>, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let Some(span) = self.new_span(attributes) else { return };
        let Some(in_registry) = context.span(id) else {
            if let Some(kept) = span.in_slot() {
                kept.release();
            }
            return;
        };
        let mut extensions = in_registry.extensions_mut();
        match extensions.get_mut::<Held>() {
            Some(held) => held.others.push((self.owner, span)),
            None => extensions.insert(Held { first: (self.owner, span), others: Vec::new() }),
        }
    }

    fn layer_record<S>(&self, id: &Id, values: &Record<'_>, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        if let Some(span) = context.span(id).and_then(|span| held(&span, self.owner)) {
            self.record(span, values);
        }
    }

    fn layer_enter<S>(&self, id: &Id, context: &Context<'_, S>)
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let mut span = Span::NONE;
        let mut slice = Slice::none();
        if let Some(enabled) = glance(self.tag).and_then(Glance::enabled) {
            span = context.span(id).and_then(|span| self.find(&span)).unwrap_or(Span::NONE);
            slice = span.begin(enabled);
        }
        entered::enter(self.owner, id.into_u64(), span, self.tag, slice);
    }
}

impl Recorder {
    /// The span as it is shown: with what is kept of it, or by its callsite.
    fn find<'a, S: LookupSpan<'a>>(&self, span: &SpanRef<'a, S>) -> Option<Span> {
        let metadata = span.metadata();
        let held = if self.may_keep(metadata) { held(span, self.owner) } else { None };
        held.or_else(|| Callsite::of(metadata).map(Span::plain))
    }
}

fn held<'a, S: LookupSpan<'a>>(span: &SpanRef<'a, S>, owner: Owner) -> Option<Span> {
    span.extensions().get::<Held>().and_then(|held| held.of(owner))
}

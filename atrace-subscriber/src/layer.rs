//! The layer for a stack over a `Registry`, and the options that it shares with [`AtraceSubscriber`](crate::AtraceSubscriber).

use atrace::AtraceTag;
use atrace::tracer::{only_atrace, only_perfetto};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{Extensions, ExtensionsMut, LookupSpan};

use crate::callsites::Callsite;
use crate::interest_cache::ORDINARY;
use crate::recorder::Recorder;
use crate::span::Span;
use crate::span_stack::Owner;
use crate::span_store;

/// Defines the options of both the subscriber and the layer.
macro_rules! options {
    () => {
        /// Writes events to one backend only, even if the other one is on.
        ///
        /// Without this, [`atrace`] chooses a backend for each event: Perfetto if only a session wants it, else ATrace. To write
        /// every event to both, use two layers, one for each backend.
        #[must_use]
        pub fn with_way(mut self, way: $crate::Way) -> Self {
            self.recorder.set_way(way);
            self
        }

        /// Leaves out fields: an event is only its message, or `LEVEL event` without one; a span is only its name.
        #[must_use]
        pub fn without_fields(mut self) -> Self {
            self.recorder.fields = false;
            self
        }

        /// Stores the fields of spans even while the tag is off, for spans that are entered after it is switched on.
        ///
        /// Without this, a span that was created while the tag was off appears with only its name. The cost is that all fields
        /// of all spans are formatted while the tag is off. In filter mode no spans are created while it is off, so this has no
        /// effect.
        #[must_use]
        pub fn with_fields_while_off(mut self) -> Self {
            self.recorder.fields_while_off = true;
            self
        }

        /// Shows each span as an async slice, in addition to its slices on threads or instead of them.
        ///
        /// The async slice lasts from the creation of the span until it closes. Its track has the name of the span's target.
        /// The span of a future is entered at each poll: slices on threads show the polls, the async slice shows the whole.
        ///
        /// A span with a field `atrace.track = "name"` has an async slice on the track of that name, whatever is set here.
        /// A span that is created while the tag is off has none.
        #[must_use]
        pub fn with_async_spans(mut self, spans: $crate::AsyncSpans) -> Self {
            self.recorder.async_spans = Some(spans);
            self.recorder.may_be_async = true;
            self
        }

        /// Does the same as [`with_async_spans`](Self::with_async_spans), for spans whose target is `target` or below it
        /// (`target::…`).
        ///
        /// If several targets match a span, the longest one applies.
        #[must_use]
        pub fn with_async_target(
            mut self,
            target: impl Into<std::borrow::Cow<'static, str>>,
            spans: $crate::AsyncSpans,
        ) -> Self {
            self.recorder.async_targets.push((target.into(), spans));
            self.recorder.may_be_async = true;
            self
        }
    };
}
pub(crate) use options;

/// A backend: the destination of events.
///
/// See [`AtraceLayer::with_way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// ATrace: the kernel's buffer or Android's libraries. Events are text.
    Atrace,
    /// Perfetto's memory. Fields keep their types. It needs [`atrace::perfetto::connect`] or a recording.
    Perfetto,
}

impl Way {
    /// Returns the tag for events that go to this backend only.
    pub(crate) fn only(self, tag: AtraceTag) -> AtraceTag {
        match self {
            Self::Atrace => only_atrace(tag),
            Self::Perfetto => only_perfetto(tag),
        }
    }
}

/// Whether a span with an async slice also has slices on the threads that enter it.
///
/// See [`AtraceLayer::with_async_spans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncSpans {
    /// It has slices on the threads as well.
    Beside,
    /// It has only the async slice.
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
/// Without other layers, use [`AtraceSubscriber`](crate::AtraceSubscriber), which is faster.
#[derive(Debug)]
pub struct AtraceLayer {
    recorder: Recorder,
}

impl Default for AtraceLayer {
    /// Makes a layer with the tag [`AtraceTag::App`].
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

/// Defines the functions of a layer, which pass spans and events to the recorder. They are compiled again for each
/// type of the subscribers' stack, so they contain as little code as possible.
macro_rules! record_as_layer {
    () => {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            if let Some(span) = self.recorder.new_span(attributes) {
                match context.span(id) {
                    Some(in_registry) => {
                        $crate::layer::store(&mut in_registry.extensions_mut(), self.recorder.owner, span);
                    }
                    None => {
                        span.release();
                    }
                }
            }
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
            let Some(in_registry) = context.span(id) else { return };
            let stored = $crate::layer::stored(&in_registry.extensions(), self.recorder.owner);
            if let Some(span) = stored {
                self.recorder.record(id.into_u64(), span, values);
            }
        }

        fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
            if !self.recorder.wants_flows() {
                return;
            }
            let Some(in_registry) = context.span(id) else { return };
            let stored = $crate::layer::stored(&in_registry.extensions(), self.recorder.owner);
            let span = stored.or_else(|| {
                let span = $crate::recorder::Recorder::store_empty(in_registry.metadata())?;
                $crate::layer::store(&mut in_registry.extensions_mut(), self.recorder.owner, span);
                Some(span)
            });
            if let Some(span) = span {
                self.recorder.follows_from(span, follows.into_u64());
            }
        }

        fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
            if self.recorder.may_be_enabled() {
                self.recorder.event(event);
            }
        }

        fn on_enter(&self, id: &Id, context: Context<'_, S>) {
            let mut span = None;
            if self.recorder.may_be_enabled()
                && let Some(in_registry) = context.span(id)
            {
                let metadata = in_registry.metadata();
                // For Perfetto any span may be stored, because of the spans that it follows from.
                if self.recorder.may_store(metadata) || atrace::tracer::is_perfetto_enabled() {
                    span = $crate::layer::stored(&in_registry.extensions(), self.recorder.owner);
                }
                span = span.or_else(|| Callsite::of(metadata).map(Span::plain_in_registry));
            }
            self.recorder.enter(id.into_u64(), span.unwrap_or(Span::NONE));
        }

        fn on_exit(&self, id: &Id, _: Context<'_, S>) {
            self.recorder.exit(id.into_u64());
        }
    };
}
pub(crate) use record_as_layer;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for AtraceLayer {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        span_store::prepare();
        ORDINARY.add_dispatch(dispatch);
    }

    record_as_layer!();
}

/// The stored spans of this crate's layers for one span of the registry. The registry drops it when the span closes.
struct StoredSpans {
    first: (Owner, Span),
    others: Vec<(Owner, Span)>,
}

impl StoredSpans {
    fn all(&self) -> impl Iterator<Item = (Owner, Span)> {
        std::iter::once(&self.first).chain(&self.others).copied()
    }
}

impl Drop for StoredSpans {
    fn drop(&mut self) {
        for (_, span) in self.all() {
            span.release();
        }
    }
}

#[inline(never)]
pub(crate) fn store(extensions: &mut ExtensionsMut<'_>, owner: Owner, span: Span) {
    match extensions.get_mut::<StoredSpans>() {
        Some(stored) => stored.others.push((owner, span)),
        None => extensions.insert(StoredSpans { first: (owner, span), others: Vec::new() }),
    }
}

#[inline(never)]
pub(crate) fn stored(extensions: &Extensions<'_>, owner: Owner) -> Option<Span> {
    let stored = extensions.get::<StoredSpans>()?;
    stored.all().find(|(of, _)| *of == owner).map(|(_, span)| span)
}

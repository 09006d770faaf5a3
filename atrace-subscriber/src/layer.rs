//! The layer for a stack over a registry, and the options that all layers of this crate share.

use atrace::__typed::{only_atrace, only_perfetto};
use atrace::AtraceTag;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{Extensions, ExtensionsMut, LookupSpan};

use crate::callsites::Callsite;
use crate::entered::Owner;
use crate::follow::ORDINARY;
use crate::kept;
use crate::recorder::Recorder;
use crate::span::Span;

/// Defines the options that subscriber and layer have alike.
macro_rules! options {
    () => {
        /// Writes one way only, also while the other one is on.
        ///
        /// Without this each event goes the way that [`atrace`] chooses: to Perfetto's memory where only a session
        /// asks for it, else to ATrace. Two layers with a way each write every event to both.
        #[must_use]
        pub fn with_way(mut self, way: $crate::Way) -> Self {
            self.recorder.set_way(way);
            self
        }

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
            self.recorder.may_be_async = true;
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
            self.recorder.may_be_async = true;
            self
        }
    };
}
pub(crate) use options;

/// A way for events out of the process.
///
/// See [`AtraceLayer::with_way`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Way {
    /// The kernel's buffer, or Android's libraries, as text.
    Atrace,
    /// Perfetto's memory, with types. It needs [`atrace::perfetto::connect`] or a recording.
    Perfetto,
}

impl Way {
    /// The tag for events that go this way only.
    pub(crate) fn only(self, tag: AtraceTag) -> AtraceTag {
        match self {
            Self::Atrace => only_atrace(tag),
            Self::Perfetto => only_perfetto(tag),
        }
    }
}

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

/// Defines how a layer hands spans and events to its recorder. What depends on the type of the stack is as little as can be.
macro_rules! record_as_layer {
    () => {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            if let Some(span) = self.recorder.new_span(attributes) {
                match context.span(id) {
                    Some(in_registry) => {
                        $crate::layer::keep(&mut in_registry.extensions_mut(), self.recorder.owner, span);
                    }
                    None => {
                        span.release();
                    }
                }
            }
        }

        fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
            let Some(in_registry) = context.span(id) else { return };
            let kept = $crate::layer::kept(&in_registry.extensions(), self.recorder.owner);
            if let Some(span) = kept {
                self.recorder.record(id.into_u64(), span, values);
            }
        }

        fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
            if !self.recorder.wants_flows() {
                return;
            }
            let Some(in_registry) = context.span(id) else { return };
            let kept = $crate::layer::kept(&in_registry.extensions(), self.recorder.owner);
            let span = kept.or_else(|| {
                let span = $crate::recorder::Recorder::keep_nothing(in_registry.metadata())?;
                $crate::layer::keep(&mut in_registry.extensions_mut(), self.recorder.owner, span);
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
                // By Perfetto's way of any span, as what it follows from is.
                if self.recorder.may_keep(metadata) || atrace::__typed::is_used() {
                    span = $crate::layer::kept(&in_registry.extensions(), self.recorder.owner);
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
        kept::prepare();
        ORDINARY.add_dispatch(dispatch);
    }

    record_as_layer!();
}

/// What the registry has of a span for us: what is kept of it, by the layers that keep it. It goes when the span does.
struct KeptSpans {
    first: (Owner, Span),
    others: Vec<(Owner, Span)>,
}

impl KeptSpans {
    fn all(&self) -> impl Iterator<Item = (Owner, Span)> {
        std::iter::once(&self.first).chain(&self.others).copied()
    }
}

impl Drop for KeptSpans {
    fn drop(&mut self) {
        for (_, span) in self.all() {
            span.release();
        }
    }
}

#[inline(never)]
pub(crate) fn keep(extensions: &mut ExtensionsMut<'_>, owner: Owner, span: Span) {
    match extensions.get_mut::<KeptSpans>() {
        Some(kept) => kept.others.push((owner, span)),
        None => extensions.insert(KeptSpans { first: (owner, span), others: Vec::new() }),
    }
}

#[inline(never)]
pub(crate) fn kept(extensions: &Extensions<'_>, owner: Owner) -> Option<Span> {
    let kept = extensions.get::<KeptSpans>()?;
    kept.all().find(|(of, _)| *of == owner).map(|(_, span)| span)
}

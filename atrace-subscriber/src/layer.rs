//! The type [`Atrace`] with its options, and its use as a layer of a stack over a `Registry`. Its use without other
//! layers is in `subscriber.rs`.

use std::borrow::Cow;

use atrace::AtraceTag;
use atrace::tracer::GateCheck;
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Dispatch, Event, Interest, LevelFilter, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{Extensions, LookupSpan, SpanRef};

use crate::async_spans::AsyncSpans;
use crate::callsites::Callsite;
use crate::interest_cache::{Follower, ORDINARY};
use crate::metered::Call;
use crate::recorder::Recorder;
use crate::span::Span;
use crate::span_stack::{self, Owner, flow_id};
use crate::span_store::{self, by_id};

/// Writes spans and events to ATrace or to Perfetto. A program uses this type under one of its two names,
/// [`AtraceSubscriber`](crate::AtraceSubscriber), or [`AtraceLayer`] if `IN_STACK` is true. Both have the options that
/// are documented here.
///
/// The default tag is [`AtraceTag::App`].
#[derive(Debug, Default)]
pub struct Atrace<const IN_STACK: bool> {
    pub(crate) recorder: Recorder,
    /// The filter for the whole stack, which only an [`AtraceSubscriber`](crate::AtraceSubscriber) may have.
    pub(crate) filter: Option<Follower>,
}

/// Writes spans and events to ATrace or to Perfetto, as a layer of a stack over a `Registry`.
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
pub type AtraceLayer = Atrace<true>;

impl<const IN_STACK: bool> Atrace<IN_STACK> {
    /// Makes a subscriber or layer whose spans and events are written while `tag` is enabled.
    ///
    /// The tag may be restricted [to one backend](crate#one-backend).
    pub fn new(tag: AtraceTag) -> Self {
        Self { recorder: Recorder::new(tag), filter: None }
    }

    /// Prevents `atrace record` from finding the process.
    ///
    /// Without this option, a subscriber in use calls [`atrace::atrace_init`], which lets `atrace record` find the
    /// process. The option has no effect if other code of the process calls that function.
    #[must_use]
    pub fn without_attach(mut self) -> Self {
        self.recorder.attaches = false;
        self
    }

    /// Leaves out fields, except counters. An event is shown by its message alone or, if it has no message, as an event
    /// that has no fields. A span is shown by its name alone.
    #[must_use]
    pub fn without_fields(mut self) -> Self {
        self.recorder.fields = false;
        self
    }

    /// Names a span by the value of its field `field`, if it has that field, instead of the name in the
    /// program.
    ///
    /// The field `otel.name` always names a span, as with `tracing-opentelemetry`. If several fields of a span name it,
    /// the first of them counts. The field may be given when the span is created, or
    /// [recorded](tracing_core::span::Record) later. A name that is recorded later appears from the next slice of the
    /// span on. A field that names a span is still shown as a field, too.
    #[must_use]
    pub fn with_name_field(mut self, field: impl Into<Cow<'static, str>>) -> Self {
        self.recorder.name_fields.push(field.into());
        self
    }

    /// Stores the fields of spans even while the tag is off. So a span that was created while the tag was off has its
    /// fields if it is entered after the tag is switched on.
    ///
    /// Without this option, a span that was created while the tag was off appears with only its name. With this
    /// option, all fields of all spans are formatted even while the tag is off. With a filter, no spans are
    /// created while the tag is off, so the option has no effect.
    #[must_use]
    pub fn with_fields_while_off(mut self) -> Self {
        self.recorder.set_fields_while_off();
        self
    }

    /// Chooses where spans are shown: on the threads that enter them, as async slices, or both. This applies to spans
    /// whose target is `target` or begins with `target::`; the empty target, `""`, stands for all spans. If several
    /// targets match a span, the longest one applies.
    ///
    /// The span of a future is entered at each poll: slices on threads show the polls, the async slice shows the
    /// whole *life*, from the creation of the span until it closes. See [lives](crate#lives).
    ///
    /// The default is [`Beside`](AsyncSpans::Beside) for Perfetto and [`Never`](AsyncSpans::Never) for ATrace. An event
    /// of ATrace always has the present time, so the begin of an async slice must be written at the span's creation,
    /// when it is not known yet whether the span is asynchronous. For ATrace, the track of an async slice has the name
    /// of the span's target.
    ///
    /// A span with a field `atrace.track = "name"` has an async slice on the track of that name from its creation
    /// on, whatever this option says. A span that is created while the tag is off has no async slice.
    ///
    /// # Examples
    ///
    /// ```
    /// use atrace_subscriber::{AsyncSpans, AtraceLayer};
    ///
    /// // Lives of the spans of the crate `hyper` only.
    /// let layer = AtraceLayer::default()
    ///     .with_async_spans("", AsyncSpans::Never)
    ///     .with_async_spans("hyper", AsyncSpans::Beside);
    /// # drop(layer);
    /// ```
    #[must_use]
    pub fn with_async_spans(mut self, target: impl Into<Cow<'static, str>>, spans: AsyncSpans) -> Self {
        self.recorder.set_async_spans(target.into(), spans);
        self
    }

    pub(crate) fn interest(&self) -> Interest {
        self.filter.as_ref().map_or_else(Interest::always, |filter| filter.interest(self.recorder.tag))
    }

    pub(crate) fn level(&self) -> Option<LevelFilter> {
        self.filter.as_ref().and_then(|filter| filter.max_level_hint(self.recorder.tag))
    }

    #[inline]
    pub(crate) fn lets_through(&self) -> bool {
        IN_STACK || self.filter.is_none() || self.recorder.is_enabled()
    }
}

/// Stores a new span if it has to be stored. This function is not inlined, so that the code that runs while the tag is
/// off saves no registers.
#[inline(never)]
fn new_span<S: Subscriber + for<'a> LookupSpan<'a>>(
    recorder: &Recorder,
    attributes: &Attributes<'_>,
    id: &Id,
    context: Context<'_, S>,
) {
    if recorder.is_simple() {
        new_span_that_passes(recorder, attributes, id, context);
    } else {
        recorder.with_care(Some(attributes.metadata()), Call::New, |passes| {
            if passes {
                new_span_that_passes(recorder, attributes, id, context);
            }
        });
    }
}

#[inline(always)]
fn new_span_that_passes<S: Subscriber + for<'a> LookupSpan<'a>>(
    recorder: &Recorder,
    attributes: &Attributes<'_>,
    id: &Id,
    context: Context<'_, S>,
) {
    let explicit = |parent: &Id| stored(&context.span(parent)?, recorder.owner, parent);
    if let Some(span) = recorder.new_span(attributes, id.into_u64(), &explicit) {
        store(&context, recorder.owner, id, span, attributes.metadata());
    }
}

/// Enters a span while the tag may be enabled. This function is not inlined, for the same reason as
/// [`new_span`].
#[inline(never)]
fn enter<S: Subscriber + for<'a> LookupSpan<'a>>(
    recorder: &Recorder,
    id: &Id,
    context: Context<'_, S>,
    check: GateCheck,
) {
    if recorder.is_simple() {
        enter_that_passes(recorder, id, context, check);
    } else {
        recorder.with_care(context.metadata(id), Call::Enter, |passes| {
            if passes {
                enter_that_passes(recorder, id, context, check);
            } else {
                recorder.enter(id.into_u64(), Span::NONE, check);
            }
        });
    }
}

#[inline(always)]
fn enter_that_passes<S: Subscriber + for<'a> LookupSpan<'a>>(
    recorder: &Recorder,
    id: &Id,
    context: Context<'_, S>,
    check: GateCheck,
) {
    let in_registry = || {
        let in_registry = context.span(id)?;
        let metadata = in_registry.metadata();
        // For Perfetto, even a span without fields may be stored, because of the spans that it follows from.
        let may_be_stored = recorder.may_store(metadata) || atrace::tracer::is_perfetto_enabled();
        let stored =
            if may_be_stored { in_extensions(&in_registry.extensions(), recorder.owner) } else { None };
        stored.or_else(|| Callsite::of(metadata).map(Span::plain_in_registry))
    };
    let span = by_id::find(flow_id(recorder.owner, id.into_u64())).or_else(in_registry);
    recorder.enter(id.into_u64(), span.unwrap_or(Span::NONE), check);
}

/// Leaves a span for which [`Recorder::exit`] has returned false.
#[cold]
#[inline(never)]
fn exit_other<S: Subscriber + for<'a> LookupSpan<'a>>(recorder: &Recorder, id: &Id, context: Context<'_, S>) {
    // The exit is billed only while the tag may be enabled, as the enter is.
    let metadata = || context.metadata(id).filter(|_| recorder.may_be_enabled());
    recorder.billed(metadata, Call::Exit, || recorder.exit_other(id.into_u64()));
}

/// Closes a span for which [`Recorder::close_left_last`] has returned false. This function is not inlined, for the same
/// reason as [`new_span`].
///
/// The stored span is closed here and not when the registry drops the span's data. The registry drops the data some
/// time after it has reported the close, and sometimes never: a span that closes while the close of another span is
/// reported on the same thread stays in the registry.
#[inline(never)]
fn close<S: Subscriber + for<'a> LookupSpan<'a>>(recorder: &Recorder, id: &Id, context: Context<'_, S>) {
    let stored = |id: &Id| stored(&context.span(id)?, recorder.owner, id);
    stored(id).into_iter().for_each(span_stack::close);
}

/// Writes an event while the tag may be enabled. This function is not inlined, for the same reason as
/// [`new_span`].
#[inline(never)]
fn write_event(recorder: &Recorder, event: &Event<'_>) {
    if recorder.is_simple() {
        return recorder.event(event);
    }
    recorder.with_care(Some(event.metadata()), Call::Event, |passes| {
        if passes {
            recorder.event(event);
        }
    });
}

/// These functions pass spans and events to the recorder. They are compiled anew for each type of a subscriber stack,
/// so they contain as little code as possible.
impl<S: Subscriber + for<'a> LookupSpan<'a>, const IN_STACK: bool> Layer<S> for Atrace<IN_STACK> {
    fn on_register_dispatch(&self, dispatch: &Dispatch) {
        self.recorder.prepare();
        self.recorder.attach();
        ORDINARY.add_dispatch(dispatch);
        if let Some(filter) = &self.filter {
            filter.follow(&ORDINARY);
        }
    }

    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.recorder.registered(metadata, self.interest())
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.lets_through()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.level()
    }

    #[inline]
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if self.recorder.may_be_stored(attributes.metadata()) {
            new_span(&self.recorder, attributes, id, context);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.recorder.billed(
            || context.metadata(id),
            Call::Record,
            || {
                let Some(in_registry) = context.span(id) else { return };
                let stored = stored(&in_registry, self.recorder.owner, id);
                if let Some(span) = stored {
                    self.recorder.record(id.into_u64(), span, values);
                }
            },
        );
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        if !self.recorder.wants_flows() {
            return;
        }
        let Some(in_registry) = context.span(id) else { return };
        let stored = stored(&in_registry, self.recorder.owner, id);
        let span = stored.or_else(|| {
            let span = Recorder::store_empty(in_registry.metadata())?;
            store(&context, self.recorder.owner, id, span, in_registry.metadata());
            Some(span)
        });
        if let Some(span) = span {
            self.recorder.follows_from(span, follows.into_u64());
        }
    }

    #[inline]
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if self.recorder.may_be_enabled() {
            write_event(&self.recorder, event);
        }
    }

    #[inline]
    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        match self.recorder.check() {
            Some(check) => enter(&self.recorder, id, context, check),
            None => self.recorder.enter_unseen_inside(id.into_u64()),
        }
    }

    #[inline]
    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if !self.recorder.exit(id.into_u64()) {
            exit_other(&self.recorder, id, context);
        }
    }

    #[inline]
    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if !span_store::has_shown() {
            return;
        }
        if !self.recorder.may_be_enabled() {
            self.recorder.close_while_off(id.into_u64());
        } else if !self.recorder.close_left_last(id.into_u64()) {
            close(&self.recorder, &id, context);
        }
    }
}

/// The stored spans that this crate's layers have for one span of the registry, except stored spans that are only in
/// the table of [`by_id`]. The registry drops this value after the span has closed, or never (see [`close`]).
struct StoredSpans {
    first: (Owner, Span),
    others: Vec<(Owner, Span)>,
}

impl Drop for StoredSpans {
    #[inline(always)]
    fn drop(&mut self) {
        span_stack::release_unclosed(self.first.1);
        self.others.iter().for_each(|(_, span)| span_stack::release_unclosed(*span));
    }
}

/// Adds a stored span to the table of [`by_id`], if the table has room. If the table has no room, or if the span has
/// fields and may have a life, adds the stored span to the extensions of the registry's span, which allocates.
#[inline(never)]
fn store<S: Subscriber + for<'a> LookupSpan<'a>>(
    context: &Context<'_, S>,
    owner: Owner,
    id: &Id,
    span: Span,
    metadata: &Metadata<'_>,
) {
    if by_id::add(flow_id(owner, id.into_u64()), span, !metadata.fields().is_empty()) {
        return;
    }
    let Some(in_registry) = context.span(id) else {
        span_stack::release(span);
        return;
    };
    let mut extensions = in_registry.extensions_mut();
    match extensions.get_mut::<StoredSpans>() {
        Some(stored) => stored.others.push((owner, span)),
        None => extensions.insert(StoredSpans { first: (owner, span), others: Vec::new() }),
    }
}

/// Returns the owner's stored span for the span of the registry that has this id.
#[inline(always)]
fn stored<'a, R: LookupSpan<'a>>(in_registry: &SpanRef<'a, R>, owner: Owner, id: &Id) -> Option<Span> {
    by_id::find(flow_id(owner, id.into_u64())).or_else(|| in_extensions(&in_registry.extensions(), owner))
}

#[inline(never)]
fn in_extensions(extensions: &Extensions<'_>, owner: Owner) -> Option<Span> {
    let stored = extensions.get::<StoredSpans>()?;
    let is_own = |(of, _): &&(Owner, Span)| *of == owner;
    Some(&stored.first).filter(is_own).or_else(|| stored.others.iter().find(is_own)).map(|(_, span)| *span)
}

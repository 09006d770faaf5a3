//! Turns spans and events into slices, instants and counters, for the subscriber and the layer of this crate.
//!
//! - An event is written at once, as an instant or as counters.
//! - A new span is put into the span store if it has fields, an async slice or perhaps a life, and the tag is enabled. Its fields
//!   are formatted once, as text for ATrace or encoded for Perfetto. If the tag is off and a producer may choose either later,
//!   both are stored (with [`fields_while_off`](Recorder::fields_while_off)).
//! - When a span is entered, the span stack begins a slice with the stored fields. When the span is left, it ends the slice.
//!
//! Fields are formatted before any lock is taken: formatting is code of the program, which may trace.

use std::borrow::Cow;

use atrace::tracer::{
    Enabled, Encoder, Glance, PreparedTag, TextBuffer, TrackSlice, flow, flow_number, is_perfetto_enabled,
    now,
};
use atrace::{AtraceTag, NameWriter, atrace_instant_for_track, atrace_is_tag_enabled};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Interest, Metadata};

use crate::callsites::{Callsite, CallsiteInfo};
use crate::directives::Directives;
use crate::metered::{self, Call, Meter, billed};
use crate::span::Span;
use crate::span_stack::{self, Owner, flow_id};
use crate::span_store::lives::{Birth, identify, tick};
use crate::span_store::{self, StoredSpan, Texts};
use crate::{AsyncSpans, Way};
use crate::{fields, typed};

/// The options of a subscriber, and its identity on the span stack.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tag: AtraceTag,
    /// The same tag, prepared for the most frequent checks.
    prepared: PreparedTag,
    pub(crate) owner: Owner,
    /// The user's filter.
    pub(crate) directives: Directives,
    pub(crate) fields: bool,
    pub(crate) fields_while_off: bool,
    /// The mode of all spans.
    pub(crate) async_spans: Option<AsyncSpans>,
    /// The modes of spans with a target, or with one below it.
    pub(crate) async_targets: Vec<(Cow<'static, str>, AsyncSpans)>,
    /// The fields whose value is the name of a span.
    pub(crate) name_fields: Vec<Cow<'static, str>>,
    /// Whether one of the two modes is set.
    pub(crate) may_be_async: bool,
    /// Whether it lets `atrace record` find the process.
    pub(crate) attaches: bool,
    /// Whether spans may have lives by default.
    pub(crate) has_lives: bool,
    /// Counts and times the calls, if the environment asks for that.
    pub(crate) meter: Option<Meter>,
}

impl Recorder {
    pub(crate) fn new(tag: AtraceTag) -> Self {
        Self {
            tag,
            prepared: PreparedTag::new(tag),
            owner: Owner::new(),
            directives: Directives::of_process(),
            fields: true,
            fields_while_off: false,
            async_spans: None,
            async_targets: Vec::new(),
            name_fields: vec![Cow::Borrowed(fields::OTEL_NAME)],
            may_be_async: false,
            has_lives: true,
            attaches: true,
            meter: metered::asked(),
        }
    }

    /// Lets `atrace record` find the process, once the subscriber is in use.
    pub(crate) fn attach(&self) {
        if self.attaches {
            atrace::perfetto::attach();
        }
    }

    /// Limits events to this backend.
    pub(crate) fn set_way(&mut self, way: Way) {
        self.tag = way.only(self.tag);
        self.prepared = PreparedTag::new(self.tag);
    }

    /// Calls `body`, which a meter counts for the callsite that `metadata` returns, if the environment asks for that.
    #[inline(always)]
    pub(crate) fn billed<R>(
        &self,
        metadata: impl FnOnce() -> Option<&'static Metadata<'static>>,
        call: Call,
        body: impl FnOnce() -> R,
    ) -> R {
        billed(self.meter, metadata, call, body)
    }

    /// Tells the meter of a callsite. Returns the interest.
    pub(crate) fn registered(&self, metadata: &'static Metadata<'static>, interest: Interest) -> Interest {
        if let Some(meter) = self.meter {
            meter.register(metadata, &interest);
        }
        interest
    }

    /// Checks whether the tag may be enabled. False is certain.
    #[inline(always)]
    pub(crate) fn may_be_enabled(&self) -> bool {
        self.prepared.glance().is_some()
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    /// Prepares for spans, before the first one.
    pub(crate) fn prepare(&self) {
        static TICK: fn() = tick;
        span_store::prepare();
        if self.has_lives {
            atrace::watch::on_tick(&TICK);
        }
    }

    /// Sets the mode of all spans.
    pub(crate) fn set_async_spans(&mut self, mode: AsyncSpans) {
        self.async_spans = Some(mode);
        self.may_be_async |= mode != AsyncSpans::Never;
        self.has_lives = mode != AsyncSpans::Never;
    }

    /// Sets the mode of spans with this target, or with one below it.
    pub(crate) fn set_async_target(&mut self, target: Cow<'static, str>, mode: AsyncSpans) {
        self.async_targets.push((target, mode));
        self.may_be_async |= mode != AsyncSpans::Never;
    }

    /// Stores a new span with this id in its registry. `None` if nothing has to be stored. `explicit` returns the stored span of
    /// an id.
    #[inline]
    pub(crate) fn new_span(
        &self,
        attributes: &Attributes<'_>,
        id: u64,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<Span> {
        let metadata = attributes.metadata();
        if self.may_store_now(metadata) { self.store(attributes, Some(id), explicit) } else { None }
    }

    /// Returns whether a span of this callsite that is created now may have to be stored.
    #[inline(always)]
    pub(crate) fn may_store_now(&self, metadata: &'static Metadata<'static>) -> bool {
        if self.may_store(metadata) {
            self.fields_while_off || self.may_be_enabled()
        } else {
            self.may_be_enabled() && is_perfetto_enabled() && self.may_have_life(metadata)
        }
    }

    /// Returns whether it has to be found out whether a new span without fields has a life.
    #[inline(never)]
    fn may_have_life(&self, metadata: &'static Metadata<'static>) -> bool {
        self.has_lives && Callsite::of(metadata).is_some_and(Callsite::has_to_be_watched)
    }

    /// Returns whether spans of this callsite may have to be stored, whatever they are.
    #[inline(always)]
    pub(crate) fn may_store(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.fields().is_empty() || self.may_be_async
    }

    /// Returns the stored parent of a new span, or the nearest stored ancestor.
    fn parent(
        &self,
        attributes: &Attributes<'_>,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<StoredSpan> {
        let parent = match attributes.parent() {
            Some(id) => explicit(id),
            None if attributes.is_contextual() => span_stack::innermost(self.owner),
            None => None,
        };
        parent.and_then(Span::in_slot)
    }

    /// Stores a new span that may have to be stored, with the id that a registry gave it. `None` if nothing has to be stored.
    /// `explicit` returns the stored span of an id.
    #[inline(never)]
    pub(crate) fn store(
        &self,
        attributes: &Attributes<'_>,
        id: Option<u64>,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<Span> {
        let metadata = attributes.metadata();
        let enabled = self.enabled();
        if !self.fields_while_off && enabled.is_none() {
            return None;
        }
        let is_typed = enabled.is_some_and(Enabled::is_perfetto);
        let mode = match self.async_mode(metadata.target()) {
            Some(AsyncSpans::Never) => None,
            None if is_typed => Some(AsyncSpans::Beside),
            mode => mode,
        };
        let shows_fields = self.fields && !metadata.fields().is_empty();
        let may_be_named = self.may_be_named(metadata);
        if mode.is_none()
            && !shows_fields
            && !may_be_named
            && metadata.fields().field(fields::TRACK).is_none()
        {
            return None;
        }
        let callsite = Callsite::of(metadata)?;
        let record = |visit: &mut dyn tracing_core::field::Visit| attributes.record(visit);
        let known = CallsiteInfo(metadata);
        let encode = |args: &mut Encoder| typed::encode_span(args, &known, self.fields, &record);
        let mut name = TextBuffer::default();
        let name = if may_be_named { fields::name_in(&mut name, &self.name_fields, &record) } else { "" };
        let mode = |track: &str| mode.or((!track.is_empty()).then_some(AsyncSpans::Beside));
        let mut args = Encoder::new();
        let mut hidden = false;
        let stored = if let Some(enabled) = enabled.filter(|enabled| enabled.is_perfetto()) {
            let time = now();
            let track = encode(&mut args);
            let args = args.finish();
            let mode = mode(&track);
            let parent = mode.and_then(|_| self.parent(attributes, explicit));
            // The arguments of a span that is presumed to have no life do not need its number.
            let is_identified = mode.is_some() && !callsite.is_presumed_sync();
            let flow = |stored: StoredSpan, is_hidden| {
                let own = Span::stored(stored, is_hidden).number();
                flow_number(flow_id(self.owner, id.unwrap_or(own)))
            };
            hidden = mode == Some(AsyncSpans::Instead) && track.is_empty();
            let stored = StoredSpan::new(callsite, |stored, texts| {
                if is_identified {
                    identify(texts, stored, parent);
                }
                set_args(texts, args);
                texts.name.push_str(name);
                if !track.is_empty() {
                    let (flow, cookie) = (flow(stored, false), stored.cookie());
                    texts.track = track;
                    let (track, name) = ((&*texts.track, cookie), texts.own_name());
                    texts.async_slice =
                        enabled.begin_on_track_at(track, known.site(), name, flow, &texts.args, 0);
                } else if mode.is_some() {
                    let flow = flow(stored, hidden);
                    let birth = Birth { time, parent, flow, tag: self.tag };
                    stored.expect_life(&birth, is_identified);
                }
            });
            if let Some(stored) = stored
                && (hidden || callsite.was_async())
            {
                stored.begin_life();
            }
            stored
        } else {
            fields::with_span(metadata.name(), self.fields, &record, |shown, track| {
                let is_open = enabled.is_none() && is_perfetto_enabled(); // The backend is not known yet.
                if is_open {
                    encode(&mut args);
                }
                StoredSpan::new(callsite, |stored, texts| {
                    texts.shown.push_str(shown);
                    if !name.is_empty() {
                        texts.rename(name, metadata.name());
                    }
                    if is_open {
                        set_args(texts, args.finish());
                    }
                    if let Some(mode) = mode(track) {
                        track.clone_into(&mut texts.track);
                        let track = texts.track_or(metadata.target());
                        texts.async_slice =
                            TrackSlice::begin(self.tag, track, &*texts.shown, stored.cookie());
                        hidden = mode == AsyncSpans::Instead && texts.async_slice.is_written();
                    }
                })
            })
        };
        stored.map(|stored| Span::stored(stored, hidden))
    }

    /// Stores a span without any content yet.
    pub(crate) fn store_empty(metadata: &'static Metadata<'static>) -> Option<Span> {
        StoredSpan::new(Callsite::of(metadata)?, |_, _| ()).map(|stored| Span::stored(stored, false))
    }

    /// Returns whether events go to Perfetto, which shows flows.
    pub(crate) fn wants_flows(&self) -> bool {
        self.enabled().is_some_and(|enabled| enabled.is_perfetto())
    }

    #[inline]
    fn enabled(&self) -> Option<Enabled> {
        self.prepared.glance().and_then(Glance::enabled)
    }

    /// Notes that a stored span follows from the span with the id `follows`: its slices are also part of that span's flow.
    pub(crate) fn follows_from(&self, span: Span, follows: u64) {
        if let Some(mut texts) = span.in_slot().and_then(StoredSpan::texts_mut) {
            add_args(&mut texts, &flow(flow_number(flow_id(self.owner, follows))));
        }
    }

    /// Returns whether a field of this callsite may name its spans.
    #[inline]
    fn may_be_named(&self, metadata: &Metadata<'_>) -> bool {
        self.name_fields.iter().any(|name| metadata.fields().field(&**name).is_some())
    }

    fn async_mode(&self, target: &str) -> Option<AsyncSpans> {
        let is_in = |outer: &str| {
            target.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        };
        let most_special = self
            .async_targets
            .iter()
            .filter(|(outer, _)| is_in(outer))
            .max_by_key(|(outer, _)| outer.len())
            .map(|(_, mode)| *mode);
        most_special.or(self.async_spans)
    }

    /// Adds fields that were recorded after the span's creation, and renames the span if one of them is its name. They appear from the next time the span is entered; for
    /// Perfetto also at the end of a slice that is open.
    pub(crate) fn record(&self, id: u64, span: Span, values: &Record<'_>) {
        if !(self.fields_while_off || self.is_enabled()) {
            return;
        }
        let Some((stored, metadata)) = span.in_slot().zip(span.metadata()) else { return };
        if self.may_be_named(metadata) {
            let mut name = TextBuffer::default();
            let name = fields::name_in(&mut name, &self.name_fields, &|visit| values.record(visit));
            if let Some(mut texts) = stored.texts_mut().filter(|_| !name.is_empty()) {
                texts.rename(name, metadata.name());
            }
        }
        if !self.fields {
            return;
        }
        let Some((is_text, is_typed)) = stored.texts().map(|texts| (!texts.is_only_typed(), texts.is_typed))
        else {
            return;
        };
        // The values are formatted before anything is locked: their code may enter this span.
        if is_typed && is_perfetto_enabled() {
            let mut args = Encoder::new();
            typed::encode_span(&mut args, &CallsiteInfo(metadata), true, &|visit| values.record(visit));
            let new = args.finish();
            if let Some(mut texts) = stored.texts_mut()
                && !new.is_empty()
            {
                let from = texts.args.len() as u32;
                add_args(&mut texts, new);
                drop(texts);
                span_stack::record(self.owner, id, from);
            }
        }
        if !is_text {
            return;
        }
        fields::with_span("", true, &|visit| values.record(visit), |new, _| {
            if new.is_empty() {
                return;
            }
            if let Some(mut texts) = stored.texts_mut() {
                fields::append(&mut texts.shown, new);
            }
            if let Some(texts) = stored.texts().filter(|texts| texts.async_slice.is_written()) {
                let track = texts.track_or(metadata.target());
                let mut text = TextBuffer::default();
                let text = text.write(|writer| writer.push_pieces([metadata.name(), new]));
                atrace_instant_for_track(self.tag, track, text);
            }
        });
    }

    /// Enters the span with this id.
    #[inline(always)]
    pub(crate) fn enter(&self, id: u64, span: Span) {
        match self.prepared.glance() {
            Some(glance) => span_stack::enter_and_begin(self.owner, id, span, glance),
            None => span_stack::enter(self.owner, id),
        }
    }

    /// Enters the span with this id while the tag is off, without a slice.
    #[inline(always)]
    pub(crate) fn enter_unseen(&self, id: u64) {
        span_stack::enter(self.owner, id);
    }

    #[inline]
    pub(crate) fn exit(&self, id: u64) {
        span_stack::exit(self.owner, id);
    }

    /// Writes an event. Out of line: callers check [`may_be_enabled`](Self::may_be_enabled) first, so that nothing comes here
    /// while the tag is off.
    #[inline(never)]
    pub(crate) fn event(&self, event: &Event<'_>) {
        let Some(enabled) = self.prepared.glance().and_then(Glance::enabled) else { return };
        if enabled.is_perfetto() {
            return typed::event(enabled, event, self.fields);
        }
        if fields::has_counter(event.metadata()) && !fields::write_counters(event, enabled, false) {
            return;
        }
        enabled.instant(|writer: &mut NameWriter<'_>| fields::write_event(event, self.fields, writer));
    }
}

/// Sets the encoded arguments of a new span.
fn set_args(texts: &mut Texts, args: &[u8]) {
    texts.args.extend_from_slice(args);
    texts.is_typed = true;
    texts.at_begin = texts.args.len() as u32;
}

/// Adds encoded arguments to a span, if an event has room for all of them.
fn add_args(texts: &mut Texts, args: &[u8]) {
    if texts.args.len() + args.len() <= ARGS_MAX {
        texts.args.extend_from_slice(args);
        texts.is_typed = true;
    }
}

/// The maximum size of a span's stored arguments, in bytes: an event has no more room.
const ARGS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_core::dispatcher::{Dispatch, with_default};

    use crate::AtraceSubscriber;
    use crate::span::Span;

    /// A stored span, while nothing is written. Several threads read and write it at once.
    #[test]
    fn a_span_is_recorded_and_entered_by_threads_at_once() {
        let dispatch = Dispatch::new(AtraceSubscriber::default().with_fields_while_off());
        let span = with_default(&dispatch, || info_span!("span", n = 1, later = tracing::field::Empty));
        let known = Span::from_number(span.id().unwrap().into_u64());
        let stored = known.in_slot().unwrap();
        assert_eq!(stored.texts().unwrap().shown, "span, n = 1");
        // A thread that can't lock the text for long gives up. So some fields may be missing, but those that exist are whole.
        let recorded = |shown: &str| {
            let later = shown.strip_prefix("span, n = 1").unwrap();
            assert_eq!(later, ", later = \"text\"".repeat(later.matches("later").count()));
            later.len()
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
                        span.clone().in_scope(|| span.record("later", "text"));
                        stored.texts().map(|texts| recorded(&texts.shown));
                    }
                });
            }
        });
        assert!(recorded(&stored.texts().unwrap().shown) > 0);
        assert_eq!(known.metadata().unwrap().name(), "span");
        drop(span);
        assert!(known.metadata().is_none() && stored.texts().is_none());
    }
}

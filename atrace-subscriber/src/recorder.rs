//! Turns spans and events into slices, instants and counters, for every subscriber and layer of this crate.

use std::borrow::Cow;

use atrace::__typed::{Encoder, flow, flow_number, is_used};
use atrace::{
    AtraceTag, Enabled, Glance, PreparedTag, TrackSlice, atrace_instant_for_track_with, atrace_is_tag_enabled,
};
use tracing_core::span::{Attributes, Record};
use tracing_core::{Event, Metadata};

use crate::callsites::{Callsite, Known};
use crate::entered::{self, Owner, flow_id};
use crate::kept::{Kept, Texts};
use crate::span::Span;
use crate::{AsyncSpans, Way};
use crate::{fields, typed};

/// The options of a subscriber, and its number.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tag: AtraceTag,
    /// The same, for the questions that are asked most often.
    prepared: PreparedTag,
    pub(crate) owner: Owner,
    pub(crate) fields: bool,
    pub(crate) fields_while_off: bool,
    /// Of all spans, and of those with a target, each with what is below it.
    pub(crate) async_spans: Option<AsyncSpans>,
    pub(crate) async_targets: Vec<(Cow<'static, str>, AsyncSpans)>,
    /// There is one of these.
    pub(crate) may_be_async: bool,
}

impl Recorder {
    pub(crate) fn new(tag: AtraceTag) -> Self {
        Self {
            tag,
            prepared: PreparedTag::new(tag),
            owner: Owner::new(),
            fields: true,
            fields_while_off: false,
            async_spans: None,
            async_targets: Vec::new(),
            may_be_async: false,
        }
    }

    /// Writes this way only.
    pub(crate) fn set_way(&mut self, way: Way) {
        self.tag = way.only(self.tag);
        self.prepared = PreparedTag::new(self.tag);
    }

    /// False is exact.
    #[inline(always)]
    pub(crate) fn may_be_enabled(&self) -> bool {
        self.prepared.glance().is_some()
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    /// Keeps what is needed of a new span: None if that is nothing.
    #[inline]
    pub(crate) fn new_span(&self, attributes: &Attributes<'_>) -> Option<Span> {
        if self.may_keep_now(attributes.metadata()) { self.keep(attributes) } else { None }
    }

    /// Tells whether something may have to be kept of a span of this callsite that is made now.
    #[inline(always)]
    pub(crate) fn may_keep_now(&self, metadata: &Metadata<'_>) -> bool {
        self.may_keep(metadata) && (self.fields_while_off || self.may_be_enabled())
    }

    /// Tells whether something may have to be kept of spans of this callsite.
    #[inline(always)]
    pub(crate) fn may_keep(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.fields().is_empty() || self.may_be_async
    }

    /// Keeps what is needed of a new span of which something may have to be kept: None if that is nothing.
    #[inline(never)]
    pub(crate) fn keep(&self, attributes: &Attributes<'_>) -> Option<Span> {
        let metadata = attributes.metadata();
        let enabled = self.enabled();
        if !self.fields_while_off && enabled.is_none() {
            return None;
        }
        let mode = self.async_mode(metadata.target());
        let shows_fields = self.fields && !metadata.fields().is_empty();
        if mode.is_none() && !shows_fields && metadata.fields().field(fields::TRACK).is_none() {
            return None;
        }
        let callsite = Callsite::of(metadata)?;
        let record = |visit: &mut dyn tracing_core::field::Visit| attributes.record(visit);
        let known = Known(metadata);
        let encode = |args: &mut Encoder| typed::encode_span(args, &known, self.fields, &record);
        let mode = |track: &str| mode.or((!track.is_empty()).then_some(AsyncSpans::Beside));
        let mut args = Encoder::new();
        let mut hidden = false;
        let kept = if let Some(enabled) = enabled.filter(|enabled| enabled.__for_perfetto().is_some()) {
            let track = encode(&mut args);
            let args = args.finish();
            Kept::new(callsite, |cookie, texts| {
                set_args(texts, args);
                if let Some(mode) = mode(&track) {
                    texts.track = track;
                    let track = texts.track_or(metadata.target());
                    texts.async_slice = enabled.__begin_on_track(track, known.site(), args, cookie);
                    hidden = mode == AsyncSpans::Instead && texts.async_slice.is_written();
                }
            })
        } else {
            fields::with_span(metadata.name(), self.fields, &record, |shown, track| {
                let is_open = enabled.is_none() && is_used(); // Which way it will go.
                if is_open {
                    encode(&mut args);
                }
                Kept::new(callsite, |cookie, texts| {
                    texts.shown.push_str(shown);
                    if is_open {
                        set_args(texts, args.finish());
                    }
                    if let Some(mode) = mode(track) {
                        track.clone_into(&mut texts.track);
                        let track = texts.track_or(metadata.target());
                        texts.async_slice = TrackSlice::__begin_named(self.tag, track, shown, cookie);
                        hidden = mode == AsyncSpans::Instead && texts.async_slice.is_written();
                    }
                })
            })
        };
        kept.map(|kept| Span::kept(kept, hidden))
    }

    /// Keeps a span of which nothing is to be known yet.
    pub(crate) fn keep_nothing(metadata: &'static Metadata<'static>) -> Option<Span> {
        Kept::new(Callsite::of(metadata)?, |_, _| ()).map(|kept| Span::kept(kept, false))
    }

    /// Whether events go where flows are shown.
    pub(crate) fn wants_flows(&self) -> bool {
        self.enabled().is_some_and(|enabled| enabled.__for_perfetto().is_some())
    }

    #[inline]
    fn enabled(&self) -> Option<Enabled> {
        self.prepared.glance().and_then(Glance::enabled)
    }

    /// A span that is kept follows from the one that has the id: its slices are part of that one's flow.
    pub(crate) fn follows_from(&self, span: Span, follows: u64) {
        if let Some(mut texts) = span.in_slot().and_then(Kept::texts_mut) {
            add_args(&mut texts, &flow(flow_number(flow_id(self.owner, follows))));
        }
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

    /// Adds fields that were recorded later: they show from the next time the span is entered, and at the end of a slice
    /// in Perfetto's memory.
    pub(crate) fn record(&self, id: u64, span: Span, values: &Record<'_>) {
        if !self.fields || !(self.fields_while_off || self.is_enabled()) {
            return;
        }
        let Some((kept, metadata)) = span.in_slot().zip(span.metadata()) else { return };
        let Some((is_text, is_typed)) = kept.texts().map(|texts| (!texts.is_only_typed(), texts.is_typed))
        else {
            return;
        };
        // Formatted before anything is locked: what runs meanwhile may well enter this span.
        if is_typed && is_used() {
            let mut args = Encoder::new();
            typed::encode_span(&mut args, &Known(metadata), true, &|visit| values.record(visit));
            let new = args.finish();
            if let Some(mut texts) = kept.texts_mut()
                && !new.is_empty()
            {
                let from = texts.args.len() as u32;
                add_args(&mut texts, new);
                drop(texts);
                entered::record(self.owner, id, from);
            }
        }
        if !is_text {
            return;
        }
        fields::with_span("", true, &|visit| values.record(visit), |new, _| {
            if new.is_empty() {
                return;
            }
            if let Some(mut texts) = kept.texts_mut() {
                fields::append(&mut texts.shown, new);
            }
            if let Some(texts) = kept.texts().filter(|texts| texts.async_slice.is_written()) {
                let track = texts.track_or(metadata.target());
                atrace_instant_for_track_with(self.tag, track, |writer| {
                    writer.__push_pieces([metadata.name(), new]);
                });
            }
        });
    }

    /// Enters a span that is known by `id`.
    #[inline(always)]
    pub(crate) fn enter(&self, id: u64, span: Span) {
        match self.prepared.glance() {
            Some(glance) => entered::enter_and_begin(self.owner, id, span, glance),
            None => entered::enter(self.owner, id),
        }
    }

    #[inline]
    pub(crate) fn exit(&self, id: u64) {
        entered::exit(self.owner, id);
    }

    /// Writes an event. A call, behind [`may_be_enabled`](Self::may_be_enabled): what is off does not come here.
    #[inline(never)]
    pub(crate) fn event(&self, event: &Event<'_>) {
        let Some(enabled) = self.prepared.glance().and_then(Glance::__enabled_short) else { return };
        if enabled.__for_perfetto().is_some() {
            return typed::event(enabled, event, self.fields);
        }
        if fields::has_counter(event.metadata()) && !fields::write_counters(event, enabled, false) {
            return;
        }
        enabled.instant_with(|writer| fields::write_event(event, self.fields, writer));
    }
}

/// Keeps the encoded arguments of a span.
fn set_args(texts: &mut Texts, args: &[u8]) {
    texts.args.extend_from_slice(args);
    texts.is_typed = true;
    texts.at_begin = args.len() as u32;
}

/// Adds to them, as far as an event has room.
fn add_args(texts: &mut Texts, args: &[u8]) {
    if texts.args.len() + args.len() <= ARGS_MAX {
        texts.args.extend_from_slice(args);
        texts.is_typed = true;
    }
}

/// The bytes of arguments that are kept of a span.
const ARGS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_core::dispatcher::{Dispatch, with_default};

    use crate::AtraceSubscriber;
    use crate::span::Span;

    /// What is kept of a span, where nothing is written: read and written by threads at once.
    #[test]
    fn a_span_is_recorded_and_entered_by_threads_at_once() {
        let dispatch = Dispatch::new(AtraceSubscriber::default().with_fields_while_off());
        let span = with_default(&dispatch, || info_span!("span", n = 1, later = tracing::field::Empty));
        let known = Span::from_number(span.id().unwrap().into_u64());
        let kept = known.in_slot().unwrap();
        assert_eq!(kept.texts().unwrap().shown, "span, n = 1");
        // A thread that finds the text in use for long does without: so as many as there are are whole.
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
                        kept.texts().map(|texts| recorded(&texts.shown));
                    }
                });
            }
        });
        assert!(recorded(&kept.texts().unwrap().shown) > 0);
        assert_eq!(known.metadata().unwrap().name(), "span");
        drop(span);
        assert!(known.metadata().is_none() && kept.texts().is_none());
    }
}

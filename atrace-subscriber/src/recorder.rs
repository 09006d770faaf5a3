//! What becomes of spans and events, for every subscriber and layer of this crate.

use std::borrow::Cow;

use atrace::{
    AtraceTag, Glance, NameWriter, PreparedTag, Slice, TrackSlice, atrace_instant_for_track_with,
    atrace_is_tag_enabled,
};
use tracing_core::field::Visit;
use tracing_core::span::{Attributes, Record};
use tracing_core::{Event, Metadata};

use crate::AsyncSpans;
use crate::callsites::Callsite;
use crate::entered::{self, Owner};
use crate::fields::{self, SpanText};
use crate::kept::Kept;
use crate::span::Span;

/// The options of a subscriber, and its number.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tag: AtraceTag,
    /// The same, for the questions that are asked most often.
    asked: PreparedTag,
    pub(crate) owner: Owner,
    pub(crate) fields: bool,
    pub(crate) fields_while_off: bool,
    /// Of all spans, and of those with a target, each with what is below it.
    pub(crate) async_spans: Option<AsyncSpans>,
    pub(crate) async_targets: Vec<(Cow<'static, str>, AsyncSpans)>,
}

impl Recorder {
    pub(crate) fn new(tag: AtraceTag) -> Self {
        Self {
            tag,
            asked: PreparedTag::new(tag),
            owner: Owner::new(),
            fields: true,
            fields_while_off: false,
            async_spans: None,
            async_targets: Vec::new(),
        }
    }

    /// False is exact.
    #[inline(always)]
    pub(crate) fn may_be_enabled(&self) -> bool {
        self.asked.glance().is_some()
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    /// Keeps what is needed of a new span: None if that is nothing.
    #[inline]
    pub(crate) fn new_span(&self, attributes: &Attributes<'_>) -> Option<Span> {
        let metadata = attributes.metadata();
        if self.may_keep(metadata) && (self.fields_while_off || self.may_be_enabled()) {
            self.keep(metadata, attributes)
        } else {
            None
        }
    }

    /// Tells whether something may have to be kept of spans of this callsite.
    #[inline(always)]
    pub(crate) fn may_keep(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.fields().is_empty() || self.async_spans.is_some() || !self.async_targets.is_empty()
    }

    #[inline(never)]
    fn keep(&self, metadata: &'static Metadata<'static>, attributes: &Attributes<'_>) -> Option<Span> {
        if !self.fields_while_off && !self.is_enabled() {
            return None;
        }
        let has_track = metadata.fields().field(fields::TRACK).is_some();
        let mut mode = self.async_mode(metadata.target());
        if mode.is_none() && !has_track && (!self.fields || metadata.fields().is_empty()) {
            return None;
        }
        let slot = Scratch::new(Callsite::of(metadata)?)?;
        let mut hidden = false;
        {
            // Nobody else knows the slot yet: whatever formatting the fields does, it can't come here.
            let mut text = slot.0.fields_mut()?;
            let mut track = slot.0.track()?;
            track.name.clear();
            let text = &mut *text;
            if !metadata.fields().is_empty() {
                SpanText::write(self.fields.then_some(text), &mut track.name, |visit| {
                    attributes.record(visit)
                });
            }
            if mode.is_none() && !track.name.is_empty() {
                mode = Some(AsyncSpans::Beside);
            }
            if let Some(mode) = mode {
                let name = if track.name.is_empty() { metadata.target() } else { &track.name };
                let slice = TrackSlice::begin_with(
                    self.tag,
                    name,
                    |writer| name_and_fields(writer, metadata.name(), text),
                    slot.0.cookie(),
                );
                hidden = mode == AsyncSpans::Instead && slice.is_written();
                track.slice = slice;
            }
        }
        Some(Span::kept(slot.keep(), hidden))
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

    /// Adds fields that were recorded later: they show from the next time the span is entered.
    pub(crate) fn record(&self, span: Span, values: &Record<'_>) {
        if !self.fields || !(self.fields_while_off || self.is_enabled()) {
            return;
        }
        let Some(kept) = span.in_slot() else { return };
        let Some((callsite, metadata)) =
            kept.callsite().and_then(|callsite| Some((callsite, callsite.metadata()?)))
        else {
            return;
        };
        // Formatted apart, in a slot that nobody else knows: what runs meanwhile may well enter this span.
        let Some(apart) = Scratch::new(callsite) else { return };
        let Some(mut text) = apart.0.fields_mut() else { return };
        SpanText::write(Some(&mut text), &mut String::new(), |visit: &mut dyn Visit| values.record(visit));
        if text.is_empty() {
            return;
        }
        if let Some(mut fields) = kept.fields_mut() {
            SpanText::append(&mut fields, &text);
        }
        if let Some(track) = kept.track().filter(|track| track.slice.is_written()) {
            let name = if track.name.is_empty() { metadata.target() } else { &track.name };
            atrace_instant_for_track_with(self.tag, name, |writer| {
                name_and_fields(writer, metadata.name(), &text);
            });
        }
    }

    /// Enters a span that is known by `id`.
    #[inline(always)]
    pub(crate) fn enter(&self, id: u64, span: Span) {
        if let Some(glance) = self.asked.glance() {
            self.enter_while_on(glance, id, span);
        } else {
            entered::enter(self.owner, id, span, self.tag, Slice::none());
        }
    }

    #[inline(never)]
    fn enter_while_on(&self, glance: Glance, id: u64, span: Span) {
        let slice = glance.enabled().map_or(Slice::none(), |enabled| span.begin(enabled));
        entered::enter(self.owner, id, span, self.tag, slice);
    }

    #[inline]
    pub(crate) fn exit(&self, id: u64) {
        entered::exit(self.owner, id);
    }

    #[inline]
    pub(crate) fn event(&self, event: &Event<'_>) {
        if let Some(glance) = self.asked.glance() {
            self.event_while_on(glance, event);
        }
    }

    #[inline(never)]
    fn event_while_on(&self, glance: Glance, event: &Event<'_>) {
        let Some(enabled) = glance.enabled() else { return };
        if fields::has_counter(event.metadata()) {
            let others = fields::each_counter(event, |name, value| enabled.int64(name, value));
            if !others {
                return;
            }
        }
        enabled.instant_with(|writer| fields::write_event(event, self.fields, writer));
    }
}

/// Apart, as each `push_str` is much code, and these are beside the ways that count nanoseconds.
#[inline(never)]
fn name_and_fields(writer: &mut NameWriter<'_>, name: &str, fields: &str) {
    writer.push_str(name);
    writer.push_str(fields);
}

/// A slot that is given back unless it is kept.
struct Scratch(Kept);

impl Scratch {
    fn new(callsite: Callsite) -> Option<Self> {
        Kept::new(callsite).map(Self)
    }

    fn keep(self) -> Kept {
        let kept = self.0;
        std::mem::forget(self);
        kept
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        self.0.release();
    }
}

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
        assert_eq!(*kept.fields().unwrap(), ", n = 1");
        // A thread that finds the text in use for long does without: so as many as there are are whole.
        let recorded = |fields: &str| {
            let later = fields.strip_prefix(", n = 1").unwrap();
            assert_eq!(later, ", later = \"text\"".repeat(later.matches("later").count()));
            later.len()
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 2 } else { 20 } {
                        span.clone().in_scope(|| span.record("later", "text"));
                        kept.fields().map(|fields| recorded(&fields));
                    }
                });
            }
        });
        assert!(recorded(&kept.fields().unwrap()) > 0);
        assert_eq!(known.metadata().unwrap().name(), "span");
        drop(span);
        assert!(known.metadata().is_none() && kept.fields().is_none());
    }
}

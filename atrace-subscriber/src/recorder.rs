//! Turns spans and events into slices, instants and counters, for the subscriber and the layer of this crate.
//!
//! - An event is written at once, as an instant, as counters or as both.
//! - While the tag is enabled, a new span is put into the span store if it has fields or an async slice, or may have a
//!   life (a slice from its creation until it closes). The fields are formatted once: as text for ATrace, or encoded
//!   for Perfetto. While the tag is off, fields are stored only with the option
//!   [`fields_while_off`](Recorder::fields_while_off). They are then stored as text and, if the process may have
//!   sessions, also encoded, because either backend may be switched on later.
//! - When a span is entered, the span stack begins a slice with the stored fields. When the span is left, the span
//!   stack ends the slice.
//!
//! Fields are formatted before any lock is taken, because formatting runs code of the program, which may write events
//! and so need the same lock.

use std::borrow::Cow;

use atrace::tracer::{
    Enabled, Encoder, GateCheck, NamedTrack, PreparedTag, TextBuffer, TrackSlice, flow_number,
    is_perfetto_enabled, now,
};
use atrace::{AtraceTag, NameWriter, atrace_instant_for_track, atrace_is_tag_enabled};
use tracing_core::span::{Attributes, Id, Record};
use tracing_core::{Event, Interest, Metadata};

use crate::async_spans::AsyncSpans;
use crate::callsites::{Callsite, CallsiteInfo, Found};
use crate::directives::Directives;
use crate::metered::{self, Call, Meter, billed};
use crate::span::Span;
use crate::span_stack::{self, Owner, flow_id};
use crate::span_store::lives::{Creation, identify, tick};
use crate::span_store::{self, StoredSpan, Texts};
use crate::{fields, typed};

/// The options of a subscriber or layer, and the number that identifies the subscriber or layer on the span stack.
#[derive(Debug)]
pub(crate) struct Recorder {
    pub(crate) tag: AtraceTag,
    /// The tag in the form with which the gate's check takes the fewest instructions.
    prepared: PreparedTag,
    pub(crate) owner: Owner,
    /// The owner that the fast path of an exit compares with the owner of the span stack's last entry. If the recorder
    /// has a meter, this is an owner that no entry has, so every exit takes the slow path, which is metered.
    pub(crate) unbilled: Owner,
    /// The directives of the user's filter (`ATRACE_FILTER`).
    pub(crate) directives: Directives,
    pub(crate) fields: bool,
    pub(crate) fields_while_off: bool,
    /// Where spans are shown, or `None` if the option was not set.
    pub(crate) async_spans: Option<AsyncSpans>,
    /// Where the spans of certain targets are shown. An entry is for the spans whose target is the entry's text, or
    /// begins with that text and `::`.
    pub(crate) async_targets: Vec<(Cow<'static, str>, AsyncSpans)>,
    /// The names of the fields whose value becomes the name of a span.
    pub(crate) name_fields: Vec<Cow<'static, str>>,
    /// Whether one of the options `async_spans` and `async_targets` was set to a value other than
    /// [`AsyncSpans::Never`].
    pub(crate) may_be_async: bool,
    /// Whether a new span can't take the shortest path in the code, because of an option or a meter.
    is_special: bool,
    is_simple: bool,
    /// Whether the subscriber lets `atrace record` find the process.
    pub(crate) attaches: bool,
    /// Whether spans may have lives, unless an option for their target says otherwise.
    pub(crate) has_lives: bool,
    /// The meter, which counts and times the calls, if `ATRACE_BILL` is set.
    pub(crate) meter: Option<Meter>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(AtraceTag::App)
    }
}

impl Recorder {
    pub(crate) fn new(tag: AtraceTag) -> Self {
        let (owner, meter, directives) = (Owner::new(), metered::asked(), Directives::of_process());
        Self {
            tag,
            prepared: PreparedTag::new(tag),
            owner,
            unbilled: if meter.is_some() { Owner::NONE } else { owner },
            directives,
            fields: true,
            fields_while_off: false,
            async_spans: None,
            async_targets: Vec::new(),
            name_fields: vec![Cow::Borrowed(fields::OTEL_NAME)],
            may_be_async: false,
            is_special: meter.is_some(),
            is_simple: meter.is_none() && directives.are_none(),
            has_lives: true,
            attaches: true,
            meter,
        }
    }

    /// Lets `atrace record` find the process, unless an option forbids that. Call this when the subscriber or layer
    /// comes into use.
    pub(crate) fn attach(&self) {
        if self.attaches {
            atrace::atrace_init();
        }
    }

    /// Calls `body`. If `ATRACE_BILL` is set, a meter counts and times the call for the callsite whose metadata
    /// `metadata` returns.
    #[inline(always)]
    pub(crate) fn billed<R>(
        &self,
        metadata: impl FnOnce() -> Option<&'static Metadata<'static>>,
        call: Call,
        body: impl FnOnce() -> R,
    ) -> R {
        billed(self.meter, metadata, call, body)
    }

    /// Returns whether the recorder has neither a meter nor a user's filter (`ATRACE_FILTER`).
    #[inline(always)]
    pub(crate) fn is_simple(&self) -> bool {
        self.is_simple
    }

    /// Calls `body` with true if the user's filter lets the callsite pass, otherwise with false. If there is a meter,
    /// the meter counts the call.
    #[cold]
    #[inline(never)]
    pub(crate) fn with_care(
        &self,
        metadata: Option<&'static Metadata<'static>>,
        call: Call,
        body: impl FnOnce(bool),
    ) {
        let passes = || metadata.is_some_and(|metadata| self.directives.pass(metadata));
        self.billed(|| metadata, call, || body(passes()));
    }

    /// Registers a callsite with the meter, if there is one. Returns `interest`.
    pub(crate) fn registered(&self, metadata: &'static Metadata<'static>, interest: Interest) -> Interest {
        if let Some(meter) = self.meter {
            meter.register(metadata, &interest);
        }
        interest
    }

    /// Returns false if the tag is certainly off, and true if it may be enabled.
    #[inline(always)]
    pub(crate) fn may_be_enabled(&self) -> bool {
        self.prepared.check().is_some()
    }

    #[inline(always)]
    pub(crate) fn check(&self) -> Option<GateCheck> {
        self.prepared.check()
    }

    #[inline(always)]
    pub(crate) fn is_enabled(&self) -> bool {
        atrace_is_tag_enabled(self.tag)
    }

    /// Does the work that is needed before the first span is created.
    pub(crate) fn prepare(&self) {
        static TICK: fn() = tick;
        span_store::prepare();
        if self.has_lives || self.may_be_async {
            atrace::watch::on_tick(&TICK);
        }
    }

    pub(crate) fn set_fields_while_off(&mut self) {
        self.fields_while_off = true;
        self.is_special = true;
    }

    /// Sets where the spans of a target are shown: on threads, as async slices, or both. The option is for spans whose
    /// target is `target`, or begins with `target` and `::`. The empty target stands for all spans.
    pub(crate) fn set_async_spans(&mut self, target: Cow<'static, str>, mode: AsyncSpans) {
        if target.is_empty() {
            self.async_spans = Some(mode);
            self.has_lives = mode != AsyncSpans::Never;
        } else {
            self.async_targets.push((target, mode));
        }
        self.may_be_async |= mode != AsyncSpans::Never;
        self.is_special |= self.may_be_async;
    }

    /// Stores a new span, whose id in its registry is `id`. Returns `None` if the span need not be stored. If the
    /// attributes name a parent, `explicit` finds the parent's stored span by its id.
    #[inline]
    pub(crate) fn new_span(
        &self,
        attributes: &Attributes<'_>,
        id: u64,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<Span> {
        let metadata = attributes.metadata();
        if self.may_store_now(metadata) { self.store(attributes, id, explicit) } else { None }
    }

    /// Returns whether a span of this callsite that is created now may have to be stored or metered.
    #[inline(always)]
    pub(crate) fn may_be_stored(&self, metadata: &Metadata<'_>) -> bool {
        let may_be_stored = if metadata.fields().is_empty() {
            self.prepared.may_be_in_session()
        } else {
            self.may_be_enabled()
        };
        may_be_stored || self.is_special()
    }

    /// Returns whether a new span can't take the shortest path in the code, because of an option or a meter.
    #[inline(always)]
    pub(crate) fn is_special(&self) -> bool {
        self.is_special
    }

    /// Returns whether a span of this callsite that is created now must be passed to [`store`](Self::store). Call this
    /// once for each new span, because it may call [`Callsite::has_to_be_watched`], which counts spans.
    #[inline(always)]
    pub(crate) fn may_store_now(&self, metadata: &'static Metadata<'static>) -> bool {
        let has_to_be_watched = || Callsite::of(metadata).is_some_and(Callsite::has_to_be_watched);
        self.may_store(metadata) || self.may_watch_now() && has_to_be_watched()
    }

    /// Returns whether a span that is created now may have a life. If so, even a span without fields is stored if it
    /// has to be watched (see [`Callsite::has_to_be_watched`]).
    #[inline(always)]
    pub(crate) fn may_watch_now(&self) -> bool {
        self.has_lives && self.prepared.may_be_in_session()
    }

    /// Returns whether the spans of this callsite may have to be stored because of their fields, even if they have no
    /// life.
    #[inline(always)]
    pub(crate) fn may_store(&self, metadata: &Metadata<'_>) -> bool {
        !metadata.fields().is_empty() || self.may_be_async
    }

    /// Returns the parent of a new span, if the parent is stored. The parent is the explicit parent or, without one,
    /// the innermost stored span that this thread is in.
    #[inline(always)]
    fn parent(
        &self,
        attributes: &Attributes<'_>,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<StoredSpan> {
        let parent = match attributes.parent() {
            Some(id) => explicit(id),
            None if attributes.is_contextual() => return span_stack::innermost(self.owner),
            None => None,
        };
        parent.and_then(Span::in_slot)
    }

    /// Stores a new span, if it has to be stored. `id` is the id that a registry has given to the span, or 0 without a
    /// registry. Returns `None` if the span was not stored. If the attributes name a parent, `explicit` finds the
    /// parent's stored span by its id.
    #[inline(never)]
    pub(crate) fn store(
        &self,
        attributes: &Attributes<'_>,
        id: u64,
        explicit: &dyn Fn(&Id) -> Option<Span>,
    ) -> Option<Span> {
        let metadata = attributes.metadata();
        let enabled = self.enabled();
        if !self.fields_while_off && enabled.is_none() {
            return None;
        }
        let callsite = Found::of(metadata)?;
        let answers = self.answers(callsite, metadata);
        match enabled.filter(|enabled| enabled.is_perfetto()) {
            Some(enabled) => self.store_typed(attributes, id, explicit, enabled, callsite, answers),
            None if answers.may_be_shown() => self.store_text(attributes, enabled, callsite, answers),
            None => None,
        }
    }

    /// Stores a span for Perfetto.
    #[inline(always)]
    fn store_typed(
        &self,
        attributes: &Attributes<'_>,
        id: u64,
        explicit: &dyn Fn(&Id) -> Option<Span>,
        enabled: Enabled,
        callsite: Found,
        answers: Answers,
    ) -> Option<Span> {
        if answers.has(Answers::NEVER) && !answers.may_be_shown() {
            return None;
        }
        let known = callsite.info();
        let record = |visit: &mut dyn tracing_core::field::Visit| attributes.record(visit);
        let mut args = Encoder::new();
        let track = typed::encode_span(&mut args, &known, self.fields, &record);
        let args = args.finish();
        let time = now();
        let hidden = answers.has(Answers::INSTEAD);
        let flow_id = |stored: StoredSpan| {
            let own = Span::stored(stored, hidden).number();
            flow_id(self.owner, if id == 0 { own } else { id })
        };
        let mut name = TextBuffer::default();
        let name = self.name(answers, &mut name, &record);
        let has_life = !answers.has(Answers::NEVER) && track.is_empty();
        let has_track = !track.is_empty();
        let parent = if has_life || has_track { self.parent(attributes, explicit) } else { None };
        // A span that is presumed to have no life needs no argument with the span's number.
        let is_presumed_sync = callsite.is_presumed_sync();
        let stored = StoredSpan::new(callsite.callsite, |new, texts| {
            let stored = new.stored;
            if has_track || has_life && !is_presumed_sync {
                identify(texts, stored, parent);
            }
            set_args(texts, args);
            if !name.is_empty() {
                texts.name.push_str(name);
            }
            if has_life {
                let birth = Creation { time, parent, flow_id: flow_id(stored), tag: self.tag };
                let begins = hidden || callsite.was_async();
                new.expect_life(&birth, is_presumed_sync, begins);
                if begins {
                    new.begin_life(texts, enabled, &birth);
                }
            } else if has_track {
                new.set_flow(flow_id(stored));
                let (flow, cookie) = (flow_number(flow_id(stored)), stored.cookie());
                texts.track = track;
                let (track, name) = (
                    NamedTrack::new(&texts.track, NamedTrack::hash_of(&texts.track), cookie),
                    texts.own_name(),
                );
                let slice = enabled.begin_on_track_at(&track, &known.site(), name, (flow, 0), &texts.args);
                new.set_async_slice(texts, slice);
            }
        })?;
        Some(Span::stored(stored, hidden))
    }

    /// Returns the name that a field gives to a new span, or an empty text if no field names the span.
    #[inline(always)]
    fn name<'a>(
        &self,
        answers: Answers,
        buffer: &'a mut TextBuffer,
        record: &dyn Fn(&mut dyn tracing_core::field::Visit),
    ) -> &'a str {
        if answers.has(Answers::MAY_BE_NAMED) {
            fields::name_in(buffer, &self.name_fields, record)
        } else {
            ""
        }
    }

    /// Stores a span for ATrace, and for Perfetto as well if the tag is off and the process may have sessions.
    #[inline(never)]
    fn store_text(
        &self,
        attributes: &Attributes<'_>,
        enabled: Option<Enabled>,
        callsite: Found,
        answers: Answers,
    ) -> Option<Span> {
        let metadata = attributes.metadata();
        let record = |visit: &mut dyn tracing_core::field::Visit| attributes.record(visit);
        let mut hidden = false;
        let mut name = TextBuffer::default();
        let name = self.name(answers, &mut name, &record);
        let stored = fields::with_span(metadata.name(), self.fields, &record, |shown, track| {
            let is_open = enabled.is_none() && is_perfetto_enabled(); // The backend is not known yet.
            let mut args = Encoder::new();
            if is_open {
                typed::encode_span(&mut args, &callsite.info(), self.fields, &record);
            }
            StoredSpan::new(callsite.callsite, |new, texts| {
                texts.shown.push_str(shown);
                if !name.is_empty() {
                    texts.rename(name, metadata.name());
                }
                if is_open {
                    set_args(texts, args.finish());
                }
                if answers.has(Answers::BESIDE | Answers::INSTEAD) || !track.is_empty() {
                    track.clone_into(&mut texts.track);
                    let track = texts.track_or(metadata.target());
                    let slice = TrackSlice::begin(self.tag, track, &*texts.shown, new.stored.cookie());
                    hidden = answers.has(Answers::INSTEAD) && slice.is_some();
                    new.set_async_slice(texts, slice);
                }
            })
        });
        stored.map(|stored| Span::stored(stored, hidden))
    }

    /// Returns the effect of the recorder's options on spans of a callsite.
    #[inline(always)]
    fn answers(&self, callsite: Found, metadata: &Metadata<'_>) -> Answers {
        let known = callsite.answers();
        if known & (Answers::OWNER | Answers::ARE_KNOWN) == self.owner.number() | Answers::ARE_KNOWN {
            Answers(known)
        } else {
            self.find_answers(callsite, metadata)
        }
    }

    #[cold]
    #[inline(never)]
    fn find_answers(&self, callsite: Found, metadata: &Metadata<'_>) -> Answers {
        let mode = match self.async_mode(metadata.target()) {
            None => 0,
            Some(AsyncSpans::Never) => Answers::NEVER,
            Some(AsyncSpans::Beside) => Answers::BESIDE,
            Some(AsyncSpans::Instead) => Answers::INSTEAD,
        };
        let bit = |is: bool, bit| if is { bit } else { 0 };
        let shows_fields = self.fields && !metadata.fields().is_empty();
        let may_have_text = shows_fields || metadata.fields().field(fields::TRACK).is_some();
        let answers = self.owner.number()
            | Answers::ARE_KNOWN
            | mode
            | bit(self.may_be_named(metadata), Answers::MAY_BE_NAMED)
            | bit(may_have_text, Answers::MAY_HAVE_TEXT);
        callsite.set_answers(answers);
        Answers(answers)
    }

    /// Stores a span without fields and without a name of its own.
    pub(crate) fn store_empty(metadata: &'static Metadata<'static>) -> Option<Span> {
        StoredSpan::new(Callsite::of(metadata)?, |_, _| ()).map(|stored| Span::stored(stored, false))
    }

    /// Returns whether events go to Perfetto, which shows flows (arrows between slices).
    pub(crate) fn wants_flows(&self) -> bool {
        self.enabled().is_some_and(|enabled| enabled.is_perfetto())
    }

    #[inline]
    fn enabled(&self) -> Option<Enabled> {
        self.prepared.check().and_then(GateCheck::enabled)
    }

    /// Records that a stored span follows from the span with the id `follows`: the later slices of the stored span are
    /// also part of the other span's flow.
    pub(crate) fn follows_from(&self, span: Span, follows: u64) {
        if let Some(mut texts) = span.in_slot().and_then(StoredSpan::texts_mut) {
            let mut args = Encoder::new();
            args.flow(flow_number(flow_id(self.owner, follows)));
            texts.add_args(args.finish(), 0);
        }
    }

    /// Returns whether this callsite has a field that may give its spans a name.
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

    /// Adds fields that were recorded after the span's creation, and renames the span if one of the fields names it.
    /// The fields appear in the span's slices that begin later. For Perfetto, they also appear at the end of the span's
    /// slices that are open now on this thread, and at the end of the span's life or async slice.
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
        // The values are formatted before the span's texts are locked, because formatting runs code of the program,
        // which may enter this span.
        if is_typed && is_perfetto_enabled() {
            let mut args = Encoder::new();
            typed::encode_span(&mut args, &CallsiteInfo::of(metadata), true, &|visit| values.record(visit));
            let new = args.finish();
            if let Some(mut texts) = stored.texts_mut()
                && !new.is_empty()
            {
                let from = texts.add_args(new, values.len() as u32);
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
            if let Some(texts) = stored.texts().filter(|texts| texts.async_slice.is_some()) {
                let track = texts.track_or(metadata.target());
                let mut text = TextBuffer::default();
                let text = text.write(|writer| writer.push_pieces([metadata.name(), new]));
                atrace_instant_for_track(self.tag, track, text);
            }
        });
    }

    /// Enters the span with this id, and begins its slice.
    #[inline(always)]
    pub(crate) fn enter(&self, id: u64, span: Span, check: GateCheck) {
        span_stack::enter_and_begin(self.owner, id, span, check);
    }

    /// Enters the span with this id while the tag is off. No slice begins.
    #[inline(always)]
    pub(crate) fn enter_unseen(&self, id: u64) {
        span_stack::enter(self.owner, id);
    }

    /// Enters the span with this id in a registry while the tag is off. No slice begins, and the enter is recorded only
    /// if this thread is already in a recorded span.
    #[inline(always)]
    pub(crate) fn enter_unseen_inside(&self, id: u64) {
        span_stack::enter_inside(self.owner, id);
    }

    /// Leaves the span with this id, if this is the span that this thread entered last, and the exit need not be
    /// reported to a meter or to the span store. Returns false if the caller must call
    /// [`exit_other`](Self::exit_other).
    #[inline(always)]
    pub(crate) fn exit(&self, id: u64) -> bool {
        span_stack::exit(self.unbilled, id)
    }

    #[inline(always)]
    pub(crate) fn exit_other(&self, id: u64) {
        span_stack::exit_other(self.owner, id);
    }

    /// Closes the span with this id while the tag is off, if [`span_store::by_id`] finds the span. Otherwise the span
    /// closes when the registry drops its extensions.
    #[cold]
    #[inline(never)]
    pub(crate) fn close_while_off(&self, id: u64) {
        span_store::by_id::find(flow_id(self.owner, id)).into_iter().for_each(span_stack::close);
    }

    /// Closes the span with this id, if this is the span that this thread left last. Returns false if the caller must
    /// look for the span in the registry.
    #[inline(always)]
    pub(crate) fn close_left_last(&self, id: u64) -> bool {
        span_stack::close_left_last(self.owner, id)
    }

    /// Writes an event. This function is not inlined: callers check [`may_be_enabled`](Self::may_be_enabled) first, so
    /// this function is not called while the tag is off.
    #[inline(never)]
    pub(crate) fn event(&self, event: &Event<'_>) {
        let Some(enabled) = self.prepared.check().and_then(GateCheck::enabled) else { return };
        if enabled.is_perfetto() {
            return typed::event(enabled, self.tag, event, self.fields);
        }
        if fields::has_counter(event.metadata()) && !fields::write_counters(event, self.tag, false) {
            return;
        }
        enabled.instant(|writer: &mut NameWriter<'_>| fields::write_event(event, self.fields, writer));
    }
}

/// The effect of a recorder's options on the spans of a callsite, as bits, and the number of the recorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answers(u32);

impl Answers {
    /// The bits that hold the number of the recorder.
    const OWNER: u32 = (1 << 24) - 1;
    const ARE_KNOWN: u32 = 1 << 24;
    const MAY_BE_NAMED: u32 = 1 << 25;
    /// Fields of the callsite's spans may be shown, or may name a track.
    const MAY_HAVE_TEXT: u32 = 1 << 26;
    /// Spans are shown on threads only ([`AsyncSpans::Never`]). If no mode was selected for the span's target, none of
    /// the bits `NEVER`, `BESIDE` and `INSTEAD` is set.
    const NEVER: u32 = 1 << 27;
    const BESIDE: u32 = 1 << 28;
    const INSTEAD: u32 = 1 << 29;

    #[inline(always)]
    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Returns whether the spans of the callsite are stored even if they have no life.
    #[inline(always)]
    fn may_be_shown(self) -> bool {
        self.has(Self::MAY_BE_NAMED | Self::MAY_HAVE_TEXT | Self::BESIDE | Self::INSTEAD)
    }
}

/// Stores the encoded arguments of a new span.
fn set_args(texts: &mut Texts, args: &[u8]) {
    texts.args.extend_from_slice(args);
    texts.is_typed = true;
    texts.at_begin = texts.args.len() as u32;
}

#[cfg(test)]
mod tests {
    use tracing::info_span;
    use tracing_core::dispatcher::{Dispatch, with_default};

    use crate::AtraceSubscriber;
    use crate::span::Span;

    /// Tests that several threads may read and write a stored span at the same time. No events are written.
    #[test]
    fn a_span_is_recorded_and_entered_by_threads_at_once() {
        let dispatch = Dispatch::new(AtraceSubscriber::default().with_fields_while_off());
        let span = with_default(&dispatch, || info_span!("span", n = 1, later = tracing::field::Empty));
        let known = Span::from_number(span.id().unwrap().into_u64());
        let stored = known.in_slot().unwrap();
        assert_eq!(stored.texts().unwrap().shown, "span, n = 1");
        // A thread that can't lock the text for a long time gives up. So some fields may be missing, but no field is
        // cut.
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

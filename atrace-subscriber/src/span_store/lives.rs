//! Lives. A *life* is the slice of an asynchronous span from its creation until it closes. It is drawn on a *lane*, a
//! track for lives (`lanes.rs`).
//!
//! # Which spans are asynchronous
//!
//! Whether a span is asynchronous is not known when the span is created. A *synchronous* span is entered once, and
//! closes right after it was left. Its slice on its thread shows the whole span, so it needs no life. Every other span
//! that is entered is asynchronous. Its life begins, with the time of the span's creation, as soon as the span is known
//! to be asynchronous:
//!
//! - when the span is entered again;
//! - when the span's thread enters another span after it has left this span (unless the span is presumed to be
//!   synchronous, because the last spans of its callsite were);
//! - when the life of a child of the span begins;
//! - at the second [`tick`] after the span was left or, if the span was never entered, after its creation; or some
//!   ticks later if the span was entered and is presumed to be synchronous (`marks.rs`). So the trace contains the life
//!   even if nothing more happens on the thread, or if the process is killed;
//! - when the span closes, but not right after it was left.
//!
//! If the last span of the callsite was asynchronous, the life begins when the span is created. With
//! `AsyncSpans::Instead`, every life begins when its span is created.
//!
//! # Order
//!
//! A life lies within the life of its parent. For this, the life is a holder of the parent's span: it keeps that span
//! open, as a child does in a `Registry`.
//!
//! # Threads and signals
//!
//! A claim (`claim.rs`) decides which thread begins the life. Until the life has begun, that thread is a holder of the
//! span, unless it has closed the span itself. So no other thread closes the span meanwhile. A signal handler may begin
//! and end lives, too.

use std::sync::atomic::{AtomicU64, Ordering};

use atrace::AtraceTag;
use atrace::tracer::{ArgKey, Enabled, Encoder, GateCheck, PreparedTag, Slice, flow_number, now};
use atrace_sys::fork;

use super::claim::{Claim, LifeLane};
use super::marks::{Entered, Marks};
use super::{InSlot, Slot, StoredSpan, Texts, USED, note_shown, patiently, slot};
use crate::callsites::Callsite;
use crate::lanes::Lane;
use crate::slots::{high, low, pair};

/// The data that the life of a span needs.
pub(super) struct Origin {
    /// The time of the span's creation, in nanoseconds of `CLOCK_BOOTTIME`. If it is 0, the span has no life, even if
    /// it is asynchronous.
    created: AtomicU64,
    /// The [identity](StoredSpan::identity) of the span's parent, or 0 if the span has no parent, or if the parent had
    /// closed when the life began.
    parent: AtomicU64,
    flow_id: AtomicU64,
    tag: AtomicU64,
    /// The [generation](fork::generation) of the process that has created the span.
    process: AtomicU64,
    marks: Marks,
    claim: Claim,
}

/// The maximum number of ancestors whose lives begin together with the life of a span.
const ANCESTORS: usize = 16;

impl Origin {
    pub(super) fn new() -> Self {
        Self {
            created: AtomicU64::new(0),
            parent: AtomicU64::new(0),
            flow_id: AtomicU64::new(0),
            tag: AtomicU64::new(0),
            process: AtomicU64::new(0),
            marks: Marks::new(),
            claim: Claim::new(),
        }
    }

    /// Returns whether the span may have a life.
    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        self.created.load(Ordering::Acquire) != 0
    }

    #[inline(always)]
    pub(super) fn is_of(&self, flow_id: u64) -> bool {
        self.flow_id.load(Ordering::Relaxed) == flow_id
    }

    #[inline(always)]
    pub(super) fn set_flow(&self, flow_id: u64) {
        self.flow_id.store(flow_id, Ordering::Relaxed);
    }

    /// Returns whether the span was entered exactly once.
    #[inline(always)]
    pub(super) fn was_entered_once(&self) -> bool {
        self.marks.has_entered_once()
    }

    /// Returns whether closing a synchronous span takes more work than freeing its slot.
    #[inline(always)]
    pub(super) fn needs_more(&self, generation: u32) -> bool {
        !self.marks.is_presumed_sync() || !self.is_unbegun(generation)
    }

    #[inline(always)]
    pub(super) fn forget(&self) {
        self.created.store(0, Ordering::Relaxed);
    }

    #[inline(always)]
    fn is_unbegun(&self, generation: u32) -> bool {
        self.claim.is_unbegun(generation)
    }

    fn parent(&self) -> Option<StoredSpan> {
        self.parent.load(Ordering::Relaxed).checked_sub(1).map(StoredSpan::from_number)
    }
}

/// What is known about a span when it is created.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Creation {
    /// The time of the creation, in nanoseconds of `CLOCK_BOOTTIME`.
    pub(crate) time: u64,
    pub(crate) parent: Option<StoredSpan>,
    /// The id of the span's flow, from which [`flow_number`] makes the flow's number.
    pub(crate) flow_id: u64,
    pub(crate) tag: AtraceTag,
}

/// Adds the arguments `span` and `parent`: the numbers of the span and of its parent.
pub(crate) fn identify(texts: &mut Texts, span: StoredSpan, parent: Option<StoredSpan>) {
    let mut args = Encoder::new();
    args.scalar(ArgKey::Text("span"), span.identity().into());
    if let Some(parent) = parent {
        args.scalar(ArgKey::Text("parent"), parent.identity().into());
    }
    texts.args.extend_from_slice(args.finish());
}

/// Begins the lives of the spans of this process that no thread is in now, and that no thread was in at the previous
/// tick (see [`Marks::tick`]). A forked child skips the spans of its parent, because the threads that would close these
/// spans may not exist in the child.
pub(crate) fn tick() {
    let process = fork::generation().number();
    for index in 0..USED.load(Ordering::Acquire) {
        let Some(Slot { origin, .. }) = slot(index) else { continue };
        let is_own = origin.is_known() && origin.process.load(Ordering::Relaxed) == process;
        if let Some(generation) = origin.claim.unbegun().filter(|_| is_own)
            && origin.marks.tick(generation)
        {
            StoredSpan(pair(generation, index)).begin_life_if_alive(true);
        }
    }
}

impl StoredSpan {
    /// Returns the number, never 0, by which arguments refer to the span. No other span of the process gets the same
    /// number, until 2^30 other spans have been in its slot.
    pub(crate) const fn identity(self) -> u64 {
        self.0 + 1
    }

    /// Returns whether the span's flow has the id `flow_id`. If no flow was set for the span, compares `flow_id` with
    /// the flow of an earlier span in the slot.
    pub(crate) fn has_flow(self, flow_id: u64) -> bool {
        self.slot().is_some_and(|slot| slot.origin.is_of(flow_id))
    }

    /// Finds the span, so that a slice of it can begin. Returns `None` if the span has closed.
    #[inline(always)]
    pub(crate) fn enter(self) -> Option<InSlot> {
        self.slot().map(|slot| InSlot { stored: self, slot })
    }

    #[cold]
    #[inline(never)]
    fn enter_again(self, slot: &Slot) {
        slot.learn(true);
        if slot.origin.is_unbegun(high(self.0)) {
            self.begin_life();
        }
    }

    /// Records that this thread has left the span.
    #[inline(always)]
    pub(crate) fn leave(self) {
        if let Some(slot) = self.slot() {
            slot.origin.marks.leave(high(self.0));
        }
    }

    /// Begins the life of a span that this thread has left, if the span is still alive.
    pub(crate) fn outlive(self) {
        self.begin_life_if_alive(true);
    }

    fn begin_life_if_alive(self, is_async: bool) {
        let Some(slot) = self.slot() else { return };
        if slot.origin.is_known() && slot.origin.is_unbegun(high(self.0)) {
            if is_async && slot.origin.marks.has_entered() {
                slot.learn(true);
            }
            self.begin_life();
        }
    }

    /// Begins the lives of the span's ancestors and then the life of the span, unless they have begun before.
    pub(crate) fn begin_life(self) {
        self.begin_ancestors();
        self.begin_own_life();
    }

    fn begin_ancestors(self) {
        let mut ancestors = [self; ANCESTORS];
        let mut count = 0;
        let mut last = self;
        while count < ANCESTORS {
            let parent = last.slot().and_then(|slot| slot.origin.parent());
            let is_unbegun = |parent: &Self| {
                parent
                    .slot()
                    .is_some_and(|slot| slot.origin.is_known() && slot.origin.is_unbegun(high(parent.0)))
            };
            let Some(parent) = parent.filter(is_unbegun) else { break };
            ancestors[count] = parent;
            count += 1;
            last = parent;
        }
        ancestors[..count].iter().rev().for_each(|ancestor| ancestor.begin_own_life());
    }

    fn begin_own_life(self) {
        // The span may be closing on another thread. Because this thread is a holder, the life does not end before it
        // has begun.
        if let Some(slot) = slot(low(self.0)).filter(|slot| slot.life.hold(high(self.0))) {
            self.begin_in(slot);
            self.release(|| false);
        }
    }

    /// Begins the life, unless it has begun before or the events do not go to Perfetto now. The caller must be a holder
    /// of the span, or must have closed it.
    #[cold]
    #[inline(never)]
    fn begin_in(self, slot: &'static Slot) {
        let Slot { origin, .. } = slot;
        let tag = AtraceTag::from_bits_retain(origin.tag.load(Ordering::Relaxed));
        let enabled = PreparedTag::new(tag).check().and_then(GateCheck::enabled);
        let Some(enabled) = enabled.filter(|enabled| origin.is_known() && enabled.is_perfetto()) else {
            return;
        };
        if origin.claim.take(high(self.0)) {
            let begun = patiently(|| slot.texts.try_write())
                .and_then(|mut texts| InSlot { stored: self, slot }.write_begin(&mut texts, enabled));
            origin.claim.set(high(self.0), begun);
        }
    }

    /// Ends the life of a span that has closed. If the span was entered and its life has not begun, first begins the
    /// life. If the life kept the span's parent open, returns the parent, which the caller must then release.
    pub(super) fn end_life(self, slot: &'static Slot) -> Option<Self> {
        let Slot { origin, .. } = slot;
        if origin.marks.has_entered() && origin.is_unbegun(high(self.0)) {
            slot.learn(true);
            self.begin_ancestors_of(origin);
            self.begin_in(slot);
        }
        let held = self.write_end(slot);
        origin.forget();
        held
    }

    /// Begins the lives of the ancestors of a span that has closed.
    fn begin_ancestors_of(self, origin: &Origin) {
        if let Some(parent) = origin.parent() {
            parent.begin_life_if_alive(false);
        }
    }

    fn write_end(self, slot: &Slot) -> Option<Self> {
        let Slot { origin, .. } = slot;
        let LifeLane { lane, is_nested } = origin.claim.begun(high(self.0))?;
        let lane = Lane::from_number(lane);
        let parent = origin.parent();
        let below = parent.filter(|_| is_nested).map_or(0, Self::identity);
        lane.leave(below, now(), |time| {
            let Some(mut texts) = patiently(|| slot.texts.try_write()) else { return };
            let Some(slice) = texts.async_slice.take() else { return };
            let Some((info, track)) = slot.callsite().info().zip(lane.track()) else { return };
            let recorded = texts.args.get(texts.at_begin as usize..).unwrap_or_default();
            slice.end(&track, Some((&info.site(), recorded)), time);
        });
        parent
    }
}

impl InSlot {
    /// Sets the flow of a new span without a life. [`expect_life`](Self::expect_life) sets the flow of other spans.
    pub(crate) fn set_flow(self, flow_id: u64) {
        self.slot.origin.set_flow(flow_id);
    }

    /// Records the data that is known at the span's creation. No other thread may have access to the span yet.
    /// `is_presumed_sync` means that spans of the callsite are presumed to have no lives, and that the arguments do not
    /// contain the span's number. `begins` means that the caller calls [`begin_life`](Self::begin_life) next. In that
    /// case the life is claimed, so that a [`tick`] between the two calls does not begin it.
    #[inline(always)]
    pub(crate) fn expect_life(self, birth: &Creation, is_presumed_sync: bool, begins: bool) {
        let Self { stored, slot: Slot { origin, .. } } = self;
        origin.parent.store(birth.parent.map_or(0, StoredSpan::identity), Ordering::Relaxed);
        origin.flow_id.store(birth.flow_id, Ordering::Relaxed);
        origin.tag.store(birth.tag.bits(), Ordering::Relaxed);
        origin.process.store(fork::generation().number(), Ordering::Relaxed);
        origin.marks.reset(high(stored.0), is_presumed_sync);
        origin.claim.reset(high(stored.0), begins);
        note_shown();
        origin.created.store(birth.time.max(1), Ordering::Release);
    }

    /// Begins the life of a new span for which [`expect_life`](Self::expect_life) has claimed the life.
    #[inline(never)]
    pub(crate) fn begin_life(self, texts: &mut Texts, enabled: Enabled, birth: &Creation) {
        if let Some(parent) = birth.parent {
            parent.begin_life_if_alive(false);
        }
        let begun = self.write_begin(texts, enabled);
        self.slot.origin.claim.set(high(self.stored.0), begun);
    }

    /// Writes the begin of the life. Returns the lane on which the life has begun, or `None` if the begin could not be
    /// written. The caller must have claimed the life.
    fn write_begin(self, texts: &mut Texts, enabled: Enabled) -> Option<LifeLane> {
        let Self { stored, slot } = self;
        let origin = &slot.origin;
        let callsite = slot.callsite();
        let info = callsite.info()?;
        let time = origin.created.load(Ordering::Relaxed);
        let parent = origin.parent();
        let held = parent.filter(|parent| parent.hold());
        let lane_of = |parent: StoredSpan| parent.slot()?.origin.claim.begun(high(parent.0));
        let of_parent = held.and_then(|parent| Some((parent, Lane::from_number(lane_of(parent)?.lane))));
        let nested = of_parent.filter(|(parent, lane)| lane.nest(parent.identity(), stored.identity(), time));
        let is_nested = nested.is_some();
        let lane = nested.map(|(_, lane)| lane).or_else(|| Lane::take(callsite, stored.identity(), time));
        let Some((lane, track)) = lane.and_then(|lane| Some((lane, lane.track()?))) else {
            held.into_iter().for_each(|parent| _ = parent.release(|| false));
            return None;
        };
        if origin.marks.identify(high(stored.0)) {
            identify(texts, stored, parent);
        }
        if held.is_none() {
            origin.parent.store(0, Ordering::Relaxed);
        }
        texts.at_begin = texts.args.len() as u32;
        let flow = flow_number(origin.flow_id.load(Ordering::Relaxed));
        texts.async_slice =
            enabled.begin_on_track_at(&track, &info.site(), texts.own_name(), (flow, time), &texts.args);
        Some(LifeLane { lane: lane.number(), is_nested })
    }

    /// Records that the span was entered, and begins its life if it was entered before. Returns whether the thread
    /// must call [`leave`](StoredSpan::leave) when it leaves the span.
    #[inline(always)]
    pub(crate) fn is_watched(self) -> bool {
        let Self { stored, slot } = self;
        let origin = &slot.origin;
        if !origin.is_known() {
            return false;
        }
        match origin.marks.enter(high(stored.0)) {
            Entered::FirstOfPresumed => return false,
            Entered::Again => stored.enter_again(slot),
            Entered::First | Entered::Known => {}
        }
        origin.is_unbegun(high(stored.0))
    }

    /// Begins a slice of the span on this thread.
    #[inline(always)]
    pub(crate) fn begin(self, enabled: Enabled, flow: u64) -> Option<Slice> {
        let info = self.slot.callsite().info()?;
        let texts = patiently(|| self.slot.texts.try_read());
        let args = texts.as_deref().map_or(&[][..], |texts| &texts.args);
        let name = texts.as_deref().and_then(Texts::own_name);
        enabled.begin_at(&info.site(), name, flow, args)
    }
}

impl Slot {
    #[inline(always)]
    fn callsite(&self) -> Callsite {
        Callsite::from_number(self.callsite.load(Ordering::Relaxed))
    }

    /// Records that a span, which was entered once, was synchronous. If its life has not begun, the span gets no life.
    pub(super) fn was_sync(&self, generation: u32) {
        self.learn(false);
        if self.origin.is_unbegun(generation) {
            self.origin.forget();
        }
    }

    #[inline(never)]
    fn learn(&self, is_async: bool) {
        self.callsite().learn(is_async);
    }
}

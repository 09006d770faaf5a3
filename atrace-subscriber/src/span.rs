//! A span as this crate stores it, in one word.

use std::cell::Cell;

use atrace::__typed::flow_number;
use atrace::{Enabled, Glance, Slice};
use tracing_core::Metadata;

use crate::callsites::{Callsite, Known};
use crate::kept::Kept;

/// Either the callsite alone, which says the name, or a slot, which holds the fields too.
///
/// ```text
/// 0                                  no span
/// callsite, plus 1                   nothing is kept of it
/// 1 << 32 | callsite, plus 1         the same, but its id is its own: a registry's
/// 1 | hidden, 1 | slot, 62 bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(u64);

const KEPT: u64 = 1 << 63;
/// Its async slice stands for it: it makes none on the threads that enter it.
const HIDDEN: u64 = 1 << 62;

impl Span {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) const fn plain(callsite: Callsite) -> Self {
        Self(callsite.number() as u64 + 1)
    }

    #[inline]
    pub(crate) const fn plain_in_registry(callsite: Callsite) -> Self {
        Self(1 << 32 | Self::plain(callsite).0)
    }

    /// Whether no other span has its id.
    #[inline]
    pub(crate) const fn is_one(self) -> bool {
        self.0 >> 32 != 0
    }

    #[inline]
    pub(crate) const fn kept(kept: Kept, hidden: bool) -> Self {
        Self(KEPT | if hidden { HIDDEN } else { 0 } | kept.number())
    }

    #[inline]
    pub(crate) const fn from_number(number: u64) -> Self {
        Self(number)
    }

    #[inline]
    pub(crate) const fn number(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) const fn is_hidden(self) -> bool {
        self.0 & (KEPT | HIDDEN) == KEPT | HIDDEN
    }

    #[inline]
    pub(crate) const fn in_slot(self) -> Option<Kept> {
        if self.0 & KEPT != 0 { Some(Kept::from_number(self.0 & !(KEPT | HIDDEN))) } else { None }
    }

    #[inline]
    pub(crate) fn metadata(self) -> Option<&'static Metadata<'static>> {
        let callsite = match self.in_slot() {
            Some(kept) => kept.callsite()?,
            // Of what stands for no span no callsite has the number.
            None => Callsite::from_number((self.0 as u32).wrapping_sub(1)),
        };
        callsite.metadata()
    }

    /// Takes a holder of what is kept away, if anything is; tells whether that closes the span.
    #[inline]
    pub(crate) fn release(self) -> bool {
        self.in_slot().is_some_and(Kept::release)
    }

    /// Tells whether both are of one callsite.
    pub(crate) fn has_name_of(self, other: Self) -> bool {
        self.metadata().zip(other.metadata()).is_some_and(|(one, other)| std::ptr::eq(one, other))
    }

    /// Begins its slice on this thread, for `slice` to know; `id` tells it from all others, where [`is_one`](Self::is_one).
    #[inline(always)]
    pub(crate) fn begin(self, glance: Glance, slice: &Cell<Slice>, id: impl FnOnce() -> u64) {
        let Some(enabled) = glance.enabled() else { return };
        if enabled.__for_perfetto().is_some() {
            return self.begin_typed(enabled, slice, id());
        }
        let texts = match self.in_slot() {
            Some(_) if self.is_hidden() => return,
            Some(kept) => kept.texts(),
            None => None,
        };
        let name = match texts.as_deref().map(|texts| &*texts.shown) {
            Some(shown) if !shown.is_empty() => shown,
            _ => match self.metadata() {
                Some(metadata) => metadata.name(),
                None => return,
            },
        };
        slice.set(enabled.begin_with(|writer| writer.push_str(name)));
    }

    /// The same in Perfetto's memory: slices of one span are a flow.
    #[inline(never)]
    fn begin_typed(self, enabled: Enabled, slice: &Cell<Slice>, id: u64) {
        if self.is_hidden() {
            return;
        }
        let Some(known) = self.metadata().map(Known) else { return };
        let texts = self.in_slot().and_then(Kept::texts);
        let args = texts.as_deref().map_or(&[][..], |texts| &texts.args);
        let flow = if self.is_one() { flow_number(id) } else { 0 };
        slice.set(enabled.__begin(&known.site(), flow, args));
    }

    /// Ends a slice of it, with the arguments that were recorded from there on.
    #[cold]
    pub(crate) fn end_recorded(self, slice: Slice, from: u32) {
        let texts = self.in_slot().and_then(Kept::texts);
        let args = texts.as_deref().and_then(|texts| texts.args.get(from as usize..));
        match (self.metadata(), args) {
            (Some(metadata), Some(args)) => slice.__end_with(Known(metadata).site(), args),
            _ => slice.end(),
        }
    }
}

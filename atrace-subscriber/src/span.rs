//! A span in the form in which this crate stores it: one word.

use std::cell::Cell;

use atrace::tracer::{Enabled, Slice};
use tracing_core::Metadata;

use crate::callsites::{Callsite, CallsiteInfo};
use crate::span_store::StoredSpan;

/// A span: either only the number of its callsite, whose metadata has the span's name, or a slot of the span store,
/// which has the fields, too.
///
/// ```text
/// 0                                  no span
/// callsite, plus 1                   nothing is stored; all such spans of the callsite have this value
/// 1 << 32 | callsite, plus 1         nothing is stored, but the span has an id of its own, from a registry
/// STORED | HIDDEN or 0 | 62 bits     stored; the 62 bits are the slot and the generation
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span(u64);

const STORED: u64 = 1 << 63;
/// The bit for a span that has an async slice instead of slices on the threads that enter it.
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

    /// Returns whether the span is the only span with its id. (Without a registry, all spans of a callsite that are not
    /// stored share one id.)
    #[inline]
    pub(crate) const fn is_one(self) -> bool {
        self.0 >> 32 != 0
    }

    #[inline]
    pub(crate) const fn stored(stored: StoredSpan, hidden: bool) -> Self {
        Self(STORED | if hidden { HIDDEN } else { 0 } | stored.number())
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
        self.0 & (STORED | HIDDEN) == STORED | HIDDEN
    }

    #[inline]
    pub(crate) const fn in_slot(self) -> Option<StoredSpan> {
        if self.0 & STORED != 0 { Some(StoredSpan::from_number(self.0 & !(STORED | HIDDEN))) } else { None }
    }

    #[inline]
    pub(crate) fn metadata(self) -> Option<&'static Metadata<'static>> {
        self.callsite()?.metadata()
    }

    #[inline]
    fn callsite(self) -> Option<Callsite> {
        match self.in_slot() {
            Some(stored) => stored.callsite(),
            // For `Span::NONE`, the result is a number that no callsite has.
            None => Some(Callsite::from_number((self.0 as u32).wrapping_sub(1))),
        }
    }

    /// Removes a holder (a reference that keeps the span open). Returns true if that closes the span. Returns false if
    /// the span has other holders or is not stored. `is_just_left` has the same meaning as in [`StoredSpan::release`].
    #[inline]
    pub(crate) fn release(self, is_just_left: impl Fn() -> bool) -> bool {
        self.in_slot().is_some_and(|stored| stored.release(is_just_left))
    }

    /// Begins the life of the span (its slice from the creation until it closes), if the span is alive. The calling
    /// thread must have left the span.
    #[cold]
    pub(crate) fn outlive(self) {
        self.in_slot().into_iter().for_each(StoredSpan::outlive);
    }

    /// Returns whether both spans have the same callsite, and so the same name.
    pub(crate) fn has_name_of(self, other: Self) -> bool {
        self.metadata().zip(other.metadata()).is_some_and(|(one, other)| std::ptr::eq(one, other))
    }

    /// Begins a slice whose name contains the span's fields as text, and stores the slice in `slice`.
    #[inline(always)]
    pub(crate) fn begin_text(self, enabled: Enabled, slice: &Cell<Option<Slice>>) {
        let texts = match self.in_slot() {
            Some(_) if self.is_hidden() => return,
            Some(stored) => stored.texts(),
            None => None,
        };
        let name = match texts.as_deref().map(|texts| &*texts.shown) {
            Some(shown) if !shown.is_empty() => shown,
            _ => match self.metadata() {
                Some(metadata) => metadata.name(),
                None => return,
            },
        };
        slice.set(enabled.begin(name));
    }

    /// Begins a slice of a span that is not stored, in Perfetto's memory. If `flow` is not 0, it is the number of the
    /// span's flow.
    #[inline(always)]
    pub(crate) fn begin_plain(self, enabled: Enabled, flow: u64) -> Option<Slice> {
        enabled.begin_at(&self.callsite()?.info()?.site(), None, flow, &[])
    }

    /// Ends a slice of the span. The end gets the arguments of the span from position `from` on.
    #[cold]
    pub(crate) fn end_recorded(self, slice: Slice, from: u32) {
        let texts = self.in_slot().and_then(StoredSpan::texts);
        let args = texts.as_deref().and_then(|texts| texts.args.get(from as usize..));
        let info = self.callsite().and_then(Callsite::info);
        slice.end(info.as_ref().map(CallsiteInfo::site).zip(args));
    }
}

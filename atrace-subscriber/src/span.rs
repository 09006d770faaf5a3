//! A span as this crate knows it, in one word.

use std::cell::Cell;

use atrace::{Glance, Slice};
use tracing_core::Metadata;

use crate::callsites::Callsite;
use crate::kept::Kept;

/// Either the callsite alone, which says the name, or a slot, which holds the fields too.
///
/// ```text
/// 0                                  no span
/// callsite, plus 1                   nothing is kept of it
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
    pub(crate) fn release(self) -> bool {
        self.in_slot().is_some_and(Kept::release)
    }

    /// Tells whether both are of one callsite.
    pub(crate) fn has_name_of(self, other: Self) -> bool {
        self.metadata().zip(other.metadata()).is_some_and(|(one, other)| std::ptr::eq(one, other))
    }

    /// Begins its slice on this thread, for `slice` to know. A call, as it is much code and there are two callers.
    #[inline(never)]
    pub(crate) fn begin(self, glance: Glance, slice: &Cell<Slice>) {
        let Some(enabled) = glance.enabled() else { return };
        let texts = match self.in_slot() {
            Some(_) if self.is_hidden() => return,
            Some(kept) => kept.texts(),
            None => None,
        };
        let name = match &texts {
            Some(texts) => &*texts.shown,
            None => match self.metadata() {
                Some(metadata) => metadata.name(),
                None => return,
            },
        };
        slice.set(enabled.begin_with(|writer| writer.push_str(name)));
    }
}

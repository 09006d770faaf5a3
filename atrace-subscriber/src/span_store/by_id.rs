//! Finds stored spans without fields by the id that their registry gave them.
//!
//! A layer usually keeps the stored span in the extensions of the registry's span, which allocates memory. Spans with
//! fields allocate anyway once per span. A span without fields is stored rarely: of 1024 spans that are presumed to be
//! synchronous, one is watched (`callsites.rs`). This table finds such a span without an allocation.
//!
//! The table has one place for all spans whose flow numbers have the same hash. A place with a span that is not closed
//! yet is not overwritten; the layer then uses the extensions. A place is never cleared: the generation in a
//! [`StoredSpan`] shows that its span has closed. The flow number in a place only makes the usual answer fast, that the
//! place has another span. The number in the span's slot decides.

use super::StoredSpan;
use crate::span::Span;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of places, a power of two.
const PLACES: usize = 256;

struct Place {
    flow_id: AtomicU64,
    span: AtomicU64,
}

static PLACE: [Place; PLACES] =
    [const { Place { flow_id: AtomicU64::new(0), span: AtomicU64::new(0) } }; PLACES];

/// Returns the place for a span whose flow has this number.
#[inline(always)]
fn place(flow_id: u64) -> &'static Place {
    // The golden ratio, by which neighbouring numbers get different places.
    let hash = flow_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.trailing_zeros());
    &PLACE[hash as usize % PLACES]
}

/// Returns the span with this number, if its flow has the number `flow_id` and it has not closed.
fn alive(span: u64, flow_id: u64) -> Option<Span> {
    let span = Span::from_number(span);
    let slot = span.in_slot().and_then(StoredSpan::slot)?;
    let is_own = slot.origin.is_known() && slot.origin.is_of(flow_id);
    (is_own && !slot.is_closed.load(Ordering::Relaxed)).then_some(span)
}

/// Adds a new span that may have a life, and whose flow has this number. Returns false if there is no room for the
/// span, or if it has no life.
pub(crate) fn add(flow_id: u64, span: Span) -> bool {
    let place = place(flow_id);
    let before = place.span.load(Ordering::Relaxed);
    let is_used = alive(before, place.flow_id.load(Ordering::Relaxed)).is_some();
    let is_added = !is_used
        && alive(span.number(), flow_id).is_some()
        && place.span.compare_exchange(before, span.number(), Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if is_added {
        place.flow_id.store(flow_id, Ordering::Release);
    }
    is_added
}

/// Finds the span whose flow has this number, unless the span has closed.
#[inline(always)]
pub(crate) fn find(flow_id: u64) -> Option<Span> {
    let place = place(flow_id);
    if place.flow_id.load(Ordering::Acquire) != flow_id {
        return None;
    }
    alive(place.span.load(Ordering::Relaxed), flow_id)
}

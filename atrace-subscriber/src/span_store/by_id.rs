//! Finds stored spans by the id that their registry gave them, without the locks of the registry.
//!
//! A layer could keep a stored span in the extensions of the registry's span, which would allocate memory for each
//! span. The layer does so only if this table has no room, or if the span may have a life and has fields. The reason
//! for the second case: a registry that is not the global default may never report the close of a span whose child
//! closed on another thread. The life of such a span, if it has fields, ends when the registry drops the extensions.
//!
//! The table has one place for all spans whose flow ids ([`flow_id`](crate::span_stack::flow_id)) have the same hash. A
//! place with a span that is not closed yet is not overwritten; the layer then stores the new span in the extensions. A
//! place is never cleared: the generation in a [`StoredSpan`] shows that the span has closed. The flow id in a place is
//! only for a fast check, which usually shows that the place has another span. If this check passes, the flow id in the
//! span's slot decides. If the registry never reports that a span closed, the span keeps its place and its slot. So at
//! most one slot is lost for each place.

use super::{Slot, StoredSpan, note_shown};
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

/// Returns the place for a span whose flow has this id.
#[inline(always)]
fn place(flow_id: u64) -> &'static Place {
    // The golden ratio, by which neighbouring numbers get different places.
    let hash = flow_id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - PLACES.trailing_zeros());
    &PLACE[hash as usize % PLACES]
}

/// Returns the slot of the [`Span`] with this number, unless the span has closed.
fn open(span: u64) -> Option<&'static Slot> {
    let slot = Span::from_number(span).in_slot().and_then(StoredSpan::slot)?;
    (!slot.is_closed.load(Ordering::Acquire)).then_some(slot)
}

/// Adds a new span, whose flow has this id. Returns true if the span need not be stored in the registry's extensions.
/// Returns false if the table has no room for the span, or if the span may have a life and has fields.
pub(crate) fn add(flow_id: u64, span: Span, has_fields: bool) -> bool {
    let Some(slot) = open(span.number()) else { return false };
    let place = place(flow_id);
    // Acquires the state of the slot of the span in the place. If the state of the slot's previous span were read, the
    // span would seem closed.
    let before = place.span.load(Ordering::Acquire);
    if open(before).is_some() {
        return false;
    }
    slot.origin.set_flow(flow_id);
    let new = span.number();
    let is_added = place.span.compare_exchange(before, new, Ordering::Release, Ordering::Relaxed).is_ok();
    if is_added {
        note_shown();
        place.flow_id.store(flow_id, Ordering::Release);
    }
    is_added && !(has_fields && slot.origin.is_known())
}

/// Finds the span whose flow has this id, unless the span has closed.
#[inline(always)]
pub(crate) fn find(flow_id: u64) -> Option<Span> {
    let place = place(flow_id);
    if place.flow_id.load(Ordering::Acquire) != flow_id {
        return None;
    }
    // Acquires the flow id in the span's slot. Otherwise the flow id of the slot's previous span might be read, and
    // pass the check below.
    let span = place.span.load(Ordering::Acquire);
    open(span).filter(|slot| slot.origin.is_of(flow_id)).map(|_| Span::from_number(span))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callsites::Callsite;

    /// Several threads add spans to a single place of the table. A span that was added must be found until it closes.
    #[test]
    fn threads_do_not_take_the_place_of_an_open_span() {
        let (threads, rounds) = if cfg!(miri) { (2, 20) } else { (4, 100_000) };
        let at = |flow_id| std::ptr::from_ref(place(flow_id)).addr();
        let same_place: Vec<_> = (1..).filter(|flow_id| at(*flow_id) == at(1)).take(threads).collect();
        let add_again_and_again = |flow_id| {
            let mut added = 0;
            for _ in 0..rounds {
                let stored = StoredSpan::new(Callsite::from_number(1), |_, _| {}).unwrap();
                if add(flow_id, Span::stored(stored, false), false) {
                    added += 1;
                    let found = find(flow_id).and_then(Span::in_slot);
                    assert_eq!(found, Some(stored), "after {added} spans");
                }
                stored.close_once(|| false);
                assert!(find(flow_id).is_none());
            }
            added
        };
        let added: u32 = std::thread::scope(|scope| {
            let all: Vec<_> =
                same_place.iter().map(|flow_id| scope.spawn(move || add_again_and_again(*flow_id))).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert!(added > 0);
    }
}

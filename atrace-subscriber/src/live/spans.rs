//! The live spans of one layer, which the layer shares with its handles. This module also has the list of all layers'
//! live spans, which [`dump`](super::dump) reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use atrace_sys::fork::{PerProcess, generation};

use super::rules::Rules;
use super::stack::{self, DEEPEST, Walk};
use super::symbols;
use super::table::{Description, SpanTable};

/// The method by which a layer finds return addresses, and the moment at which it looks up the functions at these
/// addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backtraces {
    pub(super) walk: Walk,
    /// Whether the functions of a backtrace are looked up when the span is created.
    pub(super) is_eager: bool,
}

/// The live spans of a layer, and the options with which they are shown.
pub(super) struct LiveSpans {
    pub(super) table: SpanTable,
    pub(super) rules: Arc<Rules>,
    /// How the layer makes backtraces, or `None` if the layer stores no backtraces.
    pub(super) backtraces: Option<Backtraces>,
    /// The generation (a number that changes at each fork) of the process whose list, [`ALL`], contains these spans.
    listed_by: AtomicU64,
}

impl std::fmt::Debug for LiveSpans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LiveSpans").field("backtraces", &self.backtraces).finish_non_exhaustive()
    }
}

/// The live spans of all layers that were used in this process.
static ALL: PerProcess<Mutex<Vec<Weak<LiveSpans>>>> = PerProcess::new();

pub(super) fn all() -> MutexGuard<'static, Vec<Weak<LiveSpans>>> {
    ALL.get_or_make(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl LiveSpans {
    pub(super) fn new(depth: usize, rules: Rules, backtraces: Option<Backtraces>) -> Self {
        let table = SpanTable::new(depth);
        Self { table, rules: Arc::new(rules), backtraces, listed_by: AtomicU64::new(0) }
    }

    /// Adds these spans to the list of this process ([`ALL`]), if they are not in the list yet.
    #[inline]
    pub(super) fn list(self: &Arc<Self>) {
        if self.listed_by.load(Ordering::Relaxed) != generation().number() {
            self.list_anew();
        }
    }

    #[cold]
    fn list_anew(self: &Arc<Self>) {
        let mut all = all();
        if self.listed_by.swap(generation().number(), Ordering::Relaxed) != generation().number() {
            all.retain(|other| other.strong_count() > 0);
            all.push(Arc::downgrade(self));
        }
    }

    /// Adds a span, together with the caller's backtrace if backtraces are stored.
    #[inline]
    pub(super) fn insert(&self, mut span: Description) {
        match self.backtraces {
            None => {
                self.table.insert(span, |_| Some(0));
            }
            Some(Backtraces { walk: Walk::FramePointers, is_eager: false }) => {
                // The walk writes the addresses directly into the table.
                if let Some(span) = self.table.insert(span, stack::by_frame_pointers) {
                    self.insert_unwound(span);
                }
            }
            Some(Backtraces { walk, is_eager }) => {
                let mut addresses = [0; DEEPEST];
                let found = stack::return_addresses(walk, &mut addresses[..self.table.depth]);
                let addresses = &addresses[..found];
                if is_eager {
                    span.frames = Some(symbols::look_up_afresh(addresses, &self.rules));
                }
                self.insert_with(span, addresses);
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn insert_unwound(&self, span: Description) {
        let mut addresses = [0; DEEPEST];
        let found = stack::return_addresses(Walk::FramePointers, &mut addresses[..self.table.depth]);
        self.insert_with(span, &addresses[..found]);
    }

    fn insert_with(&self, span: Description, addresses: &[usize]) {
        self.table.insert(span, |room| {
            room[..addresses.len()].copy_from_slice(addresses);
            Some(addresses.len())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::description_of_a_test;
    use super::*;

    #[test]
    fn symbols_are_looked_up_when_it_was_asked_for() {
        for (is_eager, walk) in [
            (false, Walk::Unwinding),
            (false, Walk::FramePointers),
            (true, Walk::Unwinding),
            (true, Walk::FramePointers),
        ] {
            let backtraces = Some(Backtraces { walk, is_eager });
            let spans = LiveSpans::new(8, Rules::new(false, Vec::new()), backtraces);
            (1..4).for_each(|id| spans.insert(description_of_a_test(id)));
            let (mut records, mut addresses) = Default::default();
            spans.table.copy(&mut records, &mut addresses);
            assert_eq!(records.len(), 3);
            for record in records {
                assert_eq!(record.addresses.len(), 8);
                let frames = record.description.frames;
                assert_eq!(frames.is_some(), is_eager);
                assert!(frames.is_none_or(|frames| frames.len() >= 8));
            }
        }
    }
}

//! The spans that a thread is in, and the slices that it has open.
//!
//! An end closes the youngest slice of its thread, whoever began it. So there is one account a thread, for
//! all subscribers of the process: it knows which begins were written, writes exactly their ends, and where a
//! span is left before one that was entered later, it ends the younger ones first and begins them again.
//!
//! The account lies in the thread's own memory and has nothing to drop: it works as well while the thread
//! ends, whatever else was destroyed before. Only beyond a depth that no stack of spans has is it on the
//! heap.
//!
//! On Android, where the standard library keeps such memory by keys, all of it goes when the thread ends, in
//! an order of its own: there the account ends, as it goes, the slices that are still open.

use std::cell::{Cell, RefCell};

use atrace::{AtraceTag, Glance, Slice, glance};

use crate::span::Span;

const DEPTH: usize = 32;

thread_local! {
    static ENTERED: Entered = const { Entered::new() };
    static DEEPER: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

/// Which subscriber of the process; each numbers its spans as it likes.
pub(crate) type Owner = u32;

struct Entry {
    owner: Cell<Owner>,
    /// The id that the subscriber's users know the span by.
    id: Cell<u64>,
    span: Cell<Span>,
    tag: Cell<AtraceTag>,
    slice: Cell<Slice>,
}

impl Entry {
    const fn new() -> Self {
        Self {
            owner: Cell::new(0),
            id: Cell::new(0),
            span: Cell::new(Span::NONE),
            tag: Cell::new(AtraceTag::empty()),
            slice: Cell::new(Slice::none()),
        }
    }

    #[inline(always)]
    fn set(&self, owner: Owner, id: u64, span: Span, tag: AtraceTag, slice: Slice) {
        self.owner.set(owner);
        self.id.set(id);
        self.span.set(span);
        self.tag.set(tag);
        self.slice.set(slice);
    }

    #[inline(always)]
    fn take_slice(&self) -> Slice {
        self.slice.replace(Slice::none())
    }

    fn move_to(&self, other: &Self) {
        other.set(self.owner.get(), self.id.get(), self.span.get(), self.tag.get(), self.take_slice());
    }
}

struct Entered {
    len: Cell<usize>,
    entries: [Entry; DEPTH],
}

/// Notes that this thread entered a span, and the slice that was begun for it.
#[inline(always)]
pub(crate) fn enter(owner: Owner, id: u64, span: Span, tag: AtraceTag, slice: Slice) {
    ENTERED.with(|entered| {
        let len = entered.len.get();
        match entered.entries.get(len) {
            Some(entry) => {
                entered.len.set(len + 1);
                entry.set(owner, id, span, tag, slice);
            }
            None => entered.enter_deeper(owner, id, span, tag, slice),
        }
    });
}

/// Notes that this thread left a span, and ends its slice. A span that it is not in is ignored.
#[inline(always)]
pub(crate) fn exit(owner: Owner, id: u64) {
    ENTERED.with(|entered| {
        let last = entered.len.get().wrapping_sub(1);
        match entered.entries.get(last) {
            Some(entry) if entry.id.get() == id && entry.owner.get() == owner => {
                entered.len.set(last);
                entry.take_slice().end();
            }
            _ => entered.exit_other(owner, id),
        }
    });
}

/// The span that this thread entered last of those of one subscriber: its id.
pub(crate) fn current(owner: Owner) -> Option<u64> {
    ENTERED.with(|entered| {
        (0..entered.len.get()).rev().find_map(|at| {
            entered.entry(at, |entry| (entry.owner.get() == owner).then(|| entry.id.get())).flatten()
        })
    })
}

#[inline(never)]
fn begin_again(span: Span, tag: AtraceTag) -> Slice {
    glance(tag).and_then(Glance::enabled).map_or(Slice::none(), |enabled| span.begin(enabled))
}

// Elsewhere it would have each first use on a thread register a destructor.
#[cfg(target_os = "android")]
impl Drop for Entered {
    fn drop(&mut self) {
        for at in (0..self.len.get()).rev() {
            self.entry(at, Entry::take_slice).unwrap_or(Slice::none()).end();
        }
    }
}

impl Entered {
    const fn new() -> Self {
        Self { len: Cell::new(0), entries: [const { Entry::new() }; DEPTH] }
    }

    /// Looks at an entry; None if there is none, or if it was among those that a thread's end has taken away.
    fn entry<T>(&self, at: usize, look: impl FnOnce(&Entry) -> T) -> Option<T> {
        match at.checked_sub(DEPTH) {
            None => self.entries.get(at).map(look),
            Some(deep) => DEEPER.try_with(|deeper| deeper.borrow().get(deep).map(look)).ok().flatten(),
        }
    }

    #[cold]
    #[inline(never)]
    fn enter_deeper(&self, owner: Owner, id: u64, span: Span, tag: AtraceTag, slice: Slice) {
        let len = self.len.get();
        let entry = Entry::new();
        entry.set(owner, id, span, tag, Slice::none());
        let noted = DEEPER.try_with(|deeper| {
            let mut deeper = deeper.borrow_mut();
            deeper.truncate(len - DEPTH);
            deeper.push(entry);
        });
        if noted.is_err() {
            return slice.end(); // Nobody would end it later.
        }
        self.entry(len, |entry| entry.slice.set(slice));
        self.len.set(len + 1);
    }

    #[cold]
    #[inline(never)]
    fn exit_other(&self, owner: Owner, id: u64) {
        let len = self.len.get();
        let is_it = |at: &usize| {
            self.entry(*at, |entry| entry.id.get() == id && entry.owner.get() == owner).unwrap_or(false)
        };
        let Some(at) = (0..len).rev().find(is_it) else { return };
        let slice = self.entry(at, Entry::take_slice).unwrap_or(Slice::none());
        // Layers of one stack hear of an exit one after the other, the first one first: their slices look the
        // same.
        let span = self.entry(at, |entry| entry.span.get()).unwrap_or(Span::NONE);
        let looks_the_same = |younger: usize| {
            let same = |entry: &Entry| entry.id.get() == id && entry.span.get().has_name_of(span);
            self.entry(younger, same).unwrap_or(false)
        };
        let reopen = slice.is_written() && !(at + 1..len).all(looks_the_same);
        if reopen {
            for younger in (at + 1..len).rev() {
                self.entry(younger, |entry| {
                    let slice = entry.take_slice();
                    // Marks those that were open; the others stay as they are.
                    entry.tag.set(if slice.is_written() { entry.tag.get() } else { AtraceTag::empty() });
                    slice.end();
                });
            }
        }
        slice.end();
        for younger in at + 1..len {
            self.entry(younger, |from| self.entry(younger - 1, |to| from.move_to(to)));
            if reopen {
                self.entry(younger - 1, |entry| {
                    if !entry.tag.get().is_empty() {
                        entry.slice.set(begin_again(entry.span.get(), entry.tag.get()));
                    }
                });
            }
        }
        self.len.set(len - 1);
    }
}

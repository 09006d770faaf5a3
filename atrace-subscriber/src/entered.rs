//! The span stack of each thread: the spans that the thread is in, and its open slices.
//!
//! An end closes the youngest slice of its thread, whichever subscriber began it. So all subscribers of the process share
//! one stack per thread. It records which begins were written, and writes exactly their ends.
//!
//! *Spans left early.* When a span is left before younger ones, their slices end with it and begin again. If N spans are
//! left in the order of their entry, this would cost N² messages. So a slice begins again at most [`AGAIN`] times. After
//! that, the older slice's end waits until the younger slices end, or until as many ends wait as slices would begin again.
//!
//! *Signals.* A handler may run between any two instructions of this file, and leaves the spans that it enters. It writes
//! only to entries at or above the current length. This gives three rules:
//!
//! - An enter raises the length before it writes the entry.
//! - An exit takes the slice out of the entry before it lowers the length. Between the two, an entry without an owner
//!   holds no slice.
//! - An exit searches below its own entry only for slices whose end is pending, and while a handler may run the last entry
//!   is never pending.
//!
//! While a heap part is being allocated, a handler can't use it: the handler's spans are then left out.
//!
//! *Storage.* The stack is in a thread-local without a destructor, so it works even while the thread ends. Only entries
//! beyond a depth that few programs reach are on the heap; their slices end, at the latest, when that memory is freed. On
//! Android all thread-locals are freed when the thread ends, so this applies to every slice.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use atrace::{AtraceTag, Glance, Slice, glance};

use crate::parts;
use crate::span::Span;

const DEPTH: usize = 32;
/// Parts on the heap.
const PARTS: usize = 20;
/// How often a slice begins again for others.
const AGAIN: u32 = 8;

thread_local! {
    static ENTERED: Entered = const { Entered::new() };
    static DEEPER: Deeper = const { Deeper([const { OnceCell::new() }; PARTS]) };
}

/// Which subscriber of the process; each numbers its spans as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// One that is another subscriber's only after millions of them.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) & (BEGUN_AGAIN - 1))
    }
}

/// Above the owner's bits: how often the slice began again. Such an entry differs from the owner alone, so that
/// leaving it is no matter for the fast way.
const BEGUN_AGAIN: u32 = 1 << 24;
/// Fields were recorded since the slice began: its end has them.
const RECORDED: u32 = 1 << 30;
/// The slice right below waits for this one's end.
const ON_WAITING: u32 = 1 << 31;

/// The id of a span that was left: no span's.
const LEFT: u64 = 0;

struct Entry {
    owner: Cell<u32>,
    /// Where those that were [`RECORDED`] begin, among its arguments.
    recorded_from: Cell<u32>,
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
            recorded_from: Cell::new(0),
            id: Cell::new(LEFT),
            span: Cell::new(Span::NONE),
            tag: Cell::new(AtraceTag::empty()),
            slice: Cell::new(Slice::none()),
        }
    }

    /// Without a slice, as one that was left has none: then span and tag mean nothing.
    #[inline(always)]
    fn set(&self, owner: Owner, id: u64) {
        self.owner.set(owner.0);
        self.id.set(id);
    }

    #[inline(always)]
    fn begin(&self, owner: Owner, id: u64, span: Span, glance: Glance) {
        self.set(owner, id);
        self.span.set(span);
        self.tag.set(glance.__tag());
        compiler_fence(Ordering::SeqCst);
        self.begin_slice(glance);
    }

    /// Begins the slice of its span. A call, as it is much code and there are two callers.
    #[inline(never)]
    fn begin_slice(&self, glance: Glance) {
        let id = || flow_id(Owner(self.owner.get() & (BEGUN_AGAIN - 1)), self.id.get());
        self.span.get().begin(glance, &self.slice, id);
    }

    #[inline(always)]
    fn take_slice(&self) -> Slice {
        self.slice.replace(Slice::none())
    }

    fn move_to(&self, other: &Self) {
        other.owner.set(self.owner.get());
        other.recorded_from.set(self.recorded_from.get());
        other.id.set(self.id.get());
        other.span.set(self.span.get());
        other.tag.set(self.tag.get());
        other.slice.set(self.take_slice());
    }

    fn is(&self, owner: Owner, id: u64) -> bool {
        self.id.get() == id && self.owner.get() & (BEGUN_AGAIN - 1) == owner.0
    }

    #[inline(always)]
    fn is_open(&self) -> bool {
        let slice = self.take_slice();
        let is_open = slice.is_written();
        self.slice.set(slice);
        is_open
    }

    fn waits(&self) -> bool {
        self.id.get() == LEFT && self.is_open()
    }

    fn begun_again(&self) -> u32 {
        (self.owner.get() & !(ON_WAITING | RECORDED)) / BEGUN_AGAIN
    }

    /// Ends its slice.
    fn end(&self) {
        let slice = self.take_slice();
        let owner = self.owner.get();
        if owner & RECORDED == 0 {
            slice.end();
        } else {
            self.owner.set(owner & !RECORDED);
            self.span.get().end_recorded(slice, self.recorded_from.get());
        }
    }

    /// Fields are recorded of its span, whose arguments go up to `from`: if it has a slice, that one's end has them.
    fn record(&self, from: u32) {
        if self.is_open() && self.owner.get() & RECORDED == 0 {
            self.recorded_from.set(from);
            self.owner.set(self.owner.get() | RECORDED);
        }
    }

    /// Ends its slice, for it to begin again if it was open.
    fn interrupt(&self) {
        self.tag.set(if self.is_open() { self.tag.get() } else { AtraceTag::empty() });
        self.end();
    }

    fn begin_again(&self) {
        if !self.tag.get().is_empty() {
            self.owner.set(self.owner.get() + if self.begun_again() < AGAIN { BEGUN_AGAIN } else { 0 });
            if let Some(glance) = glance(self.tag.get()) {
                self.begin_slice(glance);
            }
        }
    }
}

struct Entered {
    len: Cell<usize>,
    /// How many entries there are.
    room: Cell<usize>,
    /// A part on the heap is being made.
    makes: Cell<bool>,
    entries: [Entry; DEPTH],
}

struct Deeper([OnceCell<Box<[Entry]>>; PARTS]);

impl Drop for Deeper {
    fn drop(&mut self) {
        for entry in self.0.iter().rev().filter_map(OnceCell::get).flat_map(|part| part.iter().rev()) {
            entry.take_slice().end();
        }
    }
}

/// What tells a subscriber's span from all other spans of this process, while it lives.
#[inline(always)]
pub(crate) fn flow_id(owner: Owner, id: u64) -> u64 {
    id ^ u64::from(owner.0).rotate_right(24)
}

/// Notes that fields of a span are recorded, whose arguments go up to `from`: the ends of this thread's slices have them.
pub(crate) fn record(owner: Owner, id: u64, from: u32) {
    ENTERED.with(|entered| {
        let len = entered.len.get();
        entered.look(|entries| {
            let of_span = |entry: &&Entry| entry.is(owner, id);
            (0..len).filter_map(|at| entries.get(at)).filter(of_span).for_each(|entry| entry.record(from));
        });
    });
}

/// Notes that this thread entered a span, of which there is no slice.
#[inline(always)]
pub(crate) fn enter(owner: Owner, id: u64) {
    ENTERED.with(|entered| {
        let len = entered.len.get();
        match entered.entries.get(len) {
            Some(entry) => {
                entered.len.set(len + 1);
                compiler_fence(Ordering::SeqCst);
                entry.set(owner, id);
            }
            None => entered.enter_deeper_unseen(owner, id),
        }
    });
}

/// Notes that this thread entered a span, and begins its slice. A call, which finds the thread's memory itself: so that while
/// off there is less to be kept when that is found.
#[inline(never)]
pub(crate) fn enter_and_begin(owner: Owner, id: u64, span: Span, glance: Glance) {
    ENTERED.with(|entered| entered.enter_and_begin(owner, id, span, glance));
}

/// Notes that this thread left a span, and ends its slice. A span that it is not in is ignored.
#[inline(always)]
pub(crate) fn exit(owner: Owner, id: u64) {
    ENTERED.with(|entered| {
        let last = entered.len.get().wrapping_sub(1);
        match entered.entries.get(last) {
            Some(entry) if entry.id.get() == id && entry.owner.get() == owner.0 => {
                if !entry.is_open() {
                    return entered.len.set(last);
                }
                let slice = entry.take_slice();
                compiler_fence(Ordering::SeqCst);
                entered.len.set(last);
                slice.end();
            }
            _ => entered.exit_other(owner, id),
        }
    });
}

/// The span that this thread entered last of those of one subscriber: its id.
pub(crate) fn current(owner: Owner) -> Option<u64> {
    let id_of = |entry: &Entry| Some(entry.id.get()).filter(|id| *id != LEFT && entry.is(owner, *id));
    ENTERED.with(|entered| {
        let len = entered.len.get();
        entered.look(|entries| (0..len).rev().filter_map(|at| entries.get(at)).find_map(id_of))
    })
}

// Elsewhere it would have each first use on a thread register a destructor.
#[cfg(target_os = "android")]
impl Drop for Entered {
    fn drop(&mut self) {
        let len = self.len.get();
        self.look(|entries| {
            let entries = (0..len).rev().filter_map(|at| entries.get(at));
            entries.for_each(|entry| entry.take_slice().end());
        });
    }
}

impl Entered {
    const fn new() -> Self {
        Self {
            len: Cell::new(0),
            room: Cell::new(DEPTH),
            makes: Cell::new(false),
            entries: [const { Entry::new() }; DEPTH],
        }
    }

    /// Calls `look` with all entries; without those on the heap where a thread's end has taken them away.
    fn look<T>(&self, look: impl Fn(Entries<'_>) -> T) -> T {
        let here = Entries { here: &self.entries, deeper: None };
        if self.room.get() == DEPTH || self.makes.get() {
            return look(here);
        }
        let deeper = DEEPER.try_with(|deeper| look(Entries { deeper: Some(deeper), ..here }));
        deeper.unwrap_or_else(|_| look(here))
    }

    #[inline(always)]
    fn enter_and_begin(&self, owner: Owner, id: u64, span: Span, glance: Glance) {
        let len = self.len.get();
        match self.entries.get(len) {
            Some(entry) => {
                self.len.set(len + 1);
                compiler_fence(Ordering::SeqCst);
                entry.begin(owner, id, span, glance);
            }
            None => self.enter_deeper(owner, id, span, Some(glance)),
        }
    }

    /// Without a slice. A call that takes nothing from the stack.
    #[cold]
    #[inline(never)]
    fn enter_deeper_unseen(&self, owner: Owner, id: u64) {
        self.enter_deeper(owner, id, Span::NONE, None);
    }

    /// Begins a slice, if at all, only if there is room for its entry: otherwise nobody would end it.
    #[cold]
    #[inline(never)]
    fn enter_deeper(&self, owner: Owner, id: u64, span: Span, glance: Option<Glance>) {
        if self.makes.get() {
            return; // A handler's. Its exit is ignored as well.
        }
        let len = self.len.get();
        self.len.set(len + 1);
        compiler_fence(Ordering::SeqCst);
        if len >= self.room.get() {
            // So that no handler is the first who uses what registers a destructor, either.
            self.makes.set(true);
            compiler_fence(Ordering::SeqCst);
            let (part, _) = place(len);
            let make = || (0..DEPTH << part).map(|_| Entry::new()).collect();
            let made =
                DEEPER.try_with(|Deeper(parts)| parts.get(part).map(|part| part.get_or_init(make)).is_some());
            if made == Ok(true) {
                self.room.set(DEPTH + parts::room(part + 1, DEPTH));
            }
            compiler_fence(Ordering::SeqCst);
            self.makes.set(false);
        }
        self.look(|entries| match (entries.get(len), glance) {
            (Some(entry), Some(glance)) => entry.begin(owner, id, span, glance),
            (Some(entry), None) => entry.set(owner, id),
            (None, _) => {}
        });
    }

    #[cold]
    #[inline(never)]
    fn exit_other(&self, owner: Owner, id: u64) {
        if !self.makes.get() {
            let len = self.len.get();
            self.len.set(self.look(|entries| entries.leave(len, owner, id)));
        }
    }
}

/// The entries of a thread, by their numbers.
#[derive(Clone, Copy)]
struct Entries<'a> {
    here: &'a [Entry],
    deeper: Option<&'a Deeper>,
}

impl<'a> Entries<'a> {
    /// A call, as there are many.
    #[inline(never)]
    fn get(self, at: usize) -> Option<&'a Entry> {
        self.here.get(at).or_else(|| {
            let (part, at) = place(at);
            self.deeper?.0.get(part)?.get()?.get(at)
        })
    }

    fn is(self, at: usize, it: impl FnOnce(&Entry) -> bool) -> bool {
        self.get(at).is_some_and(it)
    }

    fn waits(self, at: usize) -> bool {
        self.is(at, Entry::waits)
    }

    fn move_down(self, from: usize, to: usize) {
        if let (Some(from), Some(to)) = (self.get(from), self.get(to)) {
            from.move_to(to);
        }
    }

    /// Leaves a span, of `len` entries; returns how many there are then.
    #[inline(never)]
    fn leave(self, mut len: usize, owner: Owner, id: u64) -> usize {
        let found = (0..len).rev().find(|at| self.is(*at, |entry| entry.is(owner, id)));
        let Some((at, it)) = found.and_then(|at| Some((at, self.get(at)?))) else {
            // Perhaps one that there was no room for.
            let is_there = len == 0 || self.get(len - 1).is_some();
            return if is_there { len } else { len - 1 };
        };
        // Layers of one stack hear of an exit one after the other, the first one first: their slices look the
        // same. What is not open looks like nothing.
        let looks_the_same = |entry: &Entry| {
            !entry.is_open() || entry.id.get() == id && entry.span.get().has_name_of(it.span.get())
        };
        if (at + 1..len).all(|younger| self.is(younger, looks_the_same)) {
            it.end();
        }
        it.id.set(LEFT);
        if !it.waits() {
            // Nothing is open of it, here or any more.
            (at + 1..len).for_each(|younger| self.move_down(younger, younger - 1));
            len -= 1;
        }
        let from = self.worth_interrupting(at, len);
        let len = from.map_or(len, |from| self.interrupt(from, len));
        // What is right above a slice that goes on waiting comes here when it is left.
        let is_above_waiting = self.waits(at) || at.checked_sub(1).is_some_and(|below| self.waits(below));
        if from.is_none_or(|from| from > at)
            && is_above_waiting
            && let Some(above) = (at..len).find(|at| !self.waits(*at)).and_then(|above| self.get(above))
        {
            above.owner.set(above.owner.get() | ON_WAITING);
        }
        len
    }

    /// The lowest entry that waits, of those from the youngest down to `at` and right below it, for which it is not
    /// too much that younger ones begin again.
    fn worth_interrupting(self, at: usize, len: usize) -> Option<usize> {
        let (mut waiting, mut younger, mut are_tired) = (0, 0, false);
        let mut lowest = None;
        for each in (0..len).rev() {
            if self.waits(each) {
                waiting += 1;
                if !are_tired || waiting >= younger {
                    lowest = Some(each);
                }
            } else if each < at {
                break;
            } else if self.is(each, Entry::is_open) {
                younger += 1;
                are_tired |= self.is(each, |entry| entry.begun_again() >= AGAIN);
            }
        }
        lowest
    }

    /// Ends all slices down to `from`, and has those begin again whose spans were not left; returns how many entries
    /// there are then.
    fn interrupt(self, from: usize, len: usize) -> usize {
        (from..len).rev().filter_map(|each| self.get(each)).for_each(Entry::interrupt);
        let stay = (from..len).filter(|each| self.is(*each, |entry| entry.id.get() != LEFT));
        stay.fold(from, |to, each| {
            self.move_down(each, to);
            self.get(to).map(Entry::begin_again);
            to + 1
        })
    }
}

/// The part on the heap that entry `at` of a thread lies in, and its index there.
fn place(at: usize) -> (usize, usize) {
    parts::locate(at - DEPTH, DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of what no slice is open: that is for `tests/spans.rs` and `tests/signals.rs`, with the kernel's.
    fn enter(owner: Owner, id: u64) {
        super::enter(owner, id);
    }

    #[test]
    fn spans_are_found_by_owner_and_id_in_any_order() {
        let owners = [Owner::new(), Owner::new()];
        assert_ne!(owners[0], owners[1]);
        let mut inside: Vec<(Owner, u64)> = Vec::new();
        let mut chance = 7_u64;
        let mut below = |limit: usize| {
            chance = chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (chance >> 33) as usize % limit
        };
        let (steps, deep) = if cfg!(miri) { (120, 60) } else { (5_000, 300) };
        for step in 0..steps {
            // Up and down, to other depths each time.
            let is_rising = step / deep % 2 == 0;
            if inside.is_empty() || below(10) < if is_rising { 8 } else { 2 } {
                let (owner, id) = (owners[below(2)], below(5) as u64 + 1);
                enter(owner, id);
                inside.push((owner, id));
            } else {
                let (owner, id) = inside[inside.len() - 1 - below(inside.len().min(40))];
                exit(owner, id);
                let last = inside.iter().rposition(|it| *it == (owner, id)).unwrap();
                inside.remove(last);
            }
            exit(owners[0], 9); // It is in no such span.
            for owner in owners {
                let last = inside.iter().rfind(|(of, _)| *of == owner).map(|(_, id)| *id);
                assert_eq!(current(owner), last);
            }
        }
        while let Some((owner, id)) = inside.pop() {
            exit(owner, id);
        }
        assert_eq!(ENTERED.with(|entered| entered.len.get()), 0);
    }

    /// As for a signal handler that comes while a part is made.
    #[test]
    fn while_a_part_is_made_nothing_is_noted() {
        let owner = Owner::new();
        (1..=DEPTH as u64).for_each(|id| enter(owner, id));
        ENTERED.with(|entered| {
            entered.len.set(DEPTH + 1);
            entered.makes.set(true);
            enter(owner, DEPTH as u64);
            exit(owner, DEPTH as u64);
            assert_eq!(current(owner), Some(DEPTH as u64));
            assert_eq!(entered.len.get(), DEPTH + 1);
            entered.makes.set(false);
            // One that there was no room for is counted, and left.
            exit(owner, 100);
            assert_eq!(entered.len.get(), DEPTH);
        });
        // Nor is a part looked at that may be the one in the making.
        enter(owner, 200);
        ENTERED.with(|entered| {
            assert_eq!(current(owner), Some(200));
            entered.makes.set(true);
            assert_eq!(current(owner), Some(DEPTH as u64));
            entered.makes.set(false);
        });
        exit(owner, 200);
        (1..=DEPTH as u64).rev().for_each(|id| exit(owner, id));
        assert_eq!(current(owner), None);
    }

    #[test]
    fn the_marks_of_an_entry_lie_beside_its_owner_and_each_other() {
        let (owner, again) = (BEGUN_AGAIN - 1, BEGUN_AGAIN * (2 * AGAIN - 1));
        let all = [owner, again, RECORDED, ON_WAITING];
        assert_eq!(all.map(u32::count_ones), [24, 4, 1, 1]);
        assert_eq!(all.iter().fold(0, |marks, mark| marks | mark).count_ones(), 30);
    }

    #[test]
    fn a_slice_begins_again_so_often_and_is_its_owners_still() {
        let owner = Owner::new();
        let entry = Entry::new();
        entry.set(owner, 7);
        entry.tag.set(AtraceTag::App);
        for again in 0..2 * AGAIN {
            assert_eq!(entry.begun_again(), again.min(AGAIN));
            assert!(entry.is(owner, 7) && !entry.is(owner, 8));
            entry.begin_again();
        }
        entry.owner.set(entry.owner.get() | ON_WAITING);
        assert!(entry.begun_again() == AGAIN && entry.is(owner, 7) && !entry.waits());
        // It was not open.
        entry.interrupt();
        assert!(entry.tag.get().is_empty());
    }
}

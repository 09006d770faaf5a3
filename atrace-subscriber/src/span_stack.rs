//! The span stack of each thread: the spans that the thread is in, and its open slices.
//!
//! An end event closes the youngest open slice of its thread, whichever subscriber began that slice. So all subscribers
//! of the process share one stack per thread. The stack records which begins were written, and an end is written only
//! if its begin was.
//!
//! # Spans left early
//!
//! A span may be left before spans that were entered later. In that case the slices of the later spans end together
//! with the slice of the span that is left, and then begin again. If N spans are left in the order in which they were
//! entered, this costs N² messages. So once a slice has begun again [`AGAIN`] times, the end of a span that is left
//! below that slice is not written at once: the end is *pending*. A pending end is written when the slices of the later
//! spans end, or when as many ends are pending as slices would have to begin again.
//!
//! # Signals
//!
//! A signal handler may run between any two instructions of this file. The handler leaves every span that it enters, so
//! its enters and exits write only to entries at or above the present length of the stack. Three rules follow from
//! this:
//!
//! - An enter raises the length before it writes the entry. So a handler that runs between the two steps uses a higher
//!   entry.
//! - An exit takes the slice out of the entry before it lowers the length. So unused entries have no slice. An entry
//!   that an interrupted enter has not written yet has no slice, either.
//! - When a signal handler leaves a span, it examines the entries below its own entry one by one, down to the first
//!   entry whose end is not pending. While a handler can run, the end of the top entry is never pending. So the handler
//!   examines only one entry that it does not own (the top entry of the interrupted code), and does not change that
//!   entry.
//!
//! A signal handler may interrupt the thread while the thread allocates a part of the stack on the heap. The handler
//! can't use that part, so spans that the handler enters are not recorded.
//!
//! # Storage
//!
//! The stack is in a thread-local that, except on Android, has no destructor, so it works even while the thread ends.
//! Only entries beyond a depth that few programs reach are on the heap. The slices of the entries on the heap end, at
//! the latest, when that memory is freed. On Android, all thread-locals are freed when a thread ends, so all slices of
//! the thread end then.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

use atrace::AtraceTag;
use atrace::tracer::{Enabled, GateCheck, PreparedTag, Slice, flow_number};

use crate::parts;
use crate::span::Span;
use crate::span_store::{StoredSpan, by_id};

/// The number of entries that are not on the heap.
const DEPTH: usize = 32;
/// The maximum number of parts of a thread's span stack that are on the heap.
const PARTS: usize = 20;
/// The number of times that a slice ends and begins again at once when a span that was entered earlier is left. After
/// that, the end of such a span is pending for a while, so that the slice seldom begins again.
const AGAIN: u32 = 8;

thread_local! {
    static STACK: SpanStack = const { SpanStack::new() };
    static DEEPER: DeeperEntries = const { DeeperEntries([const { OnceCell::new() }; PARTS]) };
}

/// Identifies a subscriber or layer within the process, as the *owner* of its entries on the span stack. An entry
/// contains its owner, because the ids of spans are unique only within their subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// The owner that stands for no subscriber. No entry has this owner.
    pub(crate) const NONE: Self = Self(1 << 28);

    /// Returns a new owner. Numbers repeat only after 16 million subscribers.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed) & (BEGUN_AGAIN - 1))
    }

    /// Returns the number of the owner, which has 24 bits.
    #[inline(always)]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }
}

/// The lowest of the bits of [`Entry::owner`] that count how many times the slice has begun again. These bits are above
/// those of the owner's number. If the count is not 0, `Entry::owner` does not equal the owner's number, so the fast
/// path of [`exit`] does not handle the entry.
const BEGUN_AGAIN: u32 = 1 << 24;
/// The bit for a *watched* span: when the thread leaves the span, the span store must be notified, because it is not
/// yet known whether the span is synchronous. The bit stays set until the entry is used again or the span closes.
const WATCHED: u32 = 1 << 29;
/// The bit for a span of which the program has recorded fields since the slice began. The end of the slice has these
/// fields as arguments.
const RECORDED: u32 = 1 << 30;
/// The bit for an entry that lies above an entry whose end is pending: the slice of this entry must end before the
/// pending end is written.
const ON_WAITING: u32 = 1 << 31;

/// The id in the entry of a span that was left but whose end is pending. No span has this id.
const LEFT: u64 = 0;

struct Entry {
    /// From the lowest bit: the owner's number (24 bits), how many times the slice has begun again
    /// ([`BEGUN_AGAIN`]), and the bits [`WATCHED`], [`RECORDED`] and [`ON_WAITING`].
    owner: Cell<u32>,
    /// The position, in the span's encoded arguments, of the first argument that was recorded after the begin of the
    /// slice (see [`RECORDED`]).
    recorded_from: Cell<u32>,
    /// The id that the subscriber gave to the span.
    id: Cell<u64>,
    span: Cell<Span>,
    tag: Cell<AtraceTag>,
    slice: Cell<Option<Slice>>,
}

impl Entry {
    const fn new() -> Self {
        Self {
            owner: Cell::new(0),
            recorded_from: Cell::new(0),
            id: Cell::new(LEFT),
            span: Cell::new(Span::NONE),
            tag: Cell::new(AtraceTag::empty()),
            slice: Cell::new(None),
        }
    }

    /// Makes this the entry of a span without a slice. The fields `span` and `tag` have no meaning without a slice.
    #[inline(always)]
    fn set(&self, owner: Owner, id: u64) {
        self.owner.set(owner.0);
        self.id.set(id);
    }

    #[inline(always)]
    fn begin(&self, owner: Owner, id: u64, span: Span, check: GateCheck) {
        self.set(owner, id);
        self.span.set(span);
        self.tag.set(check.tag());
        compiler_fence(Ordering::SeqCst);
        self.begin_slice(check);
    }

    /// Begins the slice of the span. This function is not inlined, because the code is large and has two
    /// callers.
    #[inline(never)]
    fn begin_slice(&self, check: GateCheck) {
        let Some(enabled) = check.enabled() else { return };
        if enabled.is_perfetto() {
            return match self.span.get().in_slot() {
                None => self.begin_plain(enabled),
                Some(stored) => self.begin_stored(stored, enabled),
            };
        }
        self.span.get().begin_text(enabled, &self.slice);
    }

    /// Begins the slice of a span that is not stored, in Perfetto's memory.
    #[inline(never)]
    fn begin_plain(&self, enabled: Enabled) {
        let span = self.span.get();
        let flow = if span.is_one() { flow_number(self.flow_id()) } else { 0 };
        self.slice.set(span.begin_plain(enabled, flow));
    }

    /// Begins the slice of a stored span in Perfetto's memory.
    #[inline(never)]
    fn begin_stored(&self, stored: StoredSpan, enabled: Enabled) {
        let Some(entered) = stored.enter() else { return };
        // `is_watched` may begin the span's life (the slice from its creation until it closes). The life must begin
        // before this slice, because an arrow leads from the life to the slice.
        if self.begun_again() == 0 && entered.is_watched() {
            self.owner.set(self.owner.get() | WATCHED);
        }
        if !self.span.get().is_hidden() {
            self.slice.set(entered.begin(enabled, flow_number(self.flow_id())));
        }
    }

    #[inline(always)]
    fn flow_id(&self) -> u64 {
        flow_id(Owner(self.owner.get() & (BEGUN_AGAIN - 1)), self.id.get())
    }

    #[inline(always)]
    fn take_slice(&self) -> Option<Slice> {
        self.slice.take()
    }

    fn move_to(&self, other: &Self) {
        other.owner.set(self.owner.replace(self.owner.get() & !WATCHED));
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
        let is_open = slice.is_some();
        self.slice.set(slice);
        is_open
    }

    fn waits(&self) -> bool {
        self.id.get() == LEFT && self.is_open()
    }

    fn begun_again(&self) -> u32 {
        (self.owner.get() & !(ON_WAITING | RECORDED | WATCHED)) / BEGUN_AGAIN
    }

    /// Ends the slice of the entry.
    fn end(&self) {
        let (slice, owner) = (self.take_slice(), self.owner.get());
        if owner & RECORDED != 0 {
            self.owner.set(owner & !RECORDED);
            if let Some(slice) = slice {
                self.span.get().end_recorded(slice, self.recorded_from.get());
            }
        } else if let Some(slice) = slice {
            slice.end(None);
        }
    }

    /// If the span is watched, notifies the span store that this thread leaves the span.
    #[inline(always)]
    fn tell_left(&self) {
        if self.owner.get() & WATCHED != 0 {
            self.span.get().in_slot().into_iter().for_each(StoredSpan::leave);
        }
    }

    /// If the slice is open, remembers that the program has recorded fields of the span. The end of the slice will have
    /// these fields as arguments. Their position in the span's encoded arguments is `from`.
    fn record(&self, from: u32) {
        if self.is_open() {
            let is_first = self.owner.get() & RECORDED == 0;
            self.recorded_from.set(if is_first { from } else { from.min(self.recorded_from.get()) });
            self.owner.set(self.owner.get() | RECORDED);
        }
    }

    /// Ends the slice if it is open, so that [`begin_again`](Self::begin_again) can begin it again.
    fn interrupt(&self) {
        self.tag.set(if self.is_open() { self.tag.get() } else { AtraceTag::empty() });
        self.end();
    }

    fn begin_again(&self) {
        if !self.tag.get().is_empty() {
            self.owner.set(self.owner.get() + if self.begun_again() < AGAIN { BEGUN_AGAIN } else { 0 });
            if let Some(check) = PreparedTag::new(self.tag.get()).check() {
                self.begin_slice(check);
            }
        }
    }
}

struct SpanStack {
    len: Cell<usize>,
    /// The number of entries for which memory is allocated.
    room: Cell<usize>,
    /// Whether a part on the heap is being allocated at the moment.
    makes: Cell<bool>,
    entries: [Entry; DEPTH],
}

struct DeeperEntries([OnceCell<Box<[Entry]>>; PARTS]);

impl Drop for DeeperEntries {
    fn drop(&mut self) {
        for entry in self.0.iter().rev().filter_map(OnceCell::get).flat_map(|part| part.iter().rev()) {
            entry.take_slice().into_iter().for_each(|slice| slice.end(None));
        }
    }
}

/// Returns the id of a span's flow, from which [`flow_number`] makes the flow's number. It is computed from the span's
/// owner and id. Two live spans with different owners or ids hardly ever have the same flow id.
#[inline(always)]
pub(crate) fn flow_id(owner: Owner, id: u64) -> u64 {
    id ^ u64::from(owner.0).rotate_right(24)
}

/// Remembers that the program has recorded fields of a span. If this thread has open slices of the span, the ends of
/// these slices will have the fields as arguments. Their position in the span's encoded arguments is `from`.
pub(crate) fn record(owner: Owner, id: u64, from: u32) {
    STACK.with(|stack| {
        let len = stack.len.get();
        stack.look(|entries| {
            let of_span = |entry: &&Entry| entry.is(owner, id);
            (0..len).filter_map(|at| entries.get(at)).filter(of_span).for_each(|entry| entry.record(from));
        });
    });
}

/// Records that this thread entered a span, but begins no slice.
#[inline(always)]
pub(crate) fn enter(owner: Owner, id: u64) {
    STACK.with(|stack| {
        let len = stack.len.get();
        match stack.entries.get(len) {
            Some(entry) => {
                stack.len.set(len + 1);
                compiler_fence(Ordering::SeqCst);
                entry.set(owner, id);
            }
            None => stack.enter_deeper_unseen(owner, id),
        }
    });
}

/// Records that this thread entered a span, but begins no slice. Records nothing unless the thread is already in a
/// recorded span.
///
/// If an enter was not recorded, the exit of the span finds no entry and ends no slice. There is one exception: if the
/// thread enters the span a second time, and this enter is recorded, the first exit ends the slice of the second enter,
/// and the second exit finds no entry. If the thread has entered no other span between the two enters, the slices are
/// still right, because it makes no difference which of the two exits of the same span ends the slice. Only the enter
/// of an outermost span is ever left out. Only layers use this function, because a registry itself records which span
/// is current.
#[inline(always)]
pub(crate) fn enter_inside(owner: Owner, id: u64) {
    if STACK.with(|stack| stack.len.get()) != 0 {
        enter_out_of_line(owner, id);
    }
}

#[inline(never)]
fn enter_out_of_line(owner: Owner, id: u64) {
    enter(owner, id);
}

/// Records that this thread entered a span, and begins its slice.
///
/// This function is not inlined, and looks up the thread-local itself. So while tracing is off, the caller has fewer
/// values to save around its own lookup of the thread-local.
#[inline(never)]
pub(crate) fn enter_and_begin(owner: Owner, id: u64, span: Span, check: GateCheck) {
    STACK.with(|stack| stack.enter_and_begin(owner, id, span, check));
}

/// Leaves the span and ends its slice, if it is the span that this thread entered last, and its entry has none of the
/// bits that need more work, such as [`WATCHED`]. Otherwise does nothing. Returns false if the caller must call
/// [`exit_other`].
#[inline(always)]
pub(crate) fn exit(owner: Owner, id: u64) -> bool {
    STACK.with(|stack| {
        let last = stack.len.get().wrapping_sub(1);
        match stack.entries.get(last) {
            Some(entry) if entry.id.get() == id && entry.owner.get() == owner.0 => {
                if entry.is_open() {
                    stack.end_last(entry, last);
                } else {
                    stack.len.set(last);
                }
                true
            }
            _ => last == usize::MAX,
        }
    })
}

/// Leaves any span and ends its slice. Does nothing if this thread is not in the span.
#[inline(always)]
pub(crate) fn exit_other(owner: Owner, id: u64) {
    STACK.with(|stack| stack.exit_other(owner, id));
}

/// Returns the id of the span of `owner` that this thread entered last and has not left.
pub(crate) fn current(owner: Owner) -> Option<u64> {
    let id_of = |entry: &Entry| Some(entry.id.get()).filter(|id| *id != LEFT && entry.is(owner, *id));
    STACK.with(|stack| {
        let len = stack.len.get();
        stack.look(|entries| (0..len).rev().filter_map(|at| entries.get(at)).find_map(id_of))
    })
}

/// The number of entries, from the top, that [`innermost`] examines.
const LOOKED_AT: usize = 16;

/// Returns the innermost stored span of `owner` that this thread is in, if it is among the entries that are examined:
/// the top [`LOOKED_AT`] of the entries that are not on the heap.
#[inline(always)]
pub(crate) fn innermost(owner: Owner) -> Option<StoredSpan> {
    if STACK.with(|stack| stack.len.get()) == 0 { None } else { STACK.with(|stack| stack.innermost(owner)) }
}

/// Removes a holder of a span (a reference that keeps the span open). Returns true if that closes the span. Returns
/// false if the span has other holders or is not stored.
#[inline(always)]
pub(crate) fn release(span: Span) -> bool {
    span.in_slot().is_some() && release_stored(span)
}

/// Closes a span that its registry reports as closed, if it is the span that this thread left last. Returns false if
/// the caller must look for the span in the registry. The registry may keep the span's data forever; if the registry
/// drops the data later, [`release_unclosed`] is called.
#[inline(never)]
pub(crate) fn close_left_last(owner: Owner, id: u64) -> bool {
    let left = |stack: &SpanStack| {
        let entry = stack.entries.get(stack.len.get())?;
        entry.is(owner, id).then(|| entry.span.get())
    };
    let Ok(Some(span)) = STACK.try_with(left) else { return false };
    let flow_id = flow_id(owner, id);
    // If the span was entered while the tag was off, the entry's field `span` may still contain an earlier span. So the
    // table of `by_id` is searched first.
    match by_id::find(flow_id) {
        Some(found) => close(found),
        None => return span.in_slot().is_none_or(|stored| stored.close_just_left(flow_id)),
    }
    true
}

/// Removes the bit [`WATCHED`] from the stack's entry of `span`, which this thread left last, because the span closes.
pub(crate) fn forget_last(span: Span) {
    let _ = STACK.try_with(|stack| stack.forget_last(span));
}

#[inline(never)]
fn release_stored(span: Span) -> bool {
    span.release(|| is_left_last(span))
}

/// Returns whether this is the span that this thread left last. The entry of that span is directly above the top of the
/// stack.
fn is_left_last(span: Span) -> bool {
    let is_last =
        |stack: &SpanStack| stack.entries.get(stack.len.get()).is_some_and(|entry| entry.span.get() == span);
    STACK.try_with(is_last).unwrap_or(false)
}

/// Closes a span that its registry reports as closed, whichever span the thread left last.
pub(crate) fn close(span: Span) {
    if let Some(stored) = span.in_slot() {
        stored.close_once(|| is_left_last(span));
    }
}

/// Removes the registry's holder of a span, unless the holder was removed when the registry reported that the span
/// closed.
#[inline(always)]
pub(crate) fn release_unclosed(span: Span) {
    if span.in_slot().is_some_and(|stored| !stored.is_closed()) {
        release_stored(span);
    }
}

// The stack has a destructor only on Android. On other systems, the first use on each thread would have to register the
// destructor.
#[cfg(target_os = "android")]
impl Drop for SpanStack {
    fn drop(&mut self) {
        let len = self.len.get();
        self.look(|entries| {
            let entries = (0..len).rev().filter_map(|at| entries.get(at));
            entries.filter_map(Entry::take_slice).for_each(|slice| slice.end(None));
        });
    }
}

impl SpanStack {
    const fn new() -> Self {
        Self {
            len: Cell::new(0),
            room: Cell::new(DEPTH),
            makes: Cell::new(false),
            entries: [const { Entry::new() }; DEPTH],
        }
    }

    /// Calls `look` with all entries. The entries on the heap are left out if a part is being allocated, or if the
    /// thread is ending and has freed them already.
    fn look<T>(&self, look: impl Fn(Entries<'_>) -> T) -> T {
        let here = Entries { here: &self.entries, deeper: None };
        if self.room.get() == DEPTH || self.makes.get() {
            return look(here);
        }
        let deeper = DEEPER.try_with(|deeper| look(Entries { deeper: Some(deeper), ..here }));
        deeper.unwrap_or_else(|_| look(here))
    }

    #[inline(always)]
    fn enter_and_begin(&self, owner: Owner, id: u64, span: Span, check: GateCheck) {
        let len = self.len.get();
        match self.entries.get(len) {
            Some(entry) if entry.owner.get() & WATCHED == 0 => {
                self.len.set(len + 1);
                compiler_fence(Ordering::SeqCst);
                entry.begin(owner, id, span, check);
            }
            _ => self.enter_seldom(owner, id, span, check),
        }
    }

    /// Enters a span in two rare cases: the next entry of the stack still belongs to a watched span ([`WATCHED`]) that
    /// was left, or the stack already has [`DEPTH`] entries.
    #[cold]
    #[inline(never)]
    fn enter_seldom(&self, owner: Owner, id: u64, span: Span, check: GateCheck) {
        let len = self.len.get();
        self.outlived(len);
        match self.entries.get(len) {
            Some(entry) => {
                self.len.set(len + 1);
                compiler_fence(Ordering::SeqCst);
                entry.begin(owner, id, span, check);
            }
            None => self.enter_deeper(owner, id, span, Some(check)),
        }
    }

    #[inline(never)]
    fn innermost(&self, owner: Owner) -> Option<StoredSpan> {
        let entries = self.entries.get(..self.len.get().min(DEPTH))?;
        let is_in = |entry: &&Entry| {
            let span = entry.span.get();
            // In an entry without a slice, the field `span` has no meaning, except for a hidden span (shown only as an
            // async slice), which never has slices here. Even a hidden span may have been left before the entry was
            // used for another span. The other span has another flow, so the flows are compared.
            let is_of_entry =
                |stored: StoredSpan| entry.is_open() || span.is_hidden() && stored.has_flow(entry.flow_id());
            span.in_slot().is_some_and(is_of_entry)
                && entry.is(owner, entry.id.get())
                && entry.id.get() != LEFT
        };
        entries.iter().rev().take(LOOKED_AT).find(is_in)?.span.get().in_slot()
    }

    /// Stops watching the entry of `span`, which closes, if it is the span that this thread left last.
    fn forget_last(&self, span: Span) {
        let len = self.len.get();
        // `outlived` stops at the first entry without the bit `WATCHED`. So this entry keeps the bit if the entry above
        // it has the bit.
        if let Some(entry) = self.entries.get(len).filter(|entry| entry.span.get() == span)
            && self.entries.get(len + 1).is_none_or(|above| above.owner.get() & WATCHED == 0)
        {
            entry.owner.set(entry.owner.get() & !WATCHED);
        }
    }

    /// Begins the lives of the watched spans in the entries from `len` on, if these spans are still alive. They are
    /// asynchronous, because the thread has left them and does something else. Begins the lives of outer spans first.
    fn outlived(&self, len: usize) {
        for entry in self.entries.iter().skip(len) {
            let owner = entry.owner.get();
            if owner & WATCHED == 0 {
                break;
            }
            entry.owner.set(owner & !WATCHED);
            entry.span.get().outlive();
        }
    }

    /// Enters a span without a slice. The arguments are few enough to be passed in registers, which keeps the
    /// caller small.
    #[cold]
    #[inline(never)]
    fn enter_deeper_unseen(&self, owner: Owner, id: u64) {
        self.enter_deeper(owner, id, Span::NONE, None);
    }

    /// Enters a span beyond the first [`DEPTH`]. The slice of the span begins only if there is room for the entry,
    /// because an exit ends a slice only if it finds the entry.
    #[cold]
    #[inline(never)]
    fn enter_deeper(&self, owner: Owner, id: u64, span: Span, check: Option<GateCheck>) {
        if self.makes.get() {
            return; // This is a signal handler that interrupted the allocation. The exit is ignored, too.
        }
        let len = self.len.get();
        self.len.set(len + 1);
        compiler_fence(Ordering::SeqCst);
        if len >= self.room.get() {
            // Set before the first use of `DEEPER`, which registers a destructor. A handler that interrupts the
            // registration must not use `DEEPER`.
            self.makes.set(true);
            compiler_fence(Ordering::SeqCst);
            let (part, _) = place(len);
            let make = || (0..DEPTH << part).map(|_| Entry::new()).collect();
            let made = DEEPER.try_with(|DeeperEntries(parts)| {
                parts.get(part).map(|part| part.get_or_init(make)).is_some()
            });
            if made == Ok(true) {
                self.room.set(DEPTH + parts::room(part + 1, DEPTH));
            }
            compiler_fence(Ordering::SeqCst);
            self.makes.set(false);
        }
        self.look(|entries| match (entries.get(len), check) {
            (Some(entry), Some(check)) => entry.begin(owner, id, span, check),
            (Some(entry), None) => entry.set(owner, id),
            (None, _) => {}
        });
    }

    /// Removes the last entry, whose index is `last`, and ends its slice.
    #[inline(always)]
    fn end_last(&self, entry: &Entry, last: usize) {
        let slice = entry.take_slice();
        compiler_fence(Ordering::SeqCst);
        self.len.set(last);
        if let Some(slice) = slice {
            slice.end(None);
        }
    }

    #[inline(never)]
    fn exit_other(&self, owner: Owner, id: u64) {
        let last = self.len.get().wrapping_sub(1);
        match self.entries.get(last) {
            Some(entry) if entry.id.get() == id && entry.owner.get() & !WATCHED == owner.0 => {
                entry.tell_left();
                self.end_last(entry, last);
            }
            _ => self.exit_seldom(owner, id),
        }
    }

    #[cold]
    #[inline(never)]
    fn exit_seldom(&self, owner: Owner, id: u64) {
        if !self.makes.get() {
            let len = self.len.get();
            self.len.set(self.look(|entries| entries.leave(len, owner, id)));
        }
    }
}

/// Access to the entries of a thread by their indices.
#[derive(Clone, Copy)]
struct Entries<'a> {
    here: &'a [Entry],
    deeper: Option<&'a DeeperEntries>,
}

impl<'a> Entries<'a> {
    /// Returns an entry. This function is not inlined, because it has many callers.
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

    /// Leaves a span in the general case: its entry is not on top, or has one of the bits above the owner's number set.
    /// `len` is the present number of entries. Returns the new number of entries.
    #[inline(never)]
    fn leave(self, mut len: usize, owner: Owner, id: u64) -> usize {
        let found = (0..len).rev().find(|at| self.is(*at, |entry| entry.is(owner, id)));
        let Some((at, it)) = found.and_then(|at| Some((at, self.get(at)?))) else {
            // If the top entry does not exist, this may be the exit of a span for whose entry there was no room.
            let is_there = len == 0 || self.get(len - 1).is_some();
            return if is_there { len } else { len - 1 };
        };
        it.tell_left();
        // When a span is left, the layers of a subscriber stack are called in the same order as when the span was
        // entered. Their slices have the same name, so it does not matter which of the slices ends. Entries without an
        // open slice are invisible in the trace.
        let looks_the_same = |entry: &Entry| {
            !entry.is_open() || entry.id.get() == id && entry.span.get().has_name_of(it.span.get())
        };
        if (at + 1..len).all(|younger| self.is(younger, looks_the_same)) {
            it.end();
        }
        it.id.set(LEFT);
        if !it.waits() {
            // The slice was not open, or has ended above.
            (at + 1..len).for_each(|younger| self.move_down(younger, younger - 1));
            len -= 1;
        }
        let from = self.worth_interrupting(at, len);
        let len = from.map_or(len, |from| self.interrupt(from, len));
        // The entry right above a pending end is marked, so that the exit of its span is handled here and not by the
        // fast path.
        let is_above_waiting = self.waits(at) || at.checked_sub(1).is_some_and(|below| self.waits(below));
        if from.is_none_or(|from| from > at)
            && is_above_waiting
            && let Some(above) = (at..len).find(|at| !self.waits(*at)).and_then(|above| self.get(above))
        {
            above.owner.set(above.owner.get() | ON_WAITING);
        }
        len
    }

    /// Returns the index of the lowest entry whose pending end should be written now, although this means that the
    /// slices above that entry end and begin again.
    ///
    /// The function considers the pending ends of the entries from the youngest entry down to `at`, and further down to
    /// the first entry without a pending end. If a slice above a pending end has already begun again [`AGAIN`] times,
    /// that end is written only if the number of pending ends, from the youngest entry down to that end, is at least
    /// the number of slices that would begin again.
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

    /// Ends all slices from the youngest down to the entry `from`, removes the spans that were left, and begins the
    /// other slices again. Returns the new number of entries.
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

/// Returns the index of the heap part that contains entry `at`, and the index of the entry within that part.
fn place(at: usize) -> (usize, usize) {
    parts::locate(at - DEPTH, DEPTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leave(owner: Owner, id: u64) {
        if !exit(owner, id) {
            exit_other(owner, id);
        }
    }

    /// Enters a span without a slice. Slices are tested with the kernel, in `tests/spans.rs` and `tests/signals.rs`.
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
            // The depth rises and falls between limits that change each time.
            let is_rising = step / deep % 2 == 0;
            if inside.is_empty() || below(10) < if is_rising { 8 } else { 2 } {
                let (owner, id) = (owners[below(2)], below(5) as u64 + 1);
                enter(owner, id);
                inside.push((owner, id));
            } else {
                let (owner, id) = inside[inside.len() - 1 - below(inside.len().min(40))];
                leave(owner, id);
                let last = inside.iter().rposition(|it| *it == (owner, id)).unwrap();
                inside.remove(last);
            }
            leave(owners[0], 9); // The thread is not in this span.
            for owner in owners {
                let last = inside.iter().rfind(|(of, _)| *of == owner).map(|(_, id)| *id);
                assert_eq!(current(owner), last);
            }
        }
        while let Some((owner, id)) = inside.pop() {
            leave(owner, id);
        }
        assert_eq!(STACK.with(|stack| stack.len.get()), 0);
    }

    /// Tests spans that are entered while a part of the stack is being allocated, as a signal handler may enter them:
    /// the stack does not store these spans.
    #[test]
    fn while_a_part_is_made_nothing_is_noted() {
        let owner = Owner::new();
        (1..=DEPTH as u64).for_each(|id| enter(owner, id));
        STACK.with(|stack| {
            stack.len.set(DEPTH + 1);
            stack.makes.set(true);
            enter(owner, DEPTH as u64);
            leave(owner, DEPTH as u64);
            assert_eq!(current(owner), Some(DEPTH as u64));
            assert_eq!(stack.len.get(), DEPTH + 1);
            stack.makes.set(false);
            // A span for which the stack has no room is counted, and can be left.
            leave(owner, 100);
            assert_eq!(stack.len.get(), DEPTH);
        });
        // A part of the stack that may be in the middle of its allocation is not read.
        enter(owner, 200);
        STACK.with(|stack| {
            assert_eq!(current(owner), Some(200));
            stack.makes.set(true);
            assert_eq!(current(owner), Some(DEPTH as u64));
            stack.makes.set(false);
        });
        leave(owner, 200);
        assert!((1..=DEPTH as u64).rev().all(|id| exit(owner, id)));
        assert_eq!(current(owner), None);
    }

    #[test]
    fn the_marks_of_an_entry_lie_beside_its_owner_and_each_other() {
        let (owner, again) = (BEGUN_AGAIN - 1, BEGUN_AGAIN * (2 * AGAIN - 1));
        let all = [owner, again, WATCHED, RECORDED, ON_WAITING];
        assert_eq!(all.map(u32::count_ones), [24, 4, 1, 1, 1]);
        assert_eq!(all.iter().fold(0, |marks, mark| marks | mark).count_ones(), 31);
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
        // The slice of this entry was not open.
        entry.interrupt();
        assert!(entry.tag.get().is_empty());
    }
}

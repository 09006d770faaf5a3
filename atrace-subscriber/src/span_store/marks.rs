//! Records what has happened to a span so far (enters, exits and ticks), to find out whether the span is asynchronous
//! (`lives.rs`).
//!
//! Threads that enter and leave the span, and the thread that calls [`Marks::tick`], may change its marks at any time.
//! Each change is a compare-and-swap, so no mark is lost: of two threads that enter the span at once, one sees that the
//! other has entered it. The marks contain the generation of the span. So a tick that is late can't mark the slot's
//! next span, although slots are reused at once.
//!
//! This file has no statics, and takes its atomics from `crate::sync`. So the loom model `crates/models/tests/marks.rs`
//! can run this file in every order of the model's threads.

use crate::slots::{high, low, pair};
use crate::sync::atomic::{AtomicU64, Ordering};

/// The generation of the span in the upper bits, and the marks in the lower bits.
pub(crate) struct Marks(AtomicU64);

/// The span was entered.
const ENTERED: u32 = 1;
/// The span was entered at least twice, whether or not it was left in between.
const AGAIN: u32 = 2;
/// The span was left.
const LEFT: u32 = 4;
/// A [tick](Marks::tick) has found, or assumed after [`PATIENCE`] ticks, that no thread is in the span.
const SEEN: u32 = 8;
/// The arguments of the span contain the span's number.
const IDENTIFIED: u32 = 16;
/// The spans of the callsite are presumed to be synchronous, so a thread does not report when it leaves the span.
const PRESUMED: u32 = 32;
/// The lowest of the bits that count the ticks since the span was entered, if the span is presumed to be synchronous
/// (see [`PATIENCE`]).
const TICK: u32 = 64;
/// If a span is presumed to be synchronous, a tick assumes that no thread is in the span once this many ticks have
/// passed since the span was entered.
const PATIENCE: u32 = 8;

/// The result of [`Marks::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entered {
    /// The span was not entered before.
    First,
    /// The span was not entered before, and spans of its callsite are presumed to be synchronous.
    FirstOfPresumed,
    /// The span was entered before, so it is now known to be entered more than once.
    Again,
    /// The span was already known to be entered more than once.
    Known,
}

impl Marks {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sets the marks for the slot's new span, which has not been entered. No other thread may have access to the span
    /// yet.
    #[inline(always)]
    pub(crate) fn reset(&self, generation: u32, is_presumed_sync: bool) {
        let marks = if is_presumed_sync { PRESUMED } else { IDENTIFIED };
        self.0.store(pair(generation, marks), Ordering::Relaxed);
    }

    #[inline(always)]
    fn get(&self) -> u32 {
        low(self.0.load(Ordering::Relaxed))
    }

    /// Changes the marks, unless the slot has another span or `change` returns `None`. Returns the marks before the
    /// change.
    #[inline(always)]
    fn change(&self, generation: u32, change: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        let changed = |marks| {
            let marks = (high(marks) == generation).then(|| change(low(marks)))??;
            Some(pair(generation, marks))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed).map(low).ok()
    }

    /// Records that a thread enters the span.
    #[inline(always)]
    pub(crate) fn enter(&self, generation: u32) -> Entered {
        let entered = |marks| match marks & (ENTERED | AGAIN) {
            0 => Some((marks | ENTERED) & !SEEN),
            ENTERED => Some(marks | AGAIN),
            _ => None,
        };
        match self.change(generation, entered).map(|marks| marks & (ENTERED | PRESUMED)) {
            None => Entered::Known,
            Some(0) => Entered::First,
            Some(PRESUMED) => Entered::FirstOfPresumed,
            Some(_) => Entered::Again,
        }
    }

    /// Records that a thread has left the span.
    #[inline(always)]
    pub(crate) fn leave(&self, generation: u32) {
        self.change(generation, |marks| (marks & LEFT == 0).then_some(marks | LEFT));
    }

    /// Records that the arguments contain the span's number. Returns false if the arguments already contained it.
    pub(crate) fn identify(&self, generation: u32) -> bool {
        self.change(generation, |marks| (marks & IDENTIFIED == 0).then_some(marks | IDENTIFIED)).is_some()
    }

    /// Counts a tick. Returns whether the life of the span has to begin: no thread is in the span now, and no thread
    /// was in the span at the previous tick. For a span that was entered and is presumed to be synchronous, it is not
    /// known whether a thread is in the span. For such a span, the result is true at the second tick after [`PATIENCE`]
    /// ticks.
    pub(crate) fn tick(&self, generation: u32) -> bool {
        let seen = |marks| match marks & (ENTERED | LEFT | PRESUMED) {
            ENTERED => None,
            _ if marks & (ENTERED | PRESUMED) == ENTERED | PRESUMED && marks < PATIENCE * TICK => {
                Some(marks + TICK)
            }
            _ => Some(marks | SEEN),
        };
        self.change(generation, seen).is_some_and(|before| seen(before) == Some(before))
    }

    #[inline(always)]
    pub(crate) fn has_entered(&self) -> bool {
        self.get() & ENTERED != 0
    }

    #[inline(always)]
    pub(crate) fn has_entered_once(&self) -> bool {
        self.get() & (ENTERED | AGAIN) == ENTERED
    }

    #[inline(always)]
    pub(crate) fn is_presumed_sync(&self) -> bool {
        self.get() & PRESUMED != 0
    }
}

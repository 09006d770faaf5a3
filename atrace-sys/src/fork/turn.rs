//! Whose turn it is, in one word: see [`Turn`].

use crate::sync::atomic::{AtomicU64, Ordering};

/// Somebody came meanwhile: once more.
const AGAIN: u64 = 1;

/// Work that one thread of a process does at a time and nobody waits for: who comes meanwhile has it done once
/// more, by who is doing it.
///
/// The work that begins last sees all that anybody did before coming. It may come here itself, also from a
/// signal handler: then it is done once more, too. A forked child takes the turn of its parent's thread, which it
/// has not.
///
/// # Examples
///
/// ```
/// use std::cell::Cell;
/// use atrace_sys::fork::Turn;
///
/// static TURN: Turn = Turn::new();
///
/// let times = Cell::new(0);
/// TURN.run(|| {
///     times.set(times.get() + 1);
///     if times.get() == 1 {
///         TURN.run(|| unreachable!("left to who has the turn"));
///     }
/// });
/// assert_eq!(times.get(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Turn(pub(crate) AtomicU64);

impl Turn {
    /// As `run`, for the process with this number, which is not 0.
    pub(crate) fn run_as(&self, process: u64, work: &mut dyn FnMut()) {
        let held = process << 1;
        let mut present = self.0.load(Ordering::Relaxed);
        loop {
            let is_held = present | AGAIN == held | AGAIN;
            let new = if is_held { held | AGAIN } else { held };
            // Also where it says "once more" already: the work must see what this thread did.
            match self.0.compare_exchange(present, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if is_held => return,
                Ok(_) => break,
                Err(other) => present = other,
            }
        }
        let holding = Holding(self);
        loop {
            work();
            if self.0.compare_exchange(held, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return std::mem::forget(holding);
            }
            self.0.swap(held, Ordering::AcqRel);
        }
    }
}

/// Gives the turn back when the work panics.
struct Holding<'a>(&'a Turn);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

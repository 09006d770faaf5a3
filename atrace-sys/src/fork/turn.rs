//! Lets only one thread at a time do a piece of work, without making other threads wait: see [`Turn`].
//!
//! The algorithm is a try-lock with a *pending* bit, like the two bits of a tasklet in Linux (`TASKLET_STATE_RUN` and
//! `TASKLET_STATE_SCHED`). The word of a [`Turn`] holds the pending bit, and the generation of the process in which a
//! thread works, or 0 if no thread works:
//!
//! - A thread that finds no work of its process in progress stores the generation of the process, and works.
//! - A thread that finds work in progress sets the pending bit, and returns. Its compare-and-swap has release ordering
//!   for the thread's earlier stores, even if the bit was set already.
//! - When the working thread has done the work, a compare-and-swap replaces "generation, not pending" by 0. If this
//!   fails, the pending bit was set. The thread then clears the bit by a swap that acquires the other thread's stores,
//!   and works again.
//!
//! A child process ignores the parent's generation in the word, because the parent's working thread does not exist in
//! the child.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The pending bit of the word. If it is set, another thread has requested the work, so the work must be done once
/// more.
const AGAIN: u64 = 1;

/// Work that only one thread of a process does at a time, and for which no thread waits.
///
/// If a thread calls `run` while another thread works, the call only sets a bit, and the working thread does the work
/// once more. So the last run of the work sees everything that each thread did before it called `run`. The work itself
/// may call `run`, and so may a signal handler that interrupts the work: the work is then done once more. If a thread
/// of the parent was doing the work during a fork, a thread of the child can do the work nevertheless.
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
///         TURN.run(|| unreachable!("left to the thread that has the turn"));
///     }
/// });
/// assert_eq!(times.get(), 2);
/// ```
#[derive(Debug, Default)]
pub struct Turn(pub(crate) AtomicU64);

impl Turn {
    /// Does the same as [`run`](Self::run), for the process with the generation `process`, which is not 0.
    pub(crate) fn run_as(&self, process: u64, work: &mut dyn FnMut()) {
        let held = process << 1;
        let mut present = self.0.load(Ordering::Relaxed);
        loop {
            let is_held = present | AGAIN == held | AGAIN;
            let new = if is_held { held | AGAIN } else { held };
            // The compare-and-swap is made even if it leaves the word unchanged: its release ordering makes this
            // thread's stores visible to the thread that works.
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

/// A guard that ends the turn when the guard is dropped, which happens only if the work panics.
struct Holding<'a>(&'a Turn);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

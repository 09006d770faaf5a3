//! Calls callbacks when a value changes: in order, and never two calls at once.
//!
//! One thread at a time calls the callbacks. If another thread wants to call them meanwhile, it sets a flag and
//! returns; the first thread then compares the value once more. So the last change is always reported, earlier changes
//! may be skipped, and no thread waits here for a callback. The lock is not held during callbacks.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// The callbacks `C` for changes of a `T`, and the handle `S` of the thread that watches for changes.
pub(super) struct Notifier<T, C, S>(pub(super) Mutex<Registered<T, C, S>>);

pub(super) struct Registered<T, C, S> {
    pub(super) callbacks: Vec<(u64, C)>,
    pub(super) next_id: u64,
    /// The value that was last passed to the callbacks.
    pub(super) last: T,
    /// Whether a thread is calling the callbacks.
    pub(super) notifying: bool,
    /// Whether the thread that calls the callbacks must compare the value once more, before it stops.
    pub(super) again: bool,
    /// The handle of the thread that watches for changes, if there is such a thread.
    pub(super) thread: Option<S>,
}

impl<T: Copy + PartialEq, C: Clone, S> Notifier<T, C, S> {
    fn lock(&self) -> MutexGuard<'_, Registered<T, C, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last(&self) -> T {
        self.lock().last
    }

    /// Returns whether a thread is calling the callbacks.
    pub(super) fn is_notifying(&self) -> bool {
        self.lock().notifying
    }

    /// Adds a callback, and returns its id. If there was no callback before, `now` becomes the last value, so `now`
    /// itself is not reported.
    ///
    /// If there is no watching thread, calls `look`, which starts the thread and returns its handle. `look` returns
    /// `None` if no thread is needed.
    pub(super) fn add<E>(
        &self,
        callback: C,
        now: T,
        look: impl FnOnce() -> Result<Option<S>, E>,
    ) -> Result<u64, E> {
        let mut state = self.lock();
        if state.callbacks.is_empty() {
            state.last = now;
        }
        if state.thread.is_none() {
            state.thread = look()?;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.callbacks.push((id, callback));
        Ok(id)
    }

    /// Calls `look` to start the watching thread, if there are callbacks but no such thread.
    pub(super) fn ensure_thread<E>(&self, look: impl FnOnce() -> Result<Option<S>, E>) -> Result<(), E> {
        let mut state = self.lock();
        if state.thread.is_none() && !state.callbacks.is_empty() {
            state.thread = look()?;
        }
        Ok(())
    }

    /// Removes a callback. Returns the callback and, if no callback is left, the watching thread, which the caller must
    /// stop.
    pub(super) fn remove(&self, id: u64) -> (Option<C>, Option<S>) {
        let mut state = self.lock();
        let found = state.callbacks.iter().position(|(other, _)| *other == id);
        let callback = found.map(|at| state.callbacks.remove(at).1);
        let thread = if state.callbacks.is_empty() { state.thread.take() } else { None };
        (callback, thread)
    }

    /// If the value that `now` returns differs from the last value, calls `call` for each callback, with the last and
    /// the present value.
    pub(super) fn notify(&self, now: impl Fn() -> T, call: impl Fn(C, T, T)) {
        let mut state = self.lock();
        state.again = true;
        if state.notifying {
            return;
        }
        state.notifying = true;
        while std::mem::take(&mut state.again) {
            let now = now();
            if now == state.last {
                continue;
            }
            let before = std::mem::replace(&mut state.last, now);
            let callbacks: Vec<C> = state.callbacks.iter().map(|(_, callback)| callback.clone()).collect();
            drop(state);
            for callback in callbacks {
                call(callback, before, now);
            }
            state = self.lock();
            state.again = true; // The value may have changed during the calls.
        }
        state.notifying = false;
    }
}

//! Calls callbacks when a value changes: each change once, in order, never two calls at once.
//!
//! One thread notifies at a time. Another that comes meanwhile only marks that there may be more, and the one that
//! notifies looks once more: so the last change is always delivered, and nobody waits for a callback.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// The callbacks `C` for changes to a `T`, and the handle `S` of the thread that looks for them.
pub(super) struct Notifier<T, C, S>(pub(super) Mutex<Registered<T, C, S>>);

pub(super) struct Registered<T, C, S> {
    pub(super) callbacks: Vec<(u64, C)>,
    pub(super) next_id: u64,
    /// What the callbacks were called with last.
    pub(super) last: T,
    /// A thread is notifying; another that comes meanwhile sets `again`.
    pub(super) notifying: bool,
    pub(super) again: bool,
    /// The thread that looks, while there is one.
    pub(super) thread: Option<S>,
}

impl<T: Copy + PartialEq, C: Clone, S> Notifier<T, C, S> {
    fn lock(&self) -> MutexGuard<'_, Registered<T, C, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn last(&self) -> T {
        self.lock().last
    }

    /// Adds a callback, and starts the thread that looks if there is none and `look` finds it worth it. To the
    /// first, `now` is no change.
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

    /// Takes a callback out, with the thread that looks if it was the last.
    pub(super) fn remove(&self, id: u64) -> (Option<C>, Option<S>) {
        let mut state = self.lock();
        let found = state.callbacks.iter().position(|(other, _)| *other == id);
        let callback = found.map(|at| state.callbacks.remove(at).1);
        let thread = if state.callbacks.is_empty() { state.thread.take() } else { None };
        (callback, thread)
    }

    /// Calls the callbacks with what they were called with last and what is `now`, by `call`, if the two differ.
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
            state.again = true; // What changed while they were called is found now.
        }
        state.notifying = false;
    }
}

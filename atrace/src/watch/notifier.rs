//! Who is told of a change, and by whom: each change once, in order, never two at once.
//!
//! One thread tells at a time. Who comes meanwhile leaves word, and the one that tells looks once more: so the
//! last change is always told, and nobody waits for a callback.

use std::sync::PoisonError;

use crate::sync::{Mutex, MutexGuard};

/// Those who are told of changes to a `T`, each by its `C`, and the thread `S` that looks for them.
pub(super) struct Telling<T, C, S>(pub(super) Mutex<State<T, C, S>>);

pub(super) struct State<T, C, S> {
    pub(super) callbacks: Vec<(u64, C)>,
    pub(super) next_id: u64,
    /// What the callbacks know of.
    pub(super) told: T,
    /// Somebody is telling; who comes meanwhile leaves word in `again`.
    pub(super) telling: bool,
    pub(super) again: bool,
    /// The thread that looks, while there is one.
    pub(super) looking: Option<S>,
}

impl<T: Copy + PartialEq, C: Clone, S> Telling<T, C, S> {
    fn lock(&self) -> MutexGuard<'_, State<T, C, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn told(&self) -> T {
        self.lock().told
    }

    /// Adds a callback, and has somebody look if nobody does and `look` finds that worth it. To the first, `now`
    /// is no change.
    pub(super) fn add<E>(
        &self,
        callback: C,
        now: T,
        look: impl FnOnce() -> Result<Option<S>, E>,
    ) -> Result<u64, E> {
        let mut state = self.lock();
        if state.callbacks.is_empty() {
            state.told = now;
        }
        if state.looking.is_none() {
            state.looking = look()?;
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
        let looking = if state.callbacks.is_empty() { state.looking.take() } else { None };
        (callback, looking)
    }

    /// Tells what is `now`, by `call`, if it is not what was told last.
    pub(super) fn tell(&self, now: impl Fn() -> T, call: impl Fn(C, T)) {
        let mut state = self.lock();
        state.again = true;
        if state.telling {
            return;
        }
        state.telling = true;
        while std::mem::take(&mut state.again) {
            let now = now();
            if now == state.told {
                continue;
            }
            state.told = now;
            let callbacks: Vec<C> = state.callbacks.iter().map(|(_, callback)| callback.clone()).collect();
            drop(state);
            for callback in callbacks {
                call(callback, now);
            }
            state = self.lock();
            state.again = true; // What changed while they were called is found now.
        }
        state.telling = false;
    }
}

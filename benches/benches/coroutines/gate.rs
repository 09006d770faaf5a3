//! A gate where threads sleep until it is opened.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Lets threads go on, all at once.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Clone, Copy, Default)]
struct State {
    open: bool,
    /// How many have gone through.
    passed: u64,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait(&self) {
        let mut state = self.state();
        while !state.open {
            state = self.opened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.passed += 1;
    }

    pub(crate) fn open(&self) {
        self.state().open = true;
        self.opened.notify_all();
    }

    /// Begins again; returns how many had gone through.
    pub(crate) fn close(&self) -> u64 {
        std::mem::take(&mut *self.state()).passed
    }
}
